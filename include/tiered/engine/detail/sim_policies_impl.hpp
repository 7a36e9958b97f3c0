/// Defines SimPolicies: for one source file of a program.
#pragma once

#include <memory>
#include <utility>

#include "tiered/engine/sim_policies.hpp"

namespace tiered {

Machine<CpuBackend, SimBackend, SimPolicies::Copy> SimPolicies::make_machine(MachineOptions const& o) {
  return make_machine(o, LaneSet::threads(), nullptr);
}

Machine<CpuBackend, SimBackend, SimPolicies::Copy> SimPolicies::make_machine(MachineOptions const& o, std::shared_ptr<LaneSet> lanes,
                                                                             std::shared_ptr<Faults> faults) {
  if (o.keep_times) lanes->keep_times();
  // One team for both: two of them would watch for work on the same cores, each in the way of the other's.
  auto const team = std::make_shared<Team>(o.n_threads == 0 ? default_thread_count() : o.n_threads);
  CpuOptions const host_options{.isa = o.isa, .team = team, .f32_activations = o.f32_activations};
  auto host = std::make_unique<CpuBackend>(lanes, host_options);
  SimOptions sim;
  sim.vram_bytes = o.vram_bytes;
  sim.team = team;
  sim.f32_activations = o.f32_activations;
  sim.isa = o.isa;
  sim.faults = faults;
  auto device = std::make_unique<SimBackend>(lanes, sim);
  SimCopyOptions copy;
  copy.device = &device->memory();
  copy.faults = faults;
  auto engine = std::make_unique<Copy>(lanes, o.link_bytes_per_s, copy);
  return {std::move(lanes), std::move(host), std::move(device), std::move(engine)};
}

}  // namespace tiered
