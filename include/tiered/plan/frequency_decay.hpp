/// Evicts the expert that was used least, where a use counts half as much after some number of steps.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "tiered/plan/eviction.hpp"

namespace tiered {

/// Uses are remembered of experts outside the cache too. Equal scores: the lower shard leaves first. A touch takes constant time; who asks
/// for a victim puts into order what was touched since: amortised O(log n) a call.
class FrequencyDecay {
 public:
  explicit FrequencyDecay(double half_life_steps = 4096) : half_life_steps_(half_life_steps) {}

  void touch(ShardId s, std::uint64_t step) {
    // The score is the sum of 2^(step / half_life) over all uses: dividing all by 2^(now / half_life) would not change the
    // order. Kept as its logarithm, it never overflows.
    double& score = at(s).log_score;
    double const use = double(step) / half_life_steps_;
    double const high = std::fmax(score, use), low = std::fmin(score, use);
    score = high + std::log2(1 + std::exp2(low - high));
  }
  /// As if s had been used so often in `step`, and never before.
  void assume(ShardId s, double uses, std::uint64_t step) {
    at(s).log_score = uses > 0 ? std::log2(uses) + double(step) / half_life_steps_ : never;
    is_ordered_ = false;  // it may be less than before
  }
  /// Always: the expert is fetched in any case, and is in use.
  bool admit(ShardId) { return true; }
  void insert(ShardId s) {
    Entry& entry = at(s);
    entry.inserted = true;
    if (!entry.queued) push(s);
  }
  void erase(ShardId s) {
    if (std::size_t(s) < entries_.size()) entries_[std::size_t(s)].inserted = false;
  }
  std::optional<ShardId> victim() {
    if (!std::exchange(is_ordered_, true)) order_again();
    while (!queue_.empty()) {
      auto const [score, s] = queue_.front();
      if (entries_[std::size_t(s)].inserted && entries_[std::size_t(s)].log_score == score) return s;
      pop();
      if (entries_[std::size_t(s)].inserted) push(s);
    }
    return std::nullopt;
  }

 private:
  static constexpr double never = -1e9;
  struct Entry {
    double log_score = never;  ///< base 2
    bool inserted = false;
    bool queued = false;  ///< once, perhaps with a score of the past, which is no higher
  };

  static bool leaves_later(std::pair<double, ShardId> a, std::pair<double, ShardId> b) { return a > b; }
  Entry& at(ShardId s) {
    if (std::size_t(s) >= entries_.size()) entries_.resize(std::size_t(s) + 1);
    return entries_[std::size_t(s)];
  }
  void push(ShardId s) {
    Entry& entry = entries_[std::size_t(s)];
    entry.queued = true;
    queue_.push_back({entry.log_score, s});
    std::push_heap(queue_.begin(), queue_.end(), leaves_later);
  }
  void pop() {
    entries_[std::size_t(queue_.front().second)].queued = false;
    std::pop_heap(queue_.begin(), queue_.end(), leaves_later);
    queue_.pop_back();
  }
  void order_again() {
    for (auto& [score, s] : queue_) score = entries_[std::size_t(s)].log_score;
    std::make_heap(queue_.begin(), queue_.end(), leaves_later);
  }

  double half_life_steps_;
  std::vector<Entry> entries_;
  std::vector<std::pair<double, ShardId>> queue_;  ///< a heap, the least in front
  bool is_ordered_ = true;
};
static_assert(EvictionPolicy<FrequencyDecay>);

}  // namespace tiered
