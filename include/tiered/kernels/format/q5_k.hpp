/// Q5_K: 256 weights in 8 groups of 32, (d * scale) * q - (dmin * min), q of 5 bits, scale and min of 6. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"
#include "tiered/kernels/format/q4_k.hpp"

namespace tiered {

struct Q5_K {
  static constexpr DType dtype = DType::q5_k;
  static constexpr int block_elems = 256, block_bytes = 176;
  struct Block {
    std::uint16_t d, dmin;    ///< binary16
    std::uint8_t scales[12];  ///< detail::scale_min_k4
    std::uint8_t qh[32];      ///< bit k of byte l: the fifth bit of element 32k + l
    std::uint8_t qs[128];     ///< byte l of 32-byte part p: elements 64p + l (low nibble) and 64p + 32 + l (high)
  };

  TIERED_HD static int quant(Block const& block, int i) {
    int const low = block.qs[(i >> 6) * 32 + (i & 31)] >> (i >> 5 & 1) * 4 & 15;
    return low | (block.qh[i & 31] >> (i >> 5) & 1) << 4;
  }
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
      for (int l = 0; l < 32; ++l) {
        int const q = (qs[l] >> shift & 15) | (block.qh[l] >> group & 1) << 4;
        out[group * 32 + l] = detail::rounded_difference(detail::exact_product(scale, float(q)), min);
      }
    }
  }
};
static_assert(sizeof(Q5_K::Block) == Q5_K::block_bytes && alignof(Q5_K::Block) <= 2);

}  // namespace tiered
