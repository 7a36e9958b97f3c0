/// Q5_1: 32 weights d * q + m, q of 5 bits. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct Q5_1 {
  static constexpr DType dtype = DType::q5_1;
  static constexpr int block_elems = 32, block_bytes = 24;
  struct Block {
    std::uint16_t d, m;   ///< binary16
    std::uint8_t qh[4];   ///< bit i of these 32: the fifth bit of element i
    std::uint8_t qs[16];  ///< low nibbles: elements 0..15, high: 16..31
  };

  TIERED_HD static int quant(Block const& block, int i) {
    return (block.qs[i & 15] >> (i < 16 ? 0 : 4) & 15) | (block.qh[i >> 3] >> (i & 7) & 1) << 4;
  }
  TIERED_HD static float decode(Block const& block, int i) {
    return detail::rounded_sum(detail::exact_product(half_to_float(block.d), float(quant(block, i))), half_to_float(block.m));
  }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    float const d = half_to_float(block.d), m = half_to_float(block.m);
    for (int i = 0; i < 32; ++i) out[i] = detail::rounded_sum(detail::exact_product(d, float(quant(block, i))), m);
  }
};
static_assert(sizeof(Q5_1::Block) == Q5_1::block_bytes && alignof(Q5_1::Block) <= 2);

}  // namespace tiered
