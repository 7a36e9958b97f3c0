/// MXFP4: 32 weights 2^(e - 127) * E2M1, of the OCP Microscaling Formats specification 1.0. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct MXFP4 {
  static constexpr DType dtype = DType::mxfp4;
  static constexpr int block_elems = 32, block_bytes = 17;
  struct Block {
    std::uint8_t e;       ///< E8M0
    std::uint8_t qs[16];  ///< low nibbles: elements 0..15, high: 16..31; sign, two bits of exponent, one of mantissa
  };

  /// Twice the E2M1 values, which makes them whole; the scale is halved in return.
  TIERED_HD static constexpr detail::Codebook16 codebook() {
    return {detail::pack_bytes(0, 1, 2, 3, 4, 6, 8, 12), detail::pack_bytes(0, -1, -2, -3, -4, -6, -8, -12)};
  }
  TIERED_HD static int quant(Block const& block, int i) { return codebook()[block.qs[i & 15] >> (i < 16 ? 0 : 4) & 15]; }
  TIERED_HD static float decode(Block const& block, int i) {
    return detail::exact_product(e8m0_to_half_float(block.e), float(quant(block, i)));
  }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    constexpr detail::Codebook16 values = codebook();
    float const scale = e8m0_to_half_float(block.e);
    for (int i = 0; i < 16; ++i) {
      out[i] = detail::exact_product(scale, float(values[block.qs[i] & 15]));
      out[i + 16] = detail::exact_product(scale, float(values[block.qs[i] >> 4]));
    }
  }
};
static_assert(sizeof(MXFP4::Block) == MXFP4::block_bytes && alignof(MXFP4::Block) <= 2);

}  // namespace tiered
