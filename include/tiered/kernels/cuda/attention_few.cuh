/// Attention of few rows, which memory bounds: the context is cut into parts, and one block does all query heads of a KV head, so that
/// keys and values are read once. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/attention_tile.cuh"

namespace tiered::cuda {
namespace detail {

/// What a block of the kernel for few rows shares: queries, and for each warp two stages of keys and values, one of which is on its way
/// while the other is multiplied. Warps do not wait for each other but at the end.
template <class KV, int head_dim>
struct FewMemory {
  using Shape = FewShape<head_dim>;
  using Tile = detail::Tile<KV, head_dim, Shape::positions, warp_size>;
  static constexpr int query_bytes = few_heads * Shape::stride * 2;  ///< of each half
  static constexpr int copied_bytes = Tile::packed ? Tile::raw_bytes : Tile::tile_bytes;
  static constexpr int stage_bytes = 2 * copied_bytes;  ///< keys, values
  static constexpr int warp_bytes = 2 * stage_bytes + (Tile::packed ? 2 * Tile::tile_bytes : 0);
  static constexpr int total_bytes = 2 * query_bytes + Shape::n_warps * warp_bytes;
  static constexpr int sum_stride = head_dim + 8;  ///< floats: sums of a warp lie where its tiles were
  static_assert(few_heads * sum_stride * 4 <= warp_bytes);
};

/// The pointers of 32 pages, one a lane, so that a step does not wait for its page's.
struct PageWindow {
  KvTable table;
  std::int32_t end, first = 0;
  std::byte const *k = nullptr, *v = nullptr;

  __device__ __forceinline__ void move_to(std::int32_t page, int lane) {
    first = page;
    if (page + lane < end) {
      k = table.k_pages[page + lane];
      v = table.v_pages[page + lane];
    }
  }
  __device__ __forceinline__ std::byte const* of_lane(std::byte const* pointer, int lane) const {
    return reinterpret_cast<std::byte const*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(pointer), lane));
  }
};

/// One warp's share: steps of 16 positions.
template <class KV, int head_dim>
struct FewWarp {
  using Memory = FewMemory<KV, head_dim>;
  using Tile = typename Memory::Tile;
  static constexpr int stride = FewShape<head_dim>::stride, positions = FewShape<head_dim>::positions;

  Range part;
  std::int64_t head_rows;  ///< of a page before this KV head
  std::int32_t page_tokens;
  PageWindow pages;
  unsigned char* memory;  ///< warp_bytes of this warp
  std::uint32_t queries;  ///< shared address
  int lane;
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};  ///< of heads lane / 4 and that + 8; sums of this lane's positions
  float sums[head_dim / 8][4] = {};

  __device__ __forceinline__ Range rows_of(std::int32_t p) const { return {max_of(part.begin - p, 0), min_of(part.end - p, positions)}; }

  __device__ __forceinline__ void fetch(std::int32_t p, int stage) {
    std::int32_t const page = p / page_tokens;
    if (page >= pages.first + warp_size) pages.move_to(page, lane);
    std::int64_t const offset = (head_rows + p % page_tokens) * Tile::row_bytes;
    std::uint32_t const to = shared_address(memory) + std::uint32_t(stage * Memory::stage_bytes);
    Tile::fetch(to, pages.of_lane(pages.k, page - pages.first) + offset, rows_of(p), lane);
    Tile::fetch(to + Memory::copied_bytes, pages.of_lane(pages.v, page - pages.first) + offset, rows_of(p), lane);
  }

  /// Scores of 16 heads and 16 positions, in units of ln 2.
  __device__ __forceinline__ void score(float (&scores)[2][4], std::uint32_t keys) const {
#pragma unroll
    for (int k = 0; k < head_dim / 16; ++k) {
      std::uint32_t b[4], a[4];
      load_matrices(b, keys + offset_in_keys<stride>(lane) + k * 32);
      load_matrices(a, queries + offset_in_a<stride>(lane) + k * 32);
      multiply_f16(scores[0], a, b[0], b[1]);
      multiply_f16(scores[1], a, b[2], b[3]);
      if constexpr (few_exact) {
        load_matrices(a, queries + Memory::query_bytes + offset_in_a<stride>(lane) + k * 32);
        multiply_f16(scores[0], a, b[0], b[1]);
        multiply_f16(scores[1], a, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void mask(float (&scores)[2][4], Range rows) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      int const row = i / 4 * 8 + lane % 4 * 2 + i % 2;
      if (row < rows.begin || row >= rows.end) scores[i / 4][i % 4] = -INFINITY;
    }
  }

  __device__ __forceinline__ void add_values(float const (&weights)[2][4], std::uint32_t values) {
    std::uint32_t a[4], rest[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float const first = weights[i / 2][i % 2 * 2], second = weights[i / 2][i % 2 * 2 + 1];
      a[i] = pack_f16(first, second);
      rest[i] = rest_f16(first, second, a[i]);
    }
#pragma unroll
    for (int d = 0; d < head_dim / 16; ++d) {
      std::uint32_t b[4];
      load_matrices_transposed(b, values + offset_in_values<stride>(lane) + d * 32);
      multiply_f16(sums[2 * d], a, b[0], b[1]);
      multiply_f16(sums[2 * d + 1], a, b[2], b[3]);
      if constexpr (few_exact) {
        multiply_f16(sums[2 * d], rest, b[0], b[1]);
        multiply_f16(sums[2 * d + 1], rest, b[2], b[3]);
      }
    }
  }

  __device__ __forceinline__ void attend(std::int32_t p, int stage) {
    Range const rows = rows_of(p);
    unsigned char* keys = memory + stage * Memory::stage_bytes;
    unsigned char* values = keys + Memory::copied_bytes;
    if constexpr (Tile::packed) {
      unsigned char* const tiles = memory + 2 * Memory::stage_bytes;
      Tile::unpack(tiles, keys, rows, lane);
      Tile::unpack(tiles + Tile::tile_bytes, values, rows, lane);
      keys = tiles;
      values = tiles + Tile::tile_bytes;
      __syncwarp();
    }
    float scores[2][4] = {};
    score(scores, shared_address(keys));
    if (rows.end - rows.begin < positions) mask(scores, rows);
    float const kept[2] = {continue_softmax(scores, 0, max[0], sum[0]), continue_softmax(scores, 2, max[1], sum[1])};
#pragma unroll
    for (int i = 0; i < head_dim / 8 * 4; ++i) sums[i / 4][i % 4] *= kept[i % 4 / 2];
    add_values(scores, shared_address(values));
  }

  /// Steps from `p` on, `step` apart.
  __device__ __forceinline__ void attend_all(std::int32_t p, std::int32_t step) {
    if (p + positions <= part.begin) p += (part.begin - p) / step * step;
    if (p + positions <= part.begin) p += step;
    if (p >= part.end) return;
    pages.move_to(p / page_tokens, lane);
    fetch(p, 0);
    commit_copies();
    for (int stage = 0; p < part.end; p += step, stage ^= 1) {
      if (p + step < part.end) fetch(p + step, stage ^ 1);
      commit_copies();
      wait_copies<1>();
      __syncwarp();
      attend(p, stage);
      __syncwarp();  // the next step overwrites this stage
    }
    wait_copies<0>();
  }

  /// The sums go where tiles were, [16 heads][sum_stride]; maxima and sums of weights to `softmax`, [16].
  __device__ __forceinline__ void store(float2* softmax) {
    auto* const to = reinterpret_cast<float*>(memory);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int const head = lane / 4 + half * 8;
      float const all = quad_sum(sum[half]);
      if (lane % 4 == 0) softmax[head] = {max[half], all};
#pragma unroll
      for (int i = 0; i < head_dim / 8; ++i)
        *reinterpret_cast<float2*>(to + head * Memory::sum_stride + i * 8 + lane % 4 * 2) = {sums[i][half * 2], sums[i][half * 2 + 1]};
    }
  }
};

/// Queries [few_heads][stride] of n heads from `q` on, times `factor`: binary16, and what that lacks.
template <class KV, int head_dim>
__device__ __forceinline__ void load_few_queries(unsigned char* to, float const* q, int n, float factor) {
  constexpr int row_pairs = head_dim / 2;
  for (int i = int(threadIdx.x); i < few_heads * row_pairs; i += FewShape<head_dim>::n_threads) {
    int const head = i / row_pairs, pair = i % row_pairs;
    float2 value{0, 0};
    if (head < n) value = *reinterpret_cast<float2 const*>(q + head * head_dim + pair * 2);
    value.x *= factor;
    value.y *= factor;
    auto* const at = reinterpret_cast<std::uint32_t*>(to + (head * FewShape<head_dim>::stride + pair * 2) * 2);
    std::uint32_t const rounded = pack_f16(value.x, value.y);
    at[0] = rounded;
    at[FewMemory<KV, head_dim>::query_bytes / 4] = rest_f16(value.x, value.y, rounded);
  }
}

/// Blocks (KV heads and chunks of their query heads, splits, rows).
template <class KV, int head_dim>
__global__ void __launch_bounds__(FewShape<head_dim>::n_threads) attention_few_kernel(AttentionArgs a, std::int32_t n_splits) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using Memory = FewMemory<KV, head_dim>;
  using Shape = FewShape<head_dim>;
  extern __shared__ __align__(128) unsigned char attention_shared[];
  __shared__ float2 softmaxes[Shape::n_warps][few_heads];
  wait_for_previous();
  let_next_start();
  KvRow const row = a.rows[blockIdx.z];
  auto const split = std::int32_t(blockIdx.y);
  Range const part = Cut(visible_to(a, row.position), n_splits).part(split);
  if (part.begin >= part.end && n_splits > 1) return;

  int const group = a.n_heads / a.n_kv_heads, n_chunks = ceil_div(group, few_heads);
  int const kv_head = int(blockIdx.x) / n_chunks, first = int(blockIdx.x) % n_chunks * few_heads;
  int const n_heads = min_of(group - first, few_heads), warp = int(threadIdx.x) / warp_size;
  std::int64_t const query = std::int64_t(blockIdx.z) * a.n_heads + kv_head * group + first;
  load_few_queries<KV, head_dim>(attention_shared, a.q + query * head_dim, n_heads, a.scale * log2_e);
  __syncthreads();

  unsigned char* const tiles = attention_shared + 2 * Memory::query_bytes;
  FewWarp<KV, head_dim> mine{.part = part,
                             .head_rows = std::int64_t(kv_head) * a.page_tokens,
                             .page_tokens = a.page_tokens,
                             .pages = {a.tables[row.table], ceil_div(part.end, a.page_tokens)},
                             .memory = tiles + warp * Memory::warp_bytes,
                             .queries = shared_address(attention_shared),
                             .lane = int(threadIdx.x) % warp_size};
  mine.attend_all(part.begin / split_tile * split_tile + warp * Shape::positions, Shape::n_warps * Shape::positions);
  mine.store(softmaxes[warp]);
  __syncthreads();

  for (int i = int(threadIdx.x); i < n_heads * head_dim; i += Shape::n_threads) {
    int const head = i / head_dim, d = i % head_dim;
    Softmax total;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < Shape::n_warps; ++w) total.max = fmaxf(total.max, softmaxes[w][head].x);
#pragma unroll
    for (int w = 0; w < Shape::n_warps; ++w) {
      float const weight = total.weight_of(softmaxes[w][head].x);
      total.sum += weight * softmaxes[w][head].y;
      sum += weight * reinterpret_cast<float const*>(tiles + w * Memory::warp_bytes)[head * Memory::sum_stride + d];
    }
    store_sum(a, query + head, split, n_splits, d, total, sum);
  }
#endif
}

}  // namespace detail
}  // namespace tiered::cuda
