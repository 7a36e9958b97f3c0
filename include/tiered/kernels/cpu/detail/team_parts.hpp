/// The parts of a loop and who takes which: everybody a range of their own, then what others have left.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace tiered::detail {

/// Parts [0, n_parts) of the loop numbered `tag`, spread evenly over n_workers. Plain data that all workers of the loop read.
struct PartSplit {
  std::uint32_t tag = 0, n_parts = 0, n_workers = 1;

  struct Parts {
    std::uint32_t begin, end;
    bool empty() const { return begin >= end; }
  };
  /// What a worker begins with: neighbouring parts, so that each worker reads memory of its own from front to back.
  Parts first_of(std::uint32_t worker) const {
    std::uint32_t const each = n_parts / n_workers, more = n_parts % n_workers;
    std::uint32_t const begin = worker * each + (worker < more ? worker : more);
    return {begin, begin + each + (worker < more ? 1 : 0)};
  }
};

/// What each worker has left, one word on a cache line each: (tag << 44) | (begin << 22) | end. A word with the tag of an
/// earlier loop stands for what the worker begins with, so that opening a loop writes none of them, and a worker that never comes
/// is no different from a slow one: others take its parts.
///
/// A word of one loop may hold the same range twice (parts that were taken away and taken back); that a compare-and-swap cannot
/// tell is harmless, as the range is all there is to know. Order is relaxed: no data is passed on, results are by who ends a loop.
class PartRanges {
 public:
  static constexpr std::int64_t max_parts = (1 << 22) - 1;
  static constexpr std::uint32_t tag_mask = (1u << 20) - 1;

  explicit PartRanges(int n_workers) : ranges_(std::size_t(n_workers)) {}

  /// The next part for `worker`, or -1 when nobody has any left that is not begun. Any number of workers at a time.
  std::int64_t take(PartSplit const& split, std::uint32_t worker) {
    std::atomic<std::uint64_t>& own = ranges_[worker].word;
    std::uint64_t word = own.load(std::memory_order_relaxed);
    for (;;) {
      PartSplit::Parts const left = parts_of(word, split, worker);
      if (left.empty()) return take_from_others(split, worker);
      if (own.compare_exchange_weak(word, packed(split.tag, left.begin + 1, left.end), std::memory_order_relaxed)) return left.begin;
    }
  }
  /// Before a tag is used again: no word may still have it. Tag 0 is for this alone; nobody may be taking.
  void forget_tags() {
    for (Range& range : ranges_) range.word.store(0, std::memory_order_relaxed);
  }

 private:
  struct alignas(64) Range {
    std::atomic<std::uint64_t> word{0};
  };
  static constexpr std::uint64_t packed(std::uint32_t tag, std::uint32_t begin, std::uint32_t end) {
    return std::uint64_t{tag} << 44 | std::uint64_t{begin} << 22 | end;
  }
  static PartSplit::Parts parts_of(std::uint64_t word, PartSplit const& split, std::uint32_t worker) {
    if (word >> 44 != split.tag) return split.first_of(worker);
    return {std::uint32_t(word >> 22 & max_parts), std::uint32_t(word & max_parts)};
  }

  /// The later half of what the next worker that has any has left; the rest of it becomes the thief's own.
  std::int64_t take_from_others(PartSplit const& split, std::uint32_t worker) {
    for (std::uint32_t i = 1; i < split.n_workers; ++i) {
      std::uint32_t const other = (worker + i) % split.n_workers;
      std::uint64_t word = ranges_[other].word.load(std::memory_order_relaxed);
      for (;;) {
        PartSplit::Parts const left = parts_of(word, split, other);
        if (left.empty()) break;
        std::uint32_t const middle = left.begin + (left.end - left.begin) / 2;
        if (!ranges_[other].word.compare_exchange_weak(word, packed(split.tag, left.begin, middle), std::memory_order_relaxed)) continue;
        // Its own word is empty and of this loop, so nobody else writes it now.
        ranges_[worker].word.store(packed(split.tag, middle + 1, left.end), std::memory_order_relaxed);
        return middle;
      }
    }
    return -1;
  }

  std::vector<Range> ranges_;
};

}  // namespace tiered::detail
