/// The innermost loops of all ops but quantised products, for AVX2, FMA and F16C; leaf_baseline.hpp says what each does.
#pragma once

#include <cmath>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/matmul_f32_avx2.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/gelu.hpp"

namespace tiered::cpu::avx2 {

/// e^x to 2e-7 relative; 0 below -86.6 (2.5e-38); from 88.4 on e^88.4. NaN stays NaN.
/// x = k ln 2 + r with |r| <= ln 2 / 2, where the Taylor series of degree 7 is off by at most 6e-9.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 exponential(__m256 x) {
  __m256 const low = _mm256_set1_ps(-86.6f);
  __m256 const bounded = _mm256_max_ps(low, _mm256_min_ps(_mm256_set1_ps(88.4f), x));  // NaN passes: it is the second operand
  __m256 const k = _mm256_round_ps(_mm256_mul_ps(bounded, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // ln 2 in two parts, the first short enough that its product with k is exact.
  __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0.693145751953125f), bounded);
  r = _mm256_fnmadd_ps(k, _mm256_set1_ps(1.42860677e-6f), r);
  __m256 sum = _mm256_set1_ps(1.0f / 5040);
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 720));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 120));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 24));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f / 6));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(0.5f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f));
  sum = _mm256_fmadd_ps(sum, r, _mm256_set1_ps(1.0f));
  // k is at most 128 and sum below 1.5, so 2^k is applied as 2 * 2^(k - 1): its exponent fits.
  __m256i const exponent = _mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(126));
  __m256 const power = _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  __m256 const result = _mm256_mul_ps(_mm256_add_ps(sum, sum), power);
  return _mm256_andnot_ps(_mm256_cmp_ps(x, low, _CMP_LT_OQ), result);
}

/// v times half of erfc(-v / sqrt 2), see gelu_term().
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 gelu(__m256 v) {
  __m256 const one = _mm256_set1_ps(1.0f), negative = _mm256_set1_ps(-0.0f);
  __m256 const s = _mm256_div_ps(one, _mm256_fmadd_ps(_mm256_andnot_ps(negative, v), _mm256_set1_ps(gelu_slope), one));
  __m256 sum = _mm256_set1_ps(gelu_term(n_gelu_terms - 1));
#pragma GCC unroll 8
  for (int i = n_gelu_terms - 2; i >= 0; --i) sum = _mm256_fmadd_ps(sum, s, _mm256_set1_ps(gelu_term(i)));
  __m256 const tail = _mm256_mul_ps(sum, exponential(_mm256_mul_ps(_mm256_mul_ps(v, v), _mm256_set1_ps(-0.5f))));
  return _mm256_mul_ps(v, _mm256_blendv_ps(_mm256_sub_ps(one, tail), tail, v));
}

/// baseline::Leaf::activated().
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 activated(__m256 v, Activation activation) {
  if (activation == Activation::gelu_erf) return gelu(v);
  __m256 z = v;
  if (activation == Activation::quick_gelu) z = _mm256_mul_ps(v, _mm256_set1_ps(1.702f));
  if (activation == Activation::gelu_tanh) {
    __m256 const factor =
        _mm256_fmadd_ps(_mm256_mul_ps(v, v), _mm256_set1_ps(0.044715f * 1.5957691216057308f), _mm256_set1_ps(1.5957691216057308f));
    z = _mm256_mul_ps(v, factor);
  }
  __m256 const e = exponential(_mm256_xor_ps(z, _mm256_set1_ps(-0.0f)));
  // Where e^-z is no longer known, the result is 0, also for a v that is a huge number.
  __m256 const vanished = _mm256_cmp_ps(z, _mm256_set1_ps(-88.0f), _CMP_LT_OQ);
  return _mm256_andnot_ps(vanished, _mm256_div_ps(v, _mm256_add_ps(_mm256_set1_ps(1.0f), e)));
}

struct Leaf {
  template <class F>
  static void decode(std::byte const* src, std::int32_t n, float* dst) {
    avx2::decode<F>(src, n, dst);
  }

  static constexpr int dots_tokens = 3;
  template <class F, int n_tokens>
  requires(F::block_elems == 1) static void dots(std::byte const* const* w, std::int32_t n, float const* const* x, float* sums) {
    avx2::dots<F, n_tokens>(w, n, x, sums);
  }

  [[gnu::target("avx2,fma,f16c")]] static void to_half(float const* src, std::int32_t n, std::uint16_t* dst) {
    std::int32_t i = 0;
    for (; i + 8 <= n; i += 8) {
      __m128i const halves = _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), halves);
    }
    for (; i < n; ++i) dst[i] = float_to_half(src[i]);
  }

  [[gnu::target("avx2,fma,f16c")]] static void rms_norm(float const* x, float const* weight, float eps, std::int32_t dim, float* y) {
    __m256 sums[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
    for (std::int32_t i = 0; i < dim; i += 8) {
      __m256 const v = _mm256_maskload_ps(x + i, first_lanes(dim - i));
      sums[i / 8 % 4] = _mm256_fmadd_ps(v, v, sums[i / 8 % 4]);
    }
    float const total = sum_lanes(_mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3])));
    __m256 const factor = _mm256_set1_ps(1.0f / std::sqrt(total / float(dim) + eps));
    for (std::int32_t i = 0; i < dim; i += 8) {
      __m256i const mask = first_lanes(dim - i);
      __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), factor);
      if (weight != nullptr) v = _mm256_mul_ps(v, _mm256_maskload_ps(weight + i, mask));
      _mm256_maskstore_ps(y + i, mask, v);
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void layer_norm(float const* x, float const* weight, float const* bias, float eps,
                                                          std::int32_t dim, float* y) {
    __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()}, squares[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (std::int32_t i = 0; i < dim; i += 8)
      sums[i / 8 % 2] = _mm256_add_ps(sums[i / 8 % 2], _mm256_maskload_ps(x + i, first_lanes(dim - i)));
    __m256 const mean = _mm256_set1_ps(sum_lanes(_mm256_add_ps(sums[0], sums[1])) / float(dim));
    for (std::int32_t i = 0; i < dim; i += 8) {
      __m256i const mask = first_lanes(dim - i);
      __m256 const v = _mm256_and_ps(_mm256_castsi256_ps(mask), _mm256_sub_ps(_mm256_maskload_ps(x + i, mask), mean));
      squares[i / 8 % 2] = _mm256_fmadd_ps(v, v, squares[i / 8 % 2]);
    }
    __m256 const factor = _mm256_set1_ps(1.0f / std::sqrt(sum_lanes(_mm256_add_ps(squares[0], squares[1])) / float(dim) + eps));
    for (std::int32_t i = 0; i < dim; i += 8) {
      __m256i const mask = first_lanes(dim - i);
      __m256 v = _mm256_mul_ps(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), mean), factor);
      if (weight != nullptr) v = _mm256_mul_ps(v, _mm256_maskload_ps(weight + i, mask));
      if (bias != nullptr) v = _mm256_add_ps(v, _mm256_maskload_ps(bias + i, mask));
      _mm256_maskstore_ps(y + i, mask, v);
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void gated(float const* gate, float const* up, Activation activation, std::int64_t n,
                                                     float* out) {
    for (std::int64_t i = 0; i < n; i += 8) {
      __m256i const mask = first_lanes(n - i);
      __m256 const activated_gate = activated(_mm256_maskload_ps(gate + i, mask), activation);
      _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(activated_gate, _mm256_maskload_ps(up + i, mask)));
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void activate(Activation activation, std::int64_t n, float* x) {
    for (std::int64_t i = 0; i < n; i += 8) {
      __m256i const mask = first_lanes(n - i);
      _mm256_maskstore_ps(x + i, mask, activated(_mm256_maskload_ps(x + i, mask), activation));
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void add_taps(float const* const* rows, float const* share, std::int32_t dim, float* y) {
    for (std::int32_t i = 0; i < dim; i += 8) {
      __m256i const mask = first_lanes(dim - i);
      __m256 sum = _mm256_maskload_ps(y + i, mask);
#pragma GCC unroll 4
      for (int j = 0; j < AddTapsArgs::n_taps; ++j)
        sum = _mm256_fmadd_ps(_mm256_set1_ps(share[j]), _mm256_maskload_ps(rows[j] + i, mask), sum);
      _mm256_maskstore_ps(y + i, mask, sum);
    }
  }

  [[gnu::target("avx2,fma,f16c")]] static void add(float const* x, std::int64_t n, float* y) {
    for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
  }

  [[gnu::target("avx2,fma,f16c")]] static void quantize(float const* x, std::int64_t n_blocks, ActQ8x32* y) {
    for (std::int64_t b = 0; b < n_blocks; ++b) quantize_one(x + b * 32, y[b]);
  }

 private:
  /// quantize_block(), bit for bit.
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static inline void quantize_one(float const* x, ActQ8x32& y) {
    __m256 v[4];
    __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_set1_epi32(0x7fffffff), _mm256_castps_si256(v[i])));
    }
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1));
    std::int32_t const bits = _mm_cvtsi128_si32(four), infinity = 0x7f800000, tiny = (127 - 100) << 23;
    if (bits >= infinity || bits < tiny) {
      y = {};
      if (bits >= infinity) y.scale = tiered::detail::bits_to_float(0x7fc00000u);
      return;
    }
    float const top = tiered::detail::bits_to_float(std::uint32_t(bits));
    y.scale = top / 127.0f;
    __m256 const inverse = _mm256_set1_ps(127.0f / top);
    __m256i q[4];
#pragma GCC unroll 8
    for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    __m256i const order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // undoes what packing within halves does
    __m256i const packed = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y.q), _mm256_permutevar8x32_epi32(packed, order));
    // Halves in 64 bits each: after two steps the sum of q[0..16) is in lane 0, that of q[16..32) in lane 1.
    __m256i const pairs = _mm256_hadd_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3]));
    __m128i const eight = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    __m128i const sums = _mm_hadd_epi32(eight, eight);
    y.sums[0] = std::int16_t(_mm_cvtsi128_si32(sums));
    y.sums[1] = std::int16_t(_mm_extract_epi32(sums, 1));
  }
};

}  // namespace tiered::cpu::avx2
