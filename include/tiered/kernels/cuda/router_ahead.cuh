/// A router, where its layer's experts are, and its row for who guesses, in one launch: see RouterAheadArgs. [device-visible]
///
/// The router's blocks are those of float_row_kernel(), to the bit; two more do the rest beside them.
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/by_format.cuh"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row_matmul.cuh"
#include "tiered/kernels/cuda/words.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {
namespace detail {

/// Where experts are. Whoever enters one writes its gate last: so the gate is read first, and never out of a cache.
__device__ inline void see_experts(RouterAheadArgs const& a) {
  wait_for_previous();
  auto const as_word = [](void const* const& pointer) { return reinterpret_cast<std::uint64_t const*>(&pointer); };
  auto const as_pointer = [](std::uint64_t word) { return reinterpret_cast<void const*>(word); };
  for (int e = int(threadIdx.x); e < a.n_experts; e += int(blockDim.x)) {
    ExpertGroup const& from = a.experts[e];
    ExpertGroup group;
    group.gate = as_pointer(load_system(as_word(from.gate)));
    if (group.gate != nullptr) {
      group.up = as_pointer(load_unordered(as_word(from.up)));
      group.down = as_pointer(load_unordered(as_word(from.down)));
    }
    a.seen[e] = group;
  }
}

/// The row first, then whose it is: who guesses looks for that before this kernel has ended. Guesses of the layer before have ended, with
/// all that is before the previous kernel.
__device__ inline void hand_on_row(RouterAheadArgs const& a) {
  wait_for_previous();
  for (int i = int(threadIdx.x); i < a.own.dim; i += int(blockDim.x)) a.row[i] = a.own.x[i];
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) store_device(&a.state->row, a.state->step * 1024 + std::uint64_t(a.layer) + 1);
}

/// The first n_own blocks are the router's. A template, since several translation units include it.
template <class F>
__global__ void __launch_bounds__(float_row_threads) router_ahead_kernel(__grid_constant__ RouterAheadArgs const a, int n_own) {
  let_next_start();
  int const block = int(blockIdx.x);
  if (block < n_own) return float_row<F>(a.own, block);
  block == n_own ? see_experts(a) : hand_on_row(a);
}

}  // namespace detail

inline int router_ahead(RouterAheadArgs const& a, Queue q) {
  CudaQueue const& queue = native(q);
  constexpr auto kernel = &detail::router_ahead_kernel<F32>;
  constexpr Carveout carveout = overlap_small_kernels ? Carveout::most_shared : Carveout::chosen;
  if (a.own.n_parts > 1) return int(cudaErrorInvalidValue);
  bool const here = a.own.n_parts == 1 && a.own.parts[0].type == DType::f32 && detail::takes_float_rows<F32>(a.own, queue);
  if (a.own.n_parts == 1 && !here) {
    if (int const status = fused_matmul_of_any_type(a.own, q); status != 0) return status;
  }
  if (int const status = allow_shared_memory<kernel>(0, queue, carveout); status != 0) return status;
  int const n_own = here ? a.own.parts[0].rows : 0, n_blocks = n_own + (a.row != nullptr ? 2 : 1);
  // Of the router's rows as float_row_matmul() has them, so that they are summed alike.
  int const threads = min_of(round_up(max_of(a.own.dim / FewChunk<F32>::elems, 4 * warp_size), warp_size), detail::float_row_threads);
  return launch_kernel(kernel, dim3(unsigned(n_blocks)), dim3(unsigned(threads)), 0, queue, a, n_own);
}

}  // namespace tiered::cuda
