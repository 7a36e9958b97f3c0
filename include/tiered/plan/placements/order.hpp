/// What the built-in placements share: experts, a layer's weights together with its state, homes in host memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "tiered/plan/account.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/placement.hpp"

namespace tiered::detail {

inline bool has_state(Shard const& shard, PlanRequest const& r) {
  return shard.kind == ShardKind::attention && shard.layer >= 0 && std::size_t(shard.layer) < r.states.size();
}

/// The experts of a request and what they cost, made where nobody has them already.
class ExpertsOf {
 public:
  explicit ExpertsOf(PlanRequest const& r)
      : layers(r.experts != nullptr ? *r.experts : own_layers_.emplace(r.shards)),
        costs(r.expert_costs != nullptr ? *r.expert_costs : own_costs_.emplace(layers, r.costs)) {}
  ExpertsOf(ExpertsOf const&) = delete;

 private:
  std::optional<ExpertLayers> own_layers_;
  std::optional<ExpertCosts> own_costs_;

 public:
  ExpertLayers const& layers;
  ExpertCosts const& costs;
};

inline bool device_can(PlanRequest const& r, std::size_t shard) { return r.costs[shard].gpu_s < 1e300; }

/// Scratch, ring and the states that are fixed there leave the device nothing to work in.
inline bool nothing_fits(PlanRequest const& r) { return VramAccount{r}.used_bytes() > r.budget.vram_bytes; }

/// A ring that nothing goes through only takes room: then the answer is the one without a ring.
inline Placements answer(PlanRequest const& r, Placements out) {
  if (r.ring_bytes == 0) return out;
  out.declined = true;
  for (Placement const& p : out.shards) out.declined = out.declined && !p.streamed();
  return out;
}

/// Homes of what is computed on the device but not kept there: page-locked while the budget for that lasts.
class HostHomes {
 public:
  explicit HostHomes(PlanRequest const& r) : left_(r.budget.pinned_bytes) {}
  Tier take(std::size_t bytes) {
    if (bytes > left_) return Tier::pageable;
    left_ -= bytes;
    return Tier::pinned;
  }

 private:
  std::size_t left_;
};

/// A shard resident, an attention shard together with its layer's state; both or neither.
inline bool try_with_state(PlanRequest const& r, std::size_t shard, VramAccount& vram, Placements& out) {
  if (!device_can(r, shard)) return false;
  VramAccount trial = vram;
  if (!trial.try_resident(shard)) return false;
  if (has_state(r.shards[shard], r)) {
    std::size_t const layer = std::size_t(r.shards[shard].layer);
    if (r.state_costs[layer].gpu_s >= 1e300) return false;
    bool const in_vram = trial.try_state(layer);
    if (!in_vram && r.fixed_state_in_vram.empty()) return false;
    if (in_vram) out.state_in_vram[layer] = 1;
  }
  vram = trial;
  out.shards[shard] = {Tier::vram, 1};
  return true;
}

/// Experts with what VRAM is left, after everything that every token reads: all resident, or resident as far as they go and
/// the rest on the host, or all through a cache that is as large as what is left: whichever is expected to be fastest. `reserve`
/// bytes of the account were kept for them.
inline void place_experts(PlanRequest const& r, ExpertsOf const& of, std::size_t reserve, VramAccount vram, HostHomes& homes,
                          Placements& out) {
  ExpertLayers const& experts = of.layers;
  PassCost const& sums = of.costs.all;
  if (experts.ids.empty() || sums.gpu_s >= 1e300) return;
  std::size_t const room = (vram.free_bytes() + reserve) / weight_alignment * weight_alignment;
  std::size_t const shared = unused_state_bytes(r, out.state_in_vram);
  bool const whole_layers = uses_whole_layer(r.shards[experts.ids.front()], r.rows.n);
  std::size_t const least = shared > 0 ? experts.min_left_bytes(whole_layers) : experts.min_cache_bytes();
  double const fits = expected_hits(room, experts.bytes), hits = expected_hits(room + shared, experts.bytes);
  double const cached_s = sums.gpu_s + (1 - hits) * sums.copy_s;
  double const split_s = fits >= 1 ? sums.gpu_s : (std::max)(fits * sums.gpu_s, (1 - fits) * sums.host_s);
  if (fits < 1 && room >= least && cached_s < split_s) {
    out.cache_bytes = room;
    for (std::uint32_t id : experts.ids) out.shards[id] = {homes.take(r.shards[id].bytes), 1, true};
    return;
  }
  // The same number of every layer, so that no layer has only slow ones.
  std::size_t left = room;
  for (std::size_t k = 0, placed = 1; placed > 0; ++k) {
    placed = 0;
    for (ExpertLayer const& layer : experts.layers) {
      if (k >= layer.size()) continue;
      std::uint32_t const id = experts.ids[layer.begin + k];
      std::size_t const bytes = VramAccount::round_up(r.shards[id].bytes);
      if (bytes > left) return;
      left -= bytes;
      out.shards[id] = {Tier::vram, 1};
      ++placed;
    }
  }
}

}  // namespace tiered::detail
