/// Defines read_rate: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/profile/detail/read_bytes.hpp"
#include "tiered/profile/read_rate.hpp"

namespace tiered {

double read_rate(Team& team, std::span<std::span<std::byte const> const> regions, double seconds) {
  constexpr std::size_t piece_bytes = std::size_t{1} << 18;
  constexpr int n_rounds = 6;  // the best counts: other programs read, too
  std::vector<std::span<std::byte const>> pieces;
  for (std::span<std::byte const> const r : regions) {
    for (std::size_t at = 0; at < r.size(); at += piece_bytes) pieces.push_back(r.subspan(at, std::min(piece_bytes, r.size() - at)));
  }
  if (pieces.empty()) return 0;
  auto const read_piece = [read = detail::widest_reader()](std::span<std::byte const> piece) { return read(piece.data(), piece.size()); };
  std::atomic<std::uint64_t> sink{0};  // or nothing would be read at all
  std::size_t const per_loop = std::min(pieces.size(), std::size_t(team.size()) * 16);
  double best = 0;
  std::size_t next = 0;
  auto const now = [] { return std::chrono::steady_clock::now(); };
  for (int round = 0; round < n_rounds; ++round) {
    std::uint64_t bytes = 0;
    auto const begin = now();
    double spent = 0;
    do {
      for (std::size_t i = 0; i < per_loop; ++i) bytes += pieces[(next + i) % pieces.size()].size();
      team.parallel_for(std::int64_t(per_loop), 1, [&](std::int64_t from, std::int64_t to) {
        for (std::int64_t i = from; i < to; ++i)
          sink.fetch_xor(read_piece(pieces[(next + std::size_t(i)) % pieces.size()]), std::memory_order_relaxed);
      });
      next = (next + per_loop) % pieces.size();
      spent = std::chrono::duration<double>(now() - begin).count();
    } while (spent < seconds / n_rounds);
    best = std::max(best, double(bytes) / spent);
  }
  return best;
}

}  // namespace tiered
