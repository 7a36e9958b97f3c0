/// Tiles of quantised matrix products for AVX2: integer dot products, one fused multiply-add for each 32 elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include <immintrin.h>

#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/quants_avx2.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::cpu::avx2 {

/// Sum of eight lanes, pairwise.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline float sum_lanes(__m256 v) {
  __m128 const four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 const two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

template <class F>
inline constexpr bool has_min = requires(typename F::Block const& b) {
  b.m;
}
|| requires(typename F::Block const& b) { b.dmin; };

/// w * x, neighbours added. The instruction takes unsigned times signed, so the sign of a signed w is moved to x. Two products fit
/// 16 bits, as |w| <= 128 and |x| <= 127.
template <bool is_signed>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i dot_pairs(__m256i w, __m256i x) {
  if constexpr (is_signed) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_maddubs_epi16(w, x);
}

/// What a row of weights is multiplied with: a few tokens, from the first block of a stretch of the row on.
template <int n>
struct Tokens {
  ActQ8x32 const* x[n];
  float const* sums[n];  ///< scaled sums of x, where the format has a minimum: see add_sums()
};

/// Elements of a row that are summed by themselves; the sums of stretches are added in ascending order. Almost all rows are one.
inline constexpr std::int32_t stretch_elems = 32768;

/// Elements of x for one minimum of the weights.
template <class F>
inline constexpr std::int32_t elems_per_min = std::is_same_v<F, Q2_K> ? 16 : 32;

/// scale * (sum of q) of each elems_per_min elements: what minima are multiplied with. Made once for all rows of a tile.
template <class F>
void add_sums(ActQ8x32 const* x, std::int32_t n_blocks, float* sums) {
  for (std::int32_t b = 0; b < n_blocks; ++b) {
    if constexpr (elems_per_min<F> == 16) {
      sums[2 * b] = x[b].scale * float(x[b].sums[0]);
      sums[2 * b + 1] = x[b].scale * float(x[b].sums[1]);
    } else {
      sums[b] = x[b].scale * float(x[b].sums[0] + x[b].sums[1]);
    }
  }
}

/// out[t] = product of n_blocks blocks of 32. A lane sums the same elements of all blocks, in order.
template <class F, int n>
requires(F::block_elems == 32) [[gnu::target("avx2,fma,f16c")]] void multiply_row(typename F::Block const* row, std::int32_t n_blocks,
                                                                                  Tokens<n> const& tokens, float* out) {
  __m256 sums[n];
  float mins[n];
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) sums[t] = _mm256_setzero_ps(), mins[t] = 0;
  for (std::int32_t b = 0; b < n_blocks; ++b) {
    __m256i const w = quants(F{}, row[b]);
    float const d = scale(row[b]);
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) {
      ActQ8x32 const& x = tokens.x[t][b];
      __m256i const dot = _mm256_madd_epi16(dot_pairs<!has_min<F>>(w, load_32(x.q)), _mm256_set1_epi16(1));
      sums[t] = _mm256_fmadd_ps(_mm256_set1_ps(d * x.scale), _mm256_cvtepi32_ps(dot), sums[t]);
      if constexpr (has_min<F>) mins[t] = __builtin_fmaf(half(row[b].m), tokens.sums[t][b], mins[t]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) out[t] = has_min<F> ? sum_lanes(sums[t]) + mins[t] : sum_lanes(sums[t]);
}

/// Adds part `p` of one super-block to the sums of each token: integers, hence exact, up to the scale of the token's block.
template <class F, int p, int n>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void add_part(typename F::Block const& block, __m256i scales, std::int32_t b,
                                                                          Tokens<n> const& tokens, __m256 (&sums)[n]) {
  __m256i const w = part<p>(block);
  __m256i const scale_of_lane = _mm256_shuffle_epi8(scales, _mm256_set1_epi16(0x0100 + 0x0202 * p));
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) {
    ActQ8x32 const& x = tokens.x[t][b * 8 + p];
    __m256i const dot = _mm256_madd_epi16(dot_pairs<!has_min<F>>(w, load_32(x.q)), scale_of_lane);
    sums[t] = _mm256_fmadd_ps(_mm256_set1_ps(x.scale), _mm256_cvtepi32_ps(dot), sums[t]);
  }
}

/// The minima of a super-block as floats: eight, or sixteen in two vectors.
struct Minima {
  __m256 low, high;
};
template <class F>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline Minima minima(__m128i mins) {
  if constexpr (elems_per_min<F> == 16) {
    __m256i const low = _mm256_cvtepi8_epi32(mins), high = _mm256_cvtepi8_epi32(_mm_srli_si128(mins, 8));
    return {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
  } else {  // each twice
    __m256i const low = _mm256_cvtepu16_epi32(_mm_and_si128(mins, _mm_set1_epi16(255)));
    return {_mm256_cvtepi32_ps(low), _mm256_setzero_ps()};
  }
}
template <class F>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 dot_of(Minima const& mins, float const* sums) {
  if constexpr (elems_per_min<F> == 16)
    return _mm256_fmadd_ps(mins.high, _mm256_loadu_ps(sums + 8), _mm256_mul_ps(mins.low, _mm256_loadu_ps(sums)));
  return _mm256_mul_ps(mins.low, _mm256_loadu_ps(sums));
}

/// out[t] = product of n_blocks super-blocks of 256, which read eight blocks of activations each.
template <class F, int n>
requires(F::block_elems == 256) [[gnu::target("avx2,fma,f16c")]] void multiply_row(typename F::Block const* row, std::int32_t n_blocks,
                                                                                   Tokens<n> const& tokens, float* out) {
  // Even groups to the lower half, odd ones to the upper: part p holds groups 2p and 2p + 1, one in each half of a vector.
  __m128i const halves = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  __m256 sums[n];
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) sums[t] = _mm256_setzero_ps();
  for (std::int32_t b = 0; b < n_blocks; ++b) {
    typename F::Block const& block = row[b];
    GroupScales const groups = group_scales(block);
    __m256i const scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(groups.scales, halves));
    __m256 scaled[n];
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) scaled[t] = _mm256_setzero_ps();
    add_part<F, 0, n>(block, scales, b, tokens, scaled);
    add_part<F, 1, n>(block, scales, b, tokens, scaled);
    add_part<F, 2, n>(block, scales, b, tokens, scaled);
    add_part<F, 3, n>(block, scales, b, tokens, scaled);
    add_part<F, 4, n>(block, scales, b, tokens, scaled);
    add_part<F, 5, n>(block, scales, b, tokens, scaled);
    add_part<F, 6, n>(block, scales, b, tokens, scaled);
    add_part<F, 7, n>(block, scales, b, tokens, scaled);
    __m256 const d = _mm256_set1_ps(scale(block));
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) sums[t] = _mm256_fmadd_ps(d, scaled[t], sums[t]);
    if constexpr (has_min<F>) {
      Minima const mins = minima<F>(groups.mins);
      __m256 const d_min = _mm256_set1_ps(half(block.dmin));
#pragma GCC unroll 8
      for (int t = 0; t < n; ++t)
        sums[t] = _mm256_fnmadd_ps(d_min, dot_of<F>(mins, tokens.sums[t] + b * (256 / elems_per_min<F>)), sums[t]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) out[t] = sum_lanes(sums[t]);
}

/// n tokens share what is unpacked. Where there are fewer, the last is computed more than once.
template <class F, int n>
void multiply_rows(Product const& p, Range rows, std::int32_t first_token, std::int32_t last_token) {
  constexpr std::int32_t sums_elems = has_min<F> ? stretch_elems / elems_per_min<F> : 1;
  float sums[n][sums_elems];
  for (std::int32_t k = 0; k < p.dim; k += stretch_elems) {
    std::int32_t const elems = std::min(stretch_elems, p.dim - k);
    Tokens<n> tokens;
    float* y[n];
    for (int t = 0; t < n; ++t) {
      std::int32_t const token = std::min(first_token + t, last_token);
      tokens.x[t] = reinterpret_cast<ActQ8x32 const*>(p.x_row(token, std::size_t(p.dim / 32) * sizeof(ActQ8x32))) + k / 32;
      if constexpr (has_min<F>) add_sums<F>(tokens.x[t], elems / 32, sums[t]);
      tokens.sums[t] = sums[t];
      y[t] = p.y_row(token);
    }
    for (std::int32_t r = rows.begin; r < rows.end; ++r) {
      auto const* const row = static_cast<typename F::Block const*>(p.w) + (std::int64_t(r) * p.dim + k) / F::block_elems;
      float out[n], before[n];
      multiply_row<F, n>(row, elems / F::block_elems, tokens, out);
      for (int t = 0; t < n; ++t) before[t] = k > 0 ? y[t][r] : p.bias != nullptr ? p.bias[r] : 0.0f;
      for (int t = 0; t < n; ++t) y[t][r] = before[t] + out[t];
    }
  }
}

template <class F>
void quantized_tile(Product const& p, Range rows, Range tokens) {
  std::int32_t t = tokens.begin;
  for (; tokens.end - t > 2; t += 4) multiply_rows<F, 4>(p, rows, t, tokens.end - 1);
  if (tokens.end - t == 2) multiply_rows<F, 2>(p, rows, t, tokens.end - 1);
  if (tokens.end - t == 1) multiply_rows<F, 1>(p, rows, t, tokens.end - 1);
}

}  // namespace tiered::cpu::avx2
