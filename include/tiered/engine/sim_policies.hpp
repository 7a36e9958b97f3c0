/// The bundle for the simulated device: own memory, own copy lane, the CPU's kernels.
#pragma once

#include <memory>

#include "tiered/engine/policies.hpp"
#include "tiered/memory/throttled.hpp"
#include "tiered/sim/faults.hpp"
#include "tiered/sim/sim_backend.hpp"
#include "tiered/sim/sim_copy_engine.hpp"

namespace tiered {

/// A device whose memory really is capped and must be copied to, on any machine. For planning, for tests, for learning; it
/// computes with the CPU's kernels, so results equal the CPU's bit for bit and it is no faster.
struct SimPolicies : CpuPolicies {
  using DeviceBackend = SimBackend;
  using Copy = ThrottledCopyEngine<SimCopyEngine>;

  static Machine<HostBackend, DeviceBackend, Copy> make_machine(MachineOptions const& o);

  /// With lanes that replay by seed (LaneSet::seeded), and faults.
  static Machine<HostBackend, DeviceBackend, Copy> make_machine(MachineOptions const& o, std::shared_ptr<LaneSet> lanes,
                                                                std::shared_ptr<Faults> faults);
};

}  // namespace tiered
