/// Defines CpuPolicies: for one source file of a program.
#pragma once

#include <memory>

#include "tiered/engine/policies.hpp"

namespace tiered {

Machine<CpuBackend, CpuBackend, MemcpyEngine> CpuPolicies::make_machine(MachineOptions const& o) {
  auto lanes = LaneSet::threads();
  if (o.keep_times) lanes->keep_times();
  auto host = std::make_unique<CpuBackend>(lanes, CpuOptions{.isa = o.isa, .n_threads = o.n_threads, .f32_activations = o.f32_activations});
  auto device = std::make_unique<CpuBackend>(
      lanes, CpuOptions{.isa = o.isa, .n_threads = 1, .f32_activations = o.f32_activations, .memory_bytes = 0});
  return {lanes, std::move(host), std::move(device), std::make_unique<MemcpyEngine>(lanes)};
}

}  // namespace tiered
