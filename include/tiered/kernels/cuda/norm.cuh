/// Normalisation of rows. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int norm_warp_dim = 512;  ///< rows up to here are one warp's work, longer ones a block's
inline constexpr int norm_threads = 256;   ///< of a block whose warps have rows of their own
/// Groups of four elements that a thread keeps of its row; what longer rows have more is read again.
inline constexpr int norm_held = 4;

/// Of a block that has a row: as many as keep all of it.
TIERED_HD constexpr int norm_block_threads(int dim) {
  return min_of(max_warps * warp_size, round_up(ceil_div(dim, 4 * norm_held), warp_size));
}

/// Whether rows of `dim` floats from here can be read four at a time.
TIERED_HD inline bool in_fours(void const* p, std::int64_t dim) { return dim % 4 == 0 && reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

/// Elements [4 * group, + 4) of a row; zeros past its end.
__device__ __forceinline__ float4 load_group(float const* row, int group, int dim, bool wide) {
  int const k = group * 4;
  if (wide) return k < dim ? reinterpret_cast<float4 const*>(row)[group] : make_float4(0, 0, 0, 0);
  return make_float4(k < dim ? row[k] : 0.0f, k + 1 < dim ? row[k + 1] : 0.0f, k + 2 < dim ? row[k + 2] : 0.0f,
                     k + 3 < dim ? row[k + 3] : 0.0f);
}

/// Who has a row: a warp, or the whole block.
struct WarpTeam {
  __device__ __forceinline__ int rank() const { return int(threadIdx.x) % warp_size; }
  __device__ __forceinline__ int size() const { return warp_size; }
  __device__ __forceinline__ float sum(float v) const { return warp_sum(v); }
};
struct BlockTeam {
  float* scratch;  ///< max_warps floats of shared memory
  __device__ __forceinline__ int rank() const { return int(threadIdx.x); }
  __device__ __forceinline__ int size() const { return int(blockDim.x); }
  __device__ __forceinline__ float sum(float v) const { return block_sum(v, scratch); }
};

/// In one order of operations, wherever this is inlined.
__device__ __forceinline__ float square_sum(float4 v) {
  return __fadd_rn(__fmaf_rn(v.x, v.x, __fmul_rn(v.y, v.y)), __fmaf_rn(v.z, v.z, __fmul_rn(v.w, v.w)));
}

/// A thread's part of a row: groups rank, rank + size, ... Nothing is left for the compiler to contract, and no alignment changes the order
/// of the sum: a row has the same bits wherever this is inlined.
template <class Team>
class NormedRow {
 public:
  __device__ __forceinline__ NormedRow(RmsNormArgs const& a, std::int64_t row, Team const& team)
      : x_(a.x + row * a.dim),
        weight_(a.weight),
        dim_(a.dim),
        first_(team.rank()),
        step_(team.size()),
        wide_(in_fours(a.x, a.dim)),
        wide_weight_(in_fours(a.weight, a.dim)) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < norm_held; ++i) held_[i] = load_group(x_, first_ + i * step_, dim_, wide_);
#pragma unroll
    for (int i = 0; i < norm_held; ++i) squares = __fadd_rn(squares, square_sum(held_[i]));
    for (int group = first_ + norm_held * step_; group * 4 < dim_; group += step_)
      squares = __fadd_rn(squares, square_sum(load_group(x_, group, dim_, wide_)));
    factor_ = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(team.sum(squares), float(dim_)), a.eps)));
#pragma unroll
    for (int i = 0; i < norm_held; ++i) held_[i] = normed(held_[i], first_ + i * step_);
  }

  /// visit(group, its four values) for this thread's groups below n_groups; zeros past the row's end.
  template <class Visit>
  __device__ __forceinline__ void each(int n_groups, Visit const& visit) const {
#pragma unroll
    for (int i = 0; i < norm_held; ++i) {
      if (first_ + i * step_ < n_groups) visit(first_ + i * step_, held_[i]);
    }
    for (int group = first_ + norm_held * step_; group < n_groups; group += step_)
      visit(group, normed(load_group(x_, group, dim_, wide_), group));
  }

 private:
  /// Zeros past the end even where the factor is not a number.
  __device__ __forceinline__ float4 normed(float4 v, int group) const {
    float4 const w = weight_ != nullptr ? load_group(weight_, group, dim_, wide_weight_) : make_float4(1, 1, 1, 1);
    int const n = dim_ - group * 4;
    return make_float4(n > 0 ? __fmul_rn(__fmul_rn(v.x, factor_), w.x) : 0.0f, n > 1 ? __fmul_rn(__fmul_rn(v.y, factor_), w.y) : 0.0f,
                       n > 2 ? __fmul_rn(__fmul_rn(v.z, factor_), w.z) : 0.0f, n > 3 ? __fmul_rn(__fmul_rn(v.w, factor_), w.w) : 0.0f);
  }

  float const *x_, *weight_;
  int dim_, first_, step_;
  bool wide_, wide_weight_;
  float factor_;
  float4 held_[norm_held];
};

/// y may be x: each thread writes what it alone has read.
template <class Team>
__device__ __forceinline__ void norm_row(RmsNormArgs const& a, std::int64_t row, Team const& team) {
  float* const y = a.y + row * a.dim;
  bool const wide = in_fours(a.y, a.dim);
  NormedRow<Team>(a, row, team).each(ceil_div(a.dim, 4), [&](int group, float4 v) {
    if (wide) {
      reinterpret_cast<float4*>(y)[group] = v;
    } else {
      float const values[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (group * 4 + i < a.dim) y[group * 4 + i] = values[i];
      }
    }
  });
}

__global__ void __launch_bounds__(norm_threads) norm_by_warp(RmsNormArgs const a) {
  wait_for_previous();
  let_next_start();
  std::int64_t const row = std::int64_t(blockIdx.x) * (norm_threads / warp_size) + int(threadIdx.x) / warp_size;
  if (row < a.n_rows) norm_row(a, row, WarpTeam{});
}

__global__ void __launch_bounds__(max_warps* warp_size) norm_by_block(RmsNormArgs const a) {
  __shared__ float scratch[max_warps];
  wait_for_previous();
  let_next_start();
  norm_row(a, blockIdx.x, BlockTeam{scratch});
}

}  // namespace detail

inline int rms_norm(RmsNormArgs const& a, Queue queue) {
  if (a.n_rows == 0) return 0;
  if (a.dim <= detail::norm_warp_dim) {
    int const grid = ceil_div(a.n_rows, detail::norm_threads / warp_size);
    return launch_kernel(detail::norm_by_warp, unsigned(grid), detail::norm_threads, 0, native(queue), a);
  }
  return launch_kernel(detail::norm_by_block, unsigned(a.n_rows), unsigned(detail::norm_block_threads(a.dim)), 0, native(queue), a);
}

namespace detail {

__device__ __forceinline__ float element_sum(float4 v) { return v.x + v.y + (v.z + v.w); }
__device__ __forceinline__ float4 minus(float4 v, float mean) { return make_float4(v.x - mean, v.y - mean, v.z - mean, v.w - mean); }

/// A row in a warp's registers, at most `fours` times four elements of a lane: read once.
template <int fours>
__global__ void __launch_bounds__(norm_threads) layer_norm_by_warp(LayerNormArgs const a) {
  wait_for_previous();
  let_next_start();
  int const lane = int(threadIdx.x) % warp_size, n = a.dim / 4;
  std::int64_t const row = std::int64_t(blockIdx.x) * (norm_threads / warp_size) + int(threadIdx.x) / warp_size;
  if (row >= a.n_rows) return;
  auto const* const x = reinterpret_cast<float4 const*>(a.x + row * a.dim);
  float4 v[fours];
  float sum = 0, squares = 0;
#pragma unroll
  for (int k = 0; k < fours; ++k) {
    int const i = lane + k * warp_size;
    v[k] = i < n ? x[i] : float4{0, 0, 0, 0};
    sum += element_sum(v[k]);
  }
  float const mean = warp_sum(sum) / float(a.dim);
#pragma unroll
  for (int k = 0; k < fours; ++k) {
    v[k] = minus(v[k], mean);
    if (lane + k * warp_size < n) squares += square_sum(v[k]);
  }
  float const factor = 1.0f / sqrtf(warp_sum(squares) / float(a.dim) + a.eps);
#pragma unroll
  for (int k = 0; k < fours; ++k) {
    int const i = lane + k * warp_size;
    if (i >= n) continue;
    float4 const w = a.weight != nullptr ? reinterpret_cast<float4 const*>(a.weight)[i] : make_float4(1, 1, 1, 1);
    float4 const b = a.bias != nullptr ? reinterpret_cast<float4 const*>(a.bias)[i] : make_float4(0, 0, 0, 0);
    reinterpret_cast<float4*>(a.y + row * a.dim)[i] = make_float4(fmaf(v[k].x * factor, w.x, b.x), fmaf(v[k].y * factor, w.y, b.y),
                                                                  fmaf(v[k].z * factor, w.z, b.z), fmaf(v[k].w * factor, w.w, b.w));
  }
}

/// A block for each row, of any length, at any address. y may be x: each thread writes what it alone has read.
__global__ void __launch_bounds__(norm_threads) layer_norm_by_block(LayerNormArgs const a) {
  __shared__ float scratch[max_warps];
  wait_for_previous();
  let_next_start();
  float const* const x = a.x + std::int64_t(blockIdx.x) * a.dim;
  float* const y = a.y + std::int64_t(blockIdx.x) * a.dim;
  float sum = 0, squares = 0;
  for (int i = int(threadIdx.x); i < a.dim; i += norm_threads) sum += x[i];
  float const mean = block_sum(sum, scratch) / float(a.dim);
  for (int i = int(threadIdx.x); i < a.dim; i += norm_threads) squares += (x[i] - mean) * (x[i] - mean);
  float const factor = 1.0f / sqrtf(block_sum(squares, scratch) / float(a.dim) + a.eps);
  for (int i = int(threadIdx.x); i < a.dim; i += norm_threads) {
    float const w = a.weight != nullptr ? a.weight[i] : 1.0f, b = a.bias != nullptr ? a.bias[i] : 0.0f;
    y[i] = fmaf((x[i] - mean) * factor, w, b);
  }
}

}  // namespace detail

inline int layer_norm(LayerNormArgs const& a, Queue queue) {
  if (a.n_rows == 0) return 0;
  bool const wide =
      detail::in_fours(a.x, a.dim) && detail::in_fours(a.y, a.dim) && detail::in_fours(a.weight, a.dim) && detail::in_fours(a.bias, a.dim);
  auto const by_warp = [&](auto kernel) {
    int const grid = ceil_div(a.n_rows, detail::norm_threads / warp_size);
    return launch_kernel(kernel, unsigned(grid), detail::norm_threads, 0, native(queue), a);
  };
  if (wide && a.dim <= 4 * 4 * warp_size) return by_warp(detail::layer_norm_by_warp<4>);
  if (wide && a.dim <= 12 * 4 * warp_size) return by_warp(detail::layer_norm_by_warp<12>);
  return launch_kernel(detail::layer_norm_by_block, unsigned(a.n_rows), detail::norm_threads, 0, native(queue), a);
}

}  // namespace tiered::cuda
