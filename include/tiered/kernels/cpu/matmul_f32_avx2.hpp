/// Products on f32 activations for AVX2 and FMA. A sum runs in the eight lanes of one vector, piece by piece: see matmul_f32.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <immintrin.h>

#include "tiered/kernels/cpu/matmul_avx2.hpp"
#include "tiered/kernels/cpu/matmul_f32.hpp"

namespace tiered::cpu::avx2 {

/// All ones in the first n (1..8) of eight lanes. Ends of rows go through masks, not through other code: an element's value must
/// not depend on where a thread's part of a row ends.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i first_lanes(std::int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? std::int32_t(n) : 8), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/// Eight weights of a float format.
template <class F>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 eight_floats(std::byte const* src) {
  if constexpr (std::is_same_v<F, F16>) return _mm256_cvtph_ps(load_16(src));
  if constexpr (std::is_same_v<F, BF16>) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(src)), 16));
  if constexpr (std::is_same_v<F, F32>) return _mm256_castsi256_ps(load_32(src));
}

/// Fewer than eight, then zeros.
template <class F>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 last_floats(std::byte const* src, std::int32_t n) {
  float values[8] = {};
  decode_any<F>(src, n, values);
  return _mm256_loadu_ps(values);
}

/// What the compiler vectorises for this target.
template <class F>
[[gnu::target("avx2,fma,f16c")]] void decode(std::byte const* src, std::int32_t n, float* dst) {
  std::int32_t i = 0;
  if constexpr (F::block_elems == 1) {
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, eight_floats<F>(src + std::int64_t(i) * F::block_bytes));
  }
  decode_any<F>(src + std::int64_t(i) * F::block_bytes, n - i, dst + i);
}

/// y[t][r] += w[r] . x[t] for a block of decoded rows and tokens.
template <int n_rows, int n_tokens>
[[gnu::target("avx2,fma,f16c")]] inline void add_dots_block(float const* w, std::int32_t n, float const* const* x, float* const* y,
                                                            std::int32_t row) {
  __m256 sums[n_rows][n_tokens];
#pragma GCC unroll 8
  for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; ++t) sums[r][t] = _mm256_setzero_ps();
  }
  std::int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 rows[n_rows];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) rows[r] = _mm256_loadu_ps(w + r * f32_piece + i);
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; ++t) {
      __m256 const token = _mm256_loadu_ps(x[t] + i);
#pragma GCC unroll 8
      for (int r = 0; r < n_rows; ++r) sums[r][t] = _mm256_fmadd_ps(rows[r], token, sums[r][t]);
    }
  }
  __m256i const mask = first_lanes(n - i);
#pragma GCC unroll 8
  for (int t = 0; t < n_tokens; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) {
      if (i < n)
        sums[r][t] = _mm256_fmadd_ps(_mm256_maskload_ps(w + r * f32_piece + i, mask), _mm256_maskload_ps(x[t] + i, mask), sums[r][t]);
      y[t][row + r] += sum_lanes(sums[r][t]);
    }
  }
}

template <int n_tokens>
inline void add_dots_tokens(float const* w, std::int32_t n_rows, std::int32_t n, float const* const* x, float* const* y) {
  constexpr int block = n_tokens == 1 ? 4 : 2;
  std::int32_t r = 0;
  for (; r + block <= n_rows; r += block) add_dots_block<block, n_tokens>(w + r * f32_piece, n, x, y, r);
  for (; r < n_rows; ++r) add_dots_block<1, n_tokens>(w + r * f32_piece, n, x, y, r);
}

inline void add_dots(float const* w, std::int32_t n_rows, std::int32_t n, float const* const* x, std::int32_t n_tokens, float* const* y) {
  std::int32_t t = 0;
  for (; t + 4 <= n_tokens; t += 4) add_dots_tokens<4>(w, n_rows, n, x + t, y + t);
  for (; t < n_tokens; ++t) add_dots_tokens<1>(w, n_rows, n, x + t, y + t);
}

/// The same sums straight from the weights: where memory is the limit, they pass the registers once.
template <class F, int n_rows, int n_tokens>
[[gnu::target("avx2,fma,f16c")]] void float_rows(Product const& p, std::int32_t row, float const* const* x, float* const* y) {
  std::int64_t const row_bytes = std::int64_t(p.dim) * F::block_bytes;
  std::byte const* const w = static_cast<std::byte const*>(p.w) + row * row_bytes;
  float totals[n_rows][n_tokens];
#pragma GCC unroll 8
  for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; ++t) totals[r][t] = p.bias != nullptr ? p.bias[row + r] : 0.0f;
  }
  for (std::int32_t k = 0; k < p.dim; k += f32_piece) {
    std::int32_t const end = std::min(p.dim, k + f32_piece);
    __m256 sums[n_rows][n_tokens];
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; ++t) sums[r][t] = _mm256_setzero_ps();
    }
    std::int32_t i = k;
    for (; i + 8 <= end; i += 8) {
#pragma GCC unroll 8
      for (int r = 0; r < n_rows; ++r) {
        __m256 const weights = eight_floats<F>(w + r * row_bytes + std::int64_t(i) * F::block_bytes);
#pragma GCC unroll 8
        for (int t = 0; t < n_tokens; ++t) sums[r][t] = _mm256_fmadd_ps(weights, _mm256_loadu_ps(x[t] + i), sums[r][t]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) {
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; ++t) {
        if (i < end) {
          __m256 const weights = last_floats<F>(w + r * row_bytes + std::int64_t(i) * F::block_bytes, end - i);
          sums[r][t] = _mm256_fmadd_ps(weights, _mm256_maskload_ps(x[t] + i, first_lanes(end - i)), sums[r][t]);
        }
        totals[r][t] += sum_lanes(sums[r][t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < n_tokens; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < n_rows; ++r) y[t][row + r] = totals[r][t];
  }
}

/// Up to four tokens; with two or three, the last is computed more than once.
template <class F>
void few_tokens(Product const& p, Range rows, Range tokens) {
  float const* x[4];
  float* y[4];
  for (std::int32_t t = 0; t < 4; ++t) {
    std::int32_t const token = std::min(tokens.begin + t, tokens.end - 1);
    x[t] = reinterpret_cast<float const*>(p.x_row(token, std::size_t(p.dim) * sizeof(float)));
    y[t] = p.y_row(token);
  }
  std::int32_t r = rows.begin;
  if (tokens.size() == 1) {
    for (; r + 4 <= rows.end; r += 4) float_rows<F, 4, 1>(p, r, x, y);
    for (; r < rows.end; ++r) float_rows<F, 1, 1>(p, r, x, y);
  } else {
    for (; r + 2 <= rows.end; r += 2) float_rows<F, 2, 4>(p, r, x, y);
    for (; r < rows.end; ++r) float_rows<F, 1, 4>(p, r, x, y);
  }
}

}  // namespace tiered::cpu::avx2
