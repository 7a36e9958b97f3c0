/// Attention without tensor cores: any head size up to largest_head, any page size, every KV type, f32 throughout. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/attention_parts.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {
namespace detail {

inline constexpr int plain_warps = 4, plain_positions = 4;  ///< of a step of one warp

/// Element d of a head's vector of one position.
template <class KV>
__device__ __forceinline__ float kv_element(std::byte const* vector, std::int32_t d) {
  return KV::decode(reinterpret_cast<typename KV::Block const*>(vector)[d / KV::block_elems], d % KV::block_elems);
}

/// What a lane holds of one query: elements lane + 32 * i.
template <class KV, int per_lane>
struct PlainQuery {
  float q[per_lane], sums[per_lane] = {};
  Softmax softmax;

  __device__ __forceinline__ void load(AttentionArgs const& a, std::int64_t query, int lane) {
#pragma unroll
    for (int i = 0; i < per_lane; ++i) {
      std::int32_t const d = lane + i * warp_size;
      q[i] = d < a.head_dim ? a.q[query * a.head_dim + d] * (a.scale * log2_e) : 0.0f;
    }
  }

  /// Positions [begin, end), at most plain_positions of them; `vector(pages, p)` is where one lies.
  template <class Vector>
  __device__ __forceinline__ void attend(AttentionArgs const& a, KvTable const& table, Range positions, int lane, Vector vector) {
    float score[plain_positions];
    float largest = softmax.max;
#pragma unroll
    for (int j = 0; j < plain_positions; ++j) {
      score[j] = -INFINITY;
      if (positions.begin + j >= positions.end) continue;
      std::byte const* const k = vector(table.k_pages, positions.begin + j);
      float dot = 0;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        std::int32_t const d = lane + i * warp_size;
        if (d < a.head_dim) dot += q[i] * kv_element<KV>(k, d);
      }
      score[j] = warp_sum(dot);
      largest = fmaxf(largest, score[j]);
    }
    float const old = softmax.max;
    softmax.max = largest;
    float const kept = softmax.weight_of(old);
    softmax.sum *= kept;
#pragma unroll
    for (int i = 0; i < per_lane; ++i) sums[i] *= kept;
#pragma unroll
    for (int j = 0; j < plain_positions; ++j) {
      if (positions.begin + j >= positions.end) continue;
      float const weight = softmax.weight_of(score[j]);
      std::byte const* const v = vector(table.v_pages, positions.begin + j);
      softmax.sum += weight;
#pragma unroll
      for (int i = 0; i < per_lane; ++i) {
        std::int32_t const d = lane + i * warp_size;
        if (d < a.head_dim) sums[i] += weight * kv_element<KV>(v, d);
      }
    }
  }
};

/// Where a KV head's vector of position p lies.
template <class KV>
struct PlainVectors {
  std::int64_t head_rows;  ///< of a page before the KV head
  std::int64_t bytes;      ///< of a vector
  std::int32_t page_tokens;

  __device__ __forceinline__ PlainVectors(AttentionArgs const& a, std::int32_t head)
      : head_rows(std::int64_t(head) * a.n_kv_heads / a.n_heads * a.page_tokens),
        bytes(std::int64_t(kv_row_bytes(KV::dtype, a.head_dim))),
        page_tokens(a.page_tokens) {}
  __device__ __forceinline__ std::byte const* operator()(std::byte* const* pages, std::int32_t p) const {
    return pages[p / page_tokens] + (head_rows + p % page_tokens) * bytes;
  }
};

/// One row and head by one warp: a.out alone.
template <class KV, int per_lane>
__device__ __forceinline__ void attend_alone(AttentionArgs const& a, std::int32_t row, std::int32_t head, int lane) {
  KvRow const at = a.rows[row];
  Range const seen = visible_to(a, row, at.position);
  KvTable const table = a.tables[at.table];
  PlainVectors<KV> const vectors(a, head);
  std::int64_t const query = std::int64_t(row) * a.n_heads + head;
  PlainQuery<KV, per_lane> mine;
  mine.load(a, query, lane);
#pragma unroll 1
  for (std::int32_t p = seen.begin; p < seen.end; p += plain_positions)
    mine.attend(a, table, {p, min_of(p + plain_positions, seen.end)}, lane, vectors);
  float const inverse = mine.softmax.inverse();
#pragma unroll
  for (int i = 0; i < per_lane; ++i) {
    std::int32_t const d = lane + i * warp_size;
    if (d < a.head_dim) a.out[query * a.head_dim + d] = mine.sums[i] * inverse;
  }
}

/// Blocks (rows, heads, splits): the warps take turns at four positions each, then their sums are added.
template <class KV, int per_lane>
__global__ void __launch_bounds__(plain_warps* warp_size) attention_plain_kernel(AttentionArgs a, std::int32_t n_splits) {
  __shared__ float sums[plain_warps][per_lane * warp_size];
  __shared__ float2 softmaxes[plain_warps];  // maxima and sums
  let_next_start();
  wait_for_previous();
  int const lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size;
  KvRow const row = a.rows[blockIdx.x];
  std::int64_t const query = std::int64_t(blockIdx.x) * a.n_heads + blockIdx.y;
  auto const split = std::int32_t(blockIdx.z);
  Range const part = Cut(visible_to(a, std::int32_t(blockIdx.x), row.position), n_splits).part(split);
  if (part.begin >= part.end && n_splits > 1) return;

  KvTable const table = a.tables[row.table];
  PlainVectors<KV> const vector(a, std::int32_t(blockIdx.y));
  PlainQuery<KV, per_lane> mine;
  mine.load(a, query, lane);
  std::int32_t const first = part.begin / plain_positions * plain_positions;
  for (std::int32_t p = first + warp * plain_positions; p < part.end; p += plain_warps * plain_positions)
    mine.attend(a, table, {max_of(p, part.begin), min_of(p + plain_positions, part.end)}, lane, vector);

  if (lane == 0) softmaxes[warp] = {mine.softmax.max, mine.softmax.sum};
#pragma unroll
  for (int i = 0; i < per_lane; ++i) sums[warp][lane + i * warp_size] = mine.sums[i];
  __syncthreads();
  Softmax total;
  for (int w = 0; w < plain_warps; ++w) total.max = fmaxf(total.max, softmaxes[w].x);
  for (int w = 0; w < plain_warps; ++w) total.sum += total.weight_of(softmaxes[w].x) * softmaxes[w].y;
  for (std::int32_t d = int(threadIdx.x); d < a.head_dim; d += int(blockDim.x)) {
    float sum = 0;
    for (int w = 0; w < plain_warps; ++w) sum += total.weight_of(softmaxes[w].x) * sums[w][d];
    store_sum(a, query, split, n_splits, d, total, sum);
  }
}

}  // namespace detail

/// AttentionArgs, n_splits as attention_splits() says.
template <class KV>
int attention_plain(AttentionArgs const& a, std::int32_t n_splits, CudaQueue const& queue) {
  auto const kernel = a.head_dim <= 4 * warp_size   ? detail::attention_plain_kernel<KV, 4>
                      : a.head_dim <= 8 * warp_size ? detail::attention_plain_kernel<KV, 8>
                                                    : detail::attention_plain_kernel<KV, largest_head / warp_size>;
  dim3 const grid(unsigned(a.n_tokens), unsigned(a.n_heads), unsigned(n_splits));
  return launch_kernel(kernel, grid, dim3(detail::plain_warps * warp_size), 0, queue, a, n_splits);
}

}  // namespace tiered::cuda
