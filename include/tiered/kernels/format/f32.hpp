/// Weights as IEEE binary32. [device-visible]
#pragma once

#include "tiered/core/config.hpp"
#include "tiered/core/dtype.hpp"

namespace tiered {

struct F32 {
  static constexpr DType dtype = DType::f32;
  static constexpr int block_elems = 1, block_bytes = sizeof(float);
  struct Block {
    float value;
  };

  TIERED_HD static constexpr float decode(Block const& block, int) { return block.value; }
  TIERED_HD static constexpr void decode_block(Block const& block, float* out) { *out = decode(block, 0); }
};
static_assert(sizeof(F32::Block) == F32::block_bytes);

}  // namespace tiered
