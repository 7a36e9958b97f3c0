/// Rows of f32 to 8-bit activation blocks: the definition itself, which every backend equals bit for bit.
#pragma once

#include <cstdint>

#include "tiered/core/error.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::reference {

/// `Block` is ActQ8x32 or ActQ8x256.
template <class Block>
void quantize(QuantizeArgs const& a) {
  expects(a.dim % Block::block_elems == 0, "a row is a whole number of activation blocks");
  std::int64_t const n_blocks = std::int64_t(a.n_rows) * (a.dim / Block::block_elems);
  for (std::int64_t i = 0; i < n_blocks; ++i) quantize_block(a.x + i * Block::block_elems, static_cast<Block*>(a.y)[i]);
}

/// The same for an activation type known at run time.
inline void quantize(QuantizeArgs const& a, DType activation) {
  expects(activation == DType::act_q8_32 || activation == DType::act_q8_256, "quantised activations are act_q8_32 or act_q8_256");
  if (activation == DType::act_q8_32) {
    quantize<ActQ8x32>(a);
  } else {
    quantize<ActQ8x256>(a);
  }
}

}  // namespace tiered::reference
