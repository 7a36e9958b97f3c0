/// Attention over paged keys and values: which kernel takes what. [device-visible]
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "tiered/kernels/cuda/attention_few.cuh"
#include "tiered/kernels/cuda/attention_many.cuh"
#include "tiered/kernels/cuda/attention_plain.cuh"
#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/cuda/kv.cuh"

namespace tiered::cuda {
namespace detail {

template <class KV, int head_dim, bool over_link>
int attention_few(FewCall const& call, std::int32_t blocks, CudaQueue const& queue) {
  constexpr int bytes = FewMemory<KV, head_dim, over_link>::total_bytes;
  constexpr auto kernel = &attention_few_kernel<KV, head_dim, over_link>;
  constexpr Carveout carveout = overlap_small_kernels ? Carveout::most_shared : Carveout::chosen;
  if (int const status = allow_shared_memory<kernel>(bytes, queue, carveout); status != 0) return status;
  dim3 const grid(unsigned(blocks), unsigned(call.n_splits), unsigned(call.attention.n_tokens));
  return launch_kernel(kernel, grid, dim3(FewShape<head_dim>::n_threads), bytes, queue, call);
}

template <class KV, int head_dim>
int attention_many(AttentionArgs const& a, CudaQueue const& queue) {
  constexpr int bytes = ManyMemory<KV, head_dim>::total_bytes;
  constexpr auto kernel = &attention_many_kernel<KV, head_dim>;
  if (int const status = allow_shared_memory<kernel>(bytes, queue); status != 0) return status;
  dim3 const grid(unsigned(a.n_heads), unsigned(ceil_div(a.n_tokens, ManyShape<head_dim>::rows)));
  std::int64_t const n = std::int64_t(grid.x) * grid.y;
  std::int32_t const turn = n <= 2 * queue.n_multiprocessors ? queue.n_multiprocessors : std::numeric_limits<std::int32_t>::max();
  return launch_kernel(kernel, grid, dim3(ManyShape<head_dim>::n_threads), bytes, queue, a, turn);
}

/// Calls function(std::integral_constant<int, head_dim>) where is_tiled_head().
template <class Function>
int with_head_dim(std::int32_t head_dim, Function function) {
  switch (head_dim) {
    case 64: return function(std::integral_constant<int, 64>{});
    case 80: return function(std::integral_constant<int, 80>{});
    case 96: return function(std::integral_constant<int, 96>{});
    case 128: return function(std::integral_constant<int, 128>{});
    case 256: return function(std::integral_constant<int, 256>{});
  }
  return int(cudaErrorInvalidValue);
}

/// Likewise where is_many_head().
template <class Function>
int with_many_head_dim(std::int32_t head_dim, Function function) {
  return head_dim == 72 ? function(std::integral_constant<int, 72>{}) : with_head_dim(head_dim, function);
}

/// Whether tensor cores take it. f32 keys and values are for who wants them exact; they would round them.
template <class KV>
bool is_tiled(AttentionArgs const& a, CudaQueue const& queue) {
  bool const has_kernel = a.n_tokens <= attention_few_rows ? is_tiled_head(a.head_dim) : is_many_head(a.head_dim);
  return !std::is_same_v<KV, F32> && queue.capability >= 80 && has_kernel && a.page_tokens % split_tile == 0 &&
         a.n_heads % a.n_kv_heads == 0;
}

/// Few rows on tensor cores; with `input`, what comes before attention too.
template <class KV>
int attention_few(AttentionArgs const& a, AttentionInputArgs const* input, CudaQueue const& queue) {
  std::int32_t const blocks = a.n_kv_heads * ceil_div(a.n_heads / a.n_kv_heads, few_heads);
  FewCall call{a, input != nullptr ? *input : AttentionInputArgs{}, queue.counters, 1, input != nullptr};
  call.n_splits = attention_splits(a, blocks * a.n_tokens, queue.n_multiprocessors);
  if (call.n_splits > 1 && (queue.counters == nullptr || blocks * a.n_tokens > std::int32_t(cuda_counters)))
    return int(cudaErrorInvalidValue);
  return with_head_dim(a.head_dim, [&](auto head_dim) {
    using Memory = FewMemory<KV, head_dim(), true>;
    constexpr bool differs = Memory::Tile::shifts || !std::is_same_v<KV, Q8_0>;
    if constexpr (differs) {
      bool const has_room = Memory::total_bytes + few_attention_static_bytes <= shared_bytes_limit(queue.capability);
      if (a.share.border >= 0 && has_room) return attention_few<KV, head_dim(), true>(call, blocks, queue);
    }
    return attention_few<KV, head_dim(), false>(call, blocks, queue);
  });
}

/// Anything else, without tensor cores.
template <class KV>
int attention_any(AttentionArgs const& a, CudaQueue const& queue) {
  std::int32_t const n_splits = attention_splits(a, a.n_heads * a.n_tokens, queue.n_multiprocessors);
  int const status = attention_plain<KV>(a, n_splits, queue);
  if (status != 0 || n_splits == 1) return status;
  dim3 const grid(unsigned(a.n_heads), unsigned(a.n_tokens));
  return launch_kernel(attention_merge_splits_kernel, grid, dim3(merge_warps * warp_size), 0, queue, a, n_splits);
}

}  // namespace detail

/// AttentionArgs; KV: F16, Q8_0 or F32. head_dim <= largest_head. A row's result depends on its own position and KV, and, for few rows,
/// on how many rows the call has and its max_position, which decide how contexts are cut; not on other rows, nor on positions that it does
/// not see, whatever is there. Many rows: queries times scale and the weights of values are rounded to binary16, sums are f32.
/// Returns   0 or a cudaError_t.
template <class KV>
int attention(AttentionArgs const& a, Queue queue) {
  if (a.n_tokens == 0) return 0;
  if (a.head_dim > largest_head) return int(cudaErrorInvalidValue);
  CudaQueue const& q = native(queue);
  if constexpr (!std::is_same_v<KV, F32>) {
    if (detail::is_tiled<KV>(a, q)) {
      if (a.n_tokens <= attention_few_rows) return detail::attention_few<KV>(a, nullptr, q);
      return detail::with_many_head_dim(a.head_dim, [&](auto head_dim) { return detail::attention_many<KV, head_dim()>(a, q); });
    }
  }
  return detail::attention_any<KV>(a, q);
}

/// DecodeAttentionArgs; as attention(). One launch where no row needs what another one writes and there are tensor cores, else two or
/// three.
template <class KV>
int decode_attention(DecodeAttentionArgs const& a, Queue queue) {
  AttentionArgs const& attend = a.attention;
  if (attend.n_tokens == 0) return 0;
  if constexpr (!std::is_same_v<KV, F32>) {
    bool const everything =
        attend.positions.begin == 0 && attend.positions.end > attend.max_position && attend.share.border < 0 && attend.seen == nullptr;
    bool const apart = attend.n_tokens == 1 || (a.rows_apart && attend.n_tokens <= attention_few_rows);
    if (apart && everything && detail::is_tiled<KV>(attend, native(queue)))
      return detail::attention_few<KV>(attend, &a.input, native(queue));
  }
  if (int const status = attention_input<KV>(a.input, queue); status != 0) return status;
  return attention<KV>(attend, queue);
}

}  // namespace tiered::cuda
