/// Evicts the expert that was used least, where a use counts half as much after some number of steps.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tiered/plan/eviction.hpp"

namespace tiered {

/// Uses are remembered of experts outside the cache too. O(log n) a call. Equal scores: the lower shard leaves first.
class FrequencyDecay {
 public:
  explicit FrequencyDecay(double half_life_steps = 4096) : half_life_steps_(half_life_steps) {}

  void touch(ShardId s, std::uint64_t step) {
    grow(s);
    Entry& entry = entries_[std::size_t(s)];
    if (entry.inserted) order_.erase({entry.log_score, s});
    // The score is the sum of 2^(step / half_life) over all uses: dividing all by 2^(now / half_life) would not change the
    // order. Kept as its logarithm, it never overflows.
    double const use = double(step) / half_life_steps_;
    double const high = std::fmax(entry.log_score, use), low = std::fmin(entry.log_score, use);
    entry.log_score = high + std::log2(1 + std::exp2(low - high));
    if (entry.inserted) order_.insert({entry.log_score, s});
  }
  /// Always: the expert is fetched in any case, and is in use.
  bool admit(ShardId) { return true; }
  void insert(ShardId s) {
    grow(s);
    Entry& entry = entries_[std::size_t(s)];
    entry.inserted = true;
    order_.insert({entry.log_score, s});
  }
  void erase(ShardId s) {
    if (std::size_t(s) >= entries_.size() || !entries_[std::size_t(s)].inserted) return;
    order_.erase({entries_[std::size_t(s)].log_score, s});
    entries_[std::size_t(s)].inserted = false;
  }
  std::optional<ShardId> victim() {
    if (order_.empty()) return std::nullopt;
    return order_.begin()->second;
  }

 private:
  struct Entry {
    double log_score = -1e9;  ///< base 2; never used
    bool inserted = false;
  };
  void grow(ShardId s) {
    if (std::size_t(s) >= entries_.size()) entries_.resize(std::size_t(s) + 1);
  }

  double half_life_steps_;
  std::vector<Entry> entries_;
  std::set<std::pair<double, ShardId>> order_;
};
static_assert(EvictionPolicy<FrequencyDecay>);

}  // namespace tiered
