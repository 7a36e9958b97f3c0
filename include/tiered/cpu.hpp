/// The library with the CPU kernels themselves, for programs that do not link tiered::cpu. Include it in one source file of a
/// program: it defines functions, and takes a while to compile.
#pragma once

#include "tiered/kernels/cpu/detail/team_impl.hpp"
#include "tiered/kernels/cpu/instantiate.hpp"
#include "tiered/memory/detail/lane_impl.hpp"

namespace tiered::cpu {
namespace baseline {
KernelTable const& table(bool f32_activations) { return kernel_table<Kernels>(f32_activations); }
}  // namespace baseline
#if defined(__x86_64__)
namespace avx2 {
KernelTable const& table(bool f32_activations) { return kernel_table<Kernels>(f32_activations); }
}  // namespace avx2
#endif
}  // namespace tiered::cpu
