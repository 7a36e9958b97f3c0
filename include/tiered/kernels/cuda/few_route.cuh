/// The router's choice inside the kernel that reads it first: RouteArgs for softmax without a bias. [device-visible]
///
/// Softmax keeps the order of logits, so the choice needs no exponentials; where one is infinite or not a number all scores are none, and
/// the lowest ids are chosen, as route.cuh does. (Scores that double arithmetic rounds to 0 are still in the order of their logits.)
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int few_route_experts = 256;  ///< at most

inline bool routes_inside(RouteArgs const& a) {
  return a.gating == Gating::softmax && a.bias == nullptr && a.n_used >= 1 && a.n_used <= few_max_slots && a.n_used <= a.n_experts &&
         a.n_experts <= few_route_experts;
}

/// A token's logits, as keys, and its chosen experts, in no order.
struct alignas(16) FewChoice {
  std::int32_t keys[few_route_experts];
  std::int32_t ids[few_max_slots];
  ExpertGroup experts[few_max_slots];
};
__device__ __forceinline__ FewChoice& few_choice() {
  __shared__ FewChoice choice;
  return choice;
}

/// Orders as the numbers do, -0 as 0. Of its own result: the number.
__device__ __forceinline__ int turned(int bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; }
__device__ __forceinline__ int ordered_key(float v) { return turned(__float_as_int(v + 0.0f)); }
__device__ __forceinline__ float number_of(int key) { return __int_as_float(turned(key)); }

/// This lane's chosen expert, its place among the chosen ones, ascending by id.
struct PlacedExpert {
  int id, place;
};
__device__ __forceinline__ PlacedExpert placed_expert(int n_used) {
  FewChoice const& choice = few_choice();
  int const lane = int(threadIdx.x) % 32, id = lane < n_used ? choice.ids[lane] : 0x7fffffff;
  int place = lane < n_used ? 0 : few_max_slots;
  for (int i = 0; i < n_used; ++i) place += choice.ids[i] < id;
  return {id, place};
}

/// How many of the keys come before `e`, one lane of four each counting its own.
__device__ __forceinline__ int rank_among_four(FewChoice const& choice, int n_padded, int e) {
  int const own = choice.keys[e];
  int rank = 0;
#pragma unroll 2
  for (int i = int(threadIdx.x) % 4 * 4; i < n_padded; i += 16) {
    int4 const four = *reinterpret_cast<int4 const*>(choice.keys + i);
    rank += four.x > own - (i < e);  // equal ones count where their id is lower
    rank += four.y > own - (i + 1 < e);
    rank += four.z > own - (i + 2 < e);
    rank += four.w > own - (i + 3 < e);
  }
  rank += __shfl_xor_sync(~0u, rank, 1);
  return rank + __shfl_xor_sync(~0u, rank, 2);
}

/// Past the L1 cache, as the logits: who calls may not have waited for whoever wrote them (FewDownArgs::route).
__device__ __forceinline__ ExpertGroup matrices_of(ExpertGroup const* experts, int e) {
  auto const pointer = [](void const* const& at) {
    return reinterpret_cast<void const*>(__ldcg(reinterpret_cast<unsigned long long const*>(&at)));
  };
  ExpertGroup group;
  group.gate = pointer(experts[e].gate);
  group.up = pointer(experts[e].up);
  group.down = pointer(experts[e].down);
  return group;
}

/// The expert at a place of the token's, in shared memory; the block calls, in whole warps.
__device__ inline ExpertGroup const* choose_expert(RouteArgs const& a, ExpertGroup const* experts, int token, int place) {
  FewChoice& choice = few_choice();
  int const thread = int(threadIdx.x), lane = thread % 32, step = int(blockDim.x), n_padded = round_up(a.n_experts, 16);
  bool odd = false;
  for (int e = thread; e < n_padded; e += step) {
    float const logit = e < a.n_experts ? __ldcg(a.logits + std::int64_t(token) * a.n_experts + e) : 0.0f;
    choice.keys[e] = e < a.n_experts ? ordered_key(logit) : -0x7fffffff - 1;
    odd = odd || !(logit < INFINITY);
  }
  // Where its matrices are comes with an expert's rank, not after it.
  ExpertGroup group = matrices_of(experts, min(thread / 4, a.n_experts - 1));
  odd = __syncthreads_or(odd) != 0;
#pragma unroll 1
  for (int first = thread - lane; first < a.n_experts * 4; first += step) {
    int const e = min((first + lane) / 4, a.n_experts - 1);
    if (first + lane != thread) group = matrices_of(experts, e);
    int const rank = odd ? e : rank_among_four(choice, n_padded, e);
    if (lane % 4 != 0 || first + lane >= a.n_experts * 4 || rank >= a.n_used) continue;
    choice.ids[rank] = e;
    choice.experts[rank] = group;
  }
  __syncthreads();
  unsigned const here = __ballot_sync(~0u, placed_expert(a.n_used).place == place);
  return choice.experts + (__ffs(int(here)) - 1);
}

/// The same sum in all lanes.
__device__ __forceinline__ double warp_sum_f64(double v) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v += __shfl_xor_sync(~0u, v, mask);
  return v;
}

/// After choose_expert(): ids and weights of the token, by one warp.
__device__ inline void write_choice(RouteArgs const& a, int token) {
  FewChoice const& choice = few_choice();
  int const lane = int(threadIdx.x) % 32;
  float largest = -INFINITY;
#pragma unroll 1
  for (int e = lane; e < a.n_experts; e += 32) largest = fmaxf(largest, number_of(choice.keys[e]));
  largest = warp_max(largest);
  double all = 0;
#pragma unroll 1
  for (int e = lane; e < a.n_experts; e += 32) all += exp(double(number_of(choice.keys[e])) - double(largest));
  all = warp_sum_f64(all);
  PlacedExpert const placed = placed_expert(a.n_used);
  double const score = lane < a.n_used ? exp(double(number_of(choice.keys[placed.id])) - double(largest)) / all : 0.0;
  double const chosen = warp_sum_f64(score);
  if (lane >= a.n_used) return;
  std::int64_t const at = std::int64_t(token) * a.n_used + placed.place;
  a.ids[at] = placed.id;
  a.weights[at] = float(score / (a.normalise ? chosen : 1.0) * double(a.scale));
}

}  // namespace detail
}  // namespace tiered::cuda
