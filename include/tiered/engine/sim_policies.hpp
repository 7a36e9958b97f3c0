/// The bundle for the simulated device: own memory, own copy lane, the CPU's kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tiered/engine/policies.hpp"
#include "tiered/sim/faults.hpp"
#include "tiered/sim/sim_backend.hpp"
#include "tiered/sim/sim_copy_engine.hpp"

namespace tiered {

/// A device whose memory really is capped and must be copied to, on any machine. For planning, for tests, for learning; it
/// computes with the CPU's kernels, so results equal the CPU's bit for bit and it is no faster.
struct SimPolicies : CpuPolicies {
  using DeviceBackend = SimBackend;
  using Copy = SimCopyEngine;

  static Machine<HostBackend, DeviceBackend, Copy> make_machine(MachineOptions const& o) { return make_machine(o, LaneSet::threads(), nullptr); }

  /// With lanes that replay by seed (LaneSet::seeded), and faults.
  static Machine<HostBackend, DeviceBackend, Copy> make_machine(MachineOptions const& o, std::shared_ptr<LaneSet> lanes, std::shared_ptr<Faults> faults) {
    if (o.keep_times) lanes->keep_times();
    CpuOptions const host_options{.n_threads = o.n_threads, .f32_activations = o.f32_activations};
    auto host = std::make_unique<CpuBackend>(lanes, host_options);
    SimOptions sim;
    sim.vram_bytes = o.vram_bytes;
    sim.n_threads = host->n_threads();
    sim.f32_activations = o.f32_activations;
    sim.faults = faults;
    auto device = std::make_unique<SimBackend>(lanes, sim);
    SimCopyOptions copy;
    copy.device = &device->memory();
    copy.faults = faults;
    auto engine = std::make_unique<SimCopyEngine>(lanes, copy);
    return {std::move(lanes), std::move(host), std::move(device), std::move(engine)};
  }
};

}  // namespace tiered
