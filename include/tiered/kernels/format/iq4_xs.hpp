/// IQ4_XS: 256 weights in 8 groups of 32, (d * (scale - 32)) * codebook[q] of IQ4_NL, scale of 6 bits. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"
#include "tiered/kernels/format/iq4_nl.hpp"

namespace tiered {

struct IQ4_XS {
  static constexpr DType dtype = DType::iq4_xs;
  static constexpr int block_elems = 256, block_bytes = 136;
  struct Block {
    std::uint16_t d;           ///< binary16
    std::uint16_t scales_h;    ///< bits 2g, 2g + 1: upper bits of the scale of group g
    std::uint8_t scales_l[4];  ///< nibble g: low bits of the scale of group g
    std::uint8_t qs[128];      ///< byte l of 16-byte part g: elements 32g + l (low nibble) and 32g + 16 + l (high)
  };

  /// -32..31.
  TIERED_HD static int scale(Block const& block, int group) {
    int const low = block.scales_l[group >> 1] >> (group & 1) * 4 & 15, high = block.scales_h >> group * 2 & 3;
    return (low | high << 4) - 32;
  }
  TIERED_HD static int quant(Block const& block, int i) {
    return IQ4_NL::codebook()[block.qs[(i >> 5) * 16 + (i & 15)] >> (i >> 4 & 1) * 4 & 15];
  }
  TIERED_HD static float decode(Block const& block, int i) {
    float const factor = detail::exact_product(half_to_float(block.d), float(scale(block, i >> 5)));
    return detail::exact_product(factor, float(quant(block, i)));
  }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    constexpr detail::Codebook16 values = IQ4_NL::codebook();
    float const d = half_to_float(block.d);
    for (int group = 0; group < 8; ++group, out += 32) {
      float const factor = detail::exact_product(d, float(scale(block, group)));
      std::uint8_t const* const qs = block.qs + group * 16;
      for (int l = 0; l < 16; ++l) {
        out[l] = detail::exact_product(factor, float(values[qs[l] & 15]));
        out[l + 16] = detail::exact_product(factor, float(values[qs[l] >> 4]));
      }
    }
  }
};
static_assert(sizeof(IQ4_XS::Block) == IQ4_XS::block_bytes && alignof(IQ4_XS::Block) <= 2);

}  // namespace tiered
