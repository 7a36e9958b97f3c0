/// Queries of few rows on their way to tensor cores, and all that comes before: norms, rotations, the row's own keys and values.
/// [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/attention_few_warp.cuh"
#include "tiered/kernels/cuda/kv.cuh"

namespace tiered::cuda {
namespace detail {

/// What a launch of the kernel for few rows is given.
struct FewCall {
  AttentionArgs attention;
  AttentionInputArgs input;  ///< where `prepare`
  std::uint32_t* counters;   ///< for each row and block of heads
  std::int32_t n_splits;
  bool prepare;
};

/// The share of a block: some query heads of one KV head.
struct FewHeads {
  int kv_head, first, n;  ///< query heads [first, first + n)
  bool writes;            ///< is the first of those that share the KV head

  __device__ __forceinline__ explicit FewHeads(AttentionArgs const& a) {
    int const group = a.n_heads / a.n_kv_heads, n_chunks = ceil_div(group, few_heads), chunk = int(blockIdx.x) % n_chunks;
    kv_head = int(blockIdx.x) / n_chunks;
    first = kv_head * group + chunk * few_heads;
    n = min_of(group - chunk * few_heads, few_heads);
    writes = chunk == 0;
  }
};

/// Brings queries to shared memory, [few_heads][stride]: times `scale`, binary16 and what that lacks. Before that, where there is an
/// input to prepare, norms and turns them; likewise the row's keys and values, which go to `own` and to the cache.
template <class KV, int head_dim, bool over_link>
struct FewInput {
  using Memory = FewMemory<KV, head_dim, over_link>;
  using Shape = FewShape<head_dim>;
  static constexpr int per_lane = ceil_div(head_dim, warp_size);

  struct Scratch {
    float vectors[Shape::n_warps][head_dim];
    Turn turns[head_dim / 2];
    float weights[2][head_dim];  ///< of the norms of queries and of keys
    OwnRows<KV, head_dim> own;
  };
  FewCall const& call;
  FewHeads heads;
  KvRow row;
  KvTable table;
  Scratch& scratch;
  unsigned char* queries;

  /// What depends on nothing that a kernel before this one computes.
  __device__ __forceinline__ void begin() const {
    AttentionInputArgs const& in = call.input;
    if (call.prepare) {
      for (int i = int(threadIdx.x); i < in.n_rot / 2; i += Shape::n_threads)
        scratch.turns[i] = rope_turn(in.positions[position_at(in, int(blockIdx.z), i)], in.inv_freq[i], in.magnitude);
      for (int d = int(threadIdx.x); d < head_dim; d += Shape::n_threads) {
        if (in.q_norm != nullptr) scratch.weights[0][d] = in.q_norm[d];
        if (in.k_norm != nullptr) scratch.weights[1][d] = in.k_norm[d];
      }
    }
    constexpr int row_words = Shape::stride / 2;
    auto* const words = reinterpret_cast<std::uint32_t*>(queries);
    for (int i = heads.n * row_words + int(threadIdx.x); i < few_heads * row_words; i += Shape::n_threads) {
      words[i] = 0;
      words[i + Memory::query_bytes / 4] = 0;
    }
    if (call.prepare) __syncthreads();
  }

  /// Of query head i of the block, or, from heads.n on, of keys and values.
  __device__ __forceinline__ void load(float (&x)[per_lane], int i, int n) const {
    if (i >= n) return;
    int const lane = int(threadIdx.x) % warp_size;
    AttentionArgs const& a = call.attention;
    std::int64_t const kv = std::int64_t(blockIdx.z) * a.n_kv_heads + heads.kv_head;
    float const* from = i == heads.n ? call.input.k + kv * head_dim : call.input.v + kv * head_dim;
    if (i < heads.n) from = a.q + (std::int64_t(blockIdx.z) * a.n_heads + heads.first + i) * head_dim;
    load_head(x, from, head_dim, lane);
  }

  /// All of it by all warps; keys and values where `with_own`.
  __device__ __forceinline__ void finish(bool with_own) const {
    int const warp = int(threadIdx.x) / warp_size, lane = int(threadIdx.x) % warp_size, n = heads.n + (with_own ? 2 : 0);
    float* const vector = scratch.vectors[warp];
    auto const turn_of = [&](std::int32_t pair) { return scratch.turns[pair]; };
    float x[per_lane], later[per_lane] = {};
    load(x, warp, n);
    for (int i = warp; i < n; i += Shape::n_warps) {
      load(later, i + Shape::n_warps, n);
      if (call.prepare && i <= heads.n) {
        int const which = i < heads.n ? 0 : 1;
        bool const normed = (which == 0 ? call.input.q_norm : call.input.k_norm) != nullptr;
        prepare_head(call.input, x, normed ? scratch.weights[which] : nullptr, vector, lane, turn_of);
      } else {
#pragma unroll
        for (int k = 0; k < per_lane; ++k) {
          if (lane + k * warp_size < head_dim) vector[lane + k * warp_size] = x[k];
        }
        __syncwarp();
      }
      if (i < heads.n) {
        store_query(vector, i, lane);
      } else {
        store_own(vector, i - heads.n, lane);
      }
      __syncwarp();  // `vector` is used again
#pragma unroll
      for (int k = 0; k < per_lane; ++k) x[k] = later[k];
    }
  }

 private:
  __device__ __forceinline__ void store_query(float const* vector, int head, int lane) const {
    float const factor = call.attention.scale * log2_e;
#pragma unroll
    for (int pair = lane; pair < head_dim / 2; pair += warp_size) {
      float2 const value = *reinterpret_cast<float2 const*>(vector + pair * 2);
      float const first = value.x * factor, second = value.y * factor;
      auto* const at = reinterpret_cast<std::uint32_t*>(queries + (head * Shape::stride + pair * 2) * 2);
      std::uint32_t const rounded = pack_f16(first, second);
      at[0] = rounded;
      at[Memory::query_bytes / 4] = rest_f16(first, second, rounded);
    }
  }
  __device__ __forceinline__ void store_own(float const* vector, int which, int lane) const {
    auto const element = [&](std::int32_t d) { return vector[d]; };
    store_vector<KV>(reinterpret_cast<std::byte*>(scratch.own.of[which]), head_dim, lane, element);
    if (!heads.writes) return;
    std::byte* const* const pages = which == 0 ? table.k_pages : table.v_pages;
    store_vector<KV>(kv_place<KV>(pages, row.position, heads.kv_head, call.attention.page_tokens, head_dim), head_dim, lane, element);
  }
};

}  // namespace detail
}  // namespace tiered::cuda
