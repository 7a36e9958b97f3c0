/// What AMX can multiply: the rates that its products are compared with.
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

inline constexpr int steps = 4;  ///< of 32 elements: 16 KiB of operands

[[gnu::target("amx-tile"), gnu::always_inline]] inline void load_operands(std::uint16_t const* p) {
  using Tiles = tiered::cpu::amx::HardwareTiles;
  Tiles::load<4>(p, 64);
  Tiles::load<5>(p + 512, 64);
  Tiles::load<6>(p + 1024, 64);
  Tiles::load<7>(p + 1536, 64);
}

/// `n` times four products, each to its own sums, so that none waits for another. `loading`: of operands [steps][4 tiles] that are
/// loaded for each four products, as a product of matrices must; else of tiles that stay where they are, which none can have.
template <bool loading>
[[gnu::target("amx-tile,amx-bf16")]] inline void multiply_tiles(std::uint16_t const* operands, std::int64_t n) {
  using Tiles = tiered::cpu::amx::HardwareTiles;
  tiered::cpu::amx::TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.rows[tile] = 16, config.row_bytes[tile] = 64;
  Tiles::configure(config);
  load_operands(operands);
  for (std::int64_t i = 0; i < n; ++i) {
    if constexpr (loading) load_operands(operands + i % steps * 2048);
    Tiles::multiply<0, 4, 6>();
    Tiles::multiply<1, 4, 7>();
    Tiles::multiply<2, 5, 6>();
    Tiles::multiply<3, 5, 7>();
  }
  Tiles::release();
}

}  // namespace amx_peak
#endif

/// Operations (two for each multiply-add) per second of all members of a team together, on bfloat16; 0 where there is no AMX.
struct AmxRates {
  double registers = 0;  ///< of tiles that are loaded once
  double loaded = 0;     ///< of tiles that come from the first-level cache, four for each four products: what matmul_amx.hpp does
};
inline AmxRates amx_bf16_flops(tiered::Team& team) {
#if defined(__x86_64__)
  if (!tiered::available(tiered::Isa::amx)) return {};
  alignas(64) static std::uint16_t operands[amx_peak::steps * 4 * 512];
  tiered::SplitMix64 random(1);
  for (std::uint16_t& v : operands) v = tiered::float_to_bfloat16(random.between(-1, 1));
  constexpr std::int64_t n = 20000;  // some 0.5 ms
  std::int64_t const parts = std::int64_t{8} * team.size();
  auto const rate = [&](void (*multiply)(std::uint16_t const*, std::int64_t)) {
    double best = 1e30;
    for (int run = 0; run < 5; ++run) {
      auto const begin = std::chrono::steady_clock::now();
      team.parallel_for(parts, 1, [&](std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) multiply(operands, n);
      });
      best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return double(parts) * double(n) * 4 * (2.0 * 16 * 16 * 32) / best;
  };
  return {rate(&amx_peak::multiply_tiles<false>), rate(&amx_peak::multiply_tiles<true>)};
#else
  (void)team;
  return {};
#endif
}
