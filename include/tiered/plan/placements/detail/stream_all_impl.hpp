/// Defines StreamAll: for one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/plan/placements/order.hpp"
#include "tiered/plan/placements/stream_all.hpp"

namespace tiered {

Placements StreamAll::place(PlanRequest const& r) const {
  Placements out{r};
  out.declined = true;
  if (r.ring_bytes == 0 || detail::nothing_fits(r)) return out;
  VramAccount vram{r};
  detail::ExpertsOf const of{r};
  ExpertLayers const& experts = of.layers;
  bool const caches = !experts.ids.empty() && vram.try_bytes(experts.min_cache_bytes());
  if (!caches && experts.min_cache_bytes() > 0 &&
      vram.used_bytes() - VramAccount::round_up(r.ring_bytes) + experts.min_cache_bytes() < r.budget.vram_bytes) {
    return out;
  }
  detail::HostHomes homes{r};
  for (std::uint32_t const id : experts.dense) {
    if (!detail::device_can(r, id)) continue;
    out.declined = false;
    out.shards[id] = {homes.take(r.shards[id].bytes), 1};
    if (!detail::has_state(r.shards[id], r)) continue;
    std::size_t const layer = std::size_t(r.shards[id].layer);
    if (r.state_costs[layer].gpu_s < 1e300 && vram.try_state(layer)) out.state_in_vram[layer] = 1;
  }
  if (caches) {
    out.cache_bytes = experts.min_cache_bytes();
    for (std::uint32_t const id : experts.ids) {
      if (detail::device_can(r, id)) out.shards[id] = {homes.take(r.shards[id].bytes), 1, true};
    }
  }
  return out;
}

}  // namespace tiered
