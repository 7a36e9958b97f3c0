/// The bundle for an NVIDIA GPU, and the machine that it makes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/engine/policies.hpp"
#include "tiered/kernels/cuda/backend.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/ledger.hpp"
#include "tiered/memory/cuda/pinned.hpp"
#include "tiered/memory/cuda/registered.hpp"
#include "tiered/memory/cuda/stream_engine.hpp"
#include "tiered/memory/cuda/vram.hpp"

namespace tiered {

/// The host, one GPU, and what an engine needs of both. What is declared later goes first.
struct CudaMachine {
  /// Of the budget, for what the driver takes when graphs are instantiated and kernels are loaded. What is not used stays free.
  static constexpr std::size_t driver_reserve_bytes = 96 * MiB;

  CudaDevice gpu;
  std::shared_ptr<VramShare> share;
  VramShare::Mark since;  ///< what the driver takes from here on is measured once the engine is ready
  std::shared_ptr<LaneSet> lanes;
  std::unique_ptr<CpuBackend> host;
  std::unique_ptr<PinnedTier> pinned;  ///< for the host's activations, which cross the link
  std::unique_ptr<CudaBackend> device;
  std::unique_ptr<RegisteredMapping> sources;
  std::unique_ptr<StreamCopyEngine> copy;

  /// What the budget leaves to a plan: the context, workspaces and the reserve are off already.
  std::size_t plan_bytes() const { return device->memory().capacity_bytes() - device->memory().used_bytes(); }

  /// Weights are going to be copied from these. They are page-locked in the background; copies wait for their piece. Once.
  void register_sources(std::vector<std::span<std::byte const>> const& ranges) {
    sources = std::make_unique<RegisteredMapping>(gpu, ranges, RegisterOptions{.n_threads = 2});
    copy->wait_for_registration(sources.get());
    sources->start();
  }
  /// Whether kernels may read these bytes where they are, by the same address.
  bool device_reads(std::span<std::byte const> bytes) {
    return sources != nullptr && sources->wait_until(bytes.data(), bytes.size()) && gpu.reads_registered_memory;
  }
  /// Everything is loaded: charges what the driver took for it.
  /// Errors  Errc::over_budget where that passes the budget, if the driver's figure is of this process alone.
  void settle() {
    share->settle(since);
    std::size_t const counted = share->counted_bytes(), budget = share->budget_bytes();
    if (counted > budget && gpu.ledger->source() == VramSource::process) {
      throw Error(Errc::over_budget, concat("a budget of ", format_bytes(budget), " on ", gpu.name, " (", budget, " bytes): ", counted,
                                            " bytes are held once kernels and graphs are loaded, ", driver_reserve_bytes,
                                            " of which were set aside for those"));
    }
  }
  /// Says in the ledger what the arena is used for.
  void account(EnginePlans const& plans) {
    std::size_t weights = 0, states = 0, slots = 0, activations = 0;
    for (PlanImage const& image : plans.images) {
      states = std::max(states, image.plan.state_bytes);
      slots = std::max(slots, image.vram.cache_bytes + image.vram.ring_bytes);
      activations = std::max(activations, image.vram.scratch_bytes);
    }
    if (plans.vram_bytes == 0) return;
    weights = plans.vram_bytes - std::min(plans.vram_bytes, states + slots + activations);
    share->move(VramUse::other, VramUse::weights, weights);
    share->move(VramUse::other, VramUse::kv, states);
    share->move(VramUse::other, VramUse::slots, std::min(slots, plans.vram_bytes - weights - states));
    share->move(VramUse::other, VramUse::activations,
                plans.vram_bytes - weights - states - std::min(slots, plans.vram_bytes - weights - states));
  }
};

/// An NVIDIA GPU. `vram_bytes` is what the engine adds to the process's figure by NVML, the CUDA context included where this engine is the
/// first of the process; never passed.
struct CudaPolicies : CpuPolicies {
  using DeviceBackend = CudaBackend;
  using Copy = StreamCopyEngine;

  /// Errors  Errc::device (no driver, no device), unsupported (architecture), over_budget where the context and workspaces alone take
  ///         the budget, out_of_memory where the device has not so much left.
  static CudaMachine make_machine(MachineOptions const& o) {
    CudaMachine m;
    m.gpu = CudaDevice::open(o.device);
    m.share = std::make_shared<VramShare>(m.gpu.ledger, VramRules{o.vram_bytes, false, o.vram_excludes_context});
    VramShare::Mark const before = m.share->mark();
    m.lanes = LaneSet::threads();
    if (o.keep_times) m.lanes->keep_times();
    m.host =
        std::make_unique<CpuBackend>(m.lanes, CpuOptions{.isa = o.isa, .n_threads = o.n_threads, .f32_activations = o.f32_activations});
    m.pinned = std::make_unique<PinnedTier>();
    // Workspaces first, and what the libraries take with them; then it is known what the budget leaves.
    CudaBackendOptions const options;
    std::size_t const own = options.workspace_bytes + options.cublas_workspace_bytes;
    check_room(m, o, own);
    m.device = std::make_unique<CudaBackend>(m.lanes, m.gpu, VramTier(m.gpu, m.share, own), options);
    m.copy = std::make_unique<StreamCopyEngine>(m.lanes, m.gpu.ordinal);
    m.share->settle(before);
    m.since = m.share->mark();
    check_room(m, o, 0);
    m.device->memory().resize(own + m.share->available_bytes() - CudaMachine::driver_reserve_bytes);
    return m;
  }

 private:
  static void check_room(CudaMachine const& m, MachineOptions const& o, std::size_t bytes) {
    std::size_t const needed = bytes + CudaMachine::driver_reserve_bytes + VramShare::granularity_bytes, left = m.share->available_bytes();
    if (left < needed) {
      throw Error(Errc::over_budget,
                  concat("a budget of ", format_bytes(o.vram_bytes), " on ", m.gpu.name,
                         ": the CUDA context, libraries and workspaces take ", format_bytes(m.share->counted_bytes()), ", ",
                         format_bytes(needed), " more are needed: ", format_bytes(m.share->counted_bytes() + needed), " at least"));
    }
    if (std::size_t const free = m.gpu.free_bytes(); left > free) {
      throw Error(Errc::out_of_memory, concat("a budget of ", format_bytes(o.vram_bytes), " on ", m.gpu.name, ": only ", format_bytes(free),
                                              " of ", format_bytes(m.gpu.total_bytes), " are free"));
    }
  }
};
static_assert(EnginePolicies<CudaPolicies>);

}  // namespace tiered
