/// The innermost loops of all ops but quantised products, for AVX-512 (F, BW, DQ, VL); leaf_baseline.hpp says what each does.
///
/// Ends of rows go through masks: an element's value must not depend on where a thread's part of a row ends. Unmasked intrinsics whose
/// headers draw warnings from g++ 12 are written with a mask of ones, see matmul_f32_avx512.hpp.
#pragma once

#include <cmath>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/leaf_avx2.hpp"
#include "tiered/kernels/cpu/matmul_f32_avx512.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/gelu.hpp"

namespace tiered::cpu::avx512 {

/// e^x as avx2::exponential() has it: 2e-7 relative; 0 below -86.6; from 88.4 on e^88.4; NaN stays NaN.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline __m512 exponential(__m512 x) {
  __mmask16 const kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-86.6f), _CMP_NLT_UQ);
  __m512 const bounded = _mm512_maskz_min_ps(all_lanes, _mm512_set1_ps(88.4f), x);  // NaN passes: it is the second operand
  __m512 const k = _mm512_maskz_roundscale_ps(all_lanes, _mm512_mul_ps(bounded, _mm512_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(k, _mm512_set1_ps(0.693145751953125f), bounded);  // ln 2 in two parts, see there
  r = _mm512_fnmadd_ps(k, _mm512_set1_ps(1.42860677e-6f), r);
  __m512 sum = _mm512_set1_ps(1.0f / 5040);
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 720));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 120));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 24));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f / 6));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(0.5f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f));
  sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(1.0f));
  return _mm512_maskz_scalef_ps(kept, sum, k);
}

/// avx2::gelu().
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline __m512 gelu(__m512 v) {
  __m512 const one = _mm512_set1_ps(1.0f);
  __m512 const s = _mm512_div_ps(one, _mm512_fmadd_ps(_mm512_abs_ps(v), _mm512_set1_ps(gelu_slope), one));
  __m512 sum = _mm512_set1_ps(gelu_term(n_gelu_terms - 1));
#pragma GCC unroll 8
  for (int i = n_gelu_terms - 2; i >= 0; --i) sum = _mm512_fmadd_ps(sum, s, _mm512_set1_ps(gelu_term(i)));
  __m512 const tail = _mm512_mul_ps(sum, exponential(_mm512_mul_ps(_mm512_mul_ps(v, v), _mm512_set1_ps(-0.5f))));
  return _mm512_mul_ps(v, _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(v)), _mm512_sub_ps(one, tail), tail));
}

/// baseline::Leaf::activated().
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"), gnu::always_inline]] inline __m512 activated(__m512 v,
                                                                                                           Activation activation) {
  if (activation == Activation::gelu_erf) return gelu(v);
  __m512 z = v;
  if (activation == Activation::quick_gelu) z = _mm512_mul_ps(v, _mm512_set1_ps(1.702f));
  if (activation == Activation::gelu_tanh) {
    __m512 const factor =
        _mm512_fmadd_ps(_mm512_mul_ps(v, v), _mm512_set1_ps(0.044715f * 1.5957691216057308f), _mm512_set1_ps(1.5957691216057308f));
    z = _mm512_mul_ps(v, factor);
  }
  __m512 const e = exponential(_mm512_xor_ps(z, _mm512_set1_ps(-0.0f)));
  // Where e^-z is no longer known, the result is 0, also for a v that is a huge number.
  __mmask16 const kept = _mm512_cmp_ps_mask(z, _mm512_set1_ps(-88.0f), _CMP_NLT_UQ);
  return _mm512_maskz_div_ps(kept, v, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

struct Leaf {
  template <class F>
  static void decode(std::byte const* src, std::int32_t n, float* dst) {
    avx512::decode<F>(src, n, dst);
  }

  static constexpr int dots_tokens = 6;
  template <class F, int n_tokens>
  requires(F::block_elems == 1) static void dots(std::byte const* const* w, std::int32_t n, float const* const* x, float* sums) {
    avx512::dots<F, n_tokens>(w, n, x, sums);
  }
  template <class F, int n_tokens>
  requires(F::block_elems == 1) static void row_dots(std::byte const* const* w, std::int32_t n, float const* const* x, float* sums) {
    avx512::row_dots<F, n_tokens>(w, n, x, sums);
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void to_half(float const* src, std::int32_t n, std::uint16_t* dst) {
    for (std::int64_t i = 0; i < n; i += 16) {
      __mmask16 const mask = first_lanes(n - i);
      __m256i const halves = _mm512_maskz_cvtps_ph(all_lanes, _mm512_maskz_loadu_ps(mask, src + i), _MM_FROUND_TO_NEAREST_INT);
      _mm256_mask_storeu_epi16(dst + i, mask, halves);
    }
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void rms_norm(float const* x, float const* weight, float eps,
                                                                                      std::int32_t dim, float* y) {
    __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
    std::int64_t i = 0;
    for (; i + 64 <= dim; i += 64) {
#pragma GCC unroll 8
      for (int j = 0; j < 4; ++j) {
        __m512 const v = _mm512_loadu_ps(x + i + 16 * j);
        sums[j] = _mm512_fmadd_ps(v, v, sums[j]);
      }
    }
    for (; i < dim; i += 16) {
      __m512 const v = _mm512_maskz_loadu_ps(first_lanes(dim - i), x + i);
      sums[0] = _mm512_fmadd_ps(v, v, sums[0]);
    }
    float const total = sum_lanes(_mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
    __m512 const factor = _mm512_set1_ps(1.0f / std::sqrt(total / float(dim) + eps));
    for (i = 0; i < dim; i += 16) {
      __mmask16 const mask = first_lanes(dim - i);
      __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), factor);
      if (weight != nullptr) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i));
      _mm512_mask_storeu_ps(y + i, mask, v);
    }
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void layer_norm(float const* x, float const* weight,
                                                                                        float const* bias, float eps, std::int32_t dim,
                                                                                        float* y) {
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()}, squares[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (std::int32_t i = 0; i < dim; i += 16)
      sums[i / 16 % 2] = _mm512_add_ps(sums[i / 16 % 2], _mm512_maskz_loadu_ps(first_lanes(dim - i), x + i));
    __m512 const mean = _mm512_set1_ps(sum_lanes(_mm512_add_ps(sums[0], sums[1])) / float(dim));
    for (std::int32_t i = 0; i < dim; i += 16) {
      __mmask16 const mask = first_lanes(dim - i);
      __m512 const v = _mm512_maskz_sub_ps(mask, _mm512_maskz_loadu_ps(mask, x + i), mean);
      squares[i / 16 % 2] = _mm512_fmadd_ps(v, v, squares[i / 16 % 2]);
    }
    __m512 const factor = _mm512_set1_ps(1.0f / std::sqrt(sum_lanes(_mm512_add_ps(squares[0], squares[1])) / float(dim) + eps));
    for (std::int32_t i = 0; i < dim; i += 16) {
      __mmask16 const mask = first_lanes(dim - i);
      __m512 v = _mm512_mul_ps(_mm512_sub_ps(_mm512_maskz_loadu_ps(mask, x + i), mean), factor);
      if (weight != nullptr) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i));
      if (bias != nullptr) v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, bias + i));
      _mm512_mask_storeu_ps(y + i, mask, v);
    }
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void gated(float const* gate, float const* up,
                                                                                   Activation activation, std::int64_t n, float* out) {
    for (std::int64_t i = 0; i < n; i += 16) {
      __mmask16 const mask = first_lanes(n - i);
      __m512 const activated_gate = activated(_mm512_maskz_loadu_ps(mask, gate + i), activation);
      _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(activated_gate, _mm512_maskz_loadu_ps(mask, up + i)));
    }
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void activate(Activation activation, std::int64_t n, float* x) {
    for (std::int64_t i = 0; i < n; i += 16) {
      __mmask16 const mask = first_lanes(n - i);
      _mm512_mask_storeu_ps(x + i, mask, activated(_mm512_maskz_loadu_ps(mask, x + i), activation));
    }
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void add_taps(float const* const* rows, float const* share,
                                                                                      std::int32_t dim, float* y) {
    for (std::int32_t i = 0; i < dim; i += 16) {
      __mmask16 const mask = first_lanes(dim - i);
      __m512 sum = _mm512_maskz_loadu_ps(mask, y + i);
#pragma GCC unroll 4
      for (int j = 0; j < AddTapsArgs::n_taps; ++j)
        sum = _mm512_fmadd_ps(_mm512_set1_ps(share[j]), _mm512_maskz_loadu_ps(mask, rows[j] + i), sum);
      _mm512_mask_storeu_ps(y + i, mask, sum);
    }
  }

  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]] static void add(float const* x, std::int64_t n, float* y) {
    for (std::int64_t i = 0; i < n; i += 16) {
      __mmask16 const mask = first_lanes(n - i);
      _mm512_mask_storeu_ps(y + i, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, y + i), _mm512_maskz_loadu_ps(mask, x + i)));
    }
  }

  /// A block is four vectors of AVX2, most of whose work is to find one maximum: wider ones gain nothing.
  static void quantize(float const* x, std::int64_t n_blocks, ActQ8x32* y) { avx2::Leaf::quantize(x, n_blocks, y); }
};

}  // namespace tiered::cpu::avx512
