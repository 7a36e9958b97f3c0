/// Which products of few rows go through matrix units (few_mma.cuh), and how those cut weights. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {

/// The choice of path: matrix units from so many rows on. Of the time that memory allows, an H200 reaches 53 % there with 4 rows of
/// activations and weights in blocks, and 67 % in lanes; with 16 rows 46 % and 25 %. Floats in lanes are bound by shared memory from 8 rows
/// on, those of 4 bytes from 16.
template <class F>
inline constexpr int few_mma_from = F::block_elems == 1 && F::block_bytes == 4 ? 9 : 5;

template <class F>
constexpr bool few_mma_takes(int n_rows, int capability) {
  return capability >= 80 && n_rows >= few_mma_from<F>;
}

/// From so many rows on they are normed and quantised once, by a kernel before; fewer by each block for itself. Quantising costs a block
/// about 3 us for 4 rows of 4096, a kernel with what it leaves behind in L2 as much.
inline constexpr int few_mma_prepared_from = 5;

/// Weights on their way to one warp: two to four stages. Half of 16 rings is what bandwidth times latency ask for, and more.
inline constexpr int few_mma_ring_bytes = 7424;
inline constexpr int few_mma_warps = 16;
inline constexpr int few_mma_max_phases = 16;

/// How a warp takes weights where it has 8 * tokens rows of activations: 8 rows at a time of them, or 16 for 16, since then it is shared
/// memory that is scarce, and activations are read once for both. A step: 32 elements in blocks, or 16 bytes of floats for each of the four
/// lanes of a row.
template <class F, int tokens>
struct MmaCut {
  static constexpr bool blocks = FewChunk<F>::blocks;
  static constexpr int step_elems = blocks ? 32 : 4 * FewChunk<F>::elems;
  static constexpr int tiles = tokens, rows = 8 * tiles;
  /// Of a stage: in blocks, eight or, where those are few bytes, two times eight.
  static constexpr int steps = !blocks ? 4 / tiles : FewChunk<F>::bytes(8) <= 192 / tiles ? 16 : 8;
  static constexpr int bytes = blocks ? FewChunk<F>::bytes(steps) : 64 * steps;  ///< of one row
  /// One row in a stage, at any alignment: an odd number of 16 bytes, so that 8 rows begin in different banks.
  static constexpr int row_bytes = ((bytes + 30) / 16 | 1) * 16;
  static constexpr int stage_bytes = rows * row_bytes;
  static constexpr int stages_of_ring = few_mma_ring_bytes / stage_bytes;
  static constexpr int n_stages = stages_of_ring > 4 ? 4 : stages_of_ring < 2 ? 2 : stages_of_ring;
  static constexpr int ring_bytes = n_stages * stage_bytes;
  /// Formats of so many bytes need fewer instructions to a byte, and their rings leave no room for 16.
  static constexpr int warps = ring_bytes > few_mma_ring_bytes ? few_mma_warps / 2 : few_mma_warps;
};

}  // namespace tiered::cuda
