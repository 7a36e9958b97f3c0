/// Small copies between any memory that the device addresses. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int transfer_threads = 128;
inline constexpr int transfer_most_blocks = 64;  ///< host memory is read by many threads at once: each waits a microsecond for its bytes

template <class T>
__device__ __forceinline__ void transfer_part(TransferArgs::Part const& part) {
  int const n = part.bytes / int(sizeof(T));
  T const* const from = static_cast<T const*>(part.from);
  T* const to = static_cast<T*>(part.to);
  for (int i = int(blockIdx.x) * transfer_threads + int(threadIdx.x); i < n; i += int(gridDim.x) * transfer_threads) to[i] = from[i];
}

__global__ void __launch_bounds__(transfer_threads) transfer_kernel(__grid_constant__ TransferArgs const a) {
  wait_for_previous();
  let_next_start();
  for (int p = 0; p < a.n_parts; ++p) {
    TransferArgs::Part const& part = a.parts[p];
    std::uintptr_t const bits = reinterpret_cast<std::uintptr_t>(part.from) | reinterpret_cast<std::uintptr_t>(part.to);
    (bits | std::uintptr_t(part.bytes)) % 16 == 0 ? transfer_part<uint4>(part) : transfer_part<std::uint32_t>(part);
  }
}

}  // namespace detail

inline int transfer(TransferArgs const& a, Queue queue) {
  std::int32_t most = 0;
  for (int p = 0; p < a.n_parts; ++p) most = max_of(most, a.parts[p].bytes);
  if (most == 0) return 0;
  int const blocks = min_of(ceil_div(most, 16 * detail::transfer_threads), detail::transfer_most_blocks);
  return launch_kernel(detail::transfer_kernel, unsigned(blocks), detail::transfer_threads, 0, native(queue), a);
}

}  // namespace tiered::cuda
