/// The router's choice of experts. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

/// Orders as the numbers do, -0 as 0, not-a-number as -infinity.
__device__ __forceinline__ std::int64_t ordered_key(double v) {
  std::int64_t const bits = __double_as_longlong(isnan(v) ? -INFINITY : v + 0.0);
  return bits < 0 ? bits ^ INT64_MAX : bits;
}

__device__ __forceinline__ double block_sum_f64(double v, double* scratch) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  int const lane = int(threadIdx.x) % warp_size, n_warps = int(blockDim.x) / warp_size;
  if (lane == 0) scratch[threadIdx.x / warp_size] = v;
  __syncthreads();
  v = lane < n_warps ? scratch[lane] : 0.0;
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}

/// This thread's expert's score. In f64, so that experts whose logits differ do not tie; threads past the last expert give 0.
__device__ __forceinline__ double router_score(RouteArgs const& a, float logit, bool is_expert, float* scratch, double* scratch_f64) {
  if (a.gating == Gating::sigmoid) return is_expert ? 1.0 / (1.0 + exp(-double(logit))) : 0.0;
  float const largest = block_max(is_expert ? logit : -INFINITY, scratch);  // of numbers: not-a-number is dropped here, not in the sum
  double const share = is_expert ? exp(double(logit) - double(largest)) : 0.0;
  return share / block_sum_f64(share, scratch_f64);
}

/// How many of keys[0, n) come before expert e: those that are greater, and equal ones of lower id.
__device__ __forceinline__ int rank_of(std::int64_t const* keys, int n, int e) {
  std::int64_t const own = keys[e];
  int rank = 0;
#pragma unroll 8
  for (int i = 0; i < n; ++i) rank += keys[i] > own || (keys[i] == own && i < e);
  return rank;
}

/// A block for each token, a thread for each expert, in whole warps. A template, since several translation units include it.
template <int threads = most_experts>
__global__ void __launch_bounds__(threads) route_kernel(RouteArgs const a) {
  __shared__ std::int64_t keys[most_experts];
  __shared__ double chosen[most_experts];  // scores, ascending by id
  __shared__ double scratch_f64[max_warps];
  __shared__ float scratch[max_warps];
  __shared__ int n_before[max_warps];
  wait_for_previous();
  let_next_start();
  std::int64_t const token = blockIdx.x;
  int const e = int(threadIdx.x), lane = e % warp_size, warp = e / warp_size;
  bool const is_expert = e < a.n_experts;
  double const score = router_score(a, is_expert ? a.logits[token * a.n_experts + e] : 0.0f, is_expert, scratch, scratch_f64);
  if (is_expert) keys[e] = ordered_key(a.bias != nullptr ? score + double(a.bias[e]) : score);
  __syncthreads();
  bool const is_chosen = is_expert && rank_of(keys, a.n_experts, e) < a.n_used;
  unsigned const votes = __ballot_sync(0xffffffffu, is_chosen);
  if (lane == 0) n_before[warp] = __popc(votes);
  __syncthreads();
  int place = __popc(votes & ((1u << lane) - 1));
  for (int w = 0; w < warp; ++w) place += n_before[w];
  if (is_chosen) {
    chosen[place] = score;
    a.ids[token * a.n_used + place] = e;
  }
  __syncthreads();
  if (e >= a.n_used) return;
  double sum = 0;
  for (int j = 0; j < a.n_used; ++j) sum += chosen[j];
  a.weights[token * a.n_used + e] = float(chosen[e] / (a.normalise ? sum : 1.0) * double(a.scale));
}

}  // namespace detail

inline int route(RouteArgs const& a, Queue queue) {
  if (a.n_tokens == 0) return 0;
  if (a.n_used < 1 || a.n_used > a.n_experts || a.n_experts > most_experts) return int(cudaErrorInvalidValue);
  return launch_kernel(detail::route_kernel<>, unsigned(a.n_tokens), unsigned(round_up(a.n_experts, warp_size)), 0, native(queue), a);
}

}  // namespace tiered::cuda
