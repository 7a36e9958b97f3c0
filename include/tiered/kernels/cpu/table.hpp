/// The CPU's kernel tables, one for each instruction set, and the choice among them.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/table.hpp"

namespace tiered {

enum class Isa : std::uint8_t {
  baseline,  ///< what every machine of the target architecture has
  avx2,      ///< with FMA and F16C
  avx512,    ///< not built yet
  amx,       ///< not built yet
};

constexpr char const* name(Isa isa) {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
    case Isa::amx: return "amx";
  }
  return "?";
}

/// Defined by kernels/cpu/instantiate.hpp, once for each instruction set: link tiered::cpu, or include tiered/cpu.hpp in one source
/// file of the program.
namespace cpu::baseline {
KernelTable const& table(bool f32_activations);
}
#if defined(__x86_64__)
namespace cpu::avx2 {
KernelTable const& table(bool f32_activations);
}
#endif

/// Whether its kernels are built and this machine can run them.
inline bool available(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx2) {
    unsigned a = 0, b = 0, c = 0, d = 0;  // F16C: leaf 1, ECX bit 29; clang 14 knows no name for it
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
  }
#endif
  return isa == Isa::baseline;
}

inline Isa best_isa() { return available(Isa::avx2) ? Isa::avx2 : Isa::baseline; }

/// The kernels of one instruction set; the table lives as long as the program.
/// With `f32_activations` all weights are multiplied with activations as they are, in f32: for comparisons, several times slower.
/// Errors   Errc::unsupported where available(isa) is false.
inline KernelTable const& cpu_kernels(Isa isa, bool f32_activations = false) {
  if (!available(isa)) throw Error(Errc::unsupported, concat("no CPU kernels for ", name(isa), ": not built, or this processor lacks it"));
#if defined(__x86_64__)
  if (isa == Isa::avx2) return cpu::avx2::table(f32_activations);
#endif
  return cpu::baseline::table(f32_activations);
}

}  // namespace tiered
