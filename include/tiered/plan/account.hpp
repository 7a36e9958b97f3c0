/// All byte accounting of VRAM, in one class that policies ask and make_plan replays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/plan/placement.hpp"

namespace tiered {

/// The answer to a PlanRequest with its bytes counted. A value: prints (plan/plan_io.hpp), compares, needs no GPU.
struct ShardPlan {
  std::vector<Placement> shards;
  std::vector<float> state_in_vram;
  std::size_t ring_bytes = 0, cache_bytes = 0, scratch_bytes = 0;
  std::size_t resident_bytes = 0, state_bytes = 0;  ///< weights at home in VRAM; layer states there, as many as there may be
  std::size_t shared_bytes = 0;                     ///< of state_bytes, what cache_bytes has, too: the cache's until states need it
  std::size_t vram_bytes = 0;                       ///< sum of all five, less what is shared; 0 where the device does nothing
  std::size_t shortfall_bytes = 0;                  ///< what is missing to the budget: such a plan cannot run
  float fetched_misses = 1;                         ///< see Placements
  bool deterministic = false;                       ///< as in PlanRequest; then misses are fetched
  /// Where one row, which has the device to itself, attends to states of which some are in host memory: the device reads this share of
  /// what is there over the link, and of so many tokens more, the host attends to the rest meanwhile. 0: the host does it all.
  float state_read_share = 0;
  std::int32_t state_read_tokens = 0;
  std::int32_t chunk_tokens = 0;                    ///< rows that go through a step at once: scratch is for these
  std::int32_t block_tokens = 0;   ///< rows that go through a layer before any goes to the next; a multiple of chunk_tokens
  std::int32_t expert_tokens = 0;  ///< rows of a block whose outputs of experts are kept at once, where these come in windows; 0: all
  ExpertShare share = {};          ///< by which the host takes a part of the experts that come in windows; never where deterministic
  bool operator==(ShardPlan const&) const = default;
};

/// Bytes of VRAM taken so far. Sizes are rounded up to weight_alignment, as the arena does.
class VramAccount {
 public:
  explicit VramAccount(PlanRequest const& r) : request_(&r), used_(sum(round_up(r.scratch_bytes), round_up(r.ring_bytes))) {
    for (std::size_t l = 0; l < r.fixed_state_in_vram.size(); ++l) add_state(l, double(r.fixed_state_in_vram[l]));
  }
  std::size_t used_bytes() const { return used_; }
  std::size_t free_bytes() const { return used_ < request_->budget.vram_bytes ? request_->budget.vram_bytes - used_ : 0; }
  bool try_resident(std::size_t shard) { return try_bytes(request_->shards[shard].bytes); }
  /// Where states are fixed the answer is what they are, and nothing more is taken.
  bool try_state(std::size_t layer, double share = 1) {
    if (!request_->fixed_state_in_vram.empty()) return double(request_->fixed_state_in_vram[layer]) >= share;
    return try_bytes(request_->state_bytes(layer, share));
  }
  bool try_bytes(std::size_t bytes) {
    return used_ <= request_->budget.vram_bytes && round_up(bytes) <= free_bytes() && (used_ += round_up(bytes), true);
  }
  void add_bytes(std::size_t bytes) { used_ = sum(used_, round_up(bytes)); }  ///< make_plan: counts what does not fit, too
  void add_state(std::size_t layer, double share) { add_bytes(request_->state_bytes(layer, share)); }
  /// To whole units of weight_alignment; sizes that no memory has stay as large as can be, here and in sums.
  static constexpr std::size_t round_up(std::size_t bytes) {
    return bytes > most_bytes ? most_bytes : (bytes + weight_alignment - 1) / weight_alignment * weight_alignment;
  }
  static constexpr std::size_t sum(std::size_t a, std::size_t b) { return a > most_bytes || b > most_bytes - a ? most_bytes : a + b; }
  static constexpr std::size_t most_bytes = (std::size_t{1} << 62);

 private:
  PlanRequest const* request_;
  std::size_t used_ = 0;
};

/// Of these states in VRAM, or those that are fixed, what costs' contexts do not use: with that an expert cache is larger, until they
/// need it.
std::size_t unused_state_bytes(PlanRequest const& r, std::span<float const> state_in_vram);

/// Counts a policy's answer, whose cache gets what the states do not use, besides. Fixed states replace the policy's. A plan in which the
/// device does nothing takes no VRAM.
ShardPlan make_plan(PlanRequest const& r, Placements p);

}  // namespace tiered
