/// How a product of activations and weights is cut into tiles and spread over a team, whatever computes the tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

/// A product whose tokens may lie anywhere among the rows of x and y: experts take the tokens that were routed to them.
struct Product : MatmulArgs {
  std::int32_t const* x_rows = nullptr;  ///< row of x of token t; null: t
  std::int32_t const* y_rows = nullptr;  ///< row of y of token t; null: t

  std::byte const* x_row(std::int32_t token, std::size_t x_row_bytes) const {
    return static_cast<std::byte const*>(x) + std::size_t(x_rows != nullptr ? x_rows[token] : token) * x_row_bytes;
  }
  float* y_row(std::int32_t token) const { return y + std::int64_t(y_rows != nullptr ? y_rows[token] : token) * y_stride; }
};

/// Computes y[t, r] for the rows and tokens of two ranges, on the calling thread. The value of an element is the same in every
/// tile that contains it, bit for bit.
using MatmulTile = void (*)(Product const& product, Range rows, Range tokens);

/// The tiles of a product, numbered: all token ranges of the first rows, then of the next rows.
struct Tiling {
  std::int32_t n_rows = 0, n_tokens = 0;  ///< of the whole product
  std::int32_t tile_rows = 1, tile_tokens = 1;
  std::int64_t row_tiles() const { return (n_rows + tile_rows - 1) / tile_rows; }
  std::int64_t token_tiles() const { return (n_tokens + tile_tokens - 1) / tile_tokens; }
  std::int64_t size() const { return row_tiles() * token_tiles(); }
  Range rows(std::int64_t tile) const {
    std::int32_t const begin = std::int32_t(tile / token_tiles()) * tile_rows;
    return {begin, std::min(n_rows, begin + tile_rows)};
  }
  Range tokens(std::int64_t tile) const {
    std::int32_t const begin = std::int32_t(tile % token_tiles()) * tile_tokens;
    return {begin, std::min(n_tokens, begin + tile_tokens)};
  }
};

/// Tiles whose weights stay in the second-level cache while all their tokens pass, a few for every thread. Small products get
/// fewer: a tile should take longer than handing it out.
inline Tiling make_tiling(std::int32_t n_rows, std::int32_t n_tokens, std::size_t weight_row_bytes, int n_threads) {
  constexpr std::size_t cached_bytes = 128 * 1024, least_bytes = 16 * 1024;
  Tiling tiling{n_rows, n_tokens, n_rows, n_tokens};
  if (n_rows <= 0 || n_tokens <= 0) return {0, 0, 1, 1};
  std::size_t const row = std::max<std::size_t>(weight_row_bytes, 1);
  auto const most = std::int32_t(std::clamp<std::size_t>(cached_bytes / row, 4, 1024));
  auto const least = std::int32_t(std::clamp<std::size_t>(least_bytes / row / std::size_t(n_tokens), 1, 1024));
  std::int32_t const share = (n_rows + n_threads * 4 - 1) / (n_threads * 4);
  tiling.tile_rows = std::clamp(n_threads == 1 ? most : share, std::min(least, most), most);
  tiling.tile_rows = std::min(n_rows, (tiling.tile_rows + 3) / 4 * 4);
  if (n_threads > 1 && tiling.row_tiles() < 2 * n_threads && n_tokens >= 32) {
    std::int32_t const wanted = std::int32_t(2 * n_threads / tiling.row_tiles()) + 1;
    tiling.tile_tokens = std::max(16, ((n_tokens + wanted - 1) / wanted + 3) / 4 * 4);
  }
  return tiling;
}

/// y = x w^T + bias by tiles of weight type `type`.
template <DType type, MatmulTile tile>
void matmul(MatmulArgs const& args, Team& team) {
  Product product;
  static_cast<MatmulArgs&>(product) = args;
  Tiling const tiling = make_tiling(args.rows, args.n_tokens, std::size_t(row_bytes(type, std::uint64_t(args.dim))), team.size());
  team.parallel_for(tiling.size(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) tile(product, tiling.rows(i), tiling.tokens(i));
  });
}

}  // namespace tiered::cpu
