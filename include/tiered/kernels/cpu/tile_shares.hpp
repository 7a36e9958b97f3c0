/// Who computes which tiles of two products, one behind the other.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

namespace tiered::cpu {

/// Tiles of the groups' first products, then those of their second ones. Each member begins with its share of every group's rows, which is
/// where Team::read_ahead() puts them, and goes on with what others have left. No second one is given out before all first ones are.
class TileShares {
 public:
  static constexpr int most = 64;  ///< shares; a larger team's members begin with the same ones
  TileShares(std::int32_t n_first, std::int32_t n_second, std::int32_t n_groups, int n_members)
      : n_tiles_{n_first, n_second}, n_groups_(n_groups), n_shares_(std::min(n_members, most)) {}

  /// Index of a tile, group by group, first ones before second ones; their number where none is left.
  std::int64_t take(std::int32_t member) {
    for (int half = 0; half < 2; ++half) {
      for (std::int32_t i = 0; i < n_shares_; ++i) {
        std::int32_t const share = (member + i) % n_shares_;
        std::int32_t const begin = begin_of(half, share), each = begin_of(half, share + 1) - begin;
        std::atomic<std::int32_t>& taken = taken_[share].of[half];
        if (taken.load(std::memory_order_relaxed) >= each * n_groups_) continue;
        std::int32_t const k = taken.fetch_add(1, std::memory_order_relaxed);
        if (k < each * n_groups_)
          return std::int64_t{half} * n_tiles_[0] * n_groups_ + std::int64_t{k / each} * n_tiles_[half] + begin + k % each;
      }
    }
    return (std::int64_t{n_tiles_[0]} + n_tiles_[1]) * n_groups_;
  }

 private:
  std::int32_t begin_of(int half, std::int32_t share) const { return std::int32_t(std::int64_t{n_tiles_[half]} * share / n_shares_); }
  struct alignas(64) Taken {
    std::atomic<std::int32_t> of[2] = {0, 0};
  };
  std::int32_t n_tiles_[2], n_groups_, n_shares_;
  std::array<Taken, most> taken_;
};

}  // namespace tiered::cpu
