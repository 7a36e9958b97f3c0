/// The innermost loops of attention for AVX2, FMA and F16C; attention_baseline.hpp says what each does.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <immintrin.h>

#include "tiered/kernels/cpu/attention_baseline.hpp"
#include "tiered/kernels/cpu/leaf_avx2.hpp"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cpu::avx2 {

struct AttentionLeaf {
  static constexpr std::int32_t tile_positions = 16;

  template <class F>
  static void store(float const* src, std::int32_t n, std::byte* dst) {
    if constexpr (std::is_same_v<F, F16>) {
      Leaf::to_half(src, n, reinterpret_cast<std::uint16_t*>(dst));
    } else {
      store_kv<F>(src, n, dst);
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void scale(float const* src, float factor, std::int32_t n, float* dst) {
    std::int32_t i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, _mm256_mul_ps(_mm256_loadu_ps(src + i), _mm256_set1_ps(factor)));
    for (; i < n; ++i) dst[i] = src[i] * factor;
  }

  template <class F>
  [[gnu::target("avx2,fma,f16c")]] static void load_keys(std::byte const* const* rows, Range dims, float* dst) {
    for (std::int32_t d = dims.begin; d < dims.end; d += key_dims<F>) {
      for (std::int32_t p = 0; p < tile_positions; p += 8) {
        float* const to = dst + (d - dims.begin) * tile_positions + p;
        if constexpr (std::is_same_v<F, Q8_0>) {
          key_block(rows + p, d / 32, to);
        } else {
          __m256 v[8];
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) v[i] = d + 8 <= dims.end ? eight<F>(rows[p + i], d) : some<F>(rows[p + i], d, dims.end - d);
          transpose(v);
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) _mm256_storeu_ps(to + i * tile_positions, v[i]);
        }
      }
    }
  }

  template <class F>
  [[gnu::target("avx2,fma,f16c")]] static void load_values(std::byte const* const* rows, std::int32_t n, Range dims, std::int32_t stride,
                                                           float* dst) {
    for (std::int32_t p = 0; p < n; ++p, dst += stride) {
      std::int32_t d = dims.begin;
      for (; d + 8 <= dims.end; d += 8) _mm256_storeu_ps(dst + (d - dims.begin), eight<F>(rows[p], d));
      for (; d < dims.begin + (dims.size() + 15) / 16 * 16; d += 8)
        _mm256_storeu_ps(dst + (d - dims.begin), d < dims.end ? some<F>(rows[p], d, dims.end - d) : _mm256_setzero_ps());
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void multiply(SmallProduct const& m, ReadAhead& ahead) {
    for (std::int32_t j = 0; j < m.n_columns; j += 16) {
      std::int32_t i = 0;
      for (; i + 6 <= m.n_rows; i += 6) multiply_tile<6>(m, i, j, ahead);
      for (; i + 4 <= m.n_rows; i += 4) multiply_tile<4>(m, i, j, ahead);
      for (; i < m.n_rows; ++i) multiply_tile<1>(m, i, j, ahead);
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static float exponentials(float* s, Range seen, float* max) {
    __m256 const nothing = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    __m256 largest = nothing;
    std::int32_t const begin = seen.begin / 16 * 16, end = (seen.end + 15) / 16 * 16;
    for (std::int32_t p = begin; p < end; p += 8) {
      __m256 v = _mm256_loadu_ps(s + p);
      if (p < seen.begin || p + 8 > seen.end) {
        __m256i const at = _mm256_add_epi32(_mm256_set1_epi32(p), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256i const inside = _mm256_and_si256(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(seen.begin - 1)),
                                                _mm256_cmpgt_epi32(_mm256_set1_epi32(seen.end), at));
        v = _mm256_blendv_ps(nothing, v, _mm256_castsi256_ps(inside));
        _mm256_storeu_ps(s + p, v);
      }
      largest = _mm256_max_ps(v, largest);
    }
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps(largest, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    *max = _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
    __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (std::int32_t p = begin; p < end; p += 16) {
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        __m256 const e = exponential(_mm256_sub_ps(_mm256_loadu_ps(s + p + 8 * i), _mm256_set1_ps(*max)));
        _mm256_storeu_ps(s + p + 8 * i, e);
        sums[i] = _mm256_add_ps(sums[i], e);
      }
    }
    return sum_lanes(_mm256_add_ps(sums[0], sums[1]));
  }

 private:
  template <class F>
  static constexpr std::int32_t key_dims = std::is_same_v<F, Q8_0> ? 32 : 8;

  /// Elements d to d + 7 of a row.
  template <class F>
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static inline __m256 eight(std::byte const* row, std::int32_t d) {
    if constexpr (std::is_same_v<F, Q8_0>) {
      std::byte const* const block = row + d / 32 * Q8_0::block_bytes;
      std::uint16_t scale;
      std::memcpy(&scale, block, 2);
      __m256i const q = _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<__m128i const*>(block + 2 + d % 32)));
      return _mm256_mul_ps(_mm256_cvtepi32_ps(q), _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(scale))));
    } else {
      return eight_floats<F>(row + std::int64_t(d) * F::block_bytes);
    }
  }
  /// n of them, then zeros; a Q8_0 row ends with a whole block.
  template <class F>
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static inline __m256 some(std::byte const* row, std::int32_t d, std::int32_t n) {
    if constexpr (std::is_same_v<F, Q8_0>) {
      return eight<F>(row, d);
    } else {
      return last_floats<F>(row + std::int64_t(d) * F::block_bytes, n);
    }
  }

  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static inline void transpose(__m256 (&v)[8]) {
    __m256 pairs[8], fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
      pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
      fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
      fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
      fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
      v[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
  }

  /// Block b of 8 rows: quants are transposed four at a time and widened afterwards.
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static inline void key_block(std::byte const* const* rows, std::int32_t b,
                                                                                    float* dst) {
    __m256 v[8];
    std::uint16_t scales[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      std::byte const* const block = rows[i] + b * Q8_0::block_bytes;
      std::memcpy(&scales[i], block, 2);
      v[i] = _mm256_castsi256_ps(load_32(block + 2));
    }
    __m256 const scale = _mm256_cvtph_ps(load_16(scales));
    transpose(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __m256i const four = _mm256_castps_si256(v[i]);
      __m256i const q[4] = {_mm256_slli_epi32(four, 24), _mm256_slli_epi32(four, 16), _mm256_slli_epi32(four, 8), four};
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        __m256 const value = _mm256_cvtepi32_ps(_mm256_srai_epi32(q[j], 24));
        _mm256_storeu_ps(dst + (4 * i + j) * tile_positions, _mm256_mul_ps(value, scale));
      }
    }
  }

  template <int n>
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static inline void multiply_tile(SmallProduct const& m, std::int32_t i,
                                                                                        std::int32_t j, ReadAhead& ahead) {
    __m256 sums[n][2];
    float* const c = m.c + std::int64_t(i) * m.c_stride + j;
#pragma GCC unroll 8
    for (int r = 0; r < n; ++r) {
      sums[r][0] = _mm256_loadu_ps(c + std::int64_t(r) * m.c_stride);
      sums[r][1] = _mm256_loadu_ps(c + std::int64_t(r) * m.c_stride + 8);
    }
    float const* a = m.a + std::int64_t(i) * m.a_stride;
    float const* b = m.b + j;
    std::int64_t const a_stride = m.a_stride, b_stride = m.b_stride, step = ahead.step();
    std::byte const* next = ahead.begin(b);
    for (std::int32_t k = 0; k < m.n_inner; ++k, ++a, b += b_stride, next += step) {
      _mm_prefetch(reinterpret_cast<char const*>(next), _MM_HINT_T0);
      __m256 const low = _mm256_loadu_ps(b), high = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 8
      for (int r = 0; r < n; ++r) {
        __m256 const factor = _mm256_broadcast_ss(a + r * a_stride);
        sums[r][0] = _mm256_fmadd_ps(factor, low, sums[r][0]);
        sums[r][1] = _mm256_fmadd_ps(factor, high, sums[r][1]);
      }
    }
    if (step != 0) ahead.at = next;
#pragma GCC unroll 8
    for (int r = 0; r < n; ++r) {
      _mm256_storeu_ps(c + std::int64_t(r) * m.c_stride, sums[r][0]);
      _mm256_storeu_ps(c + std::int64_t(r) * m.c_stride + 8, sums[r][1]);
    }
  }
};

}  // namespace tiered::cpu::avx2
