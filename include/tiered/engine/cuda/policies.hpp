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
#include "tiered/engine/load_times.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/engine/policies.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/kernels/cuda/backend.hpp"
#include "tiered/memory/any_tier.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/ledger.hpp"
#include "tiered/memory/cuda/pinned.hpp"
#include "tiered/memory/cuda/registered.hpp"
#include "tiered/memory/cuda/registered_tier.hpp"
#include "tiered/memory/cuda/stream_bulk_copy.hpp"
#include "tiered/memory/cuda/stream_engine.hpp"
#include "tiered/memory/cuda/vram.hpp"
#include "tiered/memory/page_toucher.hpp"
#include "tiered/memory/throttled.hpp"

namespace tiered {

using CudaCopy = ThrottledCopyEngine<StreamCopyEngine>;

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
  std::unique_ptr<CudaCopy> copy, kv_copy;
  std::unique_ptr<StreamBulkCopy> bulk;  ///< until the engine is ready
  std::unique_ptr<PageToucher> pages;    ///< likewise
  int n_register_threads = 1;
  LoadTimes background;  ///< what bulk and pages did

  /// What the budget leaves to a plan: the context, workspaces and the reserve are off already.
  std::size_t plan_bytes() const { return device->memory().capacity_bytes() - device->memory().used_bytes(); }

  /// Which device this is, with what its speed may depend on.
  std::string identity() const {
    cudaDeviceProp properties;
    cuda_check(cudaGetDeviceProperties(&properties, gpu.ordinal), "cudaGetDeviceProperties");
    std::string uuid;
    for (char const byte : properties.uuid.bytes) {
      for (int const shift : {4, 0}) uuid += "0123456789abcdef"[(unsigned(static_cast<unsigned char>(byte)) >> shift) & 15u];
    }
    return concat(gpu.text(), ", ", uuid);
  }

  /// For keys and values in host memory, which cross the link when many rows attend to them. Taken as sequences grow: a driver that
  /// page-locks no more ends that step with an Error, after which the engine can be used again.
  AnyTier kv_tier() const { return RegisteredTier(); }
  bool maps_kv() const { return gpu.reads_registered_memory; }
  /// Of the same kind, whose blocks may go while the machine works: copy engines forget what they knew of their addresses. The machine must
  /// outlive it.
  AnyTier passing_tier() const {
    struct PassingTier {
      RegisteredTier memory;
      CudaCopy* engines[2];
      Tier tier() const { return memory.tier(); }
      Block allocate(std::size_t bytes, std::size_t alignment) { return memory.allocate(bytes, alignment); }
      void deallocate(Block block) noexcept {
        for (CudaCopy* const engine : engines) engine->addresses().forget(block.data, block.bytes);
        memory.deallocate(block);
      }
      std::size_t capacity_bytes() const { return memory.capacity_bytes(); }
      std::size_t used_bytes() const { return memory.used_bytes(); }
    };
    return PassingTier{RegisteredTier(), {copy.get(), kv_copy.get()}};
  }

  /// Weights are going to be copied from these. They are page-locked in the background; copies wait for their piece. The first call counts.
  void register_sources(std::vector<std::span<std::byte const>> const& ranges) {
    if (sources != nullptr) return;
    sources = std::make_unique<RegisteredMapping>(gpu, ranges, RegisterOptions{.n_threads = n_register_threads});
    copy->wait_for_registration(sources.get());
    if (bulk != nullptr) bulk->read_from(sources.get());
    sources->start();
  }
  /// Likewise of what is loaded later, such as a projector file; returns when it is done. As long as what is returned lives, which goes
  /// before the machine, and before the bytes.
  std::shared_ptr<void> register_more(std::vector<std::span<std::byte const>> const& ranges) {
    struct Registration {
      Registration(CudaMachine& m, std::vector<std::span<std::byte const>> const& of)
          : mapping(m.gpu, of, RegisterOptions{.n_threads = m.n_register_threads}), bytes(of), engines{m.copy.get(), m.kv_copy.get()} {
        mapping.start();
        mapping.wait();
      }
      Registration(Registration const&) = delete;
      Registration& operator=(Registration const&) = delete;
      ~Registration() {  // other memory may be there soon
        for (CudaCopy* const engine : engines) {
          for (std::span<std::byte const> const part : bytes) engine->addresses().forget(part.data(), part.size());
        }
      }
      RegisteredMapping mapping;
      std::vector<std::span<std::byte const>> bytes;
      CudaCopy* engines[2];
    };
    return std::make_shared<Registration>(*this, ranges);
  }
  /// Nothing is copied.
  void drop_sources() {
    copy->wait_for_registration(nullptr);
    bulk.reset();
    pages.reset();
    sources.reset();
  }
  /// Whether kernels may read host memory that is registered, by the same address. What they read would pass a link that is held to a rate.
  bool reads_host() const { return gpu.reads_registered_memory && copy->link_bytes_per_s() == 0; }
  /// Likewise these bytes, where they are: returns when their registration is done, or was refused. Of others sources->covers() says it.
  bool device_reads(std::span<std::byte const> bytes) {
    return reads_host() && sources != nullptr && sources->wait_until(bytes.data(), bytes.size());
  }
  /// More is going to be loaded, while what it returns lives.
  [[nodiscard]] auto begin_loading() {
    device->settle(false);
    auto const end = [](CudaBackend* backend) { backend->settle(true); };
    return std::unique_ptr<CudaBackend, decltype(end)>(device.get(), end);
  }
  /// Everything is loaded: charges what the driver took for it.
  /// Errors  Errc::over_budget where that passes the budget, if the driver's figure is of this process alone.
  void settle() {
    device->settle(true);
    if (bulk != nullptr) background.add("copy", bulk->times());
    if (pages != nullptr) background.add("touch", pages->times());
    bulk.reset();
    pages.reset();
    share->settle(since);
    std::size_t const counted = share->counted_bytes(), budget = share->budget_bytes();
    if (counted > budget && gpu.ledger->source() == VramSource::process) {
      throw Error(Errc::over_budget, concat("a budget of ", format_bytes(budget), " on ", gpu.name, " (", budget, " bytes): ", counted,
                                            " bytes are held once kernels and graphs are loaded, ", driver_reserve_bytes,
                                            " of which were set aside for those"));
    }
  }
  /// Adds what went on beside the engine's own steps. Pages of a model that is streamed may be locked for some time yet.
  void add_times(LoadTimes& times) const {
    times.add(background);
    if (sources != nullptr) times.add("register", sources->times());
  }
  /// Room of a vision encoder's own, which no plan of the engine's counts.
  void account_vision(std::size_t bytes) { share->move(VramUse::other, VramUse::vision, std::min(bytes, share->bytes(VramUse::other))); }
  /// Says in the ledger what the arena is used for.
  void account(EnginePlans const& plans) {
    std::size_t weights = 0, states = 0, shared = 0, slots = 0, activations = 0;
    for (PlanImage const& image : plans.images) {
      states = std::max(states, image.plan.state_bytes);
      shared = std::max(shared, image.vram.shared_bytes);
      slots = std::max(slots, image.vram.cache_bytes - image.vram.shared_bytes + image.vram.ring_bytes);
      activations = std::max(activations, image.vram.scratch_bytes);
    }
    if (plans.vram_bytes == 0) return;
    weights = plans.vram_bytes - std::min(plans.vram_bytes, states + slots + activations);
    share->move(VramUse::other, VramUse::weights, weights);
    share->move(VramUse::other, shared > 0 ? VramUse::kv_or_slots : VramUse::kv, states);
    share->move(VramUse::other, VramUse::slots, std::min(slots, plans.vram_bytes - weights - states));
    share->move(VramUse::other, VramUse::activations,
                plans.vram_bytes - weights - states - std::min(slots, plans.vram_bytes - weights - states));
  }
};

/// An NVIDIA GPU. `vram_bytes` is what the engine adds to the process's figure by NVML, the CUDA context included where this engine is the
/// first of the process; never passed.
struct CudaPolicies : CpuPolicies {
  using DeviceBackend = CudaBackend;
  using Copy = CudaCopy;

  /// Errors  Errc::device (no driver, no device), unsupported (architecture), over_budget where the context and workspaces alone take
  ///         the budget, out_of_memory where the device has not so much left.
  static CudaMachine make_machine(MachineOptions const& o) {
    CudaMachine m;
    m.n_register_threads = o.n_register_threads > 0 ? o.n_register_threads : std::clamp(default_thread_count() / 4, 1, 4);
    if (!o.sources.empty()) m.pages = std::make_unique<PageToucher>(std::vector(o.sources.begin(), o.sources.end()), m.n_register_threads);
    {
      LoadTimes::Scope const scope(o.times, "context");
      m.gpu = CudaDevice::open(o.device);
    }
    open_libraries(m, o);
    // From here on: what the driver takes before would be found or not, as it comes.
    if (!o.sources.empty()) m.register_sources({o.sources.begin(), o.sources.end()});
    LoadTimes::Scope const scope(o.times, "map VRAM");
    m.device->memory().resize(m.device->own_bytes() + m.share->available_bytes() - CudaMachine::driver_reserve_bytes);
    return m;
  }

 private:
  /// All that takes memory of the device behind the arena's back before kernels do, measured.
  static void open_libraries(CudaMachine& m, MachineOptions const& o) {
    LoadTimes::Scope const scope(o.times, "libraries");
    m.share = std::make_shared<VramShare>(m.gpu.ledger, VramRules{o.vram_bytes, false, o.vram_excludes_context});
    VramShare::Mark const before = m.share->mark();
    m.lanes = LaneSet::threads();
    if (o.keep_times) m.lanes->keep_times();
    CpuOptions const host{.isa = o.isa, .n_threads = threads_beside(o.n_threads), .f32_activations = o.f32_activations};
    m.host = std::make_unique<CpuBackend>(m.lanes, host);
    m.pinned = std::make_unique<PinnedTier>();
    // Workspaces first, and what the libraries take with them; then it is known what the budget leaves.
    CudaBackendOptions const options;
    std::size_t const own = options.workspace_bytes + options.cublas_workspace_bytes;
    check_room(m, o, own);
    m.device = std::make_unique<CudaBackend>(m.lanes, m.gpu, VramTier(m.gpu, m.share, own), options);
    std::shared_ptr<Copy::Link> const link = Copy::make_link(o.link_bytes_per_s);
    m.copy = std::make_unique<Copy>(m.lanes, link, m.gpu.ordinal);
    // Keys and values in host memory are page-locked, as are activations; but they count as pageable where the driver does not say how
    // far a registration goes. CUDA promises nothing about priorities of copies.
    m.kv_copy =
        std::make_unique<Copy>(m.lanes, link, m.gpu.ordinal, StreamCopyOptions{.n_staging = 1, .lane_name = "kv copy", .priority = -1});
    m.bulk = std::make_unique<StreamBulkCopy>(m.gpu.ordinal);
    m.share->settle(before);
    m.since = m.share->mark();
    check_room(m, o, 0);
  }
  /// One of them is whoever calls the engine, and feeds the device while the others compute: a team that waits for a thread without a
  /// core is slower than a smaller one.
  static int threads_beside(int n_threads) {
    int const n = n_threads > 0 ? n_threads : default_thread_count();
    return n > 2 ? n - 1 : n;
  }
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
