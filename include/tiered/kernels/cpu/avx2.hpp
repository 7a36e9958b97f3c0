/// The kernels for AVX2, FMA and F16C.
#pragma once

#include "tiered/kernels/cpu/leaf_avx2.hpp"
#include "tiered/kernels/cpu/make_table.hpp"
#include "tiered/kernels/cpu/matmul_avx2.hpp"

namespace tiered::cpu::avx2 {

struct Kernels {
  static constexpr char const* name = "avx2";
  using Leaf = avx2::Leaf;
  template <class F>
  static void quantized_tile(Product const& product, Range rows, Range tokens) {
    avx2::quantized_tile<F>(product, rows, tokens);
  }
};

}  // namespace tiered::cpu::avx2
