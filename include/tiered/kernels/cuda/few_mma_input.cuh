/// Rows of activations as the matrix units take them: normed, quantised, in the order of fragments, in shared memory or in VRAM.
/// [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/few_mma_tuning.hpp"
#include "tiered/kernels/cuda/few_rows.cuh"
#include "tiered/kernels/cuda/few_stages.cuh"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

template <class F, bool blocks = FewChunk<F>::blocks>
struct MmaFactors {
  static constexpr int scales = 0, mins = 0, of_weights = 0, of_rows = 0;
};
/// Floats beside bytes: for a row of weights its scales and mins; for one of activations its scale and, with mins, sums times scale.
template <class F>
struct MmaFactors<F, true> {
  static constexpr int scales = Unpack<F>::Weights::n_scales, mins = Unpack<F>::Weights::n_mins, of_weights = scales + mins;
  static constexpr int of_rows = mins == 0 ? 1 : mins == 1 ? 2 : 4;  // the last of 4 is unused
};

/// Sums are kept so much smaller, and mins so much larger, that sums times scale do not overflow where the row does not.
inline constexpr float mma_sum_factor = 1.0f / 4096, mma_min_factor = 4096;

/// A step of 8 * tokens rows, `tokens` of them to a lane: g and g + 8.
///   bytes   values [32 lanes][a fragment: 2 * tokens words], then factors [8 g][of_rows][tokens]
///   floats  values [half a piece][32 lanes][4]: the fragment of one product of k8, or of one row those of two products
/// Elements 8j... or 4j... of a step of floats are lane j's, as in the piece of weights that it loads.
template <class F, int tokens>
struct MmaInput {
  static constexpr int step_elems = MmaCut<F, tokens>::step_elems;
  static constexpr int value_bytes = FewChunk<F>::blocks ? 256 * tokens : step_elems * 8 * tokens * 4;
  static constexpr int factor_bytes = 8 * tokens * MmaFactors<F>::of_rows * 4;
  static constexpr int step_bytes = value_bytes + factor_bytes;
  static_assert(step_bytes % 16 == 0);
};

/// Eight lanes' four elements each of block `step` of row `token`; the whole warp calls.
template <class F, int tokens>
__device__ __forceinline__ void put_quantised(float4 v, bool inside, int token, unsigned char* step) {
  using Input = MmaInput<F, tokens>;
  using Factors = MmaFactors<F>;
  int const part = int(threadIdx.x) % 8, g = token % 8, t = token / 8;
  QuantizedFour const four = quantize_four(v);
  int const other = __shfl_down_sync(~0u, four.sum, 4);
  if (!inside) return;
  *reinterpret_cast<std::uint32_t*>(step + (4 * g + part % 4) * 8 * tokens + (part / 4 * tokens + t) * 4) = four.q;
  if (part != 0) return;
  float* const factors = reinterpret_cast<float*>(step + Input::value_bytes) + g * Factors::of_rows * tokens + t;
  factors[0] = four.scale;
  if constexpr (Factors::mins == 1) {
    factors[tokens] = four.scale * (float(four.sum + other) * mma_sum_factor);
  } else if constexpr (Factors::mins == 2) {
    factors[tokens] = four.scale * (float(four.sum) * mma_sum_factor);
    factors[2 * tokens] = four.scale * (float(other) * mma_sum_factor);
  }
}

/// Elements [4 * four, + 4) of a step.
template <class F, int tokens>
__device__ __forceinline__ void put_floats(float4 v, int four, int token, unsigned char* step) {
  constexpr int fours_of_piece = FewChunk<F>::elems / 4;
  int const lane = token % 8 * 4 + four / fours_of_piece, pair = four % fours_of_piece;
  if constexpr (tokens == 1) {
    *reinterpret_cast<float4*>(step + pair * 512 + lane * 16) = v;
  } else {
    float* const at = reinterpret_cast<float*>(step + pair * 1024 + lane * 16) + token / 8;
    at[0] = v.x, at[2] = v.y, at[128] = v.z, at[130] = v.w;
  }
}

/// Steps [first, first + n) of rows [0, s.n_rows), which are `token` and the next ones, by warps `warp`, warp + n_warps, ...
template <class F, int tokens>
__device__ __forceinline__ void put_rows(FewSource const& s, int token, int first, int n, float const* norms, unsigned char* out, int warp,
                                         int n_warps) {
  constexpr int fours = MmaInput<F, tokens>::step_elems / 4, steps = 32 / fours;  // of a warp at a time
  bool const in_fours = s.dim % 4 == 0 && multiple_of_16(s.x) && multiple_of_16(s.norm_weight);
  int const lane = int(threadIdx.x) % 32, groups = ceil_div(n, steps), total = groups * s.n_rows;
  auto const load = [&](int i, int& row, int& step) {
    row = int(unsigned(i) / unsigned(groups));
    step = (i - row * groups) * steps + lane / fours;
    if (i >= total || step >= n) return make_float4(0, 0, 0, 0);
    return normed_four(s, row, (first + step) * fours * 4 + lane % fours * 4, in_fours, norms);
  };
  int row, step;
  float4 v = load(warp, row, step);
#pragma unroll 1
  for (int i = warp; i < total; i += n_warps) {
    int next_row, next_step;
    float4 const next = load(i + n_warps, next_row, next_step);
    unsigned char* const to = out + std::int64_t(step) * MmaInput<F, tokens>::step_bytes;
    if constexpr (FewChunk<F>::blocks) {
      put_quantised<F, tokens>(v, step < n, token + row, to);
    } else if (step < n) {
      put_floats<F, tokens>(v, lane % fours, token + row, to);
    }
    v = next, row = next_row, step = next_step;
  }
}

/// All steps of row blockIdx.y, 8 warps' worth of them to a block.
inline constexpr int mma_input_warps = 8;

template <class F, int tokens>
__global__ void __launch_bounds__(mma_input_warps * 32) few_mma_input_kernel(__grid_constant__ FewSource const rows, unsigned char* out) {
  constexpr int steps = mma_input_warps * 128 / MmaInput<F, tokens>::step_elems;
  __shared__ float scratch[mma_input_warps + 1];
  let_next_start();
  wait_for_previous();
  FewSource s = rows;
  s.n_rows = 1;
  s.x += std::int64_t(blockIdx.y) * s.dim;
  bool const in_fours = s.dim % 4 == 0 && multiple_of_16(s.x) && multiple_of_16(s.norm_weight);
  if (s.norm) find_norms(s, in_fours, scratch);
  int const first = int(blockIdx.x) * steps, n = min(steps, ceil_div(s.dim, MmaInput<F, tokens>::step_elems) - first);
  put_rows<F, tokens>(s, int(blockIdx.y), first, n, scratch + mma_input_warps, out + std::int64_t(first) * MmaInput<F, tokens>::step_bytes,
                      int(threadIdx.x) / 32, mma_input_warps);
}

template <class F, int tokens>
int launch_few_mma_input(FewSource const& rows, unsigned char* out, CudaQueue const& queue) {
  constexpr int elems = mma_input_warps * 128;
  return launch_kernel(&few_mma_input_kernel<F, tokens>, dim3(unsigned(ceil_div(rows.dim, elems)), unsigned(rows.n_rows)),
                       dim3(mma_input_warps * 32), 0, queue, rows, out);
}

}  // namespace detail
}  // namespace tiered::cuda
