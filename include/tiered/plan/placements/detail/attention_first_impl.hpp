/// Defines AttentionFirst: for one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tiered/plan/placements/attention_first.hpp"
#include "tiered/plan/placements/order.hpp"

namespace tiered {

Placements AttentionFirst::place(PlanRequest const& r) const {
  Placements out{r};
  if (detail::nothing_fits(r)) return detail::answer(r, std::move(out));
  VramAccount vram{r};
  // Many rows use nearly all experts: fetching them must stay possible.
  detail::ExpertsOf const experts{r};
  PassCost const& sums = experts.costs.all;
  std::size_t const wanted = sums.gpu_s + sums.copy_s < sums.host_s ? experts.layers.min_cache_bytes() : 0;
  std::size_t const reserve = vram.try_bytes(wanted) ? wanted : 0;
  std::vector<std::uint32_t> const& order = experts.layers.dense;
  for (ShardKind const kind : {ShardKind::attention, ShardKind::router, ShardKind::output, ShardKind::ffn}) {
    for (std::uint32_t const id : order) {
      if (r.shards[id].kind == kind) detail::try_with_state(r, id, vram, out);
    }
  }
  detail::HostHomes homes{r};
  for (std::uint32_t const id : order) {
    PassCost const& cost = r.costs[id];
    if (r.ring_bytes == 0 || out.shards[id].resident()) continue;
    VramAccount trial = vram;
    bool const with_state = detail::has_state(r.shards[id], r);
    bool const state_fits = with_state && trial.try_state(std::size_t(r.shards[id].layer));
    // Attention whose state is on the other device sends queries and results to and fro.
    int const hops = with_state && !state_fits ? 4 : 2;
    if (!(cost.copy_s + cost.gpu_s + hops * r.hop_s < cost.host_s)) continue;
    out.shards[id] = {homes.take(r.shards[id].bytes), 1};
    if (!state_fits) continue;
    out.state_in_vram[std::size_t(r.shards[id].layer)] = 1;
    vram = trial;
  }
  detail::place_experts(r, experts, reserve, vram, homes, out);
  return detail::answer(r, std::move(out));
}

}  // namespace tiered
