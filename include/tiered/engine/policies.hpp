/// The policy bundle: one named member for everything that a user may want to replace.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "tiered/engine/load_times.hpp"
#include "tiered/engine/trace.hpp"
#include "tiered/io/host_weights.hpp"
#include "tiered/kernels/cpu/backend.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/memory/memcpy_engine.hpp"
#include "tiered/pipeline/side.hpp"
#include "tiered/plan/any_eviction.hpp"
#include "tiered/plan/cost.hpp"
#include "tiered/plan/placement.hpp"
#include "tiered/plan/placements/seconds_per_byte.hpp"
#include "tiered/plan/prior_frequency.hpp"
#include "tiered/plan/ring_prefetch.hpp"
#include "tiered/plan/schedule.hpp"
#include "tiered/plan/token_tiers.hpp"

namespace tiered {

/// | name          | concept         | what it decides                                              |
/// |---------------|-----------------|--------------------------------------------------------------|
/// | HostMemory    | HostWeights     | where weights lie in host memory                             |
/// | HostBackend   | Backend         | how the host computes                                        |
/// | DeviceBackend | Backend         | how the device computes; its memory is what the budget caps  |
/// | Copy          | CopyEngine      | how bytes move between them                                  |
/// | Cost          | CostModel       | what a shard costs where                                     |
/// | Placement     | PlacementPolicy | what lives in VRAM, what is streamed, what the host computes |
/// | Prefetch      | PrefetchPolicy  | when streamed bytes are copied                               |
/// | TokenTiers    | TokenTierPolicy | which batch sizes get a plan of their own                    |
/// | Eviction      | EvictionPolicy  | which expert leaves the cache                                |
/// | Trace         | TracePolicy     | who is told what happened when                               |
/// and `static Machine make_machine(MachineOptions const&)`, which makes the two backends and the copy engine: a Machine, or what has
/// its members and any of these, for a device whose budget counts more than what plans place (CudaMachine has them all):
/// | member                       | what the engine does with it                                                        |
/// |------------------------------|-------------------------------------------------------------------------------------|
/// | `m.identity()`               | measures the machine for its plans; the device and its driver in one line of text   |
/// | `m.plan_bytes()`             | plans with so many bytes in place of EngineOptions::vram_bytes                      |
/// | `m.sources`                  | if there is one: weights are copied from where they lie, and it calls these three;  |
/// |                              | `m.sources->covers(data, bytes)` says what kernels may read by now, if they may any |
/// | `m.sources->first_error()`   | asks why some cannot be page-locked, for EngineStats                                |
/// | `m.register_sources(ranges)` | says where weights lie, before anything is copied from there                        |
/// | `m.drop_sources()`           | says that nothing is going to be copied                                             |
/// | `m.device_reads(bytes)`      | asks whether kernels may read these where they are, once that is known              |
/// | `m.register_more(ranges)`    | likewise for a vision encoder's, made later; keeps what it returns                  |
/// | `m.reads_host()`             | asks, for plans, whether that is going to be so, and for keys and values too        |
/// | `*m.pinned`                  | takes the host's activations from this MemoryTier                                   |
/// | `*m.kv_copy`                 | copies all but weights with this CopyEngine, so that nothing queues behind those    |
/// | `m.kv_tier()`                | takes memory for keys and values that are not in VRAM from this one, an AnyTier     |
/// | `m.passing_tier()`           | likewise for a vision encoder's activations, and gives it back before the machine   |
/// | `m.account(plans)`           | says what the device's memory was taken for                                         |
/// | `m.account_vision(bytes)`    | says so of a vision encoder's own room                                              |
/// | `*m.bulk`                    | has this BulkCopy bring what stays in VRAM for good, while kernels are loaded       |
/// | `m.settle()`                 | if there is one: runs and captures steps when it is made, and calls this afterwards |
/// | `m.begin_loading()`          | if there is one: keeps what it returns while others of the engine do the same later |
/// | `m.add_times(times)`         | asks for what it did in the background                                              |
/// Derive from a bundle and name the members that are yours.
template <class P>
concept EnginePolicies = HostWeights<typename P::HostMemory> && Backend<typename P::HostBackend> && Backend<typename P::DeviceBackend> &&
    CopyEngine<typename P::Copy> && CostModel<typename P::Cost> && PlacementPolicy<typename P::Placement> &&
    PrefetchPolicy<typename P::Prefetch> && TokenTierPolicy<typename P::TokenTiers> && EvictionPolicy<typename P::Eviction> &&
    TracePolicy<typename P::Trace>;

/// What the devices of an engine are made with.
struct MachineOptions {
  std::size_t vram_bytes = 0;                                ///< most that may be taken of the device's memory
  int n_threads = 0;                                         ///< of the host; 0: physical cores that the process may use
  bool f32_activations = false;                              ///< products on f32 instead of 8-bit activations: slower, for comparison
  bool keep_times = false;                                   ///< for a trace
  std::optional<Isa> isa = std::nullopt;                     ///< of the host's kernels; nothing: the best one
  int device = 0;                                            ///< which of several
  bool vram_excludes_context = false;                        ///< see EngineOptions
  int n_register_threads = 0;                                ///< see EngineOptions
  double link_bytes_per_s = 0;                               ///< see EngineOptions
  std::span<std::span<std::byte const> const> sources = {};  ///< where the weights lie, that register_sources() is going to be called with
  LoadTimes* times = nullptr;                                ///< is told what making the machine took
};

/// The devices of one engine. Lanes outlive backends, backends outlive what is enqueued on them.
template <class Host, class Device, class Copy>
struct Machine {
  std::shared_ptr<LaneSet> lanes;
  std::unique_ptr<Host> host;
  std::unique_ptr<Device> device;
  std::unique_ptr<Copy> copy;
};

/// Everything on the CPU: a budget above 0 would find no device.
struct CpuPolicies {
  using HostMemory = InFile;
  using HostBackend = CpuBackend;
  using DeviceBackend = CpuBackend;
  using Copy = MemcpyEngine;
  using Cost = AnalyticCost;
  using Placement = SecondsPerByte;
  using Prefetch = RingPrefetch;
  using TokenTiers = DecodePrefillTiers;
  using Eviction = PriorFrequency;
  using Trace = NullTrace;

  static Machine<HostBackend, DeviceBackend, Copy> make_machine(MachineOptions const& o);
};

/// Values of policies that hold any; by designated initialiser: {.placement = {.margin = 1.5}}.
template <class P>
struct PolicyValues {
  typename P::HostMemory host_memory{};
  typename P::Cost cost{};
  typename P::Placement placement{};
  typename P::Prefetch prefetch{};
  typename P::TokenTiers token_tiers{};
  typename P::Eviction eviction{};
  typename P::Trace trace{};
};

}  // namespace tiered
