/// The kernels for AVX2, FMA and F16C.
#pragma once

#include "tiered/kernels/cpu/attention_avx2.hpp"
#include "tiered/kernels/cpu/leaf_avx2.hpp"
#include "tiered/kernels/cpu/make_table.hpp"
#include "tiered/kernels/cpu/matmul_avx2.hpp"

namespace tiered::cpu::avx2 {

struct Kernels {
  static constexpr char const* name = "avx2";
  using Leaf = avx2::Leaf;
  using AttentionLeaf = avx2::AttentionLeaf;
  template <class F>
  static constexpr ProductKernel f32_product() {
    return f32_kernel<F, Leaf>();
  }
  template <class F>
  static constexpr ProductKernel product() {
    if constexpr (F::block_elems == 1) {
      return f32_product<F>();
    } else {
      return {&avx2::quantized_tile<F>, DType::act_q8, panel_height, panel_width, kept_rows};
    }
  }
};

}  // namespace tiered::cpu::avx2
