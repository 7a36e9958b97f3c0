/// The kernels for AMX: 16-bit floats on tiles of bfloat16; all else as for AVX-512.
#pragma once

#include "tiered/kernels/cpu/avx512.hpp"
#include "tiered/kernels/cpu/make_table.hpp"
#include "tiered/kernels/cpu/matmul_amx.hpp"
#include "tiered/kernels/cpu/tiles_amx.hpp"

namespace tiered::cpu::amx {

/// `Tiles`: HardwareTiles, or the same in software.
template <class Tiles>
struct KernelsOn : avx512::Bf16Kernels {
  static constexpr char const* name = "amx";
  template <class F>
  static constexpr ProductKernel product() {
    if constexpr (panel_activation(F::dtype) != DType::act_bf16) {
      // Weights in blocks too: tiles of bytes, with scales for every 32 elements, were built and measured, and are no faster than VNNI.
      return avx512::Kernels::product<F>();
    } else {
      ProductKernel kernel{&panel_tile<F, Tiles>, panel_activation(F::dtype)};
      kernel.row_step = kernel.token_step = 16;
      kernel.most_rows = Blocking{}.rows;
      kernel.most_tokens = Blocking{}.tokens;
      return kernel;
    }
  }
};

struct Kernels : KernelsOn<HardwareTiles> {};

}  // namespace tiered::cpu::amx
