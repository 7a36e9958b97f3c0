/// Writing keys and values to pages, alone or with all that comes before attention. [device-visible]
#pragma once

#include <cstdint>
#include <type_traits>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/attention_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"
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

inline constexpr int kv_tile_rows = 4;       ///< that a thread has at a time
inline constexpr int kv_tile_threads = 256;  ///< of a block, at most
inline constexpr int kv_few_rows = 64;       ///< up to so many, a warp for each head's vector is faster

/// Two elements as float_to_half() rounds them, a NaN's payload too.
__device__ __forceinline__ std::uint32_t exact_half_pair(float low, float high) {
  if (low != low || high != high) return float_to_half(low) | std::uint32_t(float_to_half(high)) << 16;
  return pack_f16(low, high);
}

/// Eight elements of a head's vector; 16 bytes at once where pages allow.
__device__ __forceinline__ void store_8(std::byte* to, float4 low, float4 high) {
  uint4 const v{exact_half_pair(low.x, low.y), exact_half_pair(low.z, low.w), exact_half_pair(high.x, high.y),
                exact_half_pair(high.z, high.w)};
  if (reinterpret_cast<std::uintptr_t>(to) % sizeof(uint4) == 0) {
    *reinterpret_cast<uint4*>(to) = v;
    return;
  }
  std::uint32_t const words[4] = {v.x, v.y, v.z, v.w};
  auto* const halves = reinterpret_cast<std::uint16_t*>(to);
#pragma unroll
  for (int i = 0; i < 8; ++i) halves[i] = std::uint16_t(words[i / 2] >> i % 2 * 16);
}

/// Many rows as halves: keys, then values of a row are groups of eight elements, of which a thread has the same one of each of the block's
/// rows. Blocks (tiles of rows, ranges of groups). k and v are aligned to 16, head_dim is a multiple of 8.
__global__ void __launch_bounds__(kv_tile_threads) kv_write_tile_kernel(KvWriteArgs const a) {
  __shared__ std::byte* places[2][kv_tile_rows];  // of the first head of keys, values
  wait_for_previous();
  let_next_start();
  int const head_groups = a.head_dim / 8, row_groups = a.n_kv_heads * head_groups, thread = int(threadIdx.x);
  int const group = int(blockIdx.y * blockDim.x) + thread, first = int(blockIdx.x) * kv_tile_rows;
  int const n = group < 2 * row_groups ? min_of(kv_tile_rows, a.n_tokens - first) : 0, kv = group < row_groups ? 0 : 1;
  int const own = group - kv * row_groups, head = own / head_groups;
  auto const* const from = reinterpret_cast<float4 const*>(kv == 0 ? a.k : a.v) + (std::int64_t(first) * row_groups + own) * 2;
  float4 v[kv_tile_rows][2];
#pragma unroll
  for (int t = 0; t < kv_tile_rows; ++t) {
#pragma unroll
    for (int i = 0; i < 2; ++i) v[t][i] = t < n ? from[std::int64_t(t) * row_groups * 2 + i] : make_float4(0, 0, 0, 0);
  }
  // While those are on their way.
  if (thread < 2 * kv_tile_rows && first + thread % kv_tile_rows < a.n_tokens) {
    KvRow const row = a.rows[first + thread % kv_tile_rows];
    KvTable const table = a.tables[row.table];
    places[thread / kv_tile_rows][thread % kv_tile_rows] =
        kv_place<F16>(thread < kv_tile_rows ? table.k_pages : table.v_pages, row.position, 0, a.page_tokens, a.head_dim);
  }
  __syncthreads();
  std::int64_t const at = std::int64_t(head) * a.page_tokens * a.head_dim + (own - head * head_groups) * 8;  // elements
#pragma unroll
  for (int t = 0; t < kv_tile_rows; ++t) {
    if (t < n) store_8(places[kv][t] + at * 2, v[t][0], v[t][1]);
  }
}

inline int kv_write_tiles(KvWriteArgs const& a, CudaQueue const& queue) {
  int const groups = 2 * a.n_kv_heads * (a.head_dim / 8), ranges = ceil_div(groups, kv_tile_threads);
  return launch_kernel(kv_write_tile_kernel, dim3(unsigned(ceil_div(a.n_tokens, kv_tile_rows)), unsigned(ranges)),
                       dim3(unsigned(round_up(ceil_div(groups, ranges), warp_size))), 0, queue, a);
}

/// Whether those can be read 16 bytes at a time.
inline bool kv_in_groups(KvWriteArgs const& a) {
  return a.head_dim % 8 == 0 && (reinterpret_cast<std::uintptr_t>(a.k) | reinterpret_cast<std::uintptr_t>(a.v)) % 16 == 0;
}

/// A lane's elements of a head's vector of n: lane + 32 * i.
template <int per_lane>
__device__ __forceinline__ void load_head(float (&x)[per_lane], float const* from, std::int32_t n, int lane) {
#pragma unroll
  for (int i = 0; i < per_lane; ++i) x[i] = lane + i * warp_size < n ? from[lane + i * warp_size] : 0.0f;
}

/// One warp norms a head's vector, if there are weights, puts it into `vector`, shared memory of its own, and turns its pairs;
/// turn_of(pair) is a Turn. Rounds alike wherever it is used: what goes into the cache has the same bits.
template <int per_lane, class TurnOf>
__device__ __forceinline__ void prepare_head(AttentionInputArgs const& a, float (&x)[per_lane], float const* weight, float* vector,
                                             int lane, TurnOf turn_of) {
  if (weight != nullptr) {
    float weights[per_lane], squares = 0;
    load_head(weights, weight, a.head_dim, lane);
#pragma unroll
    for (int i = 0; i < per_lane; ++i) squares = __fmaf_rn(x[i], x[i], squares);
    float const factor = __fdiv_rn(1.0f, sqrtf(__fdiv_rn(warp_sum(squares), float(a.head_dim)) + a.eps));
#pragma unroll
    for (int i = 0; i < per_lane; ++i) x[i] = __fmul_rn(x[i], __fmul_rn(factor, weights[i]));
  }
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    if (lane + i * warp_size < a.head_dim) vector[lane + i * warp_size] = x[i];
  }
  __syncwarp();
  std::int32_t const n_pairs = a.n_rot / 2;
#pragma unroll
  for (int k = 0; k < (per_lane + 1) / 2; ++k) {
    std::int32_t const i = lane + k * warp_size;
    if (i >= n_pairs) continue;
    Turn const turn = turn_of(i);
    float& first = vector[a.kind == RopeKind::adjacent ? 2 * i : i];
    float& second = vector[a.kind == RopeKind::adjacent ? 2 * i + 1 : i + n_pairs];
    float const u = first, v = second;
    first = __fmaf_rn(u, turn.cosine, -__fmul_rn(v, turn.sine));
    second = __fmaf_rn(u, turn.sine, __fmul_rn(v, turn.cosine));
  }
  __syncwarp();
}

/// Blocks (rows, ...): warps take turns at the row's heads: queries, keys, values.
template <class KV, int per_lane>
__global__ void __launch_bounds__(kv_warps* warp_size) attention_input_kernel(AttentionInputArgs const a) {
  __shared__ float vectors[kv_warps][per_lane * warp_size];
  wait_for_previous();
  let_next_start();
  int const lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size;
  std::int64_t const token = blockIdx.x;
  std::int32_t const position = a.positions[token];
  KvRow const row = a.rows[token];
  KvTable const table = a.tables[row.table];
  float* const vector = vectors[warp];
  auto const turn_of = [&](std::int32_t pair) {
    std::int32_t const own = a.position_row == nullptr ? position : a.positions[position_at(a, int(blockIdx.x), pair)];
    return rope_turn(own, a.inv_freq[pair], a.magnitude);
  };
  for (int i = int(blockIdx.y) * kv_warps + warp; i < a.n_heads + 2 * a.n_kv_heads; i += int(gridDim.y) * kv_warps) {
    bool const is_query = i < a.n_heads, is_key = !is_query && i < a.n_heads + a.n_kv_heads;
    int const head = is_query ? i : is_key ? i - a.n_heads : i - a.n_heads - a.n_kv_heads;
    std::int64_t const offset = (token * (is_query ? a.n_heads : a.n_kv_heads) + head) * a.head_dim;
    if (is_query || is_key) {
      float x[per_lane];
      load_head(x, (is_query ? a.q : a.k) + offset, a.head_dim, lane);
      prepare_head(a, x, is_query ? a.q_norm : a.k_norm, vector, lane, turn_of);
    }
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
  return {unsigned(n_tokens), unsigned(ceil_div(n_heads, n_tokens <= kv_few_rows ? kv_warps : 4 * kv_warps))};
}

}  // namespace detail

/// KvWriteArgs; KV: F16, F32 or Q8_0. 0 or a cudaError_t.
template <class KV>
int kv_write(KvWriteArgs const& a, Queue queue) {
  if (a.n_tokens == 0) return 0;
  if constexpr (std::is_same_v<KV, F16>) {
    if (a.n_tokens > detail::kv_few_rows && detail::kv_in_groups(a)) return detail::kv_write_tiles(a, native(queue));
  }
  return launch_kernel(detail::kv_write_kernel<KV>, detail::head_grid(a.n_tokens, 2 * a.n_kv_heads), dim3(detail::kv_warps * warp_size), 0,
                       native(queue), a);
}

/// AttentionInputArgs; head_dim <= largest_head. 0 or a cudaError_t.
template <class KV>
int attention_input(AttentionInputArgs const& a, Queue queue) {
  if (a.n_tokens == 0) return 0;
  if (a.head_dim > largest_head) return int(cudaErrorInvalidValue);
  auto const kernel = a.head_dim <= 4 * warp_size   ? detail::attention_input_kernel<KV, 4>
                      : a.head_dim <= 8 * warp_size ? detail::attention_input_kernel<KV, 8>
                                                    : detail::attention_input_kernel<KV, largest_head / warp_size>;
  return launch_kernel(kernel, detail::head_grid(a.n_tokens, a.n_heads + 2 * a.n_kv_heads), dim3(detail::kv_warps * warp_size), 0,
                       native(queue), a);
}

}  // namespace tiered::cuda
