/// A CUDA stream as a queue of kernels, and what its kernels may use beside their arguments. Toolkit headers only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

namespace tiered {

/// y[t, r] = sum_k w[r, k] x[t, k] + bias[r], or += where `add`; halves, k contiguous, in VRAM.
struct GemmArgs {
  bool bf16 = false;            ///< w and x are bfloat16, not binary16
  void const* w = nullptr;      ///< [rows, dim]
  void const* x = nullptr;      ///< [n, dim]
  float const* bias = nullptr;  ///< null: none; aligned to 16
  float* y = nullptr;           ///< [n, rows]
  std::int64_t w_stride = 0, x_stride = 0, y_stride = 0;
  std::int32_t rows = 0, n = 0, dim = 0;
  bool add = false;
};
/// Who makes such products, on one queue.
struct Gemm {
  void* plans = nullptr;
  int (*run)(void* plans, GemmArgs const&, cudaStream_t) = nullptr;  ///< a status as launchers return it
};

/// What Queue::native of a CUDA table points to. All of it is borrowed and must outlive the work that was enqueued.
struct CudaQueue {
  cudaStream_t stream = nullptr;
  Gemm gemm;                          ///< with a workspace of its own from the arena; no run(): there is no cuBLAS
  std::byte* workspace = nullptr;     ///< VRAM that every kernel of the queue may overwrite
  std::size_t workspace_bytes = 0;    ///< at least cuda_workspace_bytes
  std::uint32_t* counters = nullptr;  ///< VRAM, cuda_counters of them: 0 before a kernel and after it
  int device = 0;                     ///< the stream's, and the current one of whoever enqueues
  int n_multiprocessors = 0;
  int capability = 0;  ///< 90 for sm_90
};

/// Shared memory that a block can have, in bytes: by compute capability (CUDA C++ Programming Guide, technical specifications).
constexpr int shared_bytes_limit(int capability) {
  switch (capability) {
    case 75: return 64 << 10;
    case 80:
    case 87: return 163 << 10;
    case 90:
    case 100:
    case 103: return 227 << 10;
    default: return 99 << 10;
  }
}

/// Half of what a small L2 cache holds: weights that are decoded here for cuBLAS are read back from it.
inline constexpr std::size_t cuda_workspace_bytes = std::size_t{32} << 20;
/// Of CudaQueue::counters, by which a kernel's blocks know who comes last.
inline constexpr std::size_t cuda_counters = 4096, cuda_counter_bytes = cuda_counters * sizeof(std::uint32_t);

}  // namespace tiered
