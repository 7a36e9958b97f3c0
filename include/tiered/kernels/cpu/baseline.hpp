/// The kernels that every machine can run.
#pragma once

#include "tiered/kernels/cpu/attention_baseline.hpp"
#include "tiered/kernels/cpu/leaf_baseline.hpp"
#include "tiered/kernels/cpu/make_table.hpp"
#include "tiered/kernels/cpu/matmul_baseline.hpp"

namespace tiered::cpu::baseline {

struct Kernels {
  static constexpr char const* name = "baseline";
  using Leaf = baseline::Leaf;
  using AttentionLeaf = baseline::AttentionLeaf;
  template <class F>
  static constexpr ProductKernel f32_product() {
    return f32_kernel<F, Leaf>();
  }
  template <class F>
  static constexpr ProductKernel product() {
    if constexpr (F::block_elems == 1) {
      return f32_product<F>();
    } else {
      return {&baseline::quantized_tile<F>, DType::act_q8};
    }
  }
};

}  // namespace tiered::cpu::baseline
