/// Q4_K: 256 weights in 8 groups of 32, (d * scale) * q - (dmin * min), q of 4 bits, scale and min of 6. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

namespace detail {

struct ScaleMin {
  int scale, min;
};
/// The 6-bit scale and min of group 0..7 of Q4_K and Q5_K. Groups 0..3: low six bits of bytes g and 4 + g. Groups 4..7: low and
/// high nibble of byte 4 + g, above them the upper two bits of bytes g - 4 and g.
TIERED_HD constexpr ScaleMin scale_min_k4(std::uint8_t const (&scales)[12], int group) {
  if (group < 4) return {scales[group] & 63, scales[group + 4] & 63};
  return {(scales[group + 4] & 15) | (scales[group - 4] >> 6) << 4, (scales[group + 4] >> 4) | (scales[group] >> 6) << 4};
}

}  // namespace detail

struct Q4_K {
  static constexpr DType dtype = DType::q4_k;
  static constexpr int block_elems = 256, block_bytes = 144;
  struct Block {
    std::uint16_t d, dmin;    ///< binary16
    std::uint8_t scales[12];  ///< detail::scale_min_k4
    std::uint8_t qs[128];     ///< byte l of 32-byte part p: elements 64p + l (low nibble) and 64p + 32 + l (high)
  };

  TIERED_HD static int quant(Block const& block, int i) { return block.qs[(i >> 6) * 32 + (i & 31)] >> (i >> 5 & 1) * 4 & 15; }
  TIERED_HD static float decode(Block const& block, int i) {
    detail::ScaleMin const packed = detail::scale_min_k4(block.scales, i >> 5);
    float const scale = detail::exact_product(half_to_float(block.d), float(packed.scale));
    float const min = detail::exact_product(half_to_float(block.dmin), float(packed.min));
    return detail::rounded_difference(detail::exact_product(scale, float(quant(block, i))), min);
  }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    float const d = half_to_float(block.d), dmin = half_to_float(block.dmin);
    for (int group = 0; group < 8; ++group) {
      detail::ScaleMin const packed = detail::scale_min_k4(block.scales, group);
      float const scale = detail::exact_product(d, float(packed.scale)), min = detail::exact_product(dmin, float(packed.min));
      std::uint8_t const* const qs = block.qs + (group >> 1) * 32;
      int const shift = (group & 1) * 4;
      for (int l = 0; l < 32; ++l)
        out[group * 32 + l] = detail::rounded_difference(detail::exact_product(scale, float(qs[l] >> shift & 15)), min);
    }
  }
};
static_assert(sizeof(Q4_K::Block) == Q4_K::block_bytes && alignof(Q4_K::Block) <= 2);

}  // namespace tiered
