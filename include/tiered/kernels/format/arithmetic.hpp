/// Arithmetic of the decoders whose result does not depend on compiler flags. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"

namespace tiered::detail {

// Contraction to FMA cannot change what a decoder returns, nor what becomes of it in an expression it is inlined into,
// because every product here is exact: a binary16 scale has 11 significant bits, and the integers multiplied with it together
// at most 12 (IQ4_XS: 5 and 7, Q6_K: 7 and 5, where -128 and -32 are powers of two); that fits the 24 of an f32. One rounding is
// left, that of a final sum or difference, the same fused or not. What could change a result is regrouping by -ffast-math:
// there, and only there, values pass an opaque statement, since it costs vectorisation.

/// `value`, out of the optimiser's sight.
TIERED_HD inline float opaque(float value) {
#if !defined(__CUDA_ARCH__)
#if defined(__x86_64__)
  asm("" : "+x"(value));
#elif defined(__aarch64__)
  asm("" : "+w"(value));
#else
  asm("" : "+m"(value));
#endif
#endif
  return value;
}
#if defined(__FAST_MATH__) && !defined(__CUDA_ARCH__)
TIERED_HD inline float as_written(float value) { return opaque(value); }
#else
TIERED_HD constexpr float as_written(float value) { return value; }
#endif

/// a * b where that is exact.
TIERED_HD inline float exact_product(float a, float b) { return as_written(a * b); }
/// a + b and a - b, rounded once.
TIERED_HD inline float rounded_sum(float a, float b) { return as_written(a + b); }
TIERED_HD inline float rounded_difference(float a, float b) { return as_written(a - b); }

/// a * b, rounded before anything else is done with it.
TIERED_HD inline float rounded_product(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return opaque(a * b);
#endif
}

/// The nearest integer, ties to even, of a value that was rounded; |value| < 2^22.
TIERED_HD inline int nearest_int(float value) {
#if defined(__CUDA_ARCH__)
  return __float2int_rn(value);
#else
  constexpr float shift = 0x1.8p23f;  // a sum with it has no room for fractions
  return int(as_written(as_written(value + shift) - shift));
#endif
}

/// Entry `index` (0..15) of a table of signed bytes, packed little-endian into two words: no memory, hence fit for a GPU.
struct Codebook16 {
  std::uint64_t low, high;
  TIERED_HD constexpr int operator[](int index) const { return std::int8_t(std::uint8_t((index < 8 ? low : high) >> (8 * (index & 7)))); }
};

TIERED_HD constexpr std::uint64_t pack_bytes(int a, int b, int c, int d, int e, int f, int g, int h) {
  int const values[8] = {a, b, c, d, e, f, g, h};
  std::uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= std::uint64_t(std::uint8_t(values[i])) << (8 * i);
  return word;
}

}  // namespace tiered::detail
