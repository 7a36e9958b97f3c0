/// Q8_0: 32 weights d * q, q a signed byte. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/arithmetic.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct Q8_0 {
  static constexpr DType dtype = DType::q8_0;
  static constexpr int block_elems = 32, block_bytes = 34;
  struct Block {
    std::uint16_t d;  ///< binary16
    std::int8_t qs[32];
  };

  TIERED_HD static int quant(Block const& block, int i) { return block.qs[i]; }
  TIERED_HD static float decode(Block const& block, int i) { return detail::exact_product(half_to_float(block.d), float(block.qs[i])); }
  TIERED_HD static void decode_block(Block const& block, float* out) {
    float const d = half_to_float(block.d);
    for (int i = 0; i < 32; ++i) out[i] = detail::exact_product(d, float(block.qs[i]));
  }
};
static_assert(sizeof(Q8_0::Block) == Q8_0::block_bytes && alignof(Q8_0::Block) <= 2);

}  // namespace tiered
