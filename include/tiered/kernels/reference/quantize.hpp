/// Rows of f32 to 8-bit activation blocks: the definition itself, which every backend equals bit for bit.
#pragma once

#include <cstdint>

#include "tiered/core/error.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::reference {

inline void quantize(QuantizeArgs const& a) {
  expects(a.dim % ActQ8x32::block_elems == 0, "a row is a whole number of activation blocks");
  std::int64_t const n_blocks = std::int64_t(a.n_rows) * (a.dim / ActQ8x32::block_elems);
  for (std::int64_t i = 0; i < n_blocks; ++i) quantize_block(a.x + i * ActQ8x32::block_elems, static_cast<ActQ8x32*>(a.y)[i]);
}

}  // namespace tiered::reference
