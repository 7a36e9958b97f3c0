/// Defines make_plan: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

#include "tiered/plan/account.hpp"

namespace tiered {

std::size_t unused_state_bytes(PlanRequest const& r, std::span<float const> state_in_vram) {
  if (!r.fixed_state_in_vram.empty()) state_in_vram = r.fixed_state_in_vram;
  std::size_t unused = 0;
  for (std::size_t l = 0; l < r.states.size(); ++l) {
    if (r.states[l].bytes_per_token == 0) continue;
    double const pages = r.state_pages, used = pages > 0 ? std::ceil(r.states_used * pages) / pages : r.states_used;
    double const share = double(state_in_vram[l]);
    if (used >= share) continue;
    std::size_t const all = VramAccount::round_up(r.state_bytes(l, share));
    unused = VramAccount::sum(unused, all - (std::min)(all, VramAccount::round_up(r.state_bytes(l, used))));
  }
  return unused;
}

ShardPlan make_plan(PlanRequest const& r, Placements p) {
  if (!r.fixed_state_in_vram.empty()) p.state_in_vram.assign(r.fixed_state_in_vram.begin(), r.fixed_state_in_vram.end());
  ShardPlan plan;
  bool uses_device = false, streams = false, caches = false;
  for (std::size_t i = 0; i < r.shards.size(); ++i) {
    uses_device |= p.shards[i].gpu_rows > 0;
    streams |= p.shards[i].streamed();
    caches |= p.shards[i].cached;
    if (p.shards[i].resident()) plan.resident_bytes = VramAccount::sum(plan.resident_bytes, VramAccount::round_up(r.shards[i].bytes));
  }
  for (std::size_t l = 0; l < r.states.size(); ++l) {
    plan.state_bytes = VramAccount::sum(plan.state_bytes, VramAccount::round_up(r.state_bytes(l, double(p.state_in_vram[l]))));
  }
  uses_device |= plan.state_bytes > 0;
  std::size_t const own_cache_bytes = caches ? VramAccount::round_up(p.cache_bytes) : 0;
  plan.shared_bytes = caches ? unused_state_bytes(r, p.state_in_vram) : 0;
  plan.cache_bytes = VramAccount::sum(own_cache_bytes, plan.shared_bytes);
  plan.ring_bytes = streams ? VramAccount::round_up(r.ring_bytes) : 0;
  plan.scratch_bytes = uses_device ? VramAccount::round_up(r.scratch_bytes) : 0;
  for (std::size_t bytes : {plan.resident_bytes, plan.state_bytes, own_cache_bytes, plan.ring_bytes, plan.scratch_bytes}) {
    plan.vram_bytes = VramAccount::sum(plan.vram_bytes, bytes);
  }
  plan.shortfall_bytes = plan.vram_bytes > r.budget.vram_bytes ? plan.vram_bytes - r.budget.vram_bytes : 0;
  plan.fetched_misses = caches && !r.deterministic ? p.fetched_misses : 1;
  plan.deterministic = r.deterministic;
  plan.shards = std::move(p.shards);
  plan.state_in_vram = std::move(p.state_in_vram);
  plan.chunk_tokens = plan.block_tokens = r.rows.n;
  return plan;
}

}  // namespace tiered
