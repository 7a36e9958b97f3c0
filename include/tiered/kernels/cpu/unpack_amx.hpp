/// 16-bit floats to bfloat16, as matrix products read them: exact values, rounded once (float_to_panel).
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

template <class F>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void unpack(std::byte const* src, std::int32_t n,
                                                                                      std::byte* dst) {
  static_assert(F::block_elems == 1 && F::block_bytes == 2);
  for (; n > 0; n -= 32, src += 64, dst += step_stride) {
    __mmask32 const present = n >= 32 ? ~__mmask32{0} : (__mmask32{1} << n) - 1;
    if constexpr (F::dtype == DType::bf16) {
      _mm512_store_si512(dst, _mm512_maskz_loadu_epi16(present, src));
    } else {  // zero-masked with all lanes, where g++ 12 has its own intrinsics warn that they read something uninitialised
      __m512 const low = _mm512_maskz_cvtph_ps(0xffff, _mm256_maskz_loadu_epi16(__mmask16(present), src));
      __m512 const high = _mm512_maskz_cvtph_ps(0xffff, _mm256_maskz_loadu_epi16(__mmask16(present >> 16), src + 32));
      // The instruction flushes subnormals, whatever the thread's mode.
      _mm512_store_si512(dst, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  }
}

}  // namespace tiered::cpu::amx
