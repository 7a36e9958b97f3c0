/// A warp's steps of products of few rows by matrix units: a stage of weights in shared memory, 8 or 16 rows of activations.
/// [device-visible]
///
/// Of lane 4 g + j: row g of a tile of 8 rows of weights, of which it takes words j and 4 + j of eight, or piece j of four, is a column of
/// the product. Its sums are of tokens g and g + 8, rows 2j and 2j + 1. Blocks' scales are needed by other lanes than their bytes: they go
/// through a table in shared memory, of 8 steps at a time.
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/few_mma_input.cuh"
#include "tiered/kernels/cuda/few_mma_tuning.hpp"
#include "tiered/kernels/cuda/few_mma_units.cuh"
#include "tiered/kernels/cuda/few_stages.cuh"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

/// Bytes are q - offset times 2^shift, so that the offset is the sign bit.
template <class F>
inline constexpr int mma_shift = Unpack<F>::Weights::offset == 0    ? 0
                                 : Unpack<F>::Weights::offset == 4  ? 5
                                 : Unpack<F>::Weights::offset == 8  ? 4
                                 : Unpack<F>::Weights::offset == 16 ? 3
                                                                    : 2;

/// Elements 4j... and 16 + 4j... of a step as signed bytes.
template <class F>
__device__ __forceinline__ void load_mma_bytes(unsigned char const* row, int at, int group, int j, std::uint32_t (&b)[2]) {
  using Weights = typename Unpack<F>::Weights;
  constexpr int shift = mma_shift<F>;
  static_assert(Weights::offset == 0 || Weights::offset << shift == 128);
  if constexpr (F::dtype == DType::q4_0) {
    std::uint32_t words[1];
    load_words<1>(row, at + 2 + 4 * j, words);
    b[0] = masked_and_flipped(words[0] << 4, 0xf0f0f0f0u, 0x80808080u);
    b[1] = masked_and_flipped(words[0], 0xf0f0f0f0u, 0x80808080u);
    return;
  } else if constexpr (F::dtype == DType::q5_0 || F::dtype == DType::q5_1) {  // a bit of each element, before the nibbles
    constexpr int bits_at = F::block_bytes - 20;
    std::uint32_t bits[1], words[1];
    load_words<1>(row, at + bits_at, bits);
    load_words<1>(row, at + bits_at + 4 + 4 * j, words);
    b[0] = (words[0] & 0x0f0f0f0fu) | spread_bits(bits[0] >> 4 * j) << 4;
    b[1] = (words[0] >> 4 & 0x0f0f0f0fu) | spread_bits(bits[0] >> (16 + 4 * j)) << 4;
  } else {
    Weights w;  // whose first words are those of lane j where the block is taken to begin 4j bytes later
    Unpack<F>::load(row, at + 4 * j, group, w);
    b[0] = w.q[0], b[1] = w.q[4];
  }
  b[0] = b[0] << shift;
  b[1] = shift >= Weights::high_shift ? b[1] << (shift - Weights::high_shift) : b[1] >> (Weights::high_shift - shift);
  constexpr std::uint32_t signs = Weights::offset != 0 ? 0x80808080u : 0;
  b[0] ^= signs;
  b[1] ^= signs;
}

/// Scales and mins of this row, of steps j and 4 + j of those from byte `at` on: table [8 steps][8 g][of_weights].
template <class F>
__device__ __forceinline__ void put_mma_factors(unsigned char const* row, int at, float* table) {
  using Weights = typename Unpack<F>::Weights;
  using Factors = MmaFactors<F>;
  constexpr int per_block = FewChunk<F>::per_block;
  int const g = int(threadIdx.x) % 32 / 4, j = int(threadIdx.x) % 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    int const step = j + 4 * i;
    Weights w;
    Unpack<F>::load(row, at + step / per_block * F::block_bytes, step % per_block, w);
    float* const to = table + (step * 8 + g) * Factors::of_weights;
#pragma unroll
    for (int k = 0; k < Factors::scales; ++k) to[k] = w.scale[k] * (1.0f / float(1 << mma_shift<F>));
    if constexpr (Factors::mins > 0) {
#pragma unroll
      for (int k = 0; k < Factors::mins; ++k) to[Factors::scales + k] = w.min[k] * (float(Unpack<F>::sign) * mma_min_factor);
    }
  }
}

/// n floats that lie at a multiple of their size.
template <int n>
__device__ __forceinline__ void load_aligned(float const* from, float (&to)[n]) {
  if constexpr (n == 1) {
    to[0] = from[0];
  } else if constexpr (n == 2) {
    float2 const two = *reinterpret_cast<float2 const*>(from);
    to[0] = two.x, to[1] = two.y;
  } else {
#pragma unroll
    for (int i = 0; i < n; i += 4) {
      float4 const four = *reinterpret_cast<float4 const*>(from + i);
      to[i] = four.x, to[i + 1] = four.y, to[i + 2] = four.z, to[i + 3] = four.w;
    }
  }
}

/// A step of activations, as this lane takes it.
template <class F, int tokens>
struct MmaBytesInput {
  std::uint32_t a[2 * tokens];
  float factors[MmaFactors<F>::of_rows * tokens];
};
template <class F, int tokens>
__device__ __forceinline__ void load_mma_input(unsigned char const* input, MmaBytesInput<F, tokens>& x) {
  int const lane = int(threadIdx.x) % 32;
  if constexpr (tokens == 1) {
    uint2 const two = *reinterpret_cast<uint2 const*>(input + lane * 8);
    x.a[0] = two.x, x.a[1] = two.y;
  } else {
    uint4 const four = *reinterpret_cast<uint4 const*>(input + lane * 16);
    x.a[0] = four.x, x.a[1] = four.y, x.a[2] = four.z, x.a[3] = four.w;
  }
  auto const* const factors = reinterpret_cast<float const*>(input + MmaInput<F, tokens>::value_bytes);
  load_aligned(factors + lane / 4 * MmaFactors<F>::of_rows * tokens, x.factors);
}

/// Adds a step's products to sums [token][row] of this lane; `table` of the step, b as load_mma_bytes() has it.
template <class F, int tokens>
__device__ __forceinline__ void add_mma_bytes(std::uint32_t const (&b)[2], float const* table, MmaBytesInput<F, tokens> const& x,
                                              float (&sums)[2 * tokens]) {
  using Factors = MmaFactors<F>;
  float w[2 * Factors::of_weights];
  load_aligned(table + int(threadIdx.x) % 4 * 2 * Factors::of_weights, w);
  int c[Factors::scales][4];
  if constexpr (tokens == 1) {  // rows g are of one half of the step, rows g + 8 of the other: only like halves count
    int high[4];
    multiply_bytes(c[0], x.a[0], x.a[1], b[0]);
    multiply_bytes(high, x.a[0], x.a[1], b[1]);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (Factors::scales == 1) c[0][i] += high[2 + i];
      if constexpr (Factors::scales == 2) c[1][i] = high[2 + i];
    }
  } else if constexpr (Factors::scales == 1) {
    multiply_bytes(c[0], x.a, b[0], b[1]);
  } else {
    multiply_bytes(c[0], x.a[0], x.a[1], b[0]);
    multiply_bytes(c[1], x.a[2], x.a[3], b[1]);
  }
#pragma unroll
  for (int i = 0; i < 2 * tokens; ++i) {
    float const* const row = w + i % 2 * Factors::of_weights;
    int const token = i / 2;
    float value = row[0] * float(c[0][i]);
    if constexpr (Factors::scales == 2) value = fmaf(row[1], float(c[1][i]), value);
    sums[i] = fmaf(x.factors[token], value, sums[i]);
#pragma unroll
    for (int k = 0; k < Factors::mins; ++k) sums[i] = fmaf(row[Factors::scales + k], x.factors[(1 + k) * tokens + token], sums[i]);
  }
}

/// A step of floats in two parts of tf32, fragments of `pairs` products; what is left out is 2^-20 of an element, or 2^-136.
template <class F, int tokens>
struct MmaFloatsInput {
  static constexpr int pairs = FewChunk<F>::elems / 2;
  float high[pairs][4], low[pairs][4];
};
template <class F, int tokens>
__device__ __forceinline__ void load_mma_input(unsigned char const* input, MmaFloatsInput<F, tokens>& x) {
  int const lane = int(threadIdx.x) % 32;
#pragma unroll
  for (int s = 0; s < x.pairs; ++s) {
    float all[4] = {};
    if constexpr (tokens == 1) {
      float2 const two = *reinterpret_cast<float2 const*>(input + s / 2 * 512 + lane * 16 + s % 2 * 8);
      all[0] = two.x, all[2] = two.y;
    } else {
      float4 const four = *reinterpret_cast<float4 const*>(input + s * 512 + lane * 16);
      all[0] = four.x, all[1] = four.y, all[2] = four.z, all[3] = four.w;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      bool const none = tokens == 1 && i % 2 == 1;
      x.high[s][i] = none ? 0.0f : tf32_part(all[i]);
      x.low[s][i] = none ? 0.0f : all[i] - x.high[s][i];
    }
  }
}

/// The same of floats: a piece of weights is 16 bytes of this lane's row. Weights are one part of tf32, or two where they are f32. Sums
/// within a step are the unit's, of at most 8 products in a chain; steps are added as floats.
template <class F, int tokens>
__device__ __forceinline__ void add_mma_floats(FloatChunk<F> const& w, MmaFloatsInput<F, tokens> const& x, float (&sums)[2 * tokens]) {
  constexpr bool wide = F::block_bytes == 4;
  float c[4] = {};
#pragma unroll
  for (int s = 0; s < x.pairs; ++s) {
    float const w0 = w.w[2 * s], w1 = w.w[2 * s + 1], b0 = wide ? tf32_part(w0) : w0, b1 = wide ? tf32_part(w1) : w1;
    multiply_tf32(c, x.low[s], b0, b1);
    if constexpr (wide) multiply_tf32(c, x.high[s], w0 - b0, w1 - b1);
    multiply_tf32(c, x.high[s], b0, b1);
  }
#pragma unroll
  for (int i = 0; i < 2 * tokens; ++i) sums[i] += c[i];
}

/// Sums of this lane: of each tile [token][row].
template <class F, int tokens>
using MmaSums = float[MmaCut<F, tokens>::tiles][2 * tokens];

/// Adds n_steps <= MmaCut::steps of a stage: this lane's row of tile t begins offsets[t] bytes behind stage + t * 8 rows; n_elems: of rows,
/// from the stage on. table [tiles]: this warp's. The whole warp calls, and all that the stage holds is there.
template <class F, int tokens>
__device__ __forceinline__ void add_mma_stage(unsigned char const* stage, int const (&offsets)[tokens], int n_steps, int n_elems,
                                              unsigned char const* input, float* table, MmaSums<F, tokens>& sums) {
  using Cut = MmaCut<F, tokens>;
  constexpr int step_bytes = MmaInput<F, tokens>::step_bytes, tile_bytes = 8 * Cut::row_bytes;
  int const j = int(threadIdx.x) % 4;
  if constexpr (Cut::blocks) {
    // Blocks so many apart lie alike in their words.
    constexpr int per_block = FewChunk<F>::per_block, period = per_block == 8 || F::block_bytes % 4 == 0 ? 1
                                                               : F::block_bytes % 2 == 0                 ? 2
                                                                                                         : 4;
    constexpr int floats = 8 * MmaFactors<F>::of_weights;
    auto const add = [&](int begin, int step) {
      MmaBytesInput<F, tokens> x;
      load_mma_input(input + (begin + step) * step_bytes, x);
#pragma unroll
      for (int t = 0; t < Cut::tiles; ++t) {
        int const at = offsets[t] + FewChunk<F>::bytes(begin) + step % period * F::block_bytes;
        std::uint32_t b[2];
        load_mma_bytes<F>(stage + t * tile_bytes + (step - step % period) / per_block * F::block_bytes, at, step % per_block, j, b);
        add_mma_bytes<F, tokens>(b, table + (t * 8 + step) * floats, x, sums[t]);
      }
    };
#pragma unroll 1
    for (int begin = 0; begin < n_steps; begin += 8) {
      __syncwarp();
#pragma unroll
      for (int t = 0; t < Cut::tiles; ++t) {
        put_mma_factors<F>(stage + t * tile_bytes, offsets[t] + FewChunk<F>::bytes(begin), table + t * 8 * floats);
      }
      __syncwarp();
      if (per_block == 8 || n_steps - begin >= 8) {
#pragma unroll
        for (int step = 0; step < 8; ++step) add(begin, step);
      } else {
#pragma unroll 1
        for (int step = 0; step < n_steps - begin; ++step) add(begin, step);
      }
    }
  } else {
#pragma unroll 1
    for (int step = 0; step < n_steps; ++step) {
      MmaFloatsInput<F, tokens> x;
      load_mma_input(input + step * step_bytes, x);
#pragma unroll
      for (int t = 0; t < Cut::tiles; ++t) {
        FloatChunk<F> w;
        load_chunk<F>(stage + t * tile_bytes, offsets[t], step * 4 + j, n_elems - (step * 4 + j) * FewChunk<F>::elems, w);
        add_mma_floats<F, tokens>(w, x, sums[t]);
      }
    }
  }
}

}  // namespace detail
}  // namespace tiered::cuda
