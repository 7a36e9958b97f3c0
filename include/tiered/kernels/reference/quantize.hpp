/// Rows of f32 to what products read: the definition itself, which every backend equals bit for bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tiered/core/error.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::reference {

/// To 8-bit blocks.
inline void quantize(QuantizeArgs const& a) {
  expects(a.dim % ActQ8x32::block_elems == 0, "a row is a whole number of activation blocks");
  std::int64_t const n_blocks = std::int64_t(a.n_rows) * (a.dim / ActQ8x32::block_elems);
  for (std::int64_t i = 0; i < n_blocks; ++i) quantize_block(a.x + i * ActQ8x32::block_elems, static_cast<ActQ8x32*>(a.y)[i]);
}

/// To bfloat16 panels.
inline void pack_panels(QuantizeArgs const& a) {
  auto* const y = static_cast<std::uint16_t*>(a.y);
  std::fill_n(y, activation_bytes(DType::act_bf16, std::uint64_t(a.n_rows), std::uint64_t(a.dim)) / 2, std::uint16_t{0});
  for (std::int32_t row = 0; row < a.n_rows; ++row) {
    for (std::int32_t k = 0; k < a.dim; ++k) y[panel_index(a.n_rows, a.dim, row, k)] = float_to_panel(a.x[std::int64_t(row) * a.dim + k]);
  }
}

/// To `type`: act_q8 or act_bf16.
inline void quantize(QuantizeArgs const& a, DType type) {
  expects(type == DType::act_q8 || type == DType::act_bf16, "rows are converted to act_q8 or act_bf16");
  if (type == DType::act_bf16) return pack_panels(a);
  quantize(a);
}

}  // namespace tiered::reference
