/// Embedding rows, slow and obvious.
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/format/decode.hpp"

namespace tiered::reference {

/// EmbedArgs with the table in the given type. Exact but for the one rounding of the scale.
inline void embed(EmbedArgs const& a, DType table) {
  std::uint64_t const bytes = row_bytes(table, std::uint64_t(a.dim));
  for (std::int64_t t = 0; t < a.n_rows; ++t) {
    float* const out = a.out + t * a.dim;
    decode_row(table, static_cast<std::byte const*>(a.table) + std::uint64_t(a.tokens[t]) * bytes, a.dim, out);
    for (std::int32_t k = 0; k < a.dim; ++k) out[k] *= a.scale;
  }
}

}  // namespace tiered::reference
