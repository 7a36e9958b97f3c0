/// Q4_1: 32 weights d * q + m, q of 4 bits. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct Q4_1 {
  static constexpr DType dtype = DType::q4_1;
  static constexpr int block_elems = 32, block_bytes = 20;
  struct Block {
    std::uint16_t d, m;   ///< binary16
    std::uint8_t qs[16];  ///< low nibbles: elements 0..15, high: 16..31
  };

  TIERED_HD static int quant(Block const& block, int i) { return block.qs[i & 15] >> (i < 16 ? 0 : 4) & 15; }
  TIERED_HD static float decode(Block const& block, int i) {
    return detail::rounded_sum(detail::exact_product(half_to_float(block.d), float(quant(block, i))), half_to_float(block.m));
  }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    float const d = half_to_float(block.d), m = half_to_float(block.m);
    for (int i = 0; i < 16; ++i) {
      out[i] = detail::rounded_sum(detail::exact_product(d, float(block.qs[i] & 15)), m);
      out[i + 16] = detail::rounded_sum(detail::exact_product(d, float(block.qs[i] >> 4)), m);
    }
  }
};
static_assert(sizeof(Q4_1::Block) == Q4_1::block_bytes && alignof(Q4_1::Block) <= 2);

}  // namespace tiered
