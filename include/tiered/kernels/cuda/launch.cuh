/// How every kernel is launched, and what they share inside: reductions of a warp and of a block, small arithmetic. [device-visible]
///
/// From sm_90 on a kernel may begin while the one before it in the stream still runs (programmatic dependent launch). So every kernel
///   - calls wait_for_previous() in all threads that read or write memory, before they touch anything but weights, and what
///     DecodeAttentionArgs and FewDownArgs say is read early. It returns when the previous kernel is complete and its writes are visible. A
///     kernel that reads nothing of the previous one calls it too: were it to end before the previous one does, a third kernel would begin
///     to write what the first still reads;
///   - calls let_next_start() early, so that the next one's blocks fill multiprocessors that run empty. It promises nothing about memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/kernels/cuda/queue.hpp"
#include "tiered/kernels/table.hpp"

namespace tiered::cuda {

/// Off: kernels begin when the previous one is complete, as before sm_90.
inline constexpr bool overlapped_launches = true;

inline constexpr int warp_size = 32;
inline constexpr int max_warps = 32;  ///< of a block

__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Enqueues; arguments are converted to the kernel's parameters. 0, or the cudaError_t of a launch that failed, which is then forgotten by
/// the runtime. More than 48 KiB of shared memory must have been allowed before.
template <class... Parameters, class... Arguments>
int launch_kernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes, CudaQueue const& queue,
                  Arguments const&... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = queue.stream;
  config.attrs = &attribute;
  config.numAttrs = overlapped_launches && queue.capability >= 90 ? 1 : 0;
  cudaError_t const status = cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (status != cudaSuccess) static_cast<void>(cudaGetLastError());
  return int(status);
}

/// How a multiprocessor divides its memory between L1 cache and shared memory for a kernel.
enum class Carveout : std::uint8_t {
  chosen,       ///< by the driver
  most_shared,  ///< blocks of the next kernel come to a busy multiprocessor only if it need not be divided anew
};

/// Lets a kernel have `bytes` of dynamic shared memory on the queue's device, the same number at each call: done at the first launch on
/// each device, so that it is over before work is captured. 0 or a cudaError_t. Any thread.
template <auto kernel>
int allow_shared_memory(int bytes, CudaQueue const& queue, Carveout carveout = Carveout::chosen) {
  static std::atomic<std::uint64_t> done{0};  // a bit for each of the first 64 devices; on others it is done again and again
  std::uint64_t const bit = queue.device < 64 ? std::uint64_t{1} << queue.device : 0;
  if ((done.load(std::memory_order_acquire) & bit) != 0) return 0;
  cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status == cudaSuccess && carveout == Carveout::most_shared)
    status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  if (status == cudaSuccess) {
    done.fetch_or(bit, std::memory_order_release);
  } else {
    static_cast<void>(cudaGetLastError());
  }
  return int(status);
}

/// The queue behind an op's handle.
inline CudaQueue const& native(Queue queue) { return *static_cast<CudaQueue const*>(queue.native); }

template <class T>
TIERED_HD constexpr T ceil_div(T n, T d) {
  return (n + d - 1) / d;
}
template <class T>
TIERED_HD constexpr T round_up(T n, T d) {
  return ceil_div(n, d) * d;
}
/// Of numbers; NaN on the right is dropped by both.
template <class T>
TIERED_HD constexpr T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
TIERED_HD constexpr T max_of(T a, T b) {
  return a < b ? b : a;
}

/// The whole warp takes part; each lane gets the sum.
__device__ __forceinline__ float warp_sum(float v) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}
__device__ __forceinline__ int warp_sum(int v) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}
/// Each lane gets the largest; not-a-number is dropped but where all are.
__device__ __forceinline__ float warp_max(float v) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, mask));
  return v;
}

namespace detail {

/// A warp's results through `scratch` to all threads. The first barrier guards a scratch that is used again.
template <class Combine>
__device__ __forceinline__ float across_warps(float of_warp, float* scratch, float identity, Combine combine) {
  int const lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size, n_warps = int(blockDim.x) / warp_size;
  __syncthreads();
  if (lane == 0) scratch[warp] = of_warp;
  __syncthreads();
  return combine(lane < n_warps ? scratch[lane] : identity);
}

}  // namespace detail

/// The sum over a block of whole warps in one dimension, for every thread of it; scratch: max_warps floats of shared memory.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
  return detail::across_warps(warp_sum(v), scratch, 0.0f, [](float x) { return warp_sum(x); });
}
__device__ __forceinline__ float block_max(float v, float* scratch) {
  return detail::across_warps(warp_max(v), scratch, -INFINITY, [](float x) { return warp_max(x); });
}

}  // namespace tiered::cuda
