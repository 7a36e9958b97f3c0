/// A router, guesses of the next ones, and where experts are, in one launch: see RouterAheadArgs. [device-visible]
///
/// The router's blocks are those of float_row_kernel(), to the bit. Guesses have a quarter as many for each layer, so that all find room
/// at once beside the blocks of the kernels before and behind; each writes its scores to the host as soon as it has them. The
/// kernel behind waits for all of the launch, though. Of 128 experts and rows of 2048 a guess reads 1 MB, 0.25 us of the device's memory.
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/by_format.cuh"
#include "tiered/kernels/cuda/help.cuh"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row_matmul.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {
namespace detail {

inline constexpr int guess_rows = 4;  ///< of a block

__device__ __forceinline__ std::uint64_t load_after(std::uint64_t const* from) {
  std::uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(__cvta_generic_to_global(from)) : "memory");
  return v;
}

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
      group.up = as_pointer(load_after(as_word(from.up)));
      group.down = as_pointer(load_after(as_word(from.down)));
    }
    a.seen[e] = group;
  }
}

__device__ __forceinline__ void post_guess(ExpertGuess* to, float score, std::uint32_t step) {
  std::uint64_t const word = std::uint64_t(step) << 32 | __float_as_uint(score);
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(to)), "l"(word) : "memory");
}

/// guess_rows rows of one later layer's router; the whole block. Weights and norms are constant, so those that find room in registers are
/// under way before the row is there.
__device__ inline void guess(RouterAheadArgs const& a, RouterAheadArgs::Ahead const& layer, int first) {
  __shared__ float partial[guess_rows + 1][float_row_warps];  // products, and the sum of squares
  int const lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warps = int(blockDim.x) / 32, n_chunks = a.own.dim / 4;
  auto const* const norm = reinterpret_cast<float4 const*>(layer.norm_weight);
  auto const weight = [&](int row, int chunk) {
    bool const inside = first + row < a.n_experts && chunk < n_chunks;
    return inside ? reinterpret_cast<float4 const*>(layer.w)[std::int64_t(first + row) * n_chunks + chunk] : make_float4(0, 0, 0, 0);
  };
  float4 early[guess_rows];
#pragma unroll
  for (int r = 0; r < guess_rows; ++r) early[r] = weight(r, int(threadIdx.x));
  wait_for_previous();
  float sums[guess_rows + 1] = {};
  for (int chunk = int(threadIdx.x); chunk < n_chunks; chunk += int(blockDim.x)) {
    float4 v = reinterpret_cast<float4 const*>(a.own.x)[chunk];
    sums[guess_rows] += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    if (norm != nullptr) v = make_float4(v.x * norm[chunk].x, v.y * norm[chunk].y, v.z * norm[chunk].z, v.w * norm[chunk].w);
#pragma unroll
    for (int r = 0; r < guess_rows; ++r) {
      float4 const w = chunk == int(threadIdx.x) ? early[r] : weight(r, chunk);
      sums[r] += w.x * v.x + w.y * v.y + (w.z * v.z + w.w * v.w);
    }
  }
#pragma unroll
  for (int i = 0; i <= guess_rows; ++i) {
    float const sum = warp_sum(sums[i]);
    if (lane == 0) partial[i][warp] = sum;
  }
  __syncthreads();
  if (warp >= guess_rows || first + warp >= a.n_experts) return;
  float const product = warp_sum(lane < n_warps ? partial[warp][lane] : 0.0f);
  float const squares = warp_sum(lane < n_warps ? partial[guess_rows][lane] : 0.0f);
  if (lane == 0)
    post_guess(layer.guesses + first + warp, product * rsqrtf(squares / float(a.own.dim) + a.own.eps), std::uint32_t(a.state->step));
}

/// Block 0 sees, the next n_own are the router's, the others guess. A template, since several translation units include it.
template <class F>
__global__ void __launch_bounds__(float_row_threads) router_ahead_kernel(__grid_constant__ RouterAheadArgs const a, int n_own) {
  let_next_start();
  int const block = int(blockIdx.x) - 1;
  if (block < 0) return see_experts(a);
  if (block < n_own) return float_row<F>(a.own, block);
  int const n_blocks = ceil_div(a.n_experts, guess_rows), index = block - n_own;
  guess(a, a.ahead[index / n_blocks], index % n_blocks * guess_rows);
}

/// Whether rows and weights are multiples of 16 bytes at multiples of 16.
inline bool may_guess(RouterAheadArgs const& a) {
  std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(a.own.x) | std::uintptr_t(a.own.dim) * sizeof(float);
  for (int d = 0; d < a.n_ahead; ++d)
    bits |= reinterpret_cast<std::uintptr_t>(a.ahead[d].w) | reinterpret_cast<std::uintptr_t>(a.ahead[d].norm_weight);
  return bits % 16 == 0;
}

}  // namespace detail

inline int router_ahead(RouterAheadArgs const& a, Queue q) {
  CudaQueue const& queue = native(q);
  constexpr auto kernel = &detail::router_ahead_kernel<F32>;
  constexpr Carveout carveout = overlap_small_kernels ? Carveout::most_shared : Carveout::chosen;
  if (a.n_ahead > RouterAheadArgs::max_ahead || a.own.n_parts > 1) return int(cudaErrorInvalidValue);
  bool const here = a.own.n_parts == 1 && a.own.parts[0].type == DType::f32 && detail::takes_float_rows<F32>(a.own, queue);
  if (a.own.n_parts == 1 && !here) {
    if (int const status = fused_matmul_of_any_type(a.own, q); status != 0) return status;
  }
  if (int const status = allow_shared_memory<kernel>(0, queue, carveout); status != 0) return status;
  int const n_own = here ? a.own.parts[0].rows : 0, n_ahead = detail::may_guess(a) ? a.n_ahead : 0;
  int const n_blocks = 1 + n_own + n_ahead * ceil_div(a.n_experts, detail::guess_rows);
  // Of the router's rows as float_row_matmul() has them, so that they are summed alike.
  int const threads = min_of(round_up(max_of(a.own.dim / FewChunk<F32>::elems, 4 * warp_size), warp_size), detail::float_row_threads);
  return launch_kernel(kernel, dim3(unsigned(n_blocks)), dim3(unsigned(threads)), 0, queue, a, n_own);
}

}  // namespace tiered::cuda
