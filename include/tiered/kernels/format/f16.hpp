/// Weights as IEEE binary16. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered {

struct F16 {
  static constexpr DType dtype = DType::f16;
  static constexpr int block_elems = 1, block_bytes = sizeof(std::uint16_t);
  struct Block {
    std::uint16_t value;
  };

  TIERED_HD static constexpr float decode(Block const& block, int) { return half_to_float(block.value); }
  TIERED_HD static constexpr void decode_block(Block const& block, float* out) { *out = decode(block, 0); }
};
static_assert(sizeof(F16::Block) == F16::block_bytes);

}  // namespace tiered
