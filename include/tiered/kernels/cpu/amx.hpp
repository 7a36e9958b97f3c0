/// The kernels for AMX: 16-bit floats on tiles of bfloat16; all else as for AVX-512.
#pragma once

#include "tiered/kernels/cpu/avx512.hpp"
#include "tiered/kernels/cpu/make_table.hpp"
#include "tiered/kernels/cpu/matmul_amx.hpp"
#include "tiered/kernels/cpu/tiles_amx.hpp"

namespace tiered::cpu::amx {

/// Weights in blocks too: tiles of bytes, with scales for every 32 elements, were built and measured, and are no faster than VNNI.
/// `Tiles`: HardwareTiles, or the same in software.
template <class Tiles>
struct KernelsOn : avx512::Bf16Kernels {
  static constexpr char const* name = "amx";
  template <class F>
  static constexpr ProductKernel product() {
    if constexpr (panel_activation(F::dtype) != DType::act_bf16) {
      return avx512::Kernels::product<F>();
    } else {
      return panel_kernel(&panel_tile<F, Tiles>, DType::act_bf16);
    }
  }
  /// Three products of panels, which are quicker than one of f32 on vectors: 9.7 TFLOP/s of 16 threads against 2.6 at most.
  template <class F>
  static constexpr ProductKernel fine_product() {
    return panel_kernel(&two_panels_tile<F, Tiles>, DType::act_bf16_two);
  }
  template <class F>
  static constexpr bool has_fine_product = F::dtype == DType::f16;
  static constexpr std::int32_t fine_work = 3;
  static void make_two_panels(QuantizeArgs const& args, Team& team) { quantize<true>(args, team); }

 private:
  static constexpr ProductKernel panel_kernel(MatmulTile tile, DType activation) {
    ProductKernel kernel{tile, activation};
    kernel.row_step = kernel.token_step = 16;
    kernel.most_rows = Blocking{}.rows;
    kernel.most_tokens = Blocking{}.tokens;
    return kernel;
  }
};

struct Kernels : KernelsOn<HardwareTiles> {};

}  // namespace tiered::cpu::amx
