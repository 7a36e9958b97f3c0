/// Tiles of matrix products on f32 activations: for weights that are floats, and for every format where precision is asked for.
///
/// y[t][r] is bias[r] plus sums of f32_piece products each, in ascending order. How a piece is summed is the leaf's affair, and the
/// same for every number of tokens and rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/format/f32.hpp"

namespace tiered::cpu {

/// Elements whose products are summed by themselves. Pieces of four rows and six tokens are 40 KiB, about what the first cache holds;
/// shorter pieces join lanes more often.
inline constexpr std::int32_t f32_piece = 1024;
inline constexpr std::int32_t f32_rows = 4;  ///< what Leaf::dots takes at a time

/// Of all tokens together, where Leaf::row_dots takes rows one by one: they stay in the first cache, 12 KiB, while each row passes.
inline constexpr std::int32_t f32_row_elems = 3 * f32_piece, f32_row_tokens = 4;

inline constexpr std::int32_t f32_many_rows = 64;  ///< for many tokens: fewer read each token too often

/// sums[t][i] += w[i] . x[t] for n <= f32_piece elements of f32_rows rows, and any number of tokens.
/// `Leaf::dots<F, n_tokens>(w, n, x, sums)` does it for n_tokens <= Leaf::dots_tokens and weights of those F that it can read as they are.
template <class F, class Leaf, int block = Leaf::dots_tokens>
void add_dots(std::byte const* const* w, std::int32_t n, float const* const* x, std::int32_t n_tokens, float* sums) {
  for (; n_tokens >= 2 * block || n_tokens == block; n_tokens -= block, x += block, sums += block * f32_rows) {
    Leaf::template dots<F, block>(w, n, x, sums);
  }
  if constexpr (block > 1) {
    if (n_tokens > block) {  // two of about the same size: one alone is as slow as three
      std::int32_t const half = n_tokens / 2;
      add_dots<F, Leaf, block - 1>(w, n, x, half, sums);
      return add_dots<F, Leaf>(w, n, x + half, n_tokens - half, sums + half * f32_rows);
    }
    if (n_tokens > 0) add_dots<F, Leaf, block - 1>(w, n, x, n_tokens, sums);
  }
}

/// The working memory of a tile, on the stack of the thread that computes it.
template <class F, class Leaf>
class F32Tile {
 public:
  explicit F32Tile(Product const& product) : p_(product) {}

  /// Whether rows are read one by one, from front to back, as memory likes it best. GB/s of one Zen 4 core from DRAM, F16 and one token,
  /// rows of 768, 2048, 3072, 4096, 5632: 30, 25, 22, 17, 15, as tokens leave the first cache; four rows side by side 11, 19, 19, 20, 19,
  /// two 10, 15, -, -, 16. From the second cache side by side is faster, 58 to 36.
  bool by_row(Range tokens) const { return tokens.size() <= f32_row_tokens && std::int64_t{tokens.size()} * p_.dim <= f32_row_elems; }
  template <int n_tokens = f32_row_tokens>
  void run_rows(Range rows, Range tokens) {
    if constexpr (n_tokens > 1) {
      if (tokens.size() < n_tokens) return run_rows<n_tokens - 1>(rows, tokens);
    }
    find_tokens(tokens, 0);
    for (std::int32_t r = rows.begin; r < rows.end; r += f32_rows) {
      std::int32_t const n_rows = std::min(f32_rows, rows.end - r);
      start(r, n_rows, tokens);
      std::byte const* w[f32_rows];
      for (std::int32_t i = 0; i < f32_rows; ++i) w[i] = weights(r + std::min(i, n_rows - 1), 0);
      Leaf::template row_dots<F, n_tokens>(w, p_.dim, x_, sums_);
      finish(r, n_rows, tokens);
    }
  }

  /// Whether all tokens stay in the second cache while rows pass, whatever their number. Then weights that the leaf can read pass the
  /// registers once: 16 tokens of 4096 and f16, one core of Zen 4: 79 % of the FMA peak, run_many() 51 %; 32 tokens: 85 and 64 %.
  bool few(Range tokens) const {
    constexpr std::int64_t cached_elems = 128 * 1024;
    return tokens.size() <= 4 || (tokens.size() <= most_tokens && std::int64_t{tokens.size()} * p_.dim <= cached_elems);
  }
  void run_few(Range rows, Range tokens) {
    for (std::int32_t r = rows.begin; r < rows.end; r += f32_rows) {
      std::int32_t const n_rows = std::min(f32_rows, rows.end - r);
      start(r, n_rows, tokens);
      for (std::int32_t k = 0; k < p_.dim; k += f32_piece) {
        std::byte const* w[f32_rows];
        for (std::int32_t i = 0; i < f32_rows; ++i) w[i] = weights(r + std::min(i, n_rows - 1), k);
        find_tokens(tokens, k);
        add_dots<F, Leaf>(w, std::min(f32_piece, p_.dim - k), x_, tokens.size(), sums_);
      }
      finish(r, n_rows, tokens);
    }
  }

  /// Pieces of some rows are decoded, and meet all tokens while they are in the second cache.
  void run_many(Range rows, Range tokens) {
    std::int32_t const step = tokens.size() <= 16 ? f32_rows : panel_rows;  // many rows at a time are too many streams for memory
    for (std::int32_t r = rows.begin; r < rows.end; r += step) {
      std::int32_t const n_rows = std::min(step, rows.end - r);
      for (std::int32_t t = tokens.begin; t < tokens.end; t += most_tokens) {
        Range const chunk{t, std::min(tokens.end, t + most_tokens)};
        start(r, n_rows, chunk);
        for (std::int32_t k = 0; k < p_.dim; k += f32_piece) add_piece(r, n_rows, chunk, k);
        finish(r, n_rows, chunk);
      }
    }
  }

 private:
  // Tokens of a block pass each four rows, so they come from the second cache: 96 KiB, beside a panel of 260 KiB. On one core of Zen 4,
  // 512 tokens, rows of 4096: 76 % of the FMA peak with AVX2 and blocks of 12, 81 % with 24 and with 96.
  static constexpr std::int32_t panel_rows = f32_many_rows, most_tokens = 240, block_tokens = 24;
  static constexpr std::int32_t stride = f32_piece + 16;  // rows of a power of two would meet in the same lines of the cache

  std::byte const* weights(std::int32_t row, std::int32_t k) const {
    std::int64_t const block = std::int64_t(row) * (p_.dim / F::block_elems) + k / F::block_elems;
    return static_cast<std::byte const*>(p_.w) + block * F::block_bytes;
  }

  void find_tokens(Range tokens, std::int32_t k) {
    for (std::int32_t t = 0; t < tokens.size(); ++t) {
      x_[t] = reinterpret_cast<float const*>(p_.x_row(tokens.begin + t, std::size_t(p_.dim) * sizeof(float))) + k;
    }
  }

  float* sums_of(std::int32_t group, Range tokens) { return sums_ + group * tokens.size() * f32_rows; }

  void start(std::int32_t row, std::int32_t n_rows, Range tokens) {
    for (std::int32_t i = 0; i < (n_rows + f32_rows - 1) / f32_rows * f32_rows; ++i) {
      float* const sums = sums_of(i / f32_rows, tokens) + i % f32_rows;
      float const bias = p_.bias != nullptr && i < n_rows ? p_.bias[row + i] : 0.0f;
      for (std::int32_t t = 0; t < tokens.size(); ++t) sums[t * f32_rows] = bias;
    }
  }

  void add_piece(std::int32_t row, std::int32_t n_rows, Range tokens, std::int32_t k) {
    std::int32_t const n = std::min(f32_piece, p_.dim - k);
    for (std::int32_t i = 0; i < n_rows; ++i) Leaf::template decode<F>(weights(row + i, k), n, panel_ + i * stride);
    find_tokens(tokens, k);
    for (std::int32_t t = 0; t < tokens.size(); t += block_tokens) {
      for (std::int32_t i = 0; i < n_rows; i += f32_rows) {
        std::byte const* w[f32_rows];
        for (std::int32_t j = 0; j < f32_rows; ++j)
          w[j] = reinterpret_cast<std::byte const*>(panel_ + std::min(i + j, n_rows - 1) * stride);
        add_dots<F32, Leaf>(w, n, x_ + t, std::min(block_tokens, tokens.size() - t), sums_of(i / f32_rows, tokens) + t * f32_rows);
      }
    }
  }

  void finish(std::int32_t row, std::int32_t n_rows, Range tokens) {
    for (std::int32_t t = 0; t < tokens.size(); ++t) {
      float* const y = p_.y_row(tokens.begin + t) + row;
      for (std::int32_t i = 0; i < n_rows; i += f32_rows) {
        std::copy_n(sums_of(i / f32_rows, tokens) + t * f32_rows, std::min(f32_rows, n_rows - i), y + i);
      }
    }
  }

  Product const& p_;
  float const* x_[most_tokens];
  alignas(64) float sums_[panel_rows * most_tokens];  // [groups of rows][tokens][f32_rows]
  alignas(64) float panel_[panel_rows * stride];
};

template <class F, class Leaf>
void f32_tile(Product const& p, Range rows, Range tokens) {
  F32Tile<F, Leaf> tile(p);
  if constexpr (requires { &Leaf::template row_dots<F, 1>; }) {
    if (tile.by_row(tokens)) return tile.run_rows(rows, tokens);
  }
  if constexpr (requires { &Leaf::template dots<F, 1>; }) {
    if (tile.few(tokens)) return tile.run_few(rows, tokens);
  }
  tile.run_many(rows, tokens);
}

template <class F, class Leaf>
constexpr ProductKernel f32_kernel() {
  ProductKernel kernel{&f32_tile<F, Leaf>, DType::f32, f32_rows, 1};
  kernel.many_rows = f32_many_rows;
  return kernel;
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
