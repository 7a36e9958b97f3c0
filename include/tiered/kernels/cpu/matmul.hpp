/// How a product of activations and weights is cut into tiles and spread over a team, whatever computes the tiles.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

/// A product whose tokens may lie anywhere among the rows of x and y: experts take the tokens that were routed to them.
struct Product : MatmulArgs {
  std::int32_t const* x_rows = nullptr;  ///< row of x of token t; null: t
  std::int32_t const* y_rows = nullptr;  ///< row of y of token t; null: t
  /// What the calling thread reads after a tile, to be fetched meanwhile; null: the rows behind the tile's. Never read as weights.
  void const* then = nullptr;

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

/// Tiles whose weights stay in the second-level cache while all their tokens pass, a few for every thread, of very few tokens more:
/// those wait for memory, whose speed differs from thread to thread. Small products get fewer: a tile should take longer than handing
/// it out.
inline Tiling make_tiling(std::int32_t n_rows, std::int32_t n_tokens, std::size_t weight_row_bytes, int n_threads,
                          std::int32_t row_step = 4, std::int32_t token_step = 4) {
  constexpr std::size_t cached_bytes = 128 * 1024, least_bytes = 16 * 1024;
  Tiling tiling{n_rows, n_tokens, n_rows, n_tokens};
  if (n_rows <= 0 || n_tokens <= 0) return {0, 0, 1, 1};
  std::size_t const row = std::max<std::size_t>(weight_row_bytes, 1);
  auto const most = std::int32_t(std::clamp<std::size_t>(cached_bytes / row, 4, 1024));
  auto const least = std::int32_t(std::clamp<std::size_t>(least_bytes / row / std::size_t(n_tokens), 1, 1024));
  std::int32_t const n_shares = n_threads * (n_tokens <= 4 ? 8 : 4), share = (n_rows + n_shares - 1) / n_shares;
  tiling.tile_rows = std::clamp(n_threads == 1 ? most : share, std::min(least, most), most);
  tiling.tile_rows = std::min(n_rows, (tiling.tile_rows + row_step - 1) / row_step * row_step);
  if (n_threads > 1 && tiling.row_tiles() < 2 * n_threads && n_tokens >= 32) {
    std::int32_t const wanted = std::int32_t(2 * n_threads / tiling.row_tiles()) + 1;
    std::int32_t const step = std::max(16, token_step);
    tiling.tile_tokens = ((n_tokens + wanted - 1) / wanted + step - 1) / step * step;
  }
  return tiling;
}

/// How one instruction set multiplies weights of one type.
struct ProductKernel {
  MatmulTile tile = nullptr;
  DType activation = DType::f32;  ///< what it reads
  /// Ranges of rows and tokens that tile() gets begin at multiples of these.
  std::int32_t row_step = 4, token_step = 4;
  std::int32_t many_rows = 1;  ///< a row_step for products of many_tokens tokens and more
  /// Of a tile, where tile() unpacks weights once for all tokens of its range; 0: it does not. See make_block_tiling().
  std::int32_t most_rows = 0, most_tokens = 0;
};
inline constexpr std::int32_t many_tokens = 32;

/// Tiles for many tokens and a kernel that unpacks: those that are expected to take the least time, in cycles for each element of a row.
/// A tile's products take rows * tokens / 512 (1024 operations a cycle), unpacking 0.3 for a row, and 0.1 for a token bring its panels
/// from the third-level cache. Each thread makes n / n_threads tiles, a whole number if all are equally fast: the mean of both. Then
/// they wait for the slowest: 1.2 tiles. Fitted to 30 products of 512 tokens on 16 threads (see matmul_amx.hpp) in 16 to 96 tiles, best
/// and median: 9.5 % root mean square. One thread in 16 must have had 0.45 of the speed of the others: taken as such, the best times are
/// met within 7.5 %, with 16 equal threads within 22 %. 16 tiles reached 6 to 7 TFLOP/s, whatever their shape, and 64 tiles 10 to 11.
inline Tiling make_block_tiling(std::int32_t n_rows, std::int32_t n_tokens, int n_threads, ProductKernel const& kernel) {
  constexpr std::int32_t step = 32, half = 16;  // what is multiplied together; of rows, half of it is, too
  auto const rounded = [](std::int32_t n) { return (n + step - 1) / step * step; };
  Tiling best{n_rows, n_tokens, step, step};
  double best_time = 1e30;
  for (std::int32_t parts = (n_tokens + kernel.most_tokens - 1) / kernel.most_tokens; parts <= n_tokens; ++parts) {
    std::int32_t const tokens = rounded((n_tokens + parts - 1) / parts);
    if (parts > 1 && tokens < 2 * step) break;
    for (std::int32_t rows = std::min(kernel.most_rows, rounded(n_rows)); rows >= half; rows -= half) {
      Tiling const tiling{n_rows, n_tokens, rows, std::min(n_tokens, tokens)};
      std::int64_t const n = tiling.size(), whole = (n + n_threads - 1) / n_threads;
      double const rounds = n_threads == 1 ? double(n) : (double(whole) + double(n) / n_threads) / 2 + 1.2;
      double const time = rounds * (rows * (tokens / 512.0 + 0.3) + tokens * 0.1);
      if (time < best_time * 0.999) best = tiling, best_time = time;
    }
  }
  best.tile_rows = std::min(n_rows, best.tile_rows);
  return best;
}

/// The products of one instruction set by weight type; tile is null where there is none.
struct ProductTable {
  ProductKernel kernels[n_file_dtypes] = {};

  ProductKernel const& of(DType weights) const {
    std::uint32_t const type = std::uint32_t(weights);
    if (type >= n_file_dtypes || kernels[type].tile == nullptr)
      throw Error(Errc::unsupported, concat("products with weights of type ", name(weights) != nullptr ? name(weights) : "unknown"));
    return kernels[type];
  }
};

/// Row `row` of weights [rows, dim].
inline void const* row_of(void const* w, DType type, std::int32_t dim, std::int32_t row) {
  return static_cast<std::byte const*>(w) + std::int64_t(row) * std::int64_t(row_bytes(type, std::uint64_t(dim)));
}

inline Product product_of(MatmulArgs const& args) {
  Product product;
  static_cast<MatmulArgs&>(product) = args;
  return product;
}

inline Tiling tiling_of(MatmulArgs const& args, DType type, ProductKernel const& kernel, int n_threads) {
  if (kernel.most_tokens > 0 && args.n_tokens > 32) return make_block_tiling(args.rows, args.n_tokens, n_threads, kernel);
  std::int32_t const row_step = args.n_tokens < many_tokens ? kernel.row_step : std::max(kernel.row_step, kernel.many_rows);
  return make_tiling(args.rows, args.n_tokens, std::size_t(row_bytes(type, std::uint64_t(args.dim))), n_threads, row_step,
                     kernel.token_step);
}

/// y = x w^T + bias by tiles of weight type `type`.
template <ProductTable const* products, DType type>
void matmul(MatmulArgs const& args, Team& team) {
  constexpr ProductKernel kernel = products->kernels[std::uint32_t(type)];
  Product const product = product_of(args);
  Tiling const tiling = tiling_of(args, type, kernel, team.size());
  team.parallel_for(tiling.size(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) kernel.tile(product, tiling.rows(i), tiling.tokens(i));
  });
}

/// The tiles of several products as one loop: one hand-out of work where there would be three.
template <ProductTable const* products>
void matmul_set(MatmulSetArgs const& args, Team& team) {
  Product product[MatmulSetArgs::max_parts];
  ProductKernel kernel[MatmulSetArgs::max_parts];
  Tiling tiling[MatmulSetArgs::max_parts];
  std::int64_t ends[MatmulSetArgs::max_parts] = {}, total = 0;
  for (std::int32_t i = 0; i < args.n_parts; ++i) {
    product[i] = product_of(args.parts[i]);
    kernel[i] = products->of(args.types[i]);
    tiling[i] = tiling_of(args.parts[i], args.types[i], kernel[i], team.size());
    ends[i] = total += tiling[i].size();
  }
  team.parallel_for(total, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int32_t part = 0;
      while (i >= ends[part]) ++part;
      std::int64_t const tile = part == 0 ? i : i - ends[part - 1];
      Range const rows = tiling[part].rows(tile);
      Product one = product[part];
      if (rows.end == one.rows && part + 1 < args.n_parts) one.then = product[part + 1].w;
      kernel[part].tile(one, rows, tiling[part].tokens(tile));
    }
  });
}

/// Tiles of both products and their activation by the same thread, while they are in its cache.
template <ProductTable const* products, class Leaf>
void gated_matmul(GatedMatmulArgs const& args, Team& team) {
  ProductKernel const &gate_kernel = products->of(args.gate_type), &up_kernel = products->of(args.up_type);
  ProductKernel const& coarser = gate_kernel.row_step >= up_kernel.row_step ? gate_kernel : up_kernel;
  Tiling const tiling = tiling_of(args.gate, args.gate_type, coarser, team.size());
  team.parallel_for(tiling.size(), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      Range const rows = tiling.rows(i), tokens = tiling.tokens(i);
      Product gate = product_of(args.gate), up = product_of(args.up);
      gate.then = row_of(up.w, args.up_type, up.dim, rows.begin);
      if (rows.end < gate.rows) up.then = row_of(gate.w, args.gate_type, gate.dim, rows.end);
      gate_kernel.tile(gate, rows, tokens);
      up_kernel.tile(up, rows, tokens);
      for (std::int32_t t = tokens.begin; t < tokens.end; ++t)
        Leaf::gated(gate.y_row(t) + rows.begin, up.y_row(t) + rows.begin, args.activation, rows.size(), gate.y_row(t) + rows.begin);
    }
  });
}

}  // namespace tiered::cpu
