/// What AMX can multiply: the rate that its products are compared with.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "tiered/kernels/cpu/table.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/kernels/format/half.hpp"
#include "tiered/sim/split_mix.hpp"
#if defined(__x86_64__)
#include "tiered/kernels/cpu/tiles_amx.hpp"
#endif

#if defined(__x86_64__)
namespace amx_peak {

/// `n` times four products of loaded tiles, each to its own sums, so that none waits for another.
[[gnu::target("amx-tile,amx-bf16")]] inline void multiply_tiles(std::uint16_t const* operands, std::int64_t n) {
  using Tiles = tiered::cpu::amx::HardwareTiles;
  tiered::cpu::amx::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.rows[tile] = 16, config.row_bytes[tile] = 64;
  Tiles::configure(config);
  Tiles::load<4>(operands, 64);
  Tiles::load<5>(operands + 512, 64);
  Tiles::load<6>(operands + 1024, 64);
  Tiles::load<7>(operands + 1536, 64);
  for (std::int64_t i = 0; i < n; ++i) {
    Tiles::multiply<0, 4, 6>();
    Tiles::multiply<1, 4, 7>();
    Tiles::multiply<2, 5, 6>();
    Tiles::multiply<3, 5, 7>();
  }
  Tiles::release();
}

}  // namespace amx_peak
#endif

/// Operations (two for each multiply-add) per second of all members of the team together, on bfloat16; 0 where there is no AMX.
inline double amx_bf16_flops(tiered::Team& team) {
#if defined(__x86_64__)
  if (!tiered::available(tiered::Isa::amx)) return 0;
  alignas(64) std::uint16_t operands[4 * 512];
  tiered::SplitMix64 random(1);
  for (std::uint16_t& v : operands) v = tiered::float_to_bfloat16(random.between(-1, 1));
  constexpr std::int64_t n = 20000;  // some 0.5 ms
  std::int64_t const parts = std::int64_t{8} * team.size();
  double best = 1e30;
  for (int run = 0; run < 5; ++run) {
    auto const begin = std::chrono::steady_clock::now();
    team.parallel_for(parts, 1, [&](std::int64_t first, std::int64_t end) {
      for (std::int64_t i = first; i < end; ++i) amx_peak::multiply_tiles(operands, n);
    });
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return double(parts) * double(n) * 4 * (2.0 * 16 * 16 * 32) / best;
#else
  (void)team;
  return 0;
#endif
}
