/// IQ4_NL: 32 weights d * codebook[q], q of 4 bits, the codebook not linear. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct IQ4_NL {
  static constexpr DType dtype = DType::iq4_nl;
  static constexpr int block_elems = 32, block_bytes = 18;
  struct Block {
    std::uint16_t d;      ///< binary16
    std::uint8_t qs[16];  ///< low nibbles: elements 0..15, high: 16..31
  };

  TIERED_HD static constexpr detail::Codebook16 codebook() {
    return {detail::pack_bytes(-127, -104, -83, -65, -49, -35, -22, -10), detail::pack_bytes(1, 13, 25, 38, 53, 69, 89, 113)};
  }
  TIERED_HD static int quant(Block const& block, int i) { return codebook()[block.qs[i & 15] >> (i < 16 ? 0 : 4) & 15]; }
  TIERED_HD static float decode(Block const& block, int i) { return detail::exact_product(half_to_float(block.d), float(quant(block, i))); }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    constexpr detail::Codebook16 values = codebook();
    float const d = half_to_float(block.d);
    for (int i = 0; i < 16; ++i) {
      out[i] = detail::exact_product(d, float(values[block.qs[i] & 15]));
      out[i + 16] = detail::exact_product(d, float(values[block.qs[i] >> 4]));
    }
  }
};
static_assert(sizeof(IQ4_NL::Block) == IQ4_NL::block_bytes && alignof(IQ4_NL::Block) <= 2);

}  // namespace tiered
