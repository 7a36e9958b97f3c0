/// The CPU's kernel tables, one for each instruction set, and the choice among them.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/table.hpp"

namespace tiered {

enum class Isa : std::uint8_t {
  baseline,  ///< what every machine of the target architecture has
  avx2,      ///< with FMA and F16C
  avx512,    ///< F, BW, DQ, VL and VNNI; BF16 where the machine has it
  amx,       ///< AVX-512 as above, with BF16, and the tiles of AMX for bfloat16 and bytes
};
inline constexpr Isa all_isas[] = {Isa::baseline, Isa::avx2, Isa::avx512, Isa::amx};

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
namespace cpu::avx512 {
KernelTable const& table(bool f32_activations);
}
namespace cpu::amx {
KernelTable const& table(bool f32_activations);
}
#endif

#if defined(__x86_64__)
namespace detail {

/// Leaf 7, subleaf 1, EAX bit 5.
inline bool has_avx512_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}

/// The system lets a process use the tiles' eight kilobytes of state once it has asked (arch_prctl(2), ARCH_REQ_XCOMP_PERM of state
/// 18); threads that start later inherit the answer.
inline bool may_use_tiles() {
#if defined(__linux__)
  static bool const permitted = ::syscall(SYS_arch_prctl, 0x1023, 18) == 0;
  return permitted;
#else
  return false;
#endif
}

}  // namespace detail
#endif

/// Whether its kernels are built and this machine can run them.
inline bool available(Isa isa) {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;  // by number where compilers differ in what they have names for
  switch (isa) {
    case Isa::baseline: return true;
    case Isa::avx2:  // F16C: leaf 1, ECX bit 29
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
    case Isa::avx512:
      return available(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    case Isa::amx:  // leaf 7, EDX: bit 22 bfloat16 products, 24 tiles
      if (!available(Isa::avx512) || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d >> 22 & d >> 24 & 1) == 0) return false;
      return detail::has_avx512_bf16() && detail::may_use_tiles();
  }
#endif
  return isa == Isa::baseline;
}

inline Isa best_isa() {
  Isa best = Isa::baseline;
  for (Isa const isa : all_isas) {
    if (available(isa)) best = isa;
  }
  return best;
}

/// The kernels of one instruction set; the table lives as long as the program.
/// With `f32_activations` all weights are multiplied with activations as they are, in f32: for comparisons, several times slower.
/// Errors   Errc::unsupported where available(isa) is false.
inline KernelTable const& cpu_kernels(Isa isa, bool f32_activations = false) {
  if (!available(isa)) throw Error(Errc::unsupported, concat("no CPU kernels for ", name(isa), ": not built, or this processor lacks it"));
#if defined(__x86_64__)
  if (isa == Isa::amx) return cpu::amx::table(f32_activations);
  if (isa == Isa::avx512) return cpu::avx512::table(f32_activations);
  if (isa == Isa::avx2) return cpu::avx2::table(f32_activations);
#endif
  return cpu::baseline::table(f32_activations);
}

}  // namespace tiered
