/// How a warp attends, for few rows: the query heads of one KV head over its share of a part. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/attention_tile.cuh"

namespace tiered::cuda {
namespace detail {

/// What a block of the kernel for few rows shares: queries, and for each warp two stages of keys and values, one of which is on its way
/// while the other is multiplied. Warps do not wait for each other but at the end.
template <class KV, int head_dim, bool over_link>
struct FewMemory {
  using Shape = FewShape<head_dim>;
  using Tile = detail::Tile<KV, head_dim, Shape::positions, warp_size, over_link>;
  static constexpr int query_bytes = few_heads * Shape::stride * 2;  ///< of each half
  static constexpr int copied_bytes = Tile::copied_bytes;
  static constexpr int stage_bytes = 2 * copied_bytes;                   ///< keys, values
  static constexpr int n_tiles = !Tile::packed ? 0 : over_link ? 1 : 2;  ///< values take the place of keys where the link bounds it all
  static constexpr int warp_bytes = 2 * stage_bytes + n_tiles * Tile::tile_bytes;
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

/// A position's keys and values, as the cache has them, that are not fetched from there. In shared memory.
template <class KV, int head_dim>
struct OwnRows {
  static constexpr int n_halves = int(kv_row_bytes(KV::dtype, head_dim)) / 2;
  std::uint16_t of[2][n_halves];  ///< keys, values
};

/// One warp's share: steps of 16 positions.
template <class KV, int head_dim, bool over_link>
struct FewWarp {
  using Memory = FewMemory<KV, head_dim, over_link>;
  using Tile = typename Memory::Tile;
  static constexpr int stride = FewShape<head_dim>::stride, positions = FewShape<head_dim>::positions;
  static constexpr int n_parts = few_exact ? 2 : 1;       ///< of a query
  static constexpr bool holds_queries = head_dim <= 128;  ///< in registers
  static constexpr int n_held = holds_queries ? head_dim / 16 : 1;

  Range part;
  OwnRows<KV, head_dim> const* own;  ///< of part's last position, or null
  std::int64_t head_rows;            ///< of a page before this KV head
  std::int32_t page_tokens;
  PageWindow pages;
  unsigned char* memory;  ///< warp_bytes of this warp
  std::uint32_t queries;  ///< shared address
  int lane;
  std::int32_t next = 0, step = 0;  ///< the position that is attended to next, and how far apart they are
  std::uint32_t held[n_parts][n_held][4];
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};  ///< of heads lane / 4 and that + 8; sums of this lane's positions
  float sums[head_dim / 8][4] = {};

  /// Of the step from p on, in the cache or not.
  __device__ __forceinline__ Range rows_of(std::int32_t p) const { return {max_of(part.begin - p, 0), min_of(part.end - p, positions)}; }

  /// In its page.
  __device__ __forceinline__ std::int64_t offset_of(std::int32_t p) const { return (head_rows + p % page_tokens) * Tile::row_bytes; }

  __device__ __forceinline__ void fetch(std::int32_t p, int stage) {
    if (p < part.end) {
      std::int32_t const page = p / page_tokens;
      if (page >= pages.first + warp_size) pages.move_to(page, lane);
      std::int64_t const offset = offset_of(p);
      std::uint32_t const to = shared_address(memory) + std::uint32_t(stage * Memory::stage_bytes);
      Range rows = rows_of(p);
      if (own != nullptr) rows.end = min_of(rows.end, part.end - 1 - p);
      int const shift = Tile::shift_of(offset);
      Tile::fetch(to, pages.of_lane(pages.k, page - pages.first) + offset, rows, lane, shift);
      Tile::fetch(to + Memory::copied_bytes, pages.of_lane(pages.v, page - pages.first) + offset, rows, lane, shift);
    }
    commit_copies();
  }

  /// Of the queries' part `i`, elements 16 k to 16 k + 15.
  __device__ __forceinline__ void load_queries(std::uint32_t (&a)[4], int i, int k) const {
    load_matrices(a, queries + i * Memory::query_bytes + offset_in_a<stride>(lane) + k * 32);
  }
  __device__ __forceinline__ void hold_queries() {
    if constexpr (holds_queries) {
#pragma unroll
      for (int k = 0; k < n_held; ++k) {
#pragma unroll
        for (int i = 0; i < n_parts; ++i) load_queries(held[i][k], i, k);
      }
    }
  }

  /// Scores of 16 heads and 16 positions, in units of ln 2. The two parts of queries are summed for themselves: shorter chains.
  __device__ __forceinline__ void score(float (&scores)[2][4], std::uint32_t keys) const {
    float of_part[n_parts][2][4] = {};
#pragma unroll
    for (int k = 0; k < head_dim / 16; ++k) {
      std::uint32_t b[4];
      load_matrices(b, keys + offset_in_keys<stride>(lane) + k * 32);
#pragma unroll
      for (int i = 0; i < n_parts; ++i) {
        std::uint32_t a[4];
        if constexpr (holds_queries) {
#pragma unroll
          for (int j = 0; j < 4; ++j) a[j] = held[i][k][j];
        } else {
          load_queries(a, i, k);
        }
        multiply_f16(of_part[i][0], a, b[0], b[1]);
        multiply_f16(of_part[i][1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      scores[i / 4][i % 4] = of_part[0][i / 4][i % 4];
      if constexpr (n_parts == 2) scores[i / 4][i % 4] += of_part[1][i / 4][i % 4];
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

  /// Puts the row's own keys and values where those of position `row` of a step belong.
  __device__ __forceinline__ void add_own(unsigned char* keys, unsigned char* values, int row) const {
    int const offset = row * (Tile::packed ? Tile::row_bytes : stride * 2);
    for (int i = lane; i < OwnRows<KV, head_dim>::n_halves; i += warp_size) {
      reinterpret_cast<std::uint16_t*>(keys + offset)[i] = own->of[0][i];
      reinterpret_cast<std::uint16_t*>(values + offset)[i] = own->of[1][i];
    }
    __syncwarp();
  }

  __device__ __forceinline__ void attend(std::int32_t p, int stage) {
    Range const rows = rows_of(p);
    unsigned char* keys = memory + stage * Memory::stage_bytes + Tile::shift_of(offset_of(p));
    unsigned char* values = keys + Memory::copied_bytes;
    if (own != nullptr && part.end <= p + positions) add_own(keys, values, part.end - 1 - p);
    if constexpr (Tile::packed) {
      unsigned char* const tiles = memory + 2 * Memory::stage_bytes;
      Tile::unpack(tiles, keys, rows, lane);
      if constexpr (Memory::n_tiles == 2) {
        Tile::unpack(tiles + Tile::tile_bytes, values, rows, lane);
        values = tiles + Tile::tile_bytes;
      }
      keys = tiles;
      __syncwarp();
    }
    float scores[2][4] = {};
    score(scores, shared_address(keys));
    if constexpr (Memory::n_tiles == 1) {
      __syncwarp();
      Tile::unpack(keys, values, rows, lane);
      values = keys;
      __syncwarp();
    }
    if (rows.end - rows.begin < positions) mask(scores, rows);
    float const kept[2] = {continue_softmax(scores, 0, max[0], sum[0]), continue_softmax(scores, 2, max[1], sum[1])};
#pragma unroll
    for (int i = 0; i < head_dim / 8 * 4; ++i) sums[i / 4][i % 4] *= kept[i % 4 / 2];
    add_values(scores, shared_address(values));
  }

  /// Steps from `p` on, `distance` apart: fetches what the first two need.
  __device__ __forceinline__ void begin(std::int32_t p, std::int32_t distance) {
    if (p + positions <= part.begin) p += (part.begin - p) / distance * distance;
    if (p + positions <= part.begin) p += distance;
    next = p;
    step = distance;
    if (p < part.end) pages.move_to(p / page_tokens, lane);
    fetch(p, 0);
    fetch(p + step, 1);
  }
  /// When queries, and the row's own keys and values, are there.
  __device__ __forceinline__ void attend_all() {
    if (next < part.end) hold_queries();
    for (int stage = 0; next < part.end; next += step, stage ^= 1) {
      wait_copies<1>();
      __syncwarp();
      attend(next, stage);
      __syncwarp();  // what is fetched now overwrites this stage
      fetch(next + 2 * step, stage);
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

}  // namespace detail
}  // namespace tiered::cuda
