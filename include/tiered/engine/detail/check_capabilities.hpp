/// Whether a table of kernels can run a model's matrices: asked once, at planning.
#pragma once

#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/table.hpp"
#include "tiered/model/shard.hpp"

namespace tiered::detail {

/// Every matrix of the model has a kernel: asked here, never during a step.
inline void check_capabilities(ShardTable const& table, KernelTable const& kernels) {
  for (Weight const& w : table.weights) {
    ShardKind const kind = table.shard(w.shard).kind;
    bool const ok = kind == ShardKind::embedding ? kernels.embed[std::uint32_t(w.dtype)] != nullptr : kernels.supports(w.dtype);
    DType const takes = ok ? kernels.product(w.dtype, w.row_bits).activation : DType::f32;
    if (takes != DType::f32 && kernels.convert[activation_form(takes)] == nullptr) {
      throw Error(Errc::unsupported,
                  concat("the ", kernels.name, " kernels take activations in ", name(takes), ", which they cannot make"));
    }
    if (!ok)
      throw Error(Errc::unsupported, concat("the ", kernels.name, " kernels have no ", kind == ShardKind::embedding ? "look-up" : "product",
                                            " for type ", name(w.dtype)));
  }
}

}  // namespace tiered::detail
