/// Root-mean-square normalisation. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int norm_warp_dim = 512;  ///< rows up to here are one warp's work, longer ones a block's
inline constexpr int norm_threads = 256;

/// Whether rows of `dim` floats from here can be read four at a time.
TIERED_HD inline bool in_fours(void const* p, std::int64_t dim) { return dim % 4 == 0 && reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

__device__ __forceinline__ float square_sum(float4 v) { return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w); }

/// Threads `first`, first + step ... of a row; `sum` adds up over all of them. y may be x: each thread writes what it alone has read.
template <class Sum>
__device__ __forceinline__ void norm_row(RmsNormArgs const& a, std::int64_t row, int first, int step, Sum sum) {
  float const* const x = a.x + row * a.dim;
  float* const y = a.y + row * a.dim;
  bool const wide = in_fours(a.x, a.dim) && in_fours(a.y, a.dim) && in_fours(a.weight, a.dim);
  float squares = 0;
  if (wide) {
    for (int i = first; i < a.dim / 4; i += step) squares += square_sum(reinterpret_cast<float4 const*>(x)[i]);
  } else {
    for (int i = first; i < a.dim; i += step) squares += x[i] * x[i];
  }
  float const factor = 1.0f / sqrtf(sum(squares) / float(a.dim) + a.eps);
  if (wide) {
    for (int i = first; i < a.dim / 4; i += step) {
      float4 const v = reinterpret_cast<float4 const*>(x)[i];
      float4 const w = a.weight != nullptr ? reinterpret_cast<float4 const*>(a.weight)[i] : make_float4(1, 1, 1, 1);
      reinterpret_cast<float4*>(y)[i] = make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z, v.w * factor * w.w);
    }
  } else {
    for (int i = first; i < a.dim; i += step) y[i] = x[i] * factor * (a.weight != nullptr ? a.weight[i] : 1.0f);
  }
}

__global__ void __launch_bounds__(norm_threads) norm_by_warp(RmsNormArgs const a) {
  wait_for_previous();
  let_next_start();
  int const lane = int(threadIdx.x) % warp_size;
  std::int64_t const row = std::int64_t(blockIdx.x) * (norm_threads / warp_size) + int(threadIdx.x) / warp_size;
  if (row < a.n_rows) norm_row(a, row, lane, warp_size, [](float v) { return warp_sum(v); });
}

__global__ void norm_by_block(RmsNormArgs const a) {
  __shared__ float scratch[max_warps];
  wait_for_previous();
  let_next_start();
  norm_row(a, blockIdx.x, int(threadIdx.x), int(blockDim.x), [&](float v) { return block_sum(v, scratch); });
}

}  // namespace detail

inline int rms_norm(RmsNormArgs const& a, Queue queue) {
  if (a.n_rows == 0) return 0;
  if (a.dim <= detail::norm_warp_dim) {
    int const grid = ceil_div(a.n_rows, detail::norm_threads / warp_size);
    return launch_kernel(detail::norm_by_warp, unsigned(grid), detail::norm_threads, 0, native(queue), a);
  }
  int const threads = min_of(1024, round_up(ceil_div(a.dim, 4), warp_size));
  return launch_kernel(detail::norm_by_block, unsigned(a.n_rows), unsigned(threads), 0, native(queue), a);
}

}  // namespace tiered::cuda
