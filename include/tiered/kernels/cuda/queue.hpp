/// A CUDA stream as a queue of kernels, and what its kernels may use beside their arguments. Toolkit headers only.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_runtime_api.h>

#include "tiered/kernels/cuda/gemm_plans.hpp"

namespace tiered {

/// What Queue::native of a CUDA table points to. All of it is borrowed and must outlive the work that was enqueued.
struct CudaQueue {
  cudaStream_t stream = nullptr;
  GemmPlans* gemm = nullptr;          ///< with a workspace of its own from the arena; null: there is no cuBLAS
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
