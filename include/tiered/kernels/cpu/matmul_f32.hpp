/// Tiles of matrix products on f32 activations: for weights that are floats, and for every format where precision is asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cpu {

/// Elements whose products are summed by themselves; sums of such pieces are added in ascending order.
inline constexpr std::int32_t f32_piece = 512;

/// Weights are decoded to f32, a piece of a few rows at a time, and multiplied with all tokens of the tile.
/// `Leaf::decode<F>(src, n, dst)` decodes n elements; `Leaf::add_dots(w, n_rows, n, x, n_tokens, y)` adds the product of rows
/// w [n_rows][f32_piece] (n elements each) and tokens x[t] to y[t][r]. A leaf may have `few_tokens<F>`, the same sums in another way.
template <class F, class Leaf>
void f32_tile(Product const& p, Range rows, Range tokens) {
  if constexpr (requires { Leaf::template few_tokens<F>(p, rows, tokens); }) {
    if (tokens.size() <= 4) return Leaf::template few_tokens<F>(p, rows, tokens);
  }
  constexpr std::int32_t most_rows = 8, most_tokens = 64;
  std::int32_t const step = tokens.size() <= 4 ? 1 : most_rows;  // few tokens: memory is the limit, and likes one stream
  std::int64_t const row_blocks = p.dim / F::block_elems;
  auto const* const w = static_cast<std::byte const*>(p.w);
  alignas(64) float decoded[most_rows * f32_piece];
  for (std::int32_t r0 = rows.begin; r0 < rows.end; r0 += step) {
    std::int32_t const n_rows = std::min(step, rows.end - r0);
    for (std::int32_t t = tokens.begin; t < tokens.end; ++t) {
      for (std::int32_t r = 0; r < n_rows; ++r) p.y_row(t)[r0 + r] = p.bias != nullptr ? p.bias[r0 + r] : 0.0f;
    }
    for (std::int32_t k = 0; k < p.dim; k += f32_piece) {
      std::int32_t const n = std::min(f32_piece, p.dim - k);
      for (std::int32_t r = 0; r < n_rows; ++r) {
        std::int64_t const block = std::int64_t(r0 + r) * row_blocks + k / F::block_elems;
        Leaf::template decode<F>(w + block * F::block_bytes, n, decoded + r * f32_piece);
      }
      for (std::int32_t t0 = tokens.begin; t0 < tokens.end; t0 += most_tokens) {
        std::int32_t const n_tokens = std::min(most_tokens, tokens.end - t0);
        float const* x[most_tokens];
        float* y[most_tokens];
        for (std::int32_t t = 0; t < n_tokens; ++t) {
          x[t] = reinterpret_cast<float const*>(p.x_row(t0 + t, std::size_t(p.dim) * sizeof(float))) + k;
          y[t] = p.y_row(t0 + t) + r0;
        }
        Leaf::add_dots(decoded, n_rows, n, x, n_tokens, y);
      }
    }
  }
}

/// n weights at any address: blocks are copied to where they are aligned, which compilers make disappear.
template <class F>
inline void decode_any(std::byte const* src, std::int32_t n, float* dst) {
  for (std::int32_t i = 0; i < n / F::block_elems; ++i) {
    typename F::Block block;
    std::memcpy(&block, src + std::int64_t(i) * F::block_bytes, sizeof block);
    F::decode_block(block, dst + i * F::block_elems);
  }
}

}  // namespace tiered::cpu
