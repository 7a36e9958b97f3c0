/// Rotary positions. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {

struct Turn {
  float cosine, sine;
};

/// The angle in f64, as in the reference, and reduced there: sincospif then needs no table in local memory as sincosf does.
__device__ __forceinline__ Turn rope_turn(std::int32_t position, float inv_freq, float magnitude) {
  constexpr double inverse_pi = 0.31830988618379067154;
  double const half_turns = double(position) * double(inv_freq) * inverse_pi;
  float sine, cosine;
  sincospif(float(half_turns - 2 * rint(half_turns * 0.5)), &sine, &cosine);
  return {magnitude * cosine, magnitude * sine};
}

/// Where the position is that turns pair i of a token. Args: RopeArgs or AttentionInputArgs.
template <class Args>
__device__ __forceinline__ std::int32_t position_at(Args const& a, std::int32_t token, std::int32_t i) {
  return a.position_row == nullptr ? token : a.position_row[i] * a.position_stride + token;
}

namespace detail {

inline constexpr int rope_threads = 256;

/// Block (token, head group) of (pairs, heads) threads: a turn serves all heads of its thread.
__global__ void __launch_bounds__(rope_threads) rope_kernel(RopeArgs const a) {
  wait_for_previous();
  let_next_start();
  int const n_pairs = a.n_rot / 2, step = int(gridDim.y * blockDim.y);
  std::int64_t const token = blockIdx.x;
  for (int i = int(threadIdx.x); i < n_pairs; i += int(blockDim.x)) {
    Turn const turn = rope_turn(a.positions[position_at(a, int(token), i)], a.inv_freq[i], a.magnitude);
    int const u = a.kind == RopeKind::adjacent ? 2 * i : i, v = a.kind == RopeKind::adjacent ? 2 * i + 1 : i + n_pairs;
    for (int head = int(blockIdx.y * blockDim.y + threadIdx.y); head < a.n_heads; head += step) {
      float* const x = a.x + (token * a.n_heads + head) * a.head_dim;
      float const first = x[u], second = x[v];
      x[u] = first * turn.cosine - second * turn.sine;
      x[v] = first * turn.sine + second * turn.cosine;
    }
  }
}

}  // namespace detail

inline int rope(RopeArgs const& a, Queue queue) {
  if (a.n_tokens == 0 || a.n_heads == 0 || a.n_rot < 2) return 0;
  int const pairs = min_of(round_up(a.n_rot / 2, warp_size), detail::rope_threads), heads = detail::rope_threads / pairs;
  // Few tokens: a head for each row of threads; many: each serves several.
  int const groups = ceil_div(a.n_heads, a.n_tokens <= 64 ? heads : 4 * heads);
  return launch_kernel(detail::rope_kernel, dim3(unsigned(a.n_tokens), unsigned(groups)), dim3(unsigned(pairs), unsigned(heads)), 0,
                       native(queue), a);
}

}  // namespace tiered::cuda
