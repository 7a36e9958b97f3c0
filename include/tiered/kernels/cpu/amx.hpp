/// The kernels for AMX.
#pragma once

#include "tiered/kernels/cpu/avx512.hpp"
#include "tiered/kernels/cpu/make_table.hpp"

namespace tiered::cpu::amx {

struct Kernels : avx512::Kernels {
  static constexpr char const* name = "amx";
};

}  // namespace tiered::cpu::amx
