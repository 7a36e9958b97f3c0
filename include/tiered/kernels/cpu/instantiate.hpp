/// Defines what kernels/cpu/table.hpp declares, for the instruction set that the macro TIERED_CPU_ISA names.
///
/// For one source file of each instruction set, compiled without flags for it: the functions themselves carry their targets.
///   #define TIERED_CPU_ISA avx2
///   #include "tiered/kernels/cpu/instantiate.hpp"
#pragma once

#include "tiered/kernels/cpu/baseline.hpp"
#include "tiered/kernels/cpu/table.hpp"
#if defined(__x86_64__)
#include "tiered/kernels/cpu/amx.hpp"
#include "tiered/kernels/cpu/avx2.hpp"
#include "tiered/kernels/cpu/avx512.hpp"
#endif

#if defined(TIERED_CPU_ISA)
namespace tiered::cpu::TIERED_CPU_ISA {

KernelTable const& table(bool f32_activations) { return kernel_table<Kernels>(f32_activations); }

}  // namespace tiered::cpu::TIERED_CPU_ISA
#endif
