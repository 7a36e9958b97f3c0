/// The kernels for AVX-512 with VNNI.
#pragma once

#include "tiered/kernels/cpu/avx2.hpp"
#include "tiered/kernels/cpu/make_table.hpp"

namespace tiered::cpu::avx512 {

struct Kernels : avx2::Kernels {
  static constexpr char const* name = "avx512";
};

}  // namespace tiered::cpu::avx512
