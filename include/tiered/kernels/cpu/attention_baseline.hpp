/// The innermost loops of attention in plain C++ for every machine.
///
/// A leaf is a struct of static functions, one struct for each instruction set (Kernels::AttentionLeaf); attention_block.hpp is a
/// template on it. Keys are transposed and values converted, a tile at a time, so that scores and weighted sums are both products of
/// small f32 matrices. Each element of a product is one chain of multiply-adds in ascending order: a score does not depend on which
/// positions or queries share the tile, and a weighted sum may stop and go on at any position.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "tiered/core/ids.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/kernels/format/encode.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered::cpu {

/// c[i][j] += a[i][0] * b[0][j] + a[i][1] * b[1][j] + ..., row-major, rows their strides apart (in elements); n_columns % 16 == 0.
struct SmallProduct {
  float const *a = nullptr, *b = nullptr;
  float* c = nullptr;
  std::int32_t a_stride = 0, b_stride = 0, c_stride = 0;
  std::int32_t n_rows = 0, n_inner = 0, n_columns = 0;
};

/// Memory that will be read soon; products ask for it bit by bit, so that it arrives while they compute.
struct ReadAhead {
  std::byte const *at = nullptr, *end = nullptr;

  /// How far apart requests are; once all has been asked for, a loop asks for `idle` again and again, which costs less than a branch.
  std::int64_t step() const { return at < end ? 64 : 0; }
  std::byte const* begin(float const* idle) const { return at < end ? at : reinterpret_cast<std::byte const*>(idle); }
};

/// A head's vector of one position as KvWriteArgs says, the last block padded with zeros.
template <class F>
void store_kv(float const* src, std::int32_t n, std::byte* dst) {
  auto* const blocks = reinterpret_cast<typename F::Block*>(dst);
  std::int32_t const whole = n / F::block_elems;
  for (std::int32_t b = 0; b < whole; ++b) encode_block(F{}, src + b * F::block_elems, blocks[b]);
  if (whole * F::block_elems == n) return;
  float last[F::block_elems] = {};
  std::copy(src + whole * F::block_elems, src + n, last);
  encode_block(F{}, last, blocks[whole]);
}

namespace baseline {

struct AttentionLeaf {
  static constexpr std::int32_t tile_positions = 16;  ///< of keys that are transposed together; a multiple of 16

  template <class F>
  static void store(float const* src, std::int32_t n, std::byte* dst) {
    store_kv<F>(src, n, dst);
  }

  /// dst[i] = src[i] * factor.
  static void scale(float const* src, float factor, std::int32_t n, float* dst) {
    for (std::int32_t i = 0; i < n; ++i) dst[i] = src[i] * factor;
  }

  /// dst[d - dims.begin][p] = element d of rows[p] for tile_positions rows. dims.begin % 32 == 0.
  template <class F>
  static void load_keys(std::byte const* const* rows, Range dims, float* dst) {
    for (std::int32_t p = 0; p < tile_positions; ++p) {
      for_elements<F>(rows[p], dims, [&](std::int32_t i, float value) { dst[i * tile_positions + p] = value; });
    }
  }

  /// dst[p][d - dims.begin] = element d of rows[p] for p in [0, n), rows `stride` apart; zeros up to the next multiple of 16.
  /// dims.begin % 32 == 0.
  template <class F>
  static void load_values(std::byte const* const* rows, std::int32_t n, Range dims, std::int32_t stride, float* dst) {
    for (std::int32_t p = 0; p < n; ++p, dst += stride) {
      for_elements<F>(rows[p], dims, [&](std::int32_t i, float value) { dst[i] = value; });
      std::fill(dst + dims.size(), dst + (dims.size() + 15) / 16 * 16, 0.0f);
    }
  }

  [[gnu::noinline]] static void multiply(SmallProduct const& m, ReadAhead&) {
    for (std::int32_t i = 0; i < m.n_rows; ++i) {
      for (std::int32_t j = 0; j < m.n_columns; j += 16) {
        float sums[16];
        float* const c = m.c + std::int64_t(i) * m.c_stride + j;
        std::copy(c, c + 16, sums);
        for (std::int32_t k = 0; k < m.n_inner; ++k) {
          float const a = m.a[std::int64_t(i) * m.a_stride + k];
          float const* const b = m.b + std::int64_t(k) * m.b_stride + j;
          for (int l = 0; l < 16; ++l) sums[l] += a * b[l];
        }
        std::copy(sums, sums + 16, c);
      }
    }
  }

  /// s[p] = exp(s[p] - max) for p in `seen`, which is not empty, max being the largest of them; returns their sum, added in lanes:
  /// p in lane p % 16. Elements that share 16 aligned ones with one of `seen` become 0; they must be readable.
  static float exponentials(float* s, Range seen, float* max) {
    float largest = -std::numeric_limits<float>::infinity(), sums[16] = {};
    for (std::int32_t p = seen.begin; p < seen.end; ++p) largest = std::max(largest, s[p]);
    std::int32_t const begin = seen.begin / 16 * 16, end = (seen.end + 15) / 16 * 16;
    for (std::int32_t p = begin; p < end; ++p) {
      s[p] = p >= seen.begin && p < seen.end ? std::exp(s[p] - largest) : 0.0f;
      sums[p % 16] += s[p];
    }
    *max = largest;
    for (int width = 8; width > 0; width /= 2) {
      for (int l = 0; l < width; ++l) sums[l] += sums[l + width];
    }
    return sums[0];
  }

 private:
  template <class F, class Use>
  static void for_elements(std::byte const* row, Range dims, Use use) {
    auto const* const blocks = reinterpret_cast<typename F::Block const*>(row) + dims.begin / F::block_elems;
    for (std::int32_t i = 0; i < dims.size(); ++i) use(i, F::decode(blocks[i / F::block_elems], i % F::block_elems));
  }
};

}  // namespace baseline
}  // namespace tiered::cpu
