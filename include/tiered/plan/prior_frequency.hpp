/// Evicts the expert that was used least lately, and before there is a lately, in earlier runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tiered/plan/frequency_decay.hpp"

namespace tiered {

/// FrequencyDecay that is told how often each expert was used in earlier runs, and counts how often it is in this one: begin_with() and
/// uses() of plan/eviction.hpp. What it was told counts like some steps before the first, and is forgotten like them. O(log n) a call.
///
/// The defaults are from a simulation of routing (8 of 128 experts a layer, some liked always, others while a text has a topic; 1024
/// steps). Hits in percent with a cache of 1/8, 1/4, 1/2 of the experts: where topics last 300 steps, 29, 52, 83 of Lru and 42, 63, 86 of
/// 16 steps, 43, 64, 87 of 64; where they last 30, 35, 59, 83 of Lru, 40, 60, 83 of 16 and 33, 52, 78 of 64. Of the first 128 steps the
/// prior makes 1 to 5 points more. A prior of 64 steps and more is worth less wherever a text has a topic of its own.
class PriorFrequency {
 public:
  explicit PriorFrequency(double half_life_steps = 32, double prior_steps = 16) : decayed_(half_life_steps), prior_steps_(prior_steps) {}

  void touch(ShardId s, std::uint64_t step) {
    decayed_.touch(s, step);
    last_step_ = step;
    if (std::size_t(s) >= uses_.size()) uses_.resize(std::size_t(s) + 1, 0);
    ++uses_[std::size_t(s)];
  }
  bool admit(ShardId s) { return decayed_.admit(s); }
  void insert(ShardId s) { decayed_.insert(s); }
  void erase(ShardId s) { decayed_.erase(s); }
  std::optional<ShardId> victim() { return decayed_.victim(); }

  /// `uses_per_step` by shard. What was touched before is forgotten, also of those that are not in it.
  void begin_with(std::span<double const> uses_per_step) {
    for (std::size_t s = 0; s < std::max(uses_.size(), uses_per_step.size()); ++s) {
      double const rate = s < uses_per_step.size() ? uses_per_step[s] : 0;
      decayed_.assume(ShardId(std::uint32_t(s)), prior_steps_ * rate, last_step_);
    }
    uses_.clear();
  }
  /// By shard, since begin_with(); shards beyond the end were not used.
  std::span<std::uint64_t const> uses() const { return uses_; }

 private:
  FrequencyDecay decayed_;
  double prior_steps_;
  std::uint64_t last_step_ = 0;
  std::vector<std::uint64_t> uses_;
};
static_assert(EvictionPolicy<PriorFrequency>);

}  // namespace tiered
