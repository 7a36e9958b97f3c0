/// Activations as 8-bit blocks, which integer dot products read. [device-visible]
///
/// Both types: with A the largest magnitude of the block, scale = A / 127 and q = x * (127 / A), rounded to the nearest integer,
/// ties to even. Every step is one correctly rounded f32 operation, so all backends make the same bits. Where A < 2^-100, scale
/// and q are 0 (so no step meets a subnormal); where an element is infinite or not a number, scale (and sum) are NaN and q is 0:
/// then every product of the row is NaN, not garbage.
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

/// For weights in blocks of 32.
struct ActQ8x32 {
  static constexpr DType dtype = DType::act_q8_32;
  static constexpr int block_elems = 32, block_bytes = 40;

  float scale;
  float sum;  ///< scale * (sum of q), rounded: what a weight format's minimum is multiplied with
  std::int8_t q[32];
};
static_assert(sizeof(ActQ8x32) == ActQ8x32::block_bytes);

/// For weights in blocks of 256.
struct ActQ8x256 {
  static constexpr DType dtype = DType::act_q8_256;
  static constexpr int block_elems = 256, block_bytes = 292;

  float scale;
  std::int16_t sums[16];  ///< of each 16 neighbours of q
  std::int8_t q[256];
};
static_assert(sizeof(ActQ8x256) == ActQ8x256::block_bytes);

/// The type that a weight format's integer dot product takes: by its block size; f32 for weights that are floats.
constexpr DType quantized_activation(DType weights) {
  std::uint32_t const elems = block_elems(weights);
  return elems == 256 ? DType::act_q8_256 : elems == 32 ? DType::act_q8_32 : DType::f32;
}

namespace detail {

/// Fills q[0..n) and returns the scale.
TIERED_HD inline float quantize_q8(float const* x, int n, std::int8_t* q) {
  std::uint32_t largest = 0;  // magnitudes compare as integers, infinities and NaN above all numbers
  for (int i = 0; i < n; ++i) {
    std::uint32_t const magnitude = float_to_bits(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  constexpr std::uint32_t infinity = 0x7f800000u, tiny = (127u - 100u) << 23;
  if (largest >= infinity || largest < tiny) {
    for (int i = 0; i < n; ++i) q[i] = 0;
    return largest < tiny ? 0.0f : bits_to_float(0x7fc00000u);
  }
  float const inverse = 127.0f / bits_to_float(largest);
  for (int i = 0; i < n; ++i) q[i] = std::int8_t(nearest_int(rounded_product(x[i], inverse)));
  return bits_to_float(largest) / 127.0f;
}

}  // namespace detail

/// The block of x[0..32).
TIERED_HD inline void quantize_block(float const* x, ActQ8x32& block) {
  block.scale = detail::quantize_q8(x, 32, block.q);
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += block.q[i];
  block.sum = detail::rounded_product(block.scale, float(sum));
}

/// The block of x[0..256).
TIERED_HD inline void quantize_block(float const* x, ActQ8x256& block) {
  block.scale = detail::quantize_q8(x, 256, block.q);
  for (int group = 0; group < 16; ++group) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) sum += block.q[group * 16 + i];
    block.sums[group] = std::int16_t(sum);
  }
}

/// Element i as the product sees it.
template <class Activation>
TIERED_HD float decode_activation(Activation const& block, int i) {
  return detail::rounded_product(block.scale, float(block.q[i]));
}

}  // namespace tiered
