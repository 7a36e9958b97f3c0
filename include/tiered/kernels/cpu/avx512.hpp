/// The kernels for AVX-512 with VNNI.
#pragma once

#include "tiered/kernels/cpu/attention_avx512.hpp"
#include "tiered/kernels/cpu/avx2.hpp"
#include "tiered/kernels/cpu/leaf_avx512.hpp"
#include "tiered/kernels/cpu/make_table.hpp"
#include "tiered/kernels/cpu/matmul_avx512.hpp"

namespace tiered::cpu::avx512 {

struct Kernels : avx2::Kernels {
  static constexpr char const* name = "avx512";
  using Leaf = avx512::Leaf;
  using AttentionLeaf = avx512::AttentionLeaf;
  template <class F>
  static constexpr ProductKernel f32_product() {
    return f32_kernel<F, Leaf>();
  }
  template <class F>
  static constexpr ProductKernel product() {
    if constexpr (F::block_elems == 1) {
      return f32_product<F>();
    } else {
      return {&avx512::quantized_tile<F>, DType::act_q8, panel_height, panel_width, kept_rows};
    }
  }
};

}  // namespace tiered::cpu::avx512
