/// Guesses of what later layers will choose: see GuessArgs. [device-visible]
///
/// Blocks of a help_kernel() that nobody waits for longer than for its first one. With programmatic dependent launch they begin once all
/// blocks of the kernels since the layer's router have begun, those of gate and up when the router is complete, and find room: so they do
/// not wait for experts to end, but look for the row that the router hands on. Each writes its scores to the host as soon as it has them.
/// Of 128 experts and rows of 2048 a guess reads 1 MB, 0.25 us of the device's memory.
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/words.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int guess_threads = 512, guess_warps = guess_threads / warp_size;
inline constexpr int guess_rows = 4;  ///< of a block
/// The router's blocks have begun by then, all of them: its row is there in a microsecond or two, but where its kernel waits for the host
/// through others before it.
inline constexpr std::uint64_t guess_patience_ns = 50'000;

/// The number that stands beside the row once it is the layer's, for all threads of the block; it ends in any case: behind the previous
/// kernel the row is there.
__device__ inline std::uint64_t wait_for_row(HelpState const* state, int layer) {
  __shared__ std::uint64_t number;
  auto const is_there = [&](std::uint64_t seen) { return int(seen % 1024) == layer + 1; };
  if (threadIdx.x == 0) {
    std::uint64_t const until_ns = now_ns() + guess_patience_ns;
    std::uint64_t seen = load_unordered(&state->row);
    while (!is_there(seen) && now_ns() < until_ns) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
      __nanosleep(100);
#endif
      seen = load_unordered(&state->row);
    }
    number = load_device(&state->row);
  }
  __syncthreads();
  if (is_there(number)) return number;
  wait_for_previous();
  __syncthreads();
  if (threadIdx.x == 0) number = load_device(&state->row);
  __syncthreads();
  return number;
}

/// guess_rows scores of one later layer; `index` counts the blocks of all of them. Weights and norms are constant, so they are under way,
/// as many as find room in registers, before the row is there.
__device__ inline void guess(HelpArgs const& a, int index) {
  __shared__ float partial[guess_rows + 1][guess_warps];  // products, and the sum of squares
  int const thread = int(threadIdx.x), lane = thread % warp_size, warp = thread / warp_size, n_chunks = a.dim / 4;
  int const n_blocks = ceil_div(a.n_experts, guess_rows), first = index % n_blocks * guess_rows;
  GuessArgs::Layer const layer = a.guesses.layers[index / n_blocks];
  auto const* const norm = reinterpret_cast<float4 const*>(layer.norm_weight);
  auto const weight_at = [&](int row, int chunk) {
    return reinterpret_cast<float4 const*>(layer.w) + std::int64_t(first + row) * n_chunks + chunk;
  };
  auto const weight = [&](int row, int chunk) {
    return first + row < a.n_experts && chunk < n_chunks ? *weight_at(row, chunk) : make_float4(0, 0, 0, 0);
  };
  float4 early[guess_rows];
#pragma unroll
  for (int r = 0; r < guess_rows; ++r) early[r] = weight(r, thread);
#if defined(__CUDA_ARCH__)
  for (int r = 0; r < guess_rows && first + r < a.n_experts; ++r) {
    for (int chunk = guess_threads + thread * 8; chunk < n_chunks; chunk += guess_threads * 8)  // 128 bytes each
      asm volatile("prefetch.global.L2 [%0];" ::"l"(weight_at(r, chunk)));
  }
#endif
  std::uint64_t const number = wait_for_row(a.state, a.layer);
  float sums[guess_rows + 1] = {};
  for (int chunk = thread; chunk < n_chunks; chunk += guess_threads) {
    float4 v = __ldcg(reinterpret_cast<float4 const*>(a.guesses.row) + chunk);
    sums[guess_rows] += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    if (norm != nullptr) v = make_float4(v.x * norm[chunk].x, v.y * norm[chunk].y, v.z * norm[chunk].z, v.w * norm[chunk].w);
#pragma unroll
    for (int r = 0; r < guess_rows; ++r) {
      float4 const w = chunk == thread ? early[r] : weight(r, chunk);
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
  float const product = warp_sum(lane < guess_warps ? partial[warp][lane] : 0.0f);
  float const squares = warp_sum(lane < guess_warps ? partial[guess_rows][lane] : 0.0f);
  if (lane != 0) return;
  float const score = product * rsqrtf(squares / float(a.dim) + a.guesses.eps);
  store_unordered(reinterpret_cast<std::uint64_t*>(layer.guesses + first + warp),
                  std::uint64_t(std::uint32_t(number / 1024)) << 32 | __float_as_uint(score));
}

/// Blocks that guess; 0 unless rows and weights are multiples of 16 bytes at multiples of 16.
inline int guess_blocks(HelpArgs const& a) {
  GuessArgs const& g = a.guesses;
  std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(g.row) | std::uintptr_t(a.dim) * sizeof(float);
  for (int i = 0; i < g.n_layers; ++i)
    bits |= reinterpret_cast<std::uintptr_t>(g.layers[i].w) | reinterpret_cast<std::uintptr_t>(g.layers[i].norm_weight);
  return bits % 16 == 0 ? g.n_layers * ceil_div(a.n_experts, guess_rows) : 0;
}

}  // namespace detail
}  // namespace tiered::cuda
