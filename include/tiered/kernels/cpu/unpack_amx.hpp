/// 16-bit floats to bfloat16, as matrix products read them: exact values, rounded once (float_to_panel), or what that took from them.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/format/format.hpp"

namespace tiered::cpu::amx {

/// Of 32 weights of a row and the next 32, in bytes: between them are those of the other rows of the block.
inline constexpr std::int32_t step_stride = 2048;

/// n weights of a row to vectors of 32, step_stride bytes apart, the last one filled with zeros. src is aligned to 2.
using Unpack = void (*)(std::byte const* src, std::int32_t n, std::byte* dst);

/// What rounding to bfloat16 takes of 16 floats. Zero-masked with all lanes, where g++ 12 has its own intrinsics warn that they read
/// something uninitialised.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] inline __m512 bf16_rest(__m512 v) {
  auto const rounded = reinterpret_cast<__m256i>(_mm512_maskz_cvtneps_pbh(0xffff, v));
  return _mm512_sub_ps(v, _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, rounded), 16)));
}

/// 16 floats and the next 16 to bfloat16; or what that takes of them, rounded (float_to_panel_rest). The instructions flush subnormals,
/// whatever the thread's mode.
template <bool rest>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] inline __m512i to_bf16(__m512 low,
                                                                                                                     __m512 high) {
  if constexpr (rest) low = bf16_rest(low), high = bf16_rest(high);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

/// 16 weights and the next 16, rounded, or what that takes of them.
template <class F, bool rest>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] inline __m512i rounded(__m256i low,
                                                                                                                     __m256i high) {
  if constexpr (F::dtype == DType::bf16) {
    static_assert(!rest);
    return _mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(low), high, 1);
  } else {
    return to_bf16<rest>(_mm512_maskz_cvtph_ps(0xffff, low), _mm512_maskz_cvtph_ps(0xffff, high));
  }
}

template <class F, bool rest = false>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void unpack(std::byte const* src, std::int32_t n,
                                                                                      std::byte* dst) {
  static_assert(F::block_elems == 1 && F::block_bytes == 2);
  for (; n >= 32; n -= 32, src += 64, dst += step_stride) {
    auto const* const halves = reinterpret_cast<__m256i const*>(src);
    _mm512_store_si512(dst, rounded<F, rest>(_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)));
  }
  if (n <= 0) return;
  __mmask32 const present = (__mmask32{1} << n) - 1;
  __m256i const low = _mm256_maskz_loadu_epi16(__mmask16(present), src);
  _mm512_store_si512(dst, rounded<F, rest>(low, _mm256_maskz_loadu_epi16(__mmask16(present >> 16), src + 32)));
}

}  // namespace tiered::cpu::amx
