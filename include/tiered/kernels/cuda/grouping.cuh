/// Slots of experts grouped by expert, on the device: nobody waits for the router's ids. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int grouping_threads = 512;
inline constexpr int grouping_warps = grouping_threads / warp_size;
inline constexpr int ids_per_thread = 4;

/// Exclusive prefix sum over the block's threads; `total` of all. scratch: grouping_warps elements, free again at the next barrier.
template <class T>
__device__ __forceinline__ T block_prefix(T v, T* scratch, T& total) {
  int const lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size;
  T inclusive = v;
  for (int d = 1; d < warp_size; d *= 2) {
    T const below = __shfl_up_sync(0xffffffffu, inclusive, unsigned(d));
    if (lane >= d) inclusive += below;
  }
  if (lane == warp_size - 1) scratch[warp] = inclusive;
  __syncthreads();
  T before = 0;
  total = 0;
  for (int w = 0; w < grouping_warps; ++w) {
    before += w < warp ? scratch[w] : 0;
    total += scratch[w];
  }
  __syncthreads();
  return before + inclusive - v;
}

/// What is made of the router's ids: slots, and what else is not null.
struct GroupSlotsArgs {
  std::int32_t const* ids = nullptr;     ///< [n_slots]
  std::int32_t const* ranks = nullptr;   ///< [n_experts]: then `expert` is a rank below; or null
  ExpertGroup const* weights = nullptr;  ///< [n_experts], with groups
  ExpertGroup* groups = nullptr;         ///< [n_experts]
  std::int32_t* begins = nullptr;        ///< [n_experts + 1]
  std::int32_t* slots = nullptr;         ///< [n_slots]
  std::int32_t* places = nullptr;        ///< [n_slots]: places[slots[i]] = i
  std::int32_t n_slots = 0, n_experts = 0;
};

/// The id of slot i. Ids of the router are valid; whatever else is there must not lead out of the arrays.
__device__ __forceinline__ int expert_of(GroupSlotsArgs const& a, int i) {
  int const id = max_of(0, min_of(a.ids[i], a.n_experts - 1));
  return a.ranks != nullptr ? a.ranks[id] : id;
}

/// A block for each expert: counts the slots of lower experts, which is where its own begin, then lists them in ascending order. Every
/// block reads all ids twice, from L2: 4096 tokens of 8 experts are 128 KiB.
__global__ void __launch_bounds__(grouping_threads) group_slots_kernel(GroupSlotsArgs const a) {
  __shared__ int scratch[grouping_warps];
  wait_for_previous();
  let_next_start();
  int const expert = int(blockIdx.x), n_slots = a.n_slots;
  int n_lower = 0, first = 0;
  for (int i = int(threadIdx.x); i < n_slots; i += grouping_threads) n_lower += expert_of(a, i) < expert;
  block_prefix(n_lower, scratch, first);
  int n = 0;
  for (int base = 0; base < n_slots; base += grouping_threads * ids_per_thread) {
    int const begin = base + int(threadIdx.x) * ids_per_thread;
    unsigned mine = 0;
    for (int k = 0; k < ids_per_thread; ++k) mine |= unsigned(begin + k < n_slots && expert_of(a, begin + k) == expert) << k;
    int n_here = 0, place = first + n + block_prefix(__popc(mine), scratch, n_here);
    for (int k = 0; k < ids_per_thread; ++k) {
      if ((mine >> k & 1) == 0) continue;
      if (a.places != nullptr) a.places[begin + k] = place;
      a.slots[place++] = begin + k;
    }
    n += n_here;
  }
  if (threadIdx.x != 0) return;
  if (a.begins != nullptr) {
    a.begins[expert] = first;
    if (expert == a.n_experts - 1) a.begins[a.n_experts] = first + n;
  }
  if (a.groups == nullptr) return;
  ExpertGroup group = n > 0 ? a.weights[expert] : ExpertGroup{};
  group.first = first;
  group.n = n;
  a.groups[expert] = group;
}

/// Groups that lie anywhere among the slots, side by side; empty ones are left out. One block.
struct CompactGroupsArgs {
  ExpertGroup const* groups;  ///< [n_groups]
  std::int32_t const* slots;
  ExpertGroup* out_groups;  ///< [n_out]: those that are not empty, then empty ones
  std::int32_t* out_slots;
  int n_groups, n_out;
};

__global__ void __launch_bounds__(grouping_threads) compact_groups(CompactGroupsArgs const a) {
  __shared__ std::int64_t scratch[grouping_warps];
  __shared__ int source[grouping_threads], target[grouping_threads], size[grouping_threads];
  wait_for_previous();
  let_next_start();
  int const thread = int(threadIdx.x);
  std::int64_t before = 0;  // groups in the upper half, slots in the lower one
  for (int base = 0; base < a.n_groups; base += grouping_threads) {
    ExpertGroup group{};
    if (base + thread < a.n_groups) group = a.groups[base + thread];
    std::int64_t here = 0;
    std::int64_t const at = before + block_prefix(group.n > 0 ? (std::int64_t(1) << 32) + group.n : std::int64_t(0), scratch, here);
    source[thread] = group.first;
    target[thread] = group.first = int(at);
    size[thread] = group.n;
    if (group.n > 0 && int(at >> 32) < a.n_out) a.out_groups[at >> 32] = group;
    before += here;
    __syncthreads();
    for (int g = thread / warp_size; g < grouping_threads; g += grouping_warps) {
      for (int i = thread % warp_size; i < size[g]; i += warp_size) a.out_slots[target[g] + i] = a.slots[source[g] + i];
    }
    __syncthreads();
  }
  for (int i = int(before >> 32) + thread; i < a.n_out; i += grouping_threads) a.out_groups[i] = ExpertGroup{};
}

}  // namespace detail

/// Slots of one expert ascend.
inline int group_by_expert(detail::GroupSlotsArgs const& a, Queue queue) {
  return launch_kernel(detail::group_slots_kernel, unsigned(a.n_experts), detail::grouping_threads, 0, native(queue), a);
}

inline int compact_groups(detail::CompactGroupsArgs const& a, Queue queue) {
  return launch_kernel(&detail::compact_groups, 1, detail::grouping_threads, 0, native(queue), a);
}

}  // namespace tiered::cuda
