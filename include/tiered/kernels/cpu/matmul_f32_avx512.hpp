/// Products on f32 activations for AVX-512. A piece is summed in the sixteen lanes of one vector: see matmul_f32.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <immintrin.h>

#include "tiered/kernels/cpu/matmul_f32_avx2.hpp"

namespace tiered::cpu::avx512 {

/// All lanes below n (of 16).
inline __mmask16 first_lanes(std::int64_t n) { return n >= 16 ? __mmask16(0xffff) : __mmask16((1u << n) - 1u); }

// g++ 12 warns of the undefined operand inside the unmasked forms of some intrinsics (its bug 105593); those with a mask of ones are the
// same instructions.
inline constexpr __mmask16 all_lanes = 0xffff;

/// Those of sixteen weights of a float format that the mask has; the others are zero.
template <class F>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline __m512 some_floats(std::byte const* src,
                                                                                                             __mmask16 mask) {
  if constexpr (std::is_same_v<F, F16>) return _mm512_maskz_cvtph_ps(all_lanes, _mm256_maskz_loadu_epi16(mask, src));
  if constexpr (std::is_same_v<F, BF16>)
    return _mm512_castsi512_ps(
        _mm512_maskz_slli_epi32(all_lanes, _mm512_maskz_cvtepu16_epi32(all_lanes, _mm256_maskz_loadu_epi16(mask, src)), 16));
  if constexpr (std::is_same_v<F, F32>) return _mm512_maskz_loadu_ps(mask, src);
}
template <class F>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline __m512 sixteen_floats(std::byte const* src) {
  if constexpr (std::is_same_v<F, F16>) return _mm512_maskz_cvtph_ps(all_lanes, _mm256_loadu_si256(reinterpret_cast<__m256i const*>(src)));
  if constexpr (std::is_same_v<F, BF16>)
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(
        all_lanes, _mm512_maskz_cvtepu16_epi32(all_lanes, _mm256_loadu_si256(reinterpret_cast<__m256i const*>(src))), 16));
  if constexpr (std::is_same_v<F, F32>) return _mm512_loadu_ps(src);
}

template <class F>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] void decode(std::byte const* src, std::int32_t n, float* dst) {
  if constexpr (F::block_elems == 1) {
    std::int64_t i = 0;
    for (; i + 16 <= n; i += 16) _mm512_storeu_ps(dst + i, sixteen_floats<F>(src + i * F::block_bytes));
    if (i < n) _mm512_mask_storeu_ps(dst + i, first_lanes(n - i), some_floats<F>(src + i * F::block_bytes, first_lanes(n - i)));
  } else {
    avx2::decode<F>(src, n, dst);
  }
}

/// Sum of sixteen lanes, pairwise: i with i + 8, then as avx2::sum_lanes.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline __m256 join_halves(__m512 v) {
  return _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, v, 0), _mm512_maskz_extractf32x8_ps(0xff, v, 1));
}
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline float sum_lanes(__m512 v) {
  return avx2::sum_lanes(join_halves(v));
}

/// sum_lanes() of v[t][r] in element r of quarter t, by the same additions.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline __m512 sums_of_sixteen(
    __m512 const (*v)[f32_rows]) {
  __m512 quarters[4];  // of row r: in each quarter a token's lanes, joined to four
#pragma GCC unroll 8
  for (int r = 0; r < 4; ++r) {
    __m512 const a = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(all_lanes, v[0][r], v[1][r], 0x44),
                                   _mm512_maskz_shuffle_f32x4(all_lanes, v[0][r], v[1][r], 0xee));
    __m512 const b = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(all_lanes, v[2][r], v[3][r], 0x44),
                                   _mm512_maskz_shuffle_f32x4(all_lanes, v[2][r], v[3][r], 0xee));
    quarters[r] = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(all_lanes, a, b, 0x88), _mm512_maskz_shuffle_f32x4(all_lanes, a, b, 0xdd));
  }
  __m512 const low = _mm512_add_ps(_mm512_maskz_shuffle_ps(all_lanes, quarters[0], quarters[1], 0x44),
                                   _mm512_maskz_shuffle_ps(all_lanes, quarters[0], quarters[1], 0xee));
  __m512 const high = _mm512_add_ps(_mm512_maskz_shuffle_ps(all_lanes, quarters[2], quarters[3], 0x44),
                                    _mm512_maskz_shuffle_ps(all_lanes, quarters[2], quarters[3], 0xee));
  return _mm512_add_ps(_mm512_maskz_shuffle_ps(all_lanes, low, high, 0x88), _mm512_maskz_shuffle_ps(all_lanes, low, high, 0xdd));
}

/// sums[t][r] += sum_lanes(lanes[t][r]).
template <int n_tokens>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline void add_lanes(
    __m512 const (&lanes)[n_tokens][f32_rows], float* sums) {
  constexpr int fours = n_tokens / 4 * 4;
  if constexpr (fours > 0) _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), sums_of_sixteen(lanes)));
  if constexpr (fours < n_tokens) {
    __m256 halves[n_tokens - fours][f32_rows];
#pragma GCC unroll 8
    for (int t = fours; t < n_tokens; ++t) {
#pragma GCC unroll 8
      for (int r = 0; r < f32_rows; ++r) halves[t - fours][r] = join_halves(lanes[t][r]);
    }
    avx2::add_lanes(halves, sums + fours * f32_rows);
  }
}

/// Four rows and up to six tokens: 24 sums, four rows and a token are 29 of the 32 registers.
template <class F, int n_tokens>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] void dots(std::byte const* const* w, std::int32_t n, float const* const* x,
                                                                         float* sums) {
  __m512 lanes[n_tokens][f32_rows], rows[f32_rows];
#pragma GCC unroll 8
  for (int t = 0; t < n_tokens; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) lanes[t][r] = _mm512_setzero_ps();
  }
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) rows[r] = sixteen_floats<F>(w[r] + i * F::block_bytes);
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; ++t) {
      __m512 const token = _mm512_loadu_ps(x[t] + i);
#pragma GCC unroll 8
      for (int r = 0; r < f32_rows; ++r) lanes[t][r] = _mm512_fmadd_ps(rows[r], token, lanes[t][r]);
    }
  }
  if (i < n) {
    __mmask16 const mask = first_lanes(n - i);
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) {
      __m512 const row = some_floats<F>(w[r] + i * F::block_bytes, mask);
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; ++t) lanes[t][r] = _mm512_fmadd_ps(row, _mm512_maskz_loadu_ps(mask, x[t] + i), lanes[t][r]);
    }
  }
  add_lanes(lanes, sums);
}

/// Four whole rows, one after another: see F32Tile::run_rows(). Lanes, and how they are joined, are those of dots().
template <class F, int n_tokens>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] void row_dots(std::byte const* const* w, std::int32_t n,
                                                                             float const* const* x, float* sums) {
  __m512 lanes[f32_row_elems / f32_piece][n_tokens][f32_rows];
  for (int r = 0; r < f32_rows; ++r) {
    for (std::int64_t k = 0; k < n; k += f32_piece) {
      std::int64_t const end = std::min<std::int64_t>(n, k + f32_piece);
      __m512 sum[n_tokens];
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; ++t) sum[t] = _mm512_setzero_ps();
      std::int64_t i = k;
      for (; i + 16 <= end; i += 16) {
        __m512 const row = sixteen_floats<F>(w[r] + i * F::block_bytes);
#pragma GCC unroll 8
        for (int t = 0; t < n_tokens; ++t) sum[t] = _mm512_fmadd_ps(row, _mm512_loadu_ps(x[t] + i), sum[t]);
      }
      if (i < end) {
        __mmask16 const mask = first_lanes(end - i);
        __m512 const row = some_floats<F>(w[r] + i * F::block_bytes, mask);
#pragma GCC unroll 8
        for (int t = 0; t < n_tokens; ++t) sum[t] = _mm512_fmadd_ps(row, _mm512_maskz_loadu_ps(mask, x[t] + i), sum[t]);
      }
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; ++t) lanes[k / f32_piece][t][r] = sum[t];
    }
  }
  for (std::int32_t piece = 0; piece * f32_piece < n; ++piece) add_lanes(lanes[piece], sums);
}

}  // namespace tiered::cpu::avx512
