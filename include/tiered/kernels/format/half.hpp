/// 16-bit floats and power-of-two scales to and from f32, by integer arithmetic: the same bits on every machine. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"

namespace tiered {
namespace detail {

// std::bit_cast is not a device function; the builtin of all three compilers is allowed everywhere.
TIERED_HD constexpr float bits_to_float(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }
TIERED_HD constexpr std::uint32_t float_to_bits(float value) { return __builtin_bit_cast(std::uint32_t, value); }

}  // namespace detail

/// The value of an IEEE binary16. Exact; NaN payloads are kept, the quiet bit too. No step meets a subnormal f32, so that
/// threads which flush those (-ffast-math programs set this) get the same bits.
TIERED_HD constexpr float half_to_float(std::uint16_t half) {
  std::uint32_t const sign = std::uint32_t(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  if (magnitude < 0x0400u) return detail::bits_to_float(sign | detail::float_to_bits(float(std::int32_t(magnitude)) * 0x1p-24f));
  std::uint32_t const rebias = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;  // infinity and NaN move to exponent 255
  return detail::bits_to_float(sign | ((magnitude << 13) + rebias));
}

/// The nearest binary16, ties to even; from 65520 on infinity. NaN stays NaN (quiet, upper payload kept).
TIERED_HD constexpr std::uint16_t float_to_half(float value) {
  std::uint32_t const bits = detail::float_to_bits(value), sign = bits >> 16 & 0x8000u;
  std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return std::uint16_t(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);
  if (magnitude >= 0x38800000u) {  // normal: rounding may carry into the exponent, which is right
    magnitude += 0xfffu + (magnitude >> 13 & 1u);
    return std::uint16_t(sign | ((magnitude - 0x38000000u) >> 13));
  }
  if (magnitude < 0x33000000u) return std::uint16_t(sign);  // below half of the smallest subnormal
  std::uint32_t const shift = 126u - (magnitude >> 23), significand = (magnitude & 0x7fffffu) | 0x800000u;
  std::uint32_t const rest = significand & ((1u << shift) - 1u), middle = 1u << (shift - 1u);
  std::uint32_t result = significand >> shift;  // in units of 2^-24
  if (rest > middle || (rest == middle && (result & 1u) != 0)) ++result;
  return std::uint16_t(sign | result);
}

/// The value of a bfloat16: the upper half of an f32.
TIERED_HD constexpr float bfloat16_to_float(std::uint16_t bits) { return detail::bits_to_float(std::uint32_t(bits) << 16); }

/// The nearest bfloat16, ties to even; overflow becomes infinity. NaN stays NaN (quiet, upper payload kept).
TIERED_HD constexpr std::uint16_t float_to_bfloat16(float value) {
  std::uint32_t const bits = detail::float_to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return std::uint16_t(bits >> 16 | 0x40u);
  return std::uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/// 2^(exponent - 127), and NaN for 255: E8M0 of the OCP Microscaling Formats specification 1.0, 5.4.1.
TIERED_HD constexpr float e8m0_to_float(std::uint8_t exponent) {
  if (exponent == 255) return detail::bits_to_float(0x7fc00000u);
  return detail::bits_to_float(exponent == 0 ? 0x00400000u : std::uint32_t(exponent) << 23);
}

/// Half of that, 2^(exponent - 128), for tables that hold doubled E2M1 values. 255 gives 2^127, as GGUF's reference has it.
TIERED_HD constexpr float e8m0_to_half_float(std::uint8_t exponent) {
  return detail::bits_to_float(exponent < 2 ? 0x00200000u << exponent : std::uint32_t(exponent - 1) << 23);
}

/// The exponent e with 2^(e - 127) <= value < 2^(e - 126), for finite value > 0; 0 also for what is smaller.
TIERED_HD constexpr std::uint8_t float_to_e8m0_floor(float value) { return std::uint8_t(detail::float_to_bits(value) >> 23 & 0xffu); }

}  // namespace tiered
