/// Activations as products read them: 8-bit blocks for integer dot products, bfloat16 panels for matrix units. [device-visible]
///
/// With A the largest magnitude of a block of 32, scale = A / 127 and q = x * (127 / A), rounded to the nearest integer, ties to
/// even. Every step is one correctly rounded f32 operation, so all backends make the same bits. Where A < 2^-100, scale and q are 0
/// (so no step meets a subnormal); where an element is infinite or not a number, the scale is NaN and q is 0: then every product of
/// the row is NaN, not garbage.
///
/// Weights in super-blocks of 256 read eight blocks for each: one scale for 256 elements would cost accuracy wherever activations
/// have outliers, as the product of gate and up does.
///
/// Panels (act_bf16) hold 16 rows each, the last one what is left (n of them): element k of row i of a panel is half-word
/// (k / 2 * n + i) * 2 + k % 2 of it, so that pairs of neighbours in k lie together and rows side by side, as the second operand of
/// a matrix unit wants them. dim is rounded up to a multiple of 32 with zeros. Rows are cut into stretches of panel_stretch elements (the
/// last one is what is left): the panels of all rows for one stretch, then those for the next. What meets the same weights is read from
/// front to back, and not at distances that share a few sets of a cache. Elements are rounded to nearest, ties to even, and subnormal
/// ones are zeros (with their sign): what the conversion instructions do, and the units read them as zeros anyway. Weights that meet a
/// panel are rounded in the same way, from their exact values; those that meet panels in two parts have two parts as well, which for
/// binary16 is all of them.
///
/// Rows (act_f16_rows, act_bf16_rows) lie one after another, act_row_elems(dim) elements each, zeros at the end. Of bfloat16, elements are
/// rounded to nearest, ties to even. Of binary16 they are x / factor, so rounded; a row's factor is 1, or where its largest magnitude
/// passes 2^15 the least power of two that brings it to 2^15 or below, so that nothing overflows; NaN where an element is infinite or not
/// a number. Products are multiplied by it.
///
/// In two parts (act_f16_two, act_bf16_two), rows are first as above, and then, act_second_offset() bytes on, so are the differences that
/// rounding made: of binary16 x / factor - first, with the same factors, of bfloat16 x - first. They were exact in f32. So an element
/// keeps 22 or 16 bits, or what is left is 2^-25 of the factor, which is half of the least binary16. What an infinity becomes is no number.
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct ActQ8x32 {
  static constexpr DType dtype = DType::act_q8;
  static constexpr int block_elems = 32, block_bytes = 40;

  float scale;
  std::int16_t sums[2];  ///< of q[0..16) and of q[16..32): what a weight format's minimum is multiplied with
  std::int8_t q[32];
};
static_assert(sizeof(ActQ8x32) == ActQ8x32::block_bytes);

/// The type that products with weights of a type take: blocks for weights in blocks, f32 for weights that are floats.
constexpr DType quantized_activation(DType weights) { return block_elems(weights) > 1 ? DType::act_q8 : DType::f32; }

/// The same where a matrix unit multiplies bfloat16: 16-bit floats are its own kind. Weights in blocks stay with 8-bit blocks, so that
/// single rows are bound by memory and not by unpacking; f32 weights were given their accuracy on purpose: routers.
constexpr DType panel_activation(DType weights) {
  return weights == DType::f16 || weights == DType::bf16 ? DType::act_bf16 : quantized_activation(weights);
}

/// The same where a matrix unit multiplies halves of either kind, as rows lie: bfloat16 for formats whose range binary16 does not have.
constexpr DType half_activation(DType weights) {
  if (weights == DType::f32) return DType::f32;
  return weights == DType::bf16 || weights == DType::mxfp4 ? DType::act_bf16_rows : DType::act_f16_rows;
}

/// An operand of a matrix unit.
TIERED_HD constexpr std::uint16_t float_to_panel(float value) {
  std::uint32_t const bits = detail::float_to_bits(value);
  return (bits & 0x7f800000u) == 0 ? std::uint16_t(bits >> 16 & 0x8000u) : float_to_bfloat16(value);
}

/// The second part of an operand: what float_to_panel() took from it, rounded in the same way.
TIERED_HD constexpr std::uint16_t float_to_panel_rest(float value) {
  return float_to_panel(value - bfloat16_to_float(float_to_panel(value)));
}

inline constexpr std::int32_t panel_rows = 16, panel_stretch = 1024;

/// Elements of the stretch that element k is in, zeros at the end of a row included.
TIERED_HD constexpr std::int32_t panel_stretch_elems(std::int32_t dim, std::int32_t k) {
  std::int32_t const left = std::int32_t(panel_dim(std::uint64_t(dim))) - k / panel_stretch * panel_stretch;
  return left < panel_stretch ? left : panel_stretch;
}

/// Which half-word is element k of a row, of n_rows rows in panels.
TIERED_HD constexpr std::int64_t panel_index(std::int32_t n_rows, std::int32_t dim, std::int32_t row, std::int32_t k) {
  std::int32_t const first = row / panel_rows * panel_rows, in_stretch = k % panel_stretch;
  std::int64_t const n = n_rows - first < panel_rows ? n_rows - first : panel_rows;
  std::int64_t const panel = std::int64_t(k - in_stretch) * n_rows + std::int64_t(first) * panel_stretch_elems(dim, k);
  return panel + (in_stretch / 2 * n + (row - first)) * 2 + k % 2;
}

/// The block of x[0..32).
TIERED_HD inline void quantize_block(float const* x, ActQ8x32& block) {
  std::uint32_t largest = 0;  // magnitudes compare as integers, infinities and NaN above all numbers
  for (int i = 0; i < 32; ++i) {
    std::uint32_t const magnitude = detail::float_to_bits(x[i]) & 0x7fffffffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  block.sums[0] = block.sums[1] = 0;
  constexpr std::uint32_t infinity = 0x7f800000u, tiny = (127u - 100u) << 23;
  if (largest >= infinity || largest < tiny) {
    block.scale = largest < tiny ? 0.0f : detail::bits_to_float(0x7fc00000u);
    for (int i = 0; i < 32; ++i) block.q[i] = 0;
    return;
  }
  float const inverse = 127.0f / detail::bits_to_float(largest);
  block.scale = detail::bits_to_float(largest) / 127.0f;
  for (int half = 0; half < 2; ++half) {
    int sum = 0;
    for (int i = half * 16; i < half * 16 + 16; ++i) {
      int const q = detail::nearest_int(detail::rounded_product(x[i], inverse));
      block.q[i] = std::int8_t(q);
      sum += q;
    }
    block.sums[half] = std::int16_t(sum);
  }
}

}  // namespace tiered
