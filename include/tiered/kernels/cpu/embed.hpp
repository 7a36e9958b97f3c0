/// Rows of the embedding table, and rows of activations to 8-bit blocks.
#pragma once

#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::cpu {

template <class F, class Leaf>
void embed(EmbedArgs const& a, Team& team) {
  auto const* const table = static_cast<std::byte const*>(a.table);
  std::int64_t const bytes = std::int64_t(row_bytes(F::dtype, std::uint64_t(a.dim)));
  team.parallel_for(a.n_rows, row_grain(team, a.n_rows, a.dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* const out = a.out + t * a.dim;
      Leaf::template decode<F>(table + std::int64_t(a.tokens[t]) * bytes, a.dim, out);
      if (a.scale == 1.0f) continue;
      for (std::int32_t i = 0; i < a.dim; ++i) out[i] *= a.scale;
    }
  });
}

/// Blocks are independent, so that one long row is spread over threads too.
template <class Leaf>
void quantize(QuantizeArgs const& a, Team& team) {
  constexpr int elems = ActQ8x32::block_elems;
  std::int64_t const n_blocks = std::int64_t(a.n_rows) * (a.dim / elems);
  auto* const y = static_cast<ActQ8x32*>(a.y);
  team.parallel_for(n_blocks, row_grain(team, n_blocks, elems),
                    [&](std::int64_t begin, std::int64_t end) { Leaf::quantize(a.x + begin * elems, end - begin, y + begin); });
}

}  // namespace tiered::cpu
