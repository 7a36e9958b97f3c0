/// What the memory gives a team of threads that only read.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "tiered/kernels/cpu/team.hpp"
#include "tiered/model/shard.hpp"

namespace bench {

/// Folds bytes into one word: eight chains, so that loads and not additions are waited for.
[[gnu::noinline]] inline std::uint64_t fold(std::byte const* bytes, std::size_t n) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 64 <= n; i += 64) {
    std::uint64_t words[8];
    std::memcpy(words, bytes + i, 64);
    for (int l = 0; l < 8; ++l) sums[l] ^= words[l];
  }
  return sums[0] ^ sums[1] ^ sums[2] ^ sums[3] ^ sums[4] ^ sums[5] ^ sums[6] ^ sums[7];
}

/// Bytes per second that all threads together read from the model's own weights where they lie: the best of several passes over
/// them (of the first gigabytes, where they are many). Model files larger than the caches are read from memory.
inline double read_rate(tiered::Team& team, tiered::ShardTable const& table) {
  constexpr std::size_t most_bytes = std::size_t{4} << 30, piece = std::size_t{1} << 18;
  std::vector<std::pair<std::byte const*, std::size_t>> pieces;
  std::size_t total = 0;
  for (tiered::Weight const& w : table.weights) {
    for (std::size_t at = 0; at < w.bytes() && total < most_bytes; at += piece) {
      std::size_t const n = std::min(piece, w.bytes() - at);
      pieces.emplace_back(w.data + at, n);
      total += n;
    }
  }
  double best_s = 1e30;
  for (int pass = 0; pass < 4; ++pass) {
    auto const begin = std::chrono::steady_clock::now();
    team.parallel_for(std::int64_t(pieces.size()), 1, [&](std::int64_t first, std::int64_t last) {
      std::uint64_t volatile kept = 0;
      for (std::int64_t i = first; i < last; ++i) kept = kept ^ fold(pieces[std::size_t(i)].first, pieces[std::size_t(i)].second);
    });
    best_s = std::min(best_s, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return double(total) / best_s;
}

}  // namespace bench
