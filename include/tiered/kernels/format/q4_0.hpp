/// Q4_0: 32 weights d * (q - 8), q of 4 bits. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct Q4_0 {
  static constexpr DType dtype = DType::q4_0;
  static constexpr int block_elems = 32, block_bytes = 18;
  struct Block {
    std::uint16_t d;      ///< binary16
    std::uint8_t qs[16];  ///< low nibbles: elements 0..15, high: 16..31
  };

  TIERED_HD static int quant(Block const& block, int i) { return (block.qs[i & 15] >> (i < 16 ? 0 : 4) & 15) - 8; }
  TIERED_HD static float decode(Block const& block, int i) { return detail::exact_product(half_to_float(block.d), float(quant(block, i))); }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    float const d = half_to_float(block.d);
    for (int i = 0; i < 16; ++i) {
      out[i] = detail::exact_product(d, float((block.qs[i] & 15) - 8));
      out[i + 16] = detail::exact_product(d, float((block.qs[i] >> 4) - 8));
    }
  }
};
static_assert(sizeof(Q4_0::Block) == Q4_0::block_bytes && alignof(Q4_0::Block) <= 2);

}  // namespace tiered
