/// Q6_K: 256 weights in 16 groups of 16, (d * scale) * (q - 32), q of 6 bits, scale a signed byte. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct Q6_K {
  static constexpr DType dtype = DType::q6_k;
  static constexpr int block_elems = 256, block_bytes = 210;
  struct Block {
    std::uint8_t ql[128];    ///< byte l of 64-byte half h: low four bits of elements 128h + l (low nibble) and 128h + 64 + l (high)
    std::uint8_t qh[64];     ///< byte l of 32-byte half h: upper two bits of elements 128h + 32k + l in bits 2k, 2k + 1
    std::int8_t scales[16];  ///< per group
    std::uint16_t d;         ///< binary16
  };

  TIERED_HD static int quant(Block const& block, int i) {
    int const low = block.ql[(i >> 7) * 64 + (i & 63)] >> (i >> 6 & 1) * 4 & 15;
    return (low | (block.qh[(i >> 7) * 32 + (i & 31)] >> (i >> 5 & 3) * 2 & 3) << 4) - 32;
  }
  TIERED_HD static float decode(Block const& block, int i) {
    float const factor = detail::exact_product(half_to_float(block.d), float(block.scales[i >> 4]));
    return detail::exact_product(factor, float(quant(block, i)));
  }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    float const d = half_to_float(block.d);
    for (int group = 0; group < 16; ++group) {
      float const factor = detail::exact_product(d, float(block.scales[group]));
      int const half = group >> 3, part = group >> 1 & 3, first = (group & 1) * 16;
      std::uint8_t const* const ql = block.ql + half * 64 + (part & 1) * 32 + first;
      std::uint8_t const* const qh = block.qh + half * 32 + first;
      int const low_shift = (part >> 1) * 4, high_shift = part * 2;
      for (int l = 0; l < 16; ++l) {
        int const q = ((ql[l] >> low_shift & 15) | (qh[l] >> high_shift & 3) << 4) - 32;
        out[group * 16 + l] = detail::exact_product(factor, float(q));
      }
    }
  }
};
static_assert(sizeof(Q6_K::Block) == Q6_K::block_bytes && alignof(Q6_K::Block) <= 2);

}  // namespace tiered
