/// The kernels that every machine can run.
#pragma once

#include "tiered/kernels/cpu/leaf_baseline.hpp"
#include "tiered/kernels/cpu/make_table.hpp"
#include "tiered/kernels/cpu/matmul_baseline.hpp"

namespace tiered::cpu::baseline {

struct Kernels {
  static constexpr char const* name = "baseline";
  using Leaf = baseline::Leaf;
  template <class F>
  static void quantized_tile(Product const& product, Range rows, Range tokens) {
    baseline::quantized_tile<F>(product, rows, tokens);
  }
};

}  // namespace tiered::cpu::baseline
