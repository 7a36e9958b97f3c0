/// Parts of a context: what a row sees, how it is cut, and how softmaxes over parts are put together. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/attention_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr float log2_e = 1.44269504088896340736f, ln_2 = 0.693147180559945309417f;
inline constexpr int merge_warps = 8;

/// The positions that row t, at `position`, attends to in this call; begin >= end where there are none.
__device__ __forceinline__ Range visible_to(AttentionArgs const& a, std::int32_t t, std::int32_t position) {
  return a.seen_by(t, position);
}

/// The cut of `seen` into at most n_splits parts of whole tiles.
struct Cut {
  Range seen;
  std::int32_t first_tile, tiles_each, n_used;

  __device__ __forceinline__ Cut(Range positions, std::int32_t n_splits) : seen(positions) {
    first_tile = seen.begin / split_tile;
    std::int32_t const n_tiles = seen.begin < seen.end ? ceil_div(seen.end, split_tile) - first_tile : 0;
    tiles_each = max_of(ceil_div(n_tiles, n_splits), min_of(ceil_div(n_tiles, max_of(n_splits / 2, 1)), tiles_of_half_as_many));
    n_used = n_tiles == 0 ? 0 : ceil_div(n_tiles, tiles_each);
  }
  __device__ __forceinline__ Range part(std::int32_t i) const {
    if (i >= n_used) return {0, 0};
    std::int32_t const begin = (first_tile + i * tiles_each) * split_tile;
    return {max_of(seen.begin, begin), min_of(seen.end, begin + tiles_each * split_tile)};
  }
};

/// Of a softmax that is not finished: the largest score, in units of ln 2, and the sum of 2^(score - max). The weighted V goes with it.
struct Softmax {
  float max = -INFINITY, sum = 0;

  /// What the sums of a part whose maximum is `m` are to be multiplied with.
  __device__ __forceinline__ float weight_of(float m) const { return m == -INFINITY ? 0.0f : exp2f(m - max); }
  /// 0 where nothing was seen.
  __device__ __forceinline__ float inverse() const { return sum == 0 ? 0.0f : 1.0f / sum; }
  __device__ __forceinline__ float log_sum_exp() const { return sum == 0 ? -INFINITY : (max + log2f(sum)) * ln_2; }
};

/// The workspace of few rows: weighted V [n_tokens, n_heads, n_splits, head_dim], then Softmax [n_tokens, n_heads, n_splits].
struct Parts {
  Softmax* softmax;
  float* sums;
  std::int32_t n_splits, head_dim;

  __device__ __forceinline__ Parts(AttentionArgs const& a, std::int32_t n)
      : softmax(reinterpret_cast<Softmax*>(reinterpret_cast<float*>(a.workspace) + std::int64_t(a.n_tokens) * a.n_heads * n * a.head_dim)),
        sums(reinterpret_cast<float*>(a.workspace)),
        n_splits(n),
        head_dim(a.head_dim) {}
  __device__ __forceinline__ Softmax& of(std::int64_t query, std::int32_t split) const { return softmax[query * n_splits + split]; }
  __device__ __forceinline__ float* sums_of(std::int64_t query, std::int32_t split) const {
    return sums + (query * n_splits + split) * head_dim;
  }
};

/// What a block computed of element d of a query: a part if there are several, else the result.
__device__ __forceinline__ void store_sum(AttentionArgs const& a, std::int64_t query, std::int32_t split, std::int32_t n_splits,
                                          std::int32_t d, Softmax const& softmax, float sum) {
  if (n_splits > 1) {
    Parts const parts(a, n_splits);
    parts.sums_of(query, split)[d] = sum;
    if (d == 0) parts.of(query, split) = softmax;
  } else {
    a.out[query * a.head_dim + d] = sum * softmax.inverse();
    if (d == 0 && a.log_sum_exp != nullptr) a.log_sum_exp[query] = softmax.log_sum_exp();
  }
}

/// The softmax over parts [0, n) by one warp, which all lanes get.
__device__ __forceinline__ Softmax total_of(Parts const& parts, std::int64_t query, std::int32_t n) {
  int const lane = int(threadIdx.x) % warp_size;
  Softmax total;
  for (std::int32_t i = lane; i < n; i += warp_size) total.max = fmaxf(total.max, parts.of(query, i).max);
  total.max = warp_max(total.max);
  for (std::int32_t i = lane; i < n; i += warp_size) {
    Softmax const part = parts.of(query, i);
    total.sum += total.weight_of(part.max) * part.sum;
  }
  total.sum = warp_sum(total.sum);
  return total;
}

/// Blocks (heads, rows): a warp adds every eighth part up, in ascending order, then the warps' sums are added.
__global__ void __launch_bounds__(merge_warps* warp_size) attention_merge_splits_kernel(AttentionArgs a, std::int32_t n_splits) {
  constexpr int at_once = 4;  // dims of a lane
  __shared__ float of_warp[merge_warps][at_once * warp_size];
  let_next_start();
  wait_for_previous();
  int const lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size;
  std::int64_t const query = std::int64_t(blockIdx.y) * a.n_heads + blockIdx.x;
  Parts const parts(a, n_splits);
  std::int32_t const n = Cut(visible_to(a, std::int32_t(blockIdx.y), a.rows[blockIdx.y].position), n_splits).n_used;
  Softmax const total = total_of(parts, query, n);
  if (threadIdx.x == 0 && a.log_sum_exp != nullptr) a.log_sum_exp[query] = total.log_sum_exp();

  for (std::int32_t first = 0; first < a.head_dim; first += at_once * warp_size) {
    float sum[at_once] = {};
#pragma unroll 4
    for (std::int32_t i = warp; i < n; i += merge_warps) {
      float const weight = total.weight_of(parts.of(query, i).max), *const from = parts.sums_of(query, i) + first;
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        int const d = lane + k * warp_size;
        if (first + d < a.head_dim) sum[k] += weight * from[d];
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < at_once; ++k) of_warp[warp][lane + k * warp_size] = sum[k];
    __syncthreads();
    for (int d = int(threadIdx.x); d < at_once * warp_size && first + d < a.head_dim; d += merge_warps * warp_size) {
      float all = 0;
#pragma unroll
      for (int w = 0; w < merge_warps; ++w) all += of_warp[w][d];
      a.out[query * a.head_dim + first + d] = all * total.inverse();
    }
  }
}

/// A block for each row and head.
__global__ void __launch_bounds__(128) merge_attention_kernel(MergeAttentionArgs a) {
  let_next_start();
  wait_for_previous();
  std::int64_t const query = blockIdx.x, n_queries = std::int64_t(a.n_tokens) * a.n_heads;
  float largest = -INFINITY, sum = 0;
  for (std::int32_t p = 0; p < a.n_parts; ++p) largest = fmaxf(largest, a.part_log_sum_exp[p * n_queries + query]);
  for (std::int32_t p = 0; p < a.n_parts; ++p) {
    float const log = a.part_log_sum_exp[p * n_queries + query];
    if (log != -INFINITY) sum += expf(log - largest);
  }
  for (std::int32_t d = int(threadIdx.x); d < a.head_dim; d += int(blockDim.x)) {
    float value = 0;
    for (std::int32_t p = 0; p < a.n_parts; ++p) {
      float const log = a.part_log_sum_exp[p * n_queries + query];
      if (log != -INFINITY) value += expf(log - largest) * a.parts[(p * n_queries + query) * a.head_dim + d];
    }
    a.out[query * a.head_dim + d] = sum == 0 ? 0.0f : value / sum;
  }
  __syncthreads();  // what follows may change what was read above
  if (threadIdx.x == 0 && a.log_sum_exp != nullptr) a.log_sum_exp[query] = sum == 0 ? -INFINITY : largest + logf(sum);
}

}  // namespace detail

/// MergeAttentionArgs. 0 or a cudaError_t.
inline int merge_attention(MergeAttentionArgs const& a, Queue queue) {
  if (a.n_tokens == 0) return 0;
  return launch_kernel(detail::merge_attention_kernel, dim3(unsigned(a.n_tokens) * unsigned(a.n_heads)), dim3(128), 0, native(queue), a);
}

}  // namespace tiered::cuda
