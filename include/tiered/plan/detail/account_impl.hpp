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

namespace detail {

/// Whether a step of one row is the device's alone, but for experts that are missing.
inline bool launches_at_once(PlanRequest const& r, Placements const& p) {
  if (!r.launches_attention || r.deterministic || r.rows.n != 1) return false;
  for (std::size_t i = 0; i < r.shards.size(); ++i) {
    Placement const& at = p.shards[i];
    if (r.shards[i].kind != ShardKind::embedding && !at.resident() && !(r.shards[i].kind == ShardKind::expert && at.cached)) return false;
  }
  return true;
}

/// One share for all layers: of what lies in host memory, at the rates that host and link have beside each other.
inline void share_reading(PlanRequest const& r, ShardPlan& plan) {
  double host_s = 0, copy_s = 0, n_tokens = 0;
  for (std::size_t l = 0; l < r.states.size(); ++l) {
    if (r.states[l].bytes_per_token == 0 || plan.state_in_vram[l] >= 1) continue;
    double const used = r.states_used * double(r.rows.context) / double((std::max)(r.rows.n_sequences, 1));
    n_tokens += r.states[l].window > 0 ? (std::min)(used, double(r.states[l].window)) : used;
    host_s += r.state_costs[l].host_s;
    copy_s += (std::max)(r.state_costs[l].copy_s, r.state_costs[l].gpu_s);
  }
  if (n_tokens <= 0 || host_s <= 0 || !std::isfinite(copy_s)) return;
  constexpr double most_tokens = 1 << 16;
  double const read = read_attention({host_s, 0, copy_s}, 0, r.mutual_attention).read;
  plan.state_read_share = float(read);
  if (read < 1)
    plan.state_read_tokens = std::int32_t((std::min)(2 * r.hop_s * r.mutual_attention.host_share / (host_s / n_tokens), most_tokens));
}

}  // namespace detail

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
  bool const at_once = detail::launches_at_once(r, p);
  plan.shards = std::move(p.shards);
  plan.state_in_vram = std::move(p.state_in_vram);
  if (at_once) detail::share_reading(r, plan);
  plan.chunk_tokens = plan.block_tokens = r.rows.n;
  return plan;
}

}  // namespace tiered
