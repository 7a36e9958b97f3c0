/// Tiles of quantised matrix products for AVX2: with few tokens along the rows, with many in panels.
#pragma once

#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/cpu/activation_avx2.hpp"
#include "tiered/kernels/cpu/ahead.hpp"
#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/panels_avx2.hpp"

namespace tiered::cpu::avx2 {

/// Sum of eight lanes, pairwise.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline float sum_lanes(__m256 v) {
  __m128 const four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 const two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/// On 16-bit lanes, or 32-bit ones.
template <bool is_16>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i add_lanes(__m256i a, __m256i b) {
  return is_16 ? _mm256_add_epi16(a, b) : _mm256_add_epi32(a, b);
}
/// Dwords a0 + a2, b0 + b2, a1 + a3, b1 + b3 of each half.
template <bool is_16>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i join_dwords(__m256i a, __m256i b) {
  return add_lanes<is_16>(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
}
template <bool is_16>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i join_qwords(__m256i a, __m256i b) {
  return add_lanes<is_16>(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i add_pairs(__m256i v) {
  return _mm256_madd_epi16(v, _mm256_set1_epi16(1));
}

/// 16-bit lanes 2i + h of each half in all its lanes.
template <int lane>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i spread(__m256i groups) {
  return _mm256_shuffle_epi8(groups, _mm256_set1_epi16(0x0100 + 0x0202 * lane));
}

/// w * x, neighbours added. The instruction takes unsigned times signed, so the sign of a signed w is moved to x. Two products fit
/// 16 bits, as |w| <= 128 and |x| <= 127.
template <bool is_signed>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i dot_pairs(__m256i w, void const* x) {
  if constexpr (is_signed) return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(load_32(x), w));
  return _mm256_maddubs_epi16(w, load_32(x));
}

/// Blocks i and i + 4 as dwords, four in each half.
template <class U, int i>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i block_products(__m256i const (&w)[8], __m256i groups, Group const& x) {
  __m256i const first = dot_pairs<U::largest == 0>(w[2 * i], x.q[2 * i]), second = dot_pairs<U::largest == 0>(w[2 * i + 1], x.q[2 * i + 1]);
  if constexpr (U::has_groups)
    return _mm256_add_epi32(_mm256_madd_epi16(first, spread<2 * i>(groups)), _mm256_madd_epi16(second, spread<2 * i + 1>(groups)));
  if constexpr (U::largest == 0) return _mm256_add_epi32(add_pairs(first), add_pairs(second));
  return _mm256_add_epi16(first, second);
}

/// Lane p: the products of block p. As many as fit are added in 16 bits: 8 pairs for weights up to 15, 4 up to 31.
template <class U>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i products_of(__m256i const (&w)[8], __m256i groups, Group const& x) {
  constexpr int pair = 2 * 127 * U::largest;
  constexpr bool all_fit = !U::has_groups && pair > 0 && 8 * pair < 32768, half_fits = !U::has_groups && pair > 0 && 4 * pair < 32768;
  __m256i const a0 = block_products<U, 0>(w, groups, x), a1 = block_products<U, 1>(w, groups, x);
  __m256i low = join_dwords<half_fits>(a0, a1);
  __m256i const a2 = block_products<U, 2>(w, groups, x), a3 = block_products<U, 3>(w, groups, x);
  __m256i high = join_dwords<half_fits>(a2, a3);
  if constexpr (half_fits && !all_fit) low = add_pairs(low), high = add_pairs(high);
  __m256i const all = join_qwords<all_fit>(low, high);
  return all_fit ? add_pairs(all) : all;
}

/// Adds the products of 256 weights to the lanes of n tokens. x: the group of the first token, those of others `stride` apart.
///
/// Instructions for each weight in the loop of one token, with g++ 12: 0.24 Q4_0, 0.25 Q4_1, 0.28 Q4_K, 0.30 Q2_K, 0.34 Q8_0,
/// 0.35 MXFP4, 0.39 IQ4_NL, 0.40 IQ4_XS, 0.41 Q5_K, Q6_K, 0.45 Q3_K, 0.49 Q5_0, 0.50 Q5_1; each further token 0.11 for 4 and 5 bits,
/// 0.17 where scales are for 16 weights, 0.24 for signed ones. The least possible for 4 bits is 0.20: of 256 weights 8 products, 8
/// loads, 12 to split nibbles, 14 to add lanes, 5 for scales, 4 with floats.
template <class F, int n>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void add_group(std::byte const* p, Factors const& f, Group const* x,
                                                                           std::int32_t stride, __m256 (&sums)[n]) {
  using U = Unpack<F>;
  __m256i w[8];
  U::bytes_of(p, w);
#pragma GCC unroll 4
  for (int t = 0; t < n; ++t) {
    Group const& g = x[t * stride];
    Whole whole{products_of<U>(w, f.groups, g), load_32(g.sums)};
    if constexpr (U::has_groups) whole.sums = group_sums<U>(U::min_sign != 0 ? f.group_mins : f.groups, whole.sums);
    sums[t] = add_whole<U>(sums[t], whole, f.scale, f.min, _mm256_load_ps(g.scale));
  }
}

/// The sums of four rows, from their lanes: over lanes 4q + c for each q, then over q.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m128 sums_of_rows(__m256 r0, __m256 r1, __m256 r2, __m256 r3) {
  __m256d const low01 = _mm256_castps_pd(_mm256_unpacklo_ps(r0, r1)), high01 = _mm256_castps_pd(_mm256_unpackhi_ps(r0, r1));
  __m256d const low23 = _mm256_castps_pd(_mm256_unpacklo_ps(r2, r3)), high23 = _mm256_castps_pd(_mm256_unpackhi_ps(r2, r3));
  __m256 sum = _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(low01, low23)), _mm256_castpd_ps(_mm256_unpackhi_pd(low01, low23)));
  sum = _mm256_add_ps(sum, _mm256_castpd_ps(_mm256_unpacklo_pd(high01, high23)));
  sum = _mm256_add_ps(sum, _mm256_castpd_ps(_mm256_unpackhi_pd(high01, high23)));
  return _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
}

/// The lanes of n tokens for one stretch of a row. x: the groups of a token, those of others `stride` apart.
/// end: of all weights.
template <class F, int n>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void multiply_stretch(std::byte const* p, std::int64_t bytes,
                                                                                  std::byte const* end, Ahead const& ahead, Group const* x,
                                                                                  std::int32_t stride, __m256 (&sums)[n]) {
  constexpr int group_bytes = Unpack<F>::bytes;
#pragma GCC unroll 4
  for (int t = 0; t < n; ++t) sums[t] = _mm256_setzero_ps();
  for (; bytes >= group_bytes; bytes -= group_bytes, p += group_bytes, ++x) {
    ahead.fetch_for<group_bytes>(p);
    add_group<F, n>(p, Unpack<F>::factors(p), x, stride, sums);
  }
  if (bytes > 0) {  // what follows are blocks of the next row, or nothing
    std::uintptr_t const next = ahead.of(p, bytes);
    for (std::int64_t i = 0; i < bytes; i += Ahead::line) Ahead::fetch(next + std::uintptr_t(i));
    std::byte space[group_bytes];
    std::byte const* const from = end - p >= group_bytes ? p : padded<F>(p, bytes, space);
    __m256i const blocks = _mm256_set1_epi32(std::int32_t(bytes / F::block_bytes)), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256 const valid = _mm256_castsi256_ps(_mm256_cmpgt_epi32(blocks, lane));
    Factors f = Unpack<F>::factors(from);
    f.scale = _mm256_and_ps(f.scale, valid);
    if constexpr (Unpack<F>::min_sign != 0) f.min = _mm256_and_ps(f.min, valid);
    add_group<F, n>(from, f, x, stride, sums);
  }
}

/// y[0..n) = sum, what it is added to included.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void store_rows(float* y, int n, __m128 sum) {
  if (n >= 4) return _mm_storeu_ps(y, sum);
  float out[4];
  _mm_storeu_ps(out, sum);
  std::copy(out, out + n, y);
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m128 load_rows(float const* y, int n) {
  if (y == nullptr) return _mm_setzero_ps();
  if (n >= 4) return _mm_loadu_ps(y);
  float in[4] = {};
  std::copy(y, y + n, in);
  return _mm_loadu_ps(in);
}

/// Up to four tokens: weights are unpacked once for all of them, and rows read from front to back.
template <class F, int n>
[[gnu::target("avx2,fma,f16c")]] void multiply_rows(Product const& p, Range rows, std::int32_t first_token) {
  constexpr std::int32_t most_stretches = 8 / n, most_elems = most_stretches * stretch_elems, most_groups = most_stretches * stretch_groups;
  Group x[n * most_groups];
  std::int64_t const row_bytes = std::int64_t(p.dim / F::block_elems) * F::block_bytes;
  constexpr std::int64_t stretch_bytes = stretch_elems / F::block_elems * F::block_bytes;
  Ahead const ahead(p, rows, row_bytes);
  ahead.fetch_first();
  for (std::int32_t k = 0; k < p.dim; k += most_elems) {
    std::int32_t const elems = std::min(most_elems, p.dim - k), n_stretches = (elems + stretch_elems - 1) / stretch_elems;
    std::int64_t const bytes = std::int64_t(elems / F::block_elems) * F::block_bytes;
    for (int t = 0; t < n; ++t) {
      std::byte const* const row = p.x_row(first_token + t, std::size_t(p.dim / 32) * sizeof(ActQ8x32));
      arrange<F>(reinterpret_cast<ActQ8x32 const*>(row) + k / 32, elems / 32, x + t * most_groups);
    }
    std::byte const* const end = static_cast<std::byte const*>(p.w) + p.rows * row_bytes;
    std::byte const* const w = static_cast<std::byte const*>(p.w) + std::int64_t(k / F::block_elems) * F::block_bytes;
    for (std::int32_t r = rows.begin; r < rows.end; r += 4) {
      __m256 sums[most_stretches][4][n];
      for (std::int32_t i = 0; i < 4; ++i) {
        std::byte const* const row = w + std::min(r + i, rows.end - 1) * row_bytes;  // the last one again where there is none
        for (std::int32_t s = 0; s < n_stretches; ++s) {
          std::int64_t const begin = s * stretch_bytes;
          multiply_stretch<F, n>(row + begin, std::min(stretch_bytes, bytes - begin), end, ahead, x + s * stretch_groups, most_groups,
                                 sums[s][i]);
        }
      }
#pragma GCC unroll 4
      for (int t = 0; t < n; ++t) {
        float* const y = p.y_row(first_token + t) + r;
        __m128 sum = load_rows(k > 0 ? y : p.bias != nullptr ? p.bias + r : nullptr, rows.end - r);
        for (std::int32_t s = 0; s < n_stretches; ++s)
          sum = _mm_add_ps(sum, sums_of_rows(sums[s][0][t], sums[s][1][t], sums[s][2][t], sums[s][3][t]));
        store_rows(y, rows.end - r, sum);
      }
    }
  }
}

/// Tokens up to which rows are read as they lie: packing panels costs as much as two tokens. 10^9 products a second of one Zen 4 core,
/// weights in its cache: Q4_0 along rows with 1, 2, 4, 8 tokens 53, 67, 84, 84, in panels with 8, 9, 16, 64, 512 tokens 72, 70, 92,
/// 113, 120; Q6_K along rows 32, 42, 55, 55, in panels 50, 49, 66, 86, 92.
inline constexpr std::int32_t most_tokens_by_row = 8;

template <class F>
void quantized_tile(Product const& p, Range rows, Range tokens) {
  if (tokens.size() > most_tokens_by_row) return multiply_panels<F>(p, rows, tokens);
  std::int32_t t = tokens.begin;
  for (; tokens.end - t >= 4; t += 4) multiply_rows<F, 4>(p, rows, t);
  if (tokens.end - t == 3) multiply_rows<F, 3>(p, rows, t);
  if (tokens.end - t == 2) multiply_rows<F, 2>(p, rows, t);
  if (tokens.end - t == 1) multiply_rows<F, 1>(p, rows, t);
}

}  // namespace tiered::cpu::avx2
