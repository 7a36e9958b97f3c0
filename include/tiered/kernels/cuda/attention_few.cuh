/// Attention of few rows, which memory bounds: the context is cut into parts, and one block does all query heads of a KV head, so that
/// keys and values are read once. Where rows do not see each other the same kernel norms and turns queries and keys and stores keys and
/// values before.
/// [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/attention_few_input.cuh"

namespace tiered::cuda {
namespace detail {

/// What was there, and n more is now. Behind all that the thread has seen written, before all that it reads: a fence on either side.
__device__ __forceinline__ std::uint32_t add_in_order(std::uint32_t* counter, std::uint32_t n) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 700
  std::uint32_t before;
  asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;" : "=r"(before) : "l"(__cvta_generic_to_global(counter)), "r"(n) : "memory");
  return before;
#else
  __threadfence();
  std::uint32_t const before = atomicAdd(counter, n);
  __threadfence();
  return before;
#endif
}

/// True in all threads of the block that is the last of n to come here. What the others wrote before can be read, past the L1 cache.
__device__ __forceinline__ bool comes_last(std::uint32_t* counter, std::int32_t n) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = add_in_order(counter, 1) + 1 == std::uint32_t(n);
    if (last) *counter = 0;
  }
  __syncthreads();
  return last;
}

/// One block puts the n parts of its heads together, in ascending order. `weights`: shared memory, few_heads * n floats.
template <int head_dim>
struct FewMerge {
  static constexpr int n_threads = FewShape<head_dim>::n_threads, at_once = 16, fours = head_dim / 4;
  AttentionArgs const& a;
  Parts parts;
  std::int64_t query;  ///< of the first head
  int n_heads;
  std::int32_t n;
  float* weights;

  /// Four elements of a head, and at_once parts.
  struct Chunk {
    int i;
    std::int32_t first;
  };
  __device__ __forceinline__ Chunk after(Chunk c) const {
    return c.first + at_once < n ? Chunk{c.i, c.first + at_once} : Chunk{c.i + n_threads, 0};
  }
  __device__ __forceinline__ void fetch(float4 (&sums)[at_once], Chunk c) const {
    if (c.i >= n_heads * fours) return;
    auto const* const from = reinterpret_cast<float4 const*>(parts.sums_of(query + c.i / fours, c.first)) + c.i % fours;
#pragma unroll
    for (int k = 0; k < at_once; ++k) sums[k] = c.first + k < n ? __ldcg(from + k * fours) : float4{0, 0, 0, 0};
  }

  /// Maximum and sum of a part.
  __device__ __forceinline__ float2 softmax_of(int head, std::int32_t i) const {
    return head < n_heads && i < n ? __ldcg(reinterpret_cast<float2 const*>(&parts.of(query + head, i))) : float2{-INFINITY, 0};
  }

  /// A warp for each head. A lane's first part is read once, and before the head before it is done.
  __device__ __forceinline__ void weigh() const {
    constexpr int n_warps = n_threads / warp_size;
    int const lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size;
    float2 next = softmax_of(warp, lane);
    for (int head = warp; head < n_heads; head += n_warps) {
      float2 const first = next;
      next = softmax_of(head + n_warps, lane);
      Softmax total;
      total.max = first.x;
      for (std::int32_t i = lane + warp_size; i < n; i += warp_size) total.max = fmaxf(total.max, softmax_of(head, i).x);
      total.max = warp_max(total.max);
      for (std::int32_t i = lane; i < n; i += warp_size) {
        float2 const part = i == lane ? first : softmax_of(head, i);
        weights[head * n + i] = total.weight_of(part.x);
        total.sum += weights[head * n + i] * part.y;
      }
      total.sum = warp_sum(total.sum);
      __syncwarp();
      for (std::int32_t i = lane; i < n; i += warp_size) weights[head * n + i] *= total.inverse();
      if (lane == 0 && a.log_sum_exp != nullptr) a.log_sum_exp[query + head] = total.log_sum_exp();
    }
  }

  __device__ __forceinline__ void run() const {
    Chunk chunk{int(threadIdx.x), 0}, later = after(chunk);
    float4 sums[at_once], later_sums[at_once] = {}, all{0, 0, 0, 0};
    fetch(sums, chunk);
    fetch(later_sums, later);
    weigh();
    __syncthreads();
    while (chunk.i < n_heads * fours) {
      float const* const of_head = weights + chunk.i / fours * n;
#pragma unroll
      for (int k = 0; k < at_once; ++k) {
        float const weight = chunk.first + k < n ? of_head[chunk.first + k] : 0.0f;
        all = {all.x + weight * sums[k].x, all.y + weight * sums[k].y, all.z + weight * sums[k].z, all.w + weight * sums[k].w};
        sums[k] = later_sums[k];
      }
      if (later.first == 0) {
        reinterpret_cast<float4*>(a.out + query * head_dim)[chunk.i] = all;
        all = {0, 0, 0, 0};
      }
      chunk = later;
      later = after(later);
      fetch(later_sums, later);
    }
  }
};

/// What the warps computed, put together: element columns of four. store(head, column of four, softmax, sums).
template <class KV, int head_dim, bool over_link, class Store>
__device__ __forceinline__ void add_warps(float2 const (&softmaxes)[FewShape<head_dim>::n_warps][few_heads], unsigned char const* tiles,
                                          int n_heads, Store store) {
  using Memory = FewMemory<KV, head_dim, over_link>;
  constexpr int n_warps = FewShape<head_dim>::n_warps, fours = head_dim / 4;
  for (int i = int(threadIdx.x); i < n_heads * fours; i += FewShape<head_dim>::n_threads) {
    int const head = i / fours, four = i % fours;
    Softmax total;
    float4 sum{0, 0, 0, 0};
#pragma unroll
    for (int w = 0; w < n_warps; ++w) total.max = fmaxf(total.max, softmaxes[w][head].x);
#pragma unroll
    for (int w = 0; w < n_warps; ++w) {
      float const weight = total.weight_of(softmaxes[w][head].x);
      float4 const of_warp =
          reinterpret_cast<float4 const*>(reinterpret_cast<float const*>(tiles + w * Memory::warp_bytes) + head * Memory::sum_stride)[four];
      total.sum += weight * softmaxes[w][head].y;
      sum = {sum.x + weight * of_warp.x, sum.y + weight * of_warp.y, sum.z + weight * of_warp.z, sum.w + weight * of_warp.w};
    }
    store(head, four, total, sum);
  }
}

/// What the warps of a block computed, as outputs where the context was not cut, else as part `split`. The last block to come here puts the
/// parts together.
template <class KV, int head_dim, bool over_link>
__device__ __forceinline__ void store_few(FewCall const& call, FewHeads const& heads, Cut const& cut, std::int32_t split,
                                          float2 const (&softmaxes)[FewShape<head_dim>::n_warps][few_heads], unsigned char* tiles) {
  AttentionArgs const& a = call.attention;
  std::int64_t const query = std::int64_t(blockIdx.z) * a.n_heads + heads.first;
  Parts const parts(a, call.n_splits);
  add_warps<KV, head_dim, over_link>(softmaxes, tiles, heads.n, [&](int head, int four, Softmax const& total, float4 sum) {
    if (cut.n_used > 1) {
      reinterpret_cast<float4*>(parts.sums_of(query + head, split))[four] = sum;
      if (four == 0) parts.of(query + head, split) = total;
      return;
    }
    float const f = total.inverse();
    reinterpret_cast<float4*>(a.out + (query + head) * head_dim)[four] = {sum.x * f, sum.y * f, sum.z * f, sum.w * f};
    if (four == 0 && a.log_sum_exp != nullptr) a.log_sum_exp[query + head] = total.log_sum_exp();
  });
  if (cut.n_used <= 1 || !comes_last(call.counters + blockIdx.z * gridDim.x + blockIdx.x, cut.n_used)) return;
  FewMerge<head_dim>{a, parts, query, heads.n, cut.n_used, reinterpret_cast<float*>(tiles)}.run();
}

/// Blocks (KV heads and chunks of their query heads, splits, rows). The last block of a row and heads puts the parts together. `over_link`:
/// for contexts of which some is in the host's memory; see Tile.
template <class KV, int head_dim, bool over_link>
__global__ void __launch_bounds__(FewShape<head_dim>::n_threads) attention_few_kernel(__grid_constant__ FewCall const call) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using Memory = FewMemory<KV, head_dim, over_link>;
  using Shape = FewShape<head_dim>;
  extern __shared__ __align__(128) unsigned char attention_shared[];
  __shared__ float2 softmaxes[Shape::n_warps][few_heads];
  __shared__ typename FewInput<KV, head_dim, over_link>::Scratch scratch;
  bool const early = few_early && call.prepare;
  if (!early) {
    wait_for_previous();
    let_next_start();
  }
  AttentionArgs const& a = call.attention;
  KvRow const row = a.rows[blockIdx.z];
  KvTable const table = a.tables[row.table];
  auto const split = std::int32_t(blockIdx.y);
  Cut const cut(visible_to(a, std::int32_t(blockIdx.z), row.position), call.n_splits);
  if (split >= max_of(cut.n_used, 1)) return;
  Range const part = cut.part(split);
  bool const with_own = call.prepare && part.end == row.position + 1;

  FewHeads const heads(a);
  int const warp = int(threadIdx.x) / warp_size;
  unsigned char* const tiles = attention_shared + 2 * Memory::query_bytes;
  FewWarp<KV, head_dim, over_link> mine{.part = part,
                                        .own = with_own ? &scratch.own : nullptr,
                                        .head_rows = std::int64_t(heads.kv_head) * a.page_tokens,
                                        .page_tokens = a.page_tokens,
                                        .pages = {table, ceil_div(part.end, a.page_tokens)},
                                        .memory = tiles + warp * Memory::warp_bytes,
                                        .queries = shared_address(attention_shared),
                                        .lane = int(threadIdx.x) % warp_size};
  mine.begin(part.begin / split_tile * split_tile + warp * Shape::positions, Shape::n_warps * Shape::positions);
  FewInput<KV, head_dim, over_link> input{call, heads, row, table, scratch, attention_shared};
  if (with_own && heads.writes) input.find_places();
  input.begin();
  if (early) wait_for_previous();
  input.finish(with_own);
  if (with_own) __threadfence();  // who begins now may read them early
  __syncthreads();
  if (early) let_next_start();
  mine.attend_all();
  mine.store(softmaxes[warp]);
  __syncthreads();
  store_few<KV, head_dim, over_link>(call, heads, cut, split, softmaxes, tiles);
#endif
}

}  // namespace detail
}  // namespace tiered::cuda
