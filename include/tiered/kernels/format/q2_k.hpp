/// Q2_K: 256 weights in 16 groups of 16, (d * scale) * q - (dmin * min), q of 2 bits, scale and min of 4. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct Q2_K {
  static constexpr DType dtype = DType::q2_k;
  static constexpr int block_elems = 256, block_bytes = 84;
  struct Block {
    std::uint8_t scales[16];  ///< per group: low nibble scale, high nibble min
    std::uint8_t qs[64];      ///< byte l of 32-byte half h: elements 128h + 32k + l in bits 2k, 2k + 1
    std::uint16_t d, dmin;    ///< binary16
  };

  TIERED_HD static int quant(Block const& block, int i) { return block.qs[(i >> 7) * 32 + (i & 31)] >> (i >> 5 & 3) * 2 & 3; }
  TIERED_HD static float decode(Block const& block, int i) {
    std::uint8_t const packed = block.scales[i >> 4];
    float const scale = detail::exact_product(half_to_float(block.d), float(packed & 15));
    float const min = detail::exact_product(half_to_float(block.dmin), float(packed >> 4));
    return detail::rounded_difference(detail::exact_product(scale, float(quant(block, i))), min);
  }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    float const d = half_to_float(block.d), dmin = half_to_float(block.dmin);
    for (int group = 0; group < 16; ++group) {
      float const scale = detail::exact_product(d, float(block.scales[group] & 15));
      float const min = detail::exact_product(dmin, float(block.scales[group] >> 4));
      std::uint8_t const* const qs = block.qs + (group >> 3) * 32 + (group & 1) * 16;
      int const shift = (group >> 1 & 3) * 2;
      for (int l = 0; l < 16; ++l)
        out[group * 16 + l] = detail::rounded_difference(detail::exact_product(scale, float(qs[l] >> shift & 3)), min);
    }
  }
};
static_assert(sizeof(Q2_K::Block) == Q2_K::block_bytes && alignof(Q2_K::Block) <= 2);

}  // namespace tiered
