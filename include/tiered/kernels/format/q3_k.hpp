/// Q3_K: 256 weights in 16 groups of 16, (d * (scale - 32)) * (q - 4), q of 3 bits, scale of 6. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct Q3_K {
  static constexpr DType dtype = DType::q3_k;
  static constexpr int block_elems = 256, block_bytes = 110;
  struct Block {
    std::uint8_t hmask[32];   ///< bit k of byte l: the third bit of element 32k + l
    std::uint8_t qs[64];      ///< byte l of 32-byte half h: low two bits of elements 128h + 32k + l in bits 2k, 2k + 1
    std::uint8_t scales[12];  ///< see scale()
    std::uint16_t d;          ///< binary16
  };

  /// -32..31. Low four bits: bytes 0..7, low nibbles for groups 0..7, high ones for 8..15. Upper two: byte 8 + g % 4, bits 2(g / 4).
  TIERED_HD static int scale(Block const& block, int group) {
    int const low = block.scales[group & 7] >> (group < 8 ? 0 : 4) & 15;
    int const high = block.scales[8 + (group & 3)] >> (group >> 2) * 2 & 3;
    return (low | high << 4) - 32;
  }
  TIERED_HD static int quant(Block const& block, int i) {
    int const low = block.qs[(i >> 7) * 32 + (i & 31)] >> (i >> 5 & 3) * 2 & 3;
    return (low | (block.hmask[i & 31] >> (i >> 5) & 1) << 2) - 4;
  }
  TIERED_HD static float decode(Block const& block, int i) {
    float const factor = detail::exact_product(half_to_float(block.d), float(scale(block, i >> 4)));
    return detail::exact_product(factor, float(quant(block, i)));
  }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    float const d = half_to_float(block.d);
    for (int group = 0; group < 16; ++group) {
      float const factor = detail::exact_product(d, float(scale(block, group)));
      std::uint8_t const* const qs = block.qs + (group >> 3) * 32 + (group & 1) * 16;
      std::uint8_t const* const hmask = block.hmask + (group & 1) * 16;
      int const shift = (group >> 1 & 3) * 2, bit = group >> 1;
      for (int l = 0; l < 16; ++l) {
        int const q = ((qs[l] >> shift & 3) | (hmask[l] >> bit & 1) << 2) - 4;
        out[group * 16 + l] = detail::exact_product(factor, float(q));
      }
    }
  }
};
static_assert(sizeof(Q3_K::Block) == Q3_K::block_bytes && alignof(Q3_K::Block) <= 2);

}  // namespace tiered
