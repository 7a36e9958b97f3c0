/// The innermost loops of attention for AVX-512 (F, BW, DQ, VL); attention_baseline.hpp says what each does. Masks of ones: see
/// matmul_f32_avx512.hpp.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include <immintrin.h>

#include "tiered/kernels/cpu/attention_avx2.hpp"
#include "tiered/kernels/cpu/attention_baseline.hpp"
#include "tiered/kernels/cpu/leaf_avx512.hpp"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cpu::avx512 {

struct AttentionLeaf {
  static constexpr std::int32_t tile_positions = 32;

  template <class F>
  static void store(float const* src, std::int32_t n, std::byte* dst) {
    avx2::AttentionLeaf::store<F>(src, n, dst);
  }

  static void scale(float const* src, float factor, std::int32_t n, float* dst) { avx2::AttentionLeaf::scale(src, factor, n, dst); }

  template <class F>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void load_keys(std::byte const* const* rows, Range dims,
                                                                                       float* dst) {
    for (std::int32_t d = dims.begin; d < dims.end; d += key_dims<F>) {
      for (std::int32_t p = 0; p < tile_positions; p += 16) {
        float* const to = dst + (d - dims.begin) * tile_positions + p;
        if constexpr (std::is_same_v<F, Q8_0>) {
          key_block(rows + p, d / 32, to);
        } else {
          __m512i v[8];
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) {
            std::byte const *const first = rows[p + first_row(i)], *const second = rows[p + first_row(i) + 4];
            v[i] =
                _mm512_castps_si512(d + 8 <= dims.end ? eight_of_two<F>(first, second, d) : some_of_two<F>(first, second, d, dims.end - d));
          }
          transpose(v);
#pragma GCC unroll 8
          for (int i = 0; i < 8; ++i) _mm512_storeu_ps(to + i * tile_positions, _mm512_castsi512_ps(v[i]));
        }
      }
    }
  }

  template <class F>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void load_values(std::byte const* const* rows, std::int32_t n,
                                                                                         Range dims, std::int32_t stride, float* dst) {
    for (std::int32_t p = 0; p < n; ++p, dst += stride) {
      std::int32_t d = dims.begin;
      for (; d + 16 <= dims.end; d += 16) _mm512_storeu_ps(dst + (d - dims.begin), sixteen<F>(rows[p], d, all_lanes));
      if (d < dims.end) _mm512_storeu_ps(dst + (d - dims.begin), sixteen<F>(rows[p], d, first_lanes(dims.end - d)));
    }
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void multiply(SmallProduct const& m, ReadAhead& ahead) {
    std::int32_t j = 0;
    for (; j + 32 <= m.n_columns; j += 32) multiply_columns<2>(m, j, ahead);
    if (j < m.n_columns) multiply_columns<1>(m, j, ahead);
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static float exponentials(float* s, Range seen, float* max) {
    __m512 const nothing = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
    __m512 largest = nothing;
    std::int32_t const begin = seen.begin / 16 * 16, end = (seen.end + 15) / 16 * 16;
    for (std::int32_t p = begin; p < end; p += 16) {
      std::uint32_t inside = 0xffff;
      if (p < seen.begin) inside &= 0xffffu << (seen.begin - p);
      if (p + 16 > seen.end) inside &= 0xffffu >> (p + 16 - seen.end);
      __m512 const v = _mm512_mask_loadu_ps(nothing, __mmask16(inside), s + p);
      _mm512_storeu_ps(s + p, v);
      largest = _mm512_maskz_max_ps(all_lanes, v, largest);
    }
    __m256 const eight = _mm256_max_ps(_mm512_maskz_extractf32x8_ps(0xff, largest, 0), _mm512_maskz_extractf32x8_ps(0xff, largest, 1));
    __m128 top = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    top = _mm_max_ps(top, _mm_movehl_ps(top, top));
    *max = _mm_cvtss_f32(_mm_max_ss(top, _mm_movehdup_ps(top)));
    __m512 sum = _mm512_setzero_ps();
    for (std::int32_t p = begin; p < end; p += 16) {
      __m512 const e = exponential(_mm512_sub_ps(_mm512_loadu_ps(s + p), _mm512_set1_ps(*max)));
      _mm512_storeu_ps(s + p, e);
      sum = _mm512_add_ps(sum, e);
    }
    return sum_lanes(sum);
  }

 private:
  template <class F>
  static constexpr std::int32_t key_dims = std::is_same_v<F, Q8_0> ? 32 : 8;

  /// 16 rows are loaded in pairs, 4 apart: what transpose() puts in order.
  static constexpr int first_row(int i) { return i < 4 ? i : i + 4; }

  /// v[i] holds 8 elements of row first_row(i), then 8 of the row 4 after it; afterwards v[e] has element e of rows 0 to 15.
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] static inline void transpose(__m512i (&v)[8]) {
    __m512i pairs[8], fours[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm512_maskz_unpacklo_epi32(all_lanes, v[i], v[i + 1]);
      pairs[i + 1] = _mm512_maskz_unpackhi_epi32(all_lanes, v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      fours[i] = _mm512_maskz_unpacklo_epi64(0xff, pairs[i], pairs[i + 2]);
      fours[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, pairs[i], pairs[i + 2]);
      fours[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, pairs[i + 1], pairs[i + 3]);
      fours[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, pairs[i + 1], pairs[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm512_maskz_shuffle_i32x4(all_lanes, fours[i], fours[i + 4], 0x88);
      v[i + 4] = _mm512_maskz_shuffle_i32x4(all_lanes, fours[i], fours[i + 4], 0xdd);
    }
  }

  template <class F>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] static inline __m512 eight_of_two(
      std::byte const* first, std::byte const* second, std::int32_t d) {
    if constexpr (std::is_same_v<F, F16>) {
      return _mm512_maskz_cvtph_ps(
          all_lanes, _mm256_inserti128_si256(_mm256_castsi128_si256(avx2::load_16(first + 2 * d)), avx2::load_16(second + 2 * d), 1));
    } else {
      static_assert(std::is_same_v<F, F32>);
      __m256i const low = avx2::load_32(first + 4 * d), high = avx2::load_32(second + 4 * d);
      return _mm512_castsi512_ps(_mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(low), high, 1));
    }
  }
  /// n of them each, then zeros.
  template <class F>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] static inline __m512 some_of_two(
      std::byte const* first, std::byte const* second, std::int32_t d, std::int32_t n) {
    std::byte ends[2][8 * F::block_bytes] = {};
    std::memcpy(ends[0], first + d * F::block_bytes, std::size_t(n) * F::block_bytes);
    std::memcpy(ends[1], second + d * F::block_bytes, std::size_t(n) * F::block_bytes);
    return eight_of_two<F>(ends[0], ends[1], 0);
  }

  /// Elements from d on of a row where `mask` says so, else zeros; a Q8_0 row ends with a whole block.
  template <class F>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] static inline __m512 sixteen(std::byte const* row,
                                                                                                                  std::int32_t d,
                                                                                                                  __mmask16 mask) {
    if constexpr (std::is_same_v<F, Q8_0>) {
      std::byte const* const block = row + d / 32 * Q8_0::block_bytes;
      std::uint16_t scale;
      std::memcpy(&scale, block, 2);
      __m512i const q = _mm512_maskz_cvtepi8_epi32(all_lanes, avx2::load_16(block + 2 + d % 32));
      return _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(all_lanes, q),
                           _mm512_maskz_broadcastss_ps(all_lanes, _mm_cvtph_ps(_mm_cvtsi32_si128(scale))));
    } else {
      return some_floats<F>(row + d * F::block_bytes, mask);
    }
  }

  /// Block b of 16 rows: quants are transposed four at a time and widened afterwards.
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] static inline void key_block(
      std::byte const* const* rows, std::int32_t b, float* dst) {
    __m512i v[8];
    std::uint16_t scales[16];
    std::int32_t const at = b * Q8_0::block_bytes;
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) std::memcpy(&scales[i], rows[i] + at, 2);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __m256i const low = avx2::load_32(rows[first_row(i)] + at + 2), high = avx2::load_32(rows[first_row(i) + 4] + at + 2);
      v[i] = _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(low), high, 1);
    }
    __m512 const scale = _mm512_maskz_cvtph_ps(all_lanes, avx2::load_32(scales));
    transpose(v);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      __m512i const q[4] = {_mm512_maskz_slli_epi32(all_lanes, v[i], 24), _mm512_maskz_slli_epi32(all_lanes, v[i], 16),
                            _mm512_maskz_slli_epi32(all_lanes, v[i], 8), v[i]};
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        __m512 const value = _mm512_maskz_cvtepi32_ps(all_lanes, _mm512_maskz_srai_epi32(all_lanes, q[j], 24));
        _mm512_storeu_ps(dst + (4 * i + j) * tile_positions, _mm512_mul_ps(value, scale));
      }
    }
  }

  template <int n_vectors>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] static inline void multiply_columns(
      SmallProduct const& m, std::int32_t j, ReadAhead& ahead) {
    std::int32_t i = 0;
    for (; i + 8 <= m.n_rows; i += 8) multiply_tile<8, n_vectors>(m, i, j, ahead);
    for (; i + 4 <= m.n_rows; i += 4) multiply_tile<4, n_vectors>(m, i, j, ahead);
    for (; i < m.n_rows; ++i) multiply_tile<1, n_vectors>(m, i, j, ahead);
  }

  template <int n, int n_vectors>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void multiply_tile(SmallProduct const& m, std::int32_t i,
                                                                                           std::int32_t j, ReadAhead& ahead) {
    __m512 sums[n][n_vectors];
    float* const c = m.c + std::int64_t(i) * m.c_stride + j;
#pragma GCC unroll 8
    for (int r = 0; r < n; ++r) {
#pragma GCC unroll 2
      for (int l = 0; l < n_vectors; ++l) sums[r][l] = _mm512_loadu_ps(c + std::int64_t(r) * m.c_stride + 16 * l);
    }
    float const* a = m.a + std::int64_t(i) * m.a_stride;
    float const* b = m.b + j;
    std::int64_t const a_stride = m.a_stride, b_stride = m.b_stride, step = ahead.step();
    std::byte const* next = ahead.begin(b);
    for (std::int32_t k = 0; k < m.n_inner; ++k, ++a, b += b_stride, next += step) {
      _mm_prefetch(reinterpret_cast<char const*>(next), _MM_HINT_T1);
      __m512 columns[n_vectors];
#pragma GCC unroll 2
      for (int l = 0; l < n_vectors; ++l) columns[l] = _mm512_loadu_ps(b + 16 * l);
#pragma GCC unroll 8
      for (int r = 0; r < n; ++r) {
        __m512 const factor = _mm512_set1_ps(a[r * a_stride]);
#pragma GCC unroll 2
        for (int l = 0; l < n_vectors; ++l) sums[r][l] = _mm512_fmadd_ps(factor, columns[l], sums[r][l]);
      }
    }
    if (step != 0) ahead.at = next;
#pragma GCC unroll 8
    for (int r = 0; r < n; ++r) {
#pragma GCC unroll 2
      for (int l = 0; l < n_vectors; ++l) _mm512_storeu_ps(c + std::int64_t(r) * m.c_stride + 16 * l, sums[r][l]);
    }
  }
};

}  // namespace tiered::cpu::avx512
