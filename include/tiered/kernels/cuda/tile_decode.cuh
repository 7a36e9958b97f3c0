/// Weights as operands of a tensor core: what one lane needs of 32 elements of a row, straight from the block's bytes. [device-visible]
///
/// TileDecoder<F>::decode(block, chunk, j, out): of the 32 elements from 32 chunk on, lane j of four (mma.cuh) gets
///   out[0]: 2j, 2j + 1;  out[1]: 2j + 8, + 9;  out[2]: 2j + 16, + 17;  out[3]: 2j + 24, + 25
/// as pairs of binary16 (bfloat16 for formats that product_activation() says it of), each the value of F::decode() rounded once. Blocks may
/// lie at any multiple of their alignment, in shared or global memory. Formats without a specialisation go through F::decode().
#pragma once

#include <cstdint>
#include <cstring>

#include <cuda_fp16.h>

#include "tiered/core/config.hpp"
#include "tiered/kernels/cuda/table.hpp"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {

using Pairs = std::uint32_t[4];

/// Whether a format's products are of bfloat16.
template <class F>
inline constexpr bool is_bf16_product = product_activation(F::dtype) == DType::act_bf16_rows;

namespace detail {

// The types of cuda_fp16.h are not trivially copyable: no bit casts.
TIERED_HD inline std::uint32_t bits_of(__half2 value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}
TIERED_HD inline __half2 half2_of(std::uint32_t bits) {
  __half2 value;
  memcpy(static_cast<void*>(&value), &bits, sizeof bits);
  return value;
}
/// Both halves.
TIERED_HD inline __half2 twice(std::uint16_t half) { return half2_of(half * 0x00010001u); }

/// half_to_float() by the instruction.
TIERED_HD inline float half_value(std::uint16_t half) {
  __half_raw raw;
  raw.x = half;
  return __half2float(raw);
}
/// a * b + c, rounded once.
TIERED_HD inline __half2 fma_half2(__half2 a, __half2 b, __half2 c) {
#if defined(__CUDA_ARCH__)
  return __hfma2(a, b, c);
#else  // f32 has room for the product, and for the sum but in rare cases: for tests
  return __floats2half2_rn(__low2float(a) * __low2float(b) + __low2float(c), __high2float(a) * __high2float(b) + __high2float(c));
#endif
}

/// Byte i of the result is byte (selector >> 4i & 7) of low and high together.
TIERED_HD inline std::uint32_t pick_bytes(std::uint32_t low, std::uint32_t high, std::uint32_t selector) {
#if defined(__CUDA_ARCH__)
  return __byte_perm(low, high, selector);
#else
  std::uint64_t const all = low | std::uint64_t(high) << 32;
  std::uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= std::uint32_t(all >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return out;
#endif
}

/// Bytes p[0] and p[1], p a multiple of 2.
TIERED_HD inline std::uint32_t load_u16(std::uint8_t const* p) { return *reinterpret_cast<std::uint16_t const*>(p); }

// A byte q below an exponent of 0x64 is the half 1024 + q: integers become halves without a conversion.
inline constexpr std::uint32_t exponents = 0x64006400u;
TIERED_HD inline std::uint32_t spread(std::uint32_t bytes) { return pick_bytes(bytes, exponents, 0x5150u); }
/// Two such halves less 1024 + offset: exact.
TIERED_HD inline __half2 minus(std::uint32_t spread_pair, int offset) {
  std::uint16_t const half = std::uint16_t(0x6400 + offset);  // offset <= 1024
  return __hsub2(half2_of(spread_pair), twice(half));
}
/// The two halves of nibbles, low or high, of two bytes; high ones arrive 16 times too large.
template <int offset>
TIERED_HD inline __half2 low_nibbles(std::uint32_t spread_pair) {
  return minus(spread_pair & 0xff0fff0fu, offset);
}
template <int offset>
TIERED_HD inline __half2 high_nibbles(std::uint32_t spread_pair) {
  constexpr std::uint16_t sixteenth = 0x2c00, less = 0xd400 + 16 * offset;  // -(64 + offset)
  return fma_half2(half2_of(spread_pair & 0xfff0fff0u), twice(sixteenth), twice(less));
}

/// scale * q - min of two small integers: f32, where the product is exact, then rounded to halves.
TIERED_HD inline std::uint32_t scaled(__half2 q, float scale, float min = 0) {
  return bits_of(__floats2half2_rn(scale * __low2float(q) - min, scale * __high2float(q) - min));
}

/// The four entries of a codebook that the nibbles of two bytes name, 128 more than each: low and high of the first, then of the second.
TIERED_HD inline std::uint32_t look_up(std::uint32_t nibbles, tiered::detail::Codebook16 book) {
  std::uint64_t const low = book.low ^ 0x8080808080808080u, high = book.high ^ 0x8080808080808080u;  // constants
  std::uint32_t const selector = nibbles & 0x7777u;
  std::uint32_t const first = pick_bytes(std::uint32_t(low), std::uint32_t(low >> 32), selector);
  std::uint32_t const second = pick_bytes(std::uint32_t(high), std::uint32_t(high >> 32), selector);
  return pick_bytes(first, second, 0x3210u | (nibbles & 0x8888u) >> 1);
}
/// Of what look_up() returns, those of the low (high) nibbles as halves.
TIERED_HD inline __half2 low_entries(std::uint32_t four) { return minus(pick_bytes(four, exponents, 0x5250u), 128); }
TIERED_HD inline __half2 high_entries(std::uint32_t four) { return minus(pick_bytes(four, exponents, 0x5351u), 128); }

template <class F>
TIERED_HD inline typename F::Block const& as_block(std::uint8_t const* p) {
  return *reinterpret_cast<typename F::Block const*>(p);
}

}  // namespace detail

/// Two floats as a pair in the type of F's products.
template <class F>
TIERED_HD inline std::uint32_t pair_for(float first, float second) {
  if constexpr (is_bf16_product<F>) return float_to_bfloat16(first) | std::uint32_t(float_to_bfloat16(second)) << 16;
  return detail::bits_of(__floats2half2_rn(first, second));
}

template <class F>
struct TileDecoder {
  TIERED_HD static void decode(std::uint8_t const* p, int chunk, int j, Pairs& out) {
    auto const& block = detail::as_block<F>(p);
    for (int i = 0; i < 4; ++i) {
      int const first = chunk * 32 + i * 8 + j * 2;
      out[i] = pair_for<F>(F::decode(block, first), F::decode(block, first + 1));
    }
  }
};

template <>
struct TileDecoder<Q4_0> {
  TIERED_HD static void decode(std::uint8_t const* p, int, int j, Pairs& out) {
    __half2 const d = detail::twice(std::uint16_t(detail::load_u16(p)));
    for (int i = 0; i < 2; ++i) {
      std::uint32_t const q = detail::spread(detail::load_u16(p + 2 + i * 8 + j * 2));
      out[i] = detail::bits_of(__hmul2(detail::low_nibbles<8>(q), d));
      out[2 + i] = detail::bits_of(__hmul2(detail::high_nibbles<8>(q), d));
    }
  }
};

template <>
struct TileDecoder<Q4_1> {
  TIERED_HD static void decode(std::uint8_t const* p, int, int j, Pairs& out) {
    __half2 const d = detail::twice(std::uint16_t(detail::load_u16(p))), m = detail::twice(std::uint16_t(detail::load_u16(p + 2)));
    for (int i = 0; i < 2; ++i) {
      std::uint32_t const q = detail::spread(detail::load_u16(p + 4 + i * 8 + j * 2));
      out[i] = detail::bits_of(detail::fma_half2(detail::low_nibbles<0>(q), d, m));
      out[2 + i] = detail::bits_of(detail::fma_half2(detail::high_nibbles<0>(q), d, m));
    }
  }
};

namespace detail {

/// Of a block of Q5_0 or Q5_1 whose 32 upper bits lie at `high`, nibbles behind them: quants less `offset`.
template <int offset>
TIERED_HD inline void quants_5(std::uint8_t const* high, int j, __half2 (&out)[4]) {
  std::uint32_t const bits = (load_u16(high) | load_u16(high + 2) << 16) >> 2 * j;
  for (int i = 0; i < 2; ++i) {
    std::uint32_t const q = spread(load_u16(high + 4 + i * 8 + j * 2)), low = bits >> 8 * i, top = low >> 16;
    out[i] = minus((q & 0xff0fff0fu) | (low & 1) << 4 | (low & 2) << 19, offset);
    out[2 + i] = minus((q >> 4 & 0x000f000fu) | exponents | (top & 1) << 4 | (top & 2) << 19, offset);
  }
}

}  // namespace detail

template <>
struct TileDecoder<Q5_0> {
  TIERED_HD static void decode(std::uint8_t const* p, int, int j, Pairs& out) {
    __half2 q[4];
    detail::quants_5<16>(p + 2, j, q);
    __half2 const d = detail::twice(std::uint16_t(detail::load_u16(p)));
    for (int i = 0; i < 4; ++i) out[i] = detail::bits_of(__hmul2(q[i], d));
  }
};

template <>
struct TileDecoder<Q5_1> {
  TIERED_HD static void decode(std::uint8_t const* p, int, int j, Pairs& out) {
    __half2 q[4];
    detail::quants_5<0>(p + 4, j, q);
    __half2 const d = detail::twice(std::uint16_t(detail::load_u16(p))), m = detail::twice(std::uint16_t(detail::load_u16(p + 2)));
    for (int i = 0; i < 4; ++i) out[i] = detail::bits_of(detail::fma_half2(q[i], d, m));
  }
};

template <>
struct TileDecoder<Q8_0> {
  TIERED_HD static void decode(std::uint8_t const* p, int, int j, Pairs& out) {
    __half2 const d = detail::twice(std::uint16_t(detail::load_u16(p)));
    for (int i = 0; i < 4; ++i) {
      std::uint32_t const q = detail::spread(detail::load_u16(p + 2 + i * 8 + j * 2) ^ 0x8080u);
      out[i] = detail::bits_of(__hmul2(detail::minus(q, 128), d));
    }
  }
};

template <>
struct TileDecoder<IQ4_NL> {
  TIERED_HD static void decode(std::uint8_t const* p, int, int j, Pairs& out) {
    __half2 const d = detail::twice(std::uint16_t(detail::load_u16(p)));
    for (int i = 0; i < 2; ++i) {
      std::uint32_t const four = detail::look_up(detail::load_u16(p + 2 + i * 8 + j * 2), IQ4_NL::codebook());
      out[i] = detail::bits_of(__hmul2(detail::low_entries(four), d));
      out[2 + i] = detail::bits_of(__hmul2(detail::high_entries(four), d));
    }
  }
};

template <>
struct TileDecoder<MXFP4> {  // blocks of 17 bytes: no alignment at all
  TIERED_HD static void decode(std::uint8_t const* p, int, int j, Pairs& out) {
    float const scale = e8m0_to_half_float(p[0]);
    for (int i = 0; i < 2; ++i) {
      std::uint8_t const* const at = p + 1 + i * 8 + j * 2;
      std::uint32_t const four = detail::look_up(at[0] | std::uint32_t(at[1]) << 8, MXFP4::codebook());
      __half2 const low = detail::low_entries(four), high = detail::high_entries(four);
      out[i] = pair(__low2float(low) * scale, __high2float(low) * scale);
      out[2 + i] = pair(__low2float(high) * scale, __high2float(high) * scale);
    }
  }
  /// Of values that bfloat16 has: products of 4-bit integers and powers of two.
  TIERED_HD static std::uint32_t pair(float first, float second) {
    return tiered::detail::float_to_bits(first) >> 16 | (tiered::detail::float_to_bits(second) & 0xffff0000u);
  }
};

}  // namespace tiered::cuda
