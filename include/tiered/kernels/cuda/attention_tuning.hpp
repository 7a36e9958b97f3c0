/// How the CUDA attention kernels cut their work, in one place. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/queue.hpp"

namespace tiered::cuda {

/// Parts of a context begin at multiples of it, and a tile never crosses a page where page_tokens is a multiple of it.
inline constexpr std::int32_t split_tile = 64;
/// Blocks that few rows are cut into at most, for each multiprocessor; half of them while parts are less than so many tiles, since who
/// comes last puts them all together.
inline constexpr std::int32_t split_blocks_per_multiprocessor = 2, tiles_of_half_as_many = 8;
/// Keys and values of earlier positions are fetched while the previous kernel runs.
inline constexpr bool few_early = true;
/// Query heads of one KV head that a block of the kernel for few rows takes: rows of a matrix tile.
inline constexpr std::int32_t few_heads = 16;
/// Shared memory that the kernels for few rows have besides what depends on their stages, at most.
inline constexpr int few_attention_static_bytes = 7 << 10;
/// Queries and weights of few rows are each two halves, a value and its rounding error: twice the products, which wait for memory anyway.
inline constexpr bool few_exact = true;

/// Elements of a head in a tile: whole steps of 16, the last ones zeros.
TIERED_HD constexpr int tile_dim(int head_dim) { return (head_dim + 15) / 16 * 16; }

/// Shapes of the kernels for `head_dim`, a multiple of 8. A row of a tile in shared memory has 8 halves more than it needs: an odd number
/// of 16 bytes, so that eight rows lie in different banks.
template <int head_dim>
struct FewShape {
  static constexpr int n_warps = head_dim <= 128 ? 4 : 2, n_threads = n_warps * 32;
  static constexpr int positions = 16;  ///< of a step of one warp
  static constexpr int stride = tile_dim(head_dim) + 8;
};
template <int head_dim>
struct ManyShape {
  static constexpr int n_warps = 4, n_threads = n_warps * 32;
  static constexpr int row_tiles = head_dim <= 128 ? 2 : 1;  ///< of 16 rows, for each warp
  static constexpr int rows = n_warps * row_tiles * 16;
  static constexpr int positions = head_dim <= 128 ? 64 : 32;  ///< of a tile
  static constexpr int stride = tile_dim(head_dim) + 8;
};

/// Head sizes with kernels on tensor cores.
constexpr bool is_tiled_head(std::int32_t head_dim) {
  return head_dim == 64 || head_dim == 80 || head_dim == 96 || head_dim == 128 || head_dim == 256;
}
/// Those, and what only the kernel for many rows takes: image encoders have heads of 72.
constexpr bool is_many_head(std::int32_t head_dim) { return is_tiled_head(head_dim) || head_dim == 72; }
/// The largest head of the kernels without tensor cores.
inline constexpr std::int32_t largest_head = 576;

/// Into how many parts the context of each of few rows may be cut: what a launch can know, so that a captured graph holds for every
/// context up to max_position. Never more than the workspace has room for.
constexpr std::int32_t attention_splits(AttentionArgs const& a, std::int32_t blocks_per_split, int n_multiprocessors) {
  if (a.n_tokens > attention_few_rows) return 1;
  std::int32_t const wanted = split_blocks_per_multiprocessor * n_multiprocessors / blocks_per_split;
  auto const room = std::int32_t(attention_parts(a.n_tokens, a.max_position) / a.n_tokens);
  std::int32_t const least = wanted < room ? wanted : room;
  return least > 1 ? least : 1;
}

}  // namespace tiered::cuda
