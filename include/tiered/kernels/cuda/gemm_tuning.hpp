/// Where products of many rows change from one kernel to another: measured on the reference machine, in one place.
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/queue.hpp"

namespace tiered::cuda {

/// Stages of activations in shared memory: one is multiplied while the others arrive.
inline constexpr int tile_stages = 3;
/// Warps of a tile, of 32 rows of weights each, where there are enough tiles to fill the device.
inline constexpr int tile_warps = 4;

/// A tile has 32, 64, 96 or 128 tokens: the least that is not below their number, or where they are spread over experts, not below their
/// mean number times this. Parts of a tile without tokens cost little; a second tile decodes all weights again.
inline constexpr double tile_slack = 1.25;

/// Quantised weights are decoded for cuBLAS from so many tokens, and from so many elements on; below, within tiles. 4096 x 4096 of Q4_0
/// take 14 us to decode and 18 us by cuBLAS for 128 tokens, 80 us within tiles. Halves that must be copied first likewise.
inline constexpr std::int32_t cublas_min_tokens = 17;
inline constexpr std::int64_t cublas_min_elems = std::int64_t{1} << 20;
/// Tiles of 128 x 128 results a multiprocessor that each range of decoded rows must have: a small product leaves the device half empty.
inline constexpr double cublas_min_tiles = 0.1;

/// Products of so many multiplications leave rows of weights beyond a multiple of 8 to a product of their own: for others cuBLAS has slower
/// kernels. 3420 rows of 1280 by 4096: 175 us at once, 76 us in two.
inline constexpr std::int64_t cublas_split_macs = std::int64_t{1} << 31;

/// Tokens and warps of a tile.
struct TileChoice {
  int tokens = 128, warps = tile_warps;
};

/// For n_tokens rows; in groups, for so many in the mean.
inline TileChoice choose_tile(double n_tokens, std::int64_t n_groups, std::int32_t rows, CudaQueue const& queue) {
  TileChoice choice;
  if (shared_bytes_limit(queue.capability) < 96 << 10) choice.tokens = 64;  // larger ones do not fit
  double const wanted = n_groups > 1 ? n_tokens * tile_slack : n_tokens;
  while (choice.tokens > 32 && choice.tokens - 32 >= wanted) choice.tokens -= 32;
  auto const n_tiles = [&] {
    std::int64_t const of_rows = (rows + choice.warps * 32 - 1) / (choice.warps * 32);
    return of_rows * n_groups * std::int64_t(n_tokens / choice.tokens + 0.99);
  };
  while (n_tiles() < queue.n_multiprocessors) {  // fill the device: fewer rows a tile, then fewer tokens
    if (choice.warps > 2)
      choice.warps /= 2;
    else if (choice.tokens > 32 && n_tokens > 32)
      choice.tokens -= 32;
    else if (choice.warps > 1)
      choice.warps /= 2;
    else
      break;
  }
  return choice;
}

}  // namespace tiered::cuda
