/// The largest of each row. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int argmax_threads = 512;
inline constexpr int argmax_part = 8 * argmax_threads;  ///< elements for one block

/// Greater for greater numbers, and of equal ones for the one of lower index; not-a-number is less than all, -0 equals 0.
__device__ __forceinline__ std::uint64_t argmax_key(float v, int index) {
  std::uint32_t const bits = __float_as_uint(v + 0.0f);
  std::uint32_t const ordered = isnan(v) ? 0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return std::uint64_t(ordered) << 32 | (0xffffffffu - std::uint32_t(index));
}

/// The greatest key of the block, in thread 0.
__device__ __forceinline__ std::uint64_t block_greatest(std::uint64_t key, std::uint64_t* scratch) {
  auto const of_warp = [](std::uint64_t v) {
    for (int mask = warp_size / 2; mask > 0; mask /= 2) v = max_of<std::uint64_t>(v, __shfl_xor_sync(0xffffffffu, v, mask));
    return v;
  };
  key = of_warp(key);
  if (threadIdx.x % warp_size == 0) scratch[threadIdx.x / warp_size] = key;
  __syncthreads();
  return of_warp(threadIdx.x % warp_size < argmax_threads / warp_size ? scratch[threadIdx.x % warp_size] : 0);
}

__device__ __forceinline__ std::int32_t index_of(std::uint64_t key) { return std::int32_t(0xffffffffu - std::uint32_t(key)); }

/// Block (row, part): the part's greatest key to keys[row, part], or where there is one part the result.
__global__ void __launch_bounds__(argmax_threads) argmax_parts(ArgmaxArgs const a, std::uint64_t* keys) {
  __shared__ std::uint64_t scratch[max_warps];
  wait_for_previous();
  let_next_start();
  int const row = int(blockIdx.x), begin = int(blockIdx.y) * argmax_part, end = min_of(begin + argmax_part, a.n);
  float const* const values = a.values + std::int64_t(row) * a.n;
  std::uint64_t greatest = 0;
#pragma unroll 8
  for (int i = begin + int(threadIdx.x); i < end; i += argmax_threads) greatest = max_of(greatest, argmax_key(values[i], i));
  greatest = block_greatest(greatest, scratch);
  if (threadIdx.x != 0) return;
  if (gridDim.y == 1) {
    a.ids[row] = index_of(greatest);
  } else {
    keys[std::int64_t(row) * gridDim.y + blockIdx.y] = greatest;
  }
}

__global__ void __launch_bounds__(argmax_threads) argmax_merge(std::uint64_t const* keys, int n_parts, std::int32_t* ids) {
  __shared__ std::uint64_t scratch[max_warps];
  wait_for_previous();
  let_next_start();
  std::uint64_t greatest = 0;
  for (int i = int(threadIdx.x); i < n_parts; i += argmax_threads)
    greatest = max_of(greatest, keys[std::int64_t(blockIdx.x) * n_parts + i]);
  greatest = block_greatest(greatest, scratch);
  if (threadIdx.x == 0) ids[blockIdx.x] = index_of(greatest);
}

}  // namespace detail

/// Long rows are spread over blocks, whose results lie in the queue's workspace between two launches.
inline int argmax(ArgmaxArgs const& a, Queue queue) {
  if (a.n_rows == 0 || a.n == 0) return 0;
  CudaQueue const& q = native(queue);
  int const n_parts = ceil_div(a.n, detail::argmax_part);
  if (n_parts > 1 && std::size_t(a.n_rows) * std::size_t(n_parts) * sizeof(std::uint64_t) > q.workspace_bytes)
    return int(cudaErrorInvalidValue);
  auto* const keys = reinterpret_cast<std::uint64_t*>(q.workspace);
  dim3 const grid(unsigned(a.n_rows), unsigned(n_parts));
  if (int const status = launch_kernel(detail::argmax_parts, grid, detail::argmax_threads, 0, q, a, keys); status != 0 || n_parts == 1)
    return status;
  return launch_kernel(detail::argmax_merge, unsigned(a.n_rows), detail::argmax_threads, 0, q, keys, n_parts, a.ids);
}

}  // namespace tiered::cuda
