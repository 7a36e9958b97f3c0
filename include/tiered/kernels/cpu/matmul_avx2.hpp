/// Tiles of quantised matrix products for AVX2: integer dot products, one fused multiply-add for each block.
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

/// What a tile works on: a few tokens, and where their results go.
template <class Activation, int n>
struct Tokens {
  Activation const* x[n];
  float* y[n];
};

/// Formats in blocks of 32. A lane sums the same elements of all blocks, in order.
template <class F, int n>
[[gnu::target("avx2,fma,f16c")]] void multiply_rows(Product const& p, Range rows, Tokens<ActQ8x32, n> const& tokens) {
  std::int32_t const n_blocks = p.dim / 32;
  __m256i const ones = _mm256_set1_epi16(1);
  for (std::int32_t r = rows.begin; r < rows.end; ++r) {
    auto const* const row = static_cast<typename F::Block const*>(p.w) + std::int64_t(r) * n_blocks;
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
        __m256i const dot = _mm256_madd_epi16(dot_pairs<!has_min<F>>(w, load_32(x.q)), ones);
        sums[t] = _mm256_fmadd_ps(_mm256_set1_ps(d * x.scale), _mm256_cvtepi32_ps(dot), sums[t]);
        if constexpr (has_min<F>) mins[t] = __builtin_fmaf(half(row[b].m), x.sum, mins[t]);
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) {
      float const sum = has_min<F> ? sum_lanes(sums[t]) + mins[t] : sum_lanes(sums[t]);
      tokens.y[t][r] = p.bias != nullptr ? sum + p.bias[r] : sum;
    }
  }
}

/// Adds part `p` of one super-block to the integer sums of each token.
template <class F, int p, int n>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void add_part(typename F::Block const& block, __m256i scales, std::int32_t b,
                                                                          Tokens<ActQ8x256, n> const& tokens, __m256i (&sums)[n]) {
  __m256i const w = part<p>(block);
  __m256i const scale_of_lane = _mm256_shuffle_epi8(scales, _mm256_set1_epi16(0x0100 + 0x0202 * p));
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) {
    __m256i const pairs = dot_pairs<std::is_same_v<F, IQ4_XS>>(w, load_32(tokens.x[t][b].q + 32 * p));
    sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(pairs, scale_of_lane));
  }
}

/// Formats in super-blocks of 256. All of a block is summed in integers, hence exactly; then as above.
template <class F, int n>
[[gnu::target("avx2,fma,f16c")]] void multiply_rows(Product const& p, Range rows, Tokens<ActQ8x256, n> const& tokens) {
  std::int32_t const n_blocks = p.dim / 256;
  // Even groups to the lower half, odd ones to the upper: part p holds groups 2p and 2p + 1, one in each half of a vector.
  __m128i const halves = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
  for (std::int32_t r = rows.begin; r < rows.end; ++r) {
    auto const* const row = static_cast<typename F::Block const*>(p.w) + std::int64_t(r) * n_blocks;
    __m256 sums[n];
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) sums[t] = _mm256_setzero_ps();
    for (std::int32_t b = 0; b < n_blocks; ++b) {
      typename F::Block const& block = row[b];
      GroupScales const groups = group_scales(block);
      __m256i const scales = _mm256_cvtepi8_epi16(_mm_shuffle_epi8(groups.scales, halves));
      __m256i dots[n];
#pragma GCC unroll 8
      for (int t = 0; t < n; ++t) dots[t] = _mm256_setzero_si256();
      add_part<F, 0, n>(block, scales, b, tokens, dots);
      add_part<F, 1, n>(block, scales, b, tokens, dots);
      add_part<F, 2, n>(block, scales, b, tokens, dots);
      add_part<F, 3, n>(block, scales, b, tokens, dots);
      add_part<F, 4, n>(block, scales, b, tokens, dots);
      add_part<F, 5, n>(block, scales, b, tokens, dots);
      add_part<F, 6, n>(block, scales, b, tokens, dots);
      add_part<F, 7, n>(block, scales, b, tokens, dots);
      float const d = scale(block);
#pragma GCC unroll 8
      for (int t = 0; t < n; ++t) {
        ActQ8x256 const& x = tokens.x[t][b];
        __m256i dot = dots[t];
        if constexpr (offset_bits<F> >= 0) {
          __m256i const sum = _mm256_madd_epi16(load_32(x.sums), _mm256_cvtepi8_epi16(groups.scales));
          dot = _mm256_sub_epi32(dot, _mm256_slli_epi32(sum, offset_bits<F>));
        }
        sums[t] = _mm256_fmadd_ps(_mm256_set1_ps(d * x.scale), _mm256_cvtepi32_ps(dot), sums[t]);
        if constexpr (has_min<F>) {
          __m256i const min = _mm256_madd_epi16(load_32(x.sums), _mm256_cvtepi8_epi16(groups.mins));
          sums[t] = _mm256_fnmadd_ps(_mm256_set1_ps(half(block.dmin) * x.scale), _mm256_cvtepi32_ps(min), sums[t]);
        }
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) {
      float const sum = sum_lanes(sums[t]);
      tokens.y[t][r] = p.bias != nullptr ? sum + p.bias[r] : sum;
    }
  }
}

/// Four tokens share what is unpacked; where three are left, the last is computed twice.
template <class F>
void quantized_tile(Product const& p, Range rows, Range tokens) {
  using Activation = std::conditional_t<F::block_elems == 256, ActQ8x256, ActQ8x32>;
  std::size_t const x_bytes = std::size_t(p.dim / F::block_elems) * sizeof(Activation);
  auto const multiply = [&]<int n>(std::int32_t first, std::integral_constant<int, n>) {
    Tokens<Activation, n> few;
    for (int t = 0; t < n; ++t) {
      std::int32_t const token = std::min(first + t, tokens.end - 1);
      few.x[t] = reinterpret_cast<Activation const*>(p.x_row(token, x_bytes));
      few.y[t] = p.y_row(token);
    }
    multiply_rows<F, n>(p, rows, few);
  };
  std::int32_t t = tokens.begin;
  for (; tokens.end - t > 2; t += 4) multiply(t, std::integral_constant<int, 4>());
  if (tokens.end - t == 2) multiply(t, std::integral_constant<int, 2>());
  if (tokens.end - t == 1) multiply(t, std::integral_constant<int, 1>());
}

}  // namespace tiered::cpu::avx2
