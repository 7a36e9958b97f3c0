/// The kernels for AVX-512 with VNNI, and with BF16.
#pragma once

#include "tiered/kernels/cpu/attention_avx512.hpp"
#include "tiered/kernels/cpu/avx2.hpp"
#include "tiered/kernels/cpu/leaf_avx512.hpp"
#include "tiered/kernels/cpu/make_table.hpp"
#include "tiered/kernels/cpu/matmul_avx512.hpp"
#include "tiered/kernels/cpu/matmul_bf16_avx512.hpp"
#include "tiered/kernels/cpu/panels_amx.hpp"
#include "tiered/kernels/cpu/table.hpp"

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

/// With BF16: 16-bit floats become bfloat16, and meet panels.
struct Bf16Kernels : Kernels {
  template <class F>
  static constexpr ProductKernel product() {
    if constexpr (panel_activation(F::dtype) == DType::act_bf16) {
      return bf16_kernel<F>();
    } else {
      return Kernels::product<F>();
    }
  }
  /// In f32: half the rate, where bfloat16 in two parts, which weights of binary16 have as well, would be a third.
  template <class F>
  static constexpr ProductKernel fine_product() {
    return Kernels::f32_product<F>();
  }
  template <class F>
  static constexpr bool has_fine_product = F::dtype == DType::f16;
  static constexpr std::int32_t fine_work = 2;
  static void make_panels(QuantizeArgs const& args, Team& team) { amx::quantize(args, team); }

  /// For rows that lie anywhere: elements k of all of them to panels of their own.
  static void pack(amx::PanelRows const& rows, Range k, void* y) { amx::pack_panels(rows, k, static_cast<std::uint16_t*>(y)); }
};

}  // namespace tiered::cpu::avx512

namespace tiered::cpu {

template <>
inline KernelTable const& kernel_table<avx512::Kernels>(bool f32_activations) {
  if (f32_activations) return kernel_table_of<avx512::Kernels, true>;
  return tiered::detail::has_avx512_bf16() ? kernel_table_of<avx512::Bf16Kernels, false> : kernel_table_of<avx512::Kernels, false>;
}

}  // namespace tiered::cpu
