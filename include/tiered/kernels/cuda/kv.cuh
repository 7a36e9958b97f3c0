/// Writing keys and values to pages, alone or with all that comes before attention. [device-visible]
#pragma once

#include <cstdint>
#include <type_traits>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/attention_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/rope.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {
namespace detail {

inline constexpr int kv_warps = 4;  ///< of a block; each takes one head's vector at a time

/// The largest of a warp's numbers as integers.
__device__ __forceinline__ unsigned warp_max_bits(unsigned v) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v = max_of(v, __shfl_xor_sync(0xffffffffu, v, mask));
  return v;
}

/// A lane's element of a block of 32, as encode_block(Q8_0) makes it.
__device__ __forceinline__ void store_q8_0(Q8_0::Block& block, float value, int lane) {
  std::uint32_t bits = tiered::detail::float_to_bits(value) & 0x7fffffffu;
  if (bits > 0x7f800000u) bits = 0;  // not a number: smaller than all
  float const largest = tiered::detail::bits_to_float(warp_max_bits(bits)), scale = __fdiv_rn(largest, 127.0f);
  std::uint16_t const d = float_to_half(scale > 65504.0f ? 65504.0f : scale);
  float const decoded = half_to_float(d), inverse = decoded == 0 ? 0.0f : __fdiv_rn(1.0f, decoded);
  float const q = __fmul_rn(value, inverse);
  block.qs[lane] = std::int8_t(q >= 127 ? 127 : q > -127 ? tiered::detail::nearest_int(q) : -127);
  if (lane == 0) block.d = d;
}

/// One warp stores a head's vector of n elements, of which element(i) is one.
template <class KV, class Element>
__device__ __forceinline__ void store_vector(std::byte* to, std::int32_t n, int lane, Element element) {
  auto* const blocks = reinterpret_cast<typename KV::Block*>(to);
  for (std::int32_t first = 0; first < n; first += warp_size) {
    std::int32_t const i = first + lane;
    float const value = i < n ? element(i) : 0.0f;
    if constexpr (std::is_same_v<KV, Q8_0>) {
      store_q8_0(blocks[first / 32], value, lane);
    } else if (i < n) {
      if constexpr (std::is_same_v<KV, F16>) blocks[i].value = float_to_half(value);
      if constexpr (std::is_same_v<KV, F32>) blocks[i].value = value;
    }
  }
}

/// Where a head's vector of the position of a row lies in pages of KV.
template <class KV>
__device__ __forceinline__ std::byte* kv_place(std::byte* const* pages, std::int32_t position, std::int32_t kv_head,
                                               std::int32_t page_tokens, std::int32_t head_dim) {
  std::int64_t const vectors = std::int64_t(kv_head) * page_tokens + position % page_tokens;
  return pages[position / page_tokens] + vectors * std::int64_t(kv_row_bytes(KV::dtype, head_dim));
}

/// Blocks (rows, ...): warps take turns at the row's heads, keys first.
template <class KV>
__global__ void __launch_bounds__(kv_warps* warp_size) kv_write_kernel(KvWriteArgs const a) {
  wait_for_previous();
  let_next_start();
  int const lane = int(threadIdx.x) % warp_size;
  KvRow const row = a.rows[blockIdx.x];
  KvTable const table = a.tables[row.table];
  for (int i = int(blockIdx.y) * kv_warps + int(threadIdx.x) / warp_size; i < 2 * a.n_kv_heads; i += int(gridDim.y) * kv_warps) {
    bool const is_key = i < a.n_kv_heads;
    int const head = is_key ? i : i - a.n_kv_heads;
    float const* const from = (is_key ? a.k : a.v) + (std::int64_t(blockIdx.x) * a.n_kv_heads + head) * a.head_dim;
    std::byte* const to = kv_place<KV>(is_key ? table.k_pages : table.v_pages, row.position, head, a.page_tokens, a.head_dim);
    store_vector<KV>(to, a.head_dim, lane, [&](std::int32_t d) { return from[d]; });
  }
}

/// One warp norms and turns the vector at `from` into `vector`, shared memory of its own.
__device__ __forceinline__ void prepare_head(AttentionInputArgs const& a, float const* from, float const* weight, float* vector, int lane) {
  float squares = 0;
  for (std::int32_t d = lane; d < a.head_dim; d += warp_size) {
    float const value = from[d];
    vector[d] = value;
    squares += value * value;
  }
  if (weight != nullptr) {
    float const factor = 1.0f / sqrtf(warp_sum(squares) / float(a.head_dim) + a.eps);
    for (std::int32_t d = lane; d < a.head_dim; d += warp_size) vector[d] *= factor * weight[d];
  }
  __syncwarp();
  std::int32_t const n_pairs = a.n_rot / 2, position = a.positions[blockIdx.x];
  for (std::int32_t i = lane; i < n_pairs; i += warp_size) {
    Turn const turn = rope_turn(position, a.inv_freq[i], a.magnitude);
    float& first = vector[a.kind == RopeKind::adjacent ? 2 * i : i];
    float& second = vector[a.kind == RopeKind::adjacent ? 2 * i + 1 : i + n_pairs];
    float const u = first, v = second;
    first = u * turn.cosine - v * turn.sine;
    second = u * turn.sine + v * turn.cosine;
  }
  __syncwarp();
}

/// Blocks (rows, ...): warps take turns at the row's heads: queries, keys, values.
template <class KV>
__global__ void __launch_bounds__(kv_warps* warp_size) attention_input_kernel(AttentionInputArgs const a) {
  __shared__ float vectors[kv_warps][largest_head];
  wait_for_previous();
  let_next_start();
  int const lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size;
  std::int64_t const token = blockIdx.x;
  KvRow const row = a.rows[token];
  KvTable const table = a.tables[row.table];
  float* const vector = vectors[warp];
  for (int i = int(blockIdx.y) * kv_warps + warp; i < a.n_heads + 2 * a.n_kv_heads; i += int(gridDim.y) * kv_warps) {
    bool const is_query = i < a.n_heads, is_key = !is_query && i < a.n_heads + a.n_kv_heads;
    int const head = is_query ? i : is_key ? i - a.n_heads : i - a.n_heads - a.n_kv_heads;
    std::int64_t const offset = (token * (is_query ? a.n_heads : a.n_kv_heads) + head) * a.head_dim;
    if (is_query || is_key) prepare_head(a, (is_query ? a.q : a.k) + offset, is_query ? a.q_norm : a.k_norm, vector, lane);
    if (is_query) {
      for (std::int32_t d = lane; d < a.head_dim; d += warp_size) a.q[offset + d] = vector[d];
    } else {
      std::byte* const to = kv_place<KV>(is_key ? table.k_pages : table.v_pages, row.position, head, a.page_tokens, a.head_dim);
      float const* const from = is_key ? vector : a.v + offset;
      store_vector<KV>(to, a.head_dim, lane, [&](std::int32_t d) { return from[d]; });
    }
    __syncwarp();  // `vector` is used again
  }
}

/// Few rows: a warp for each head. Many: a warp takes several, so that blocks are fewer.
inline dim3 head_grid(std::int32_t n_tokens, std::int32_t n_heads) {
  return {unsigned(n_tokens), unsigned(ceil_div(n_heads, n_tokens <= 64 ? kv_warps : 4 * kv_warps))};
}

}  // namespace detail

/// KvWriteArgs; KV: F16, F32 or Q8_0. 0 or a cudaError_t.
template <class KV>
int kv_write(KvWriteArgs const& a, Queue queue) {
  if (a.n_tokens == 0) return 0;
  return launch_kernel(detail::kv_write_kernel<KV>, detail::head_grid(a.n_tokens, 2 * a.n_kv_heads), dim3(detail::kv_warps * warp_size), 0,
                       native(queue), a);
}

/// AttentionInputArgs; head_dim <= largest_head. 0 or a cudaError_t.
template <class KV>
int attention_input(AttentionInputArgs const& a, Queue queue) {
  if (a.n_tokens == 0) return 0;
  if (a.head_dim > largest_head) return int(cudaErrorInvalidValue);
  return launch_kernel(detail::attention_input_kernel<KV>, detail::head_grid(a.n_tokens, a.n_heads + 2 * a.n_kv_heads),
                       dim3(detail::kv_warps * warp_size), 0, native(queue), a);
}

}  // namespace tiered::cuda
