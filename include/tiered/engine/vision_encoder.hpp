/// A vision encoder beside a decoder, inside the decoder's budget.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/engine/detail/check_same_model.hpp"
#include "tiered/engine/engine.hpp"
#include "tiered/engine/planning.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/memory/any_tier.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/model/kv_cache.hpp"
#include "tiered/pipeline/executor.hpp"
#include "tiered/vision/preprocess.hpp"
#include "tiered/vision/vision_block.hpp"
#include "tiered/vision/vision_encoding.hpp"
#include "tiered/vision/vision_model.hpp"

namespace tiered {

struct VisionOptions {
  /// Of one frame: an image, or what two frames of a video become. There is room for these at least; what is too large is refused. With
  /// MediaOptions of your own what tiered::max_patches() says of them; 0: what it says of a MediaReader without any.
  std::int64_t max_patches = 0;
  /// By how much both devices together must be faster than the host alone, or the host is left alone and the decoder's weights stay where
  /// they are: costs do not count that these come back.
  double least_speedup = 1.25;
};

namespace detail {

/// Rows of a step at most: products are at their full rate with these, and buffers stay small.
inline constexpr std::int32_t most_vision_chunk = 4096;

/// Numbers of patches that have plans of their own, ascending; chunks of each by halves are whole tokens.
std::vector<int> vision_bounds(VisionConfig const& config, std::int64_t max_patches);

/// Whether a device has all that the encoder launches but its products.
bool encodes(KernelTable const& kernels, VisionModel const& model);

/// What of a block stays in host memory and crosses the link for each step, where its rows are on the device.
enum class VisionHome : std::uint8_t {
  device,        ///< nothing
  rows_on_host,  ///< hidden rows
  all_on_host,   ///< and keys and values
};

/// What the encoder's shards cost: as others, and attention in its shard, since what it attends to has no home but the block's buffers.
template <class Cost>
class VisionCost {
 public:
  VisionCost(Cost const& cost_of, VisionModel const& model, HardwareProfile const& link, VisionHome home)
      : cost_of_(cost_of), model_(&model), link_(&link), home_(home) {}
  PassCost cost(Shard const& shard, Rows rows) const {
    PassCost out = cost_of_.cost(shard, rows);
    double bytes_in = home_ == VisionHome::device ? 0 : shard.n_passes * row_bytes(rows.n), bytes_out = bytes_in / shard.n_passes;
    if (shard.kind == ShardKind::attention) {
      LayerState const state = model_->attention(shard.layer);
      add_attention(state, rows, out);
      if (home_ == VisionHome::all_on_host) {  // as many bytes as rows have: two vectors of halves
        bytes_in += row_bytes(state.window > 0 ? rows.n : rows.context);
        bytes_out += row_bytes(rows.n);
      }
    }
    out.gpu_s = std::max(out.gpu_s, link_->h2d.seconds(bytes_in) + link_->d2h.seconds(bytes_out));
    return out;
  }
  PassCost cost(LayerState const& state, Rows rows) const { return cost_of_.cost(state, rows); }

 private:
  double row_bytes(std::int32_t n) const { return double(n) * double(model_->vision().dim) * sizeof(float); }
  void add_attention(LayerState const& state, Rows rows, PassCost& out) const {
    // Cost models price rows of a prompt, which see half of it less than the last does.
    if (state.window == 0) rows.context += (rows.n - 1) / 2;
    PassCost const attention = cost_of_.cost(state, rows);
    out.host_s += attention.host_s;
    out.gpu_s += attention.gpu_s;
  }

  Cost cost_of_;
  VisionModel const* model_;
  HardwareProfile const* link_;
  VisionHome home_;
};

/// A placement that does not answer for a ring and scratch that do not lie in one part of the room.
template <class Placement>
struct VisionPlacement {
  Placement const* place_as;
  std::size_t most_bytes;
  Placements place(PlanRequest const& r) const {
    std::size_t const together = VramAccount::sum(VramAccount::round_up(r.ring_bytes), VramAccount::round_up(r.scratch_bytes));
    if (r.ring_bytes == 0 || together <= most_bytes) return place_as->place(r);
    Placements none(r);
    none.declined = true;
    return none;
  }
};
/// A plan with ring and scratch of at most so many bytes.
using PlanVisionTier = FunctionRef<TierPlan(ShardTable const&, PlannerInput const&, VisionHome, std::size_t most_together)>;

/// Plans for each of vision_bounds(), each with blocks of so many rows; without the device where that has no room for chunks of them, or is
/// hardly any faster. `room`: parts of one arena, of which a plan's ring and scratch take one.
/// Errors  as make_plans().
EnginePlans make_vision_plans(VisionModel const& model, VisionOptions const& options, std::span<VramRange const> room,
                              KernelTable const& host, KernelTable const& device, PlanVisionTier plan);

/// Those that the file holds as they are used, where they lie in host memory.
std::vector<std::span<std::byte const>> weights_of_file(VisionModel const& model, std::span<Weight const> weights);

/// Patches, counted through all, one behind the other.
void write_patches(std::span<Patches const> all, std::span<std::int64_t const> patches, std::span<float> out, Team* team);

/// Whether every plan runs on the device, with all weights there for good.
bool is_all_resident(EnginePlans const& plans, ShardTable const& table);

/// What an encoder does whatever its policies are.
class VisionCore {
 public:
  struct Parts {
    std::shared_ptr<VisionModel const> model;
    std::vector<Weight> weights;  ///< where they lie in host memory
    EngineCore* engine = nullptr;
    EnginePlans plans;
    Buffer vram;                         ///< its own; empty: what the engine lends
    AnyTier host_tier;                   ///< for what crosses the link
    bool maps_host = false;              ///< kernels of the device read and write that by the same addresses
    std::shared_ptr<void> registration;  ///< of the weights with the driver
    Team* team = nullptr;                ///< of the host, or null
    bool traces = false;
  };
  /// As TracePolicy's record_encoder(); not called unless Parts::traces.
  using Record = FunctionRef<void(Action const&, double, double)>;
  /// Writes patches, counted among all that are encoded: [patches.size(), patch_elems].
  using PatchSource = FunctionRef<void(std::span<std::int64_t const> patches, std::span<float> out)>;

  explicit VisionCore(Parts parts);
  VisionCore(VisionCore const&) = delete;
  VisionCore& operator=(VisionCore const&) = delete;
  ~VisionCore();

  VisionModel const& model() const { return *parts_.model; }
  EnginePlans const& plans() const { return parts_.plans; }
  bool borrows_vram() const { return parts_.vram.empty(); }
  /// Runs rows of many numbers, so that the device's kernels are loaded.
  void prepare();
  /// `more`: others follow at once, so that nothing of the decoder comes back yet.
  VisionEncoding encode(std::span<PatchGrid const> grids, PatchSource source, bool more, Record record);

 private:
  class Port;

  ExecutorParts executor_parts();
  PlanImage const& image_for(std::int64_t n_rows) const;
  std::int64_t rows_of_block() const;
  Buffer pack_owned();
  void begin(PlanImage const& image);
  void run(PlanImage const& image, VisionBlock const& block, RowPort& port, bool is_last);
  void recover() noexcept;
  RoomListener* listener_for(PlanImage const& image, bool is_last);
  void warm_up(PlanImage const& image, std::int32_t n_rows);

  Parts parts_;
  PageableTier pageable_;
  Buffer owned_;  // weights that the file does not hold as they are used
  // Activations of the host: of plans with the device, of those whose rows are in host memory, and of those without device.
  Buffer crossing_, large_, host_only_;
  KvCache kv_;         // of no positions: keys and values are the block's
  ExpertCache cache_;  // of nothing
  TraceLog trace_log_;
  Executor executor_;
  std::vector<BlockRow> rows_;
};

}  // namespace detail

/// Encodes images for a decoder in what its engine's budget has: in room of its own where that is left for all of it, else in the engine's
/// arena, which is lent between steps: what the engine has there comes back behind the encoder's last layers, and when it goes on. Without
/// device, or for images that have too many patches for its memory, the host encodes: plans() says for how many, one plan for each number
/// of patches.
///
/// After an Error it can be used as before, and so can the engine, whose CancelToken ends encoding, too. The engine must outlive it, where
/// it is. Used from the engine's thread.
template <class P = CpuPolicies, class M = Transformer>
class VisionEncoder {
 public:
  /// All of VRAM is taken, and all kernels are loaded, when it is made. `values`: how it is placed and priced.
  /// Errors  unsupported where encoder and decoder are not of one model, and for a type without kernels; io where its file was cut;
  ///         over_budget where the driver took more for its kernels than the engine set aside.
  VisionEncoder(Engine<P, M>& engine, std::shared_ptr<VisionModel const> model, VisionOptions const& options = {},
                PolicyValues<P> values = {})
      : values_(std::move(values)) {
    expects(model != nullptr, "VisionEncoder: there is no model");
    detail::check_file_of(*model);
    detail::check_same_model(model->vision(), engine.model().config());
    auto& machine = engine.machine();
    if constexpr (requires { machine.host->team(); }) team_ = &machine.host->team();
    trace_ = &engine.trace();
    detail::VisionCore::Parts parts{std::move(model),   {},      &engine.core(), {},    {}, host_tier(machine),
                                    maps_host(machine), nullptr, team_,          traces};
    bring_weights(parts);
    plan(engine, options, parts);
    if constexpr (requires { machine.register_more(std::vector<std::span<std::byte const>>()); }) {
      if (parts.plans.vram_bytes > 0) parts.registration = machine.register_more(detail::weights_of_file(*parts.model, parts.weights));
    }
    core_ = std::make_unique<detail::VisionCore>(std::move(parts));
    if constexpr (requires { machine.settle(); }) {
      if constexpr (requires { machine.begin_loading(); }) {
        auto const loading = machine.begin_loading();
        core_->prepare();
      } else {
        core_->prepare();
      }
      machine.settle();
    }
  }

  VisionConfig const& config() const { return core_->model().vision(); }
  VisionModel const& model() const { return core_->model(); }
  /// One for each number of patches up to the most; max_context is that.
  EnginePlans const& plans() const { return core_->plans(); }
  /// Whether it uses the engine's arena, so that the decoder's weights come back after it.
  bool borrows_vram() const { return core_->borrows_vram(); }

  /// Errors  over_budget for more patches than plans().max_context in a frame; cancelled; precondition within a step of the engine; what
  ///         devices report; out_of_memory.
  VisionEncoding encode(Patches const& patches) { return encode(std::span<Patches const>(&patches, 1)); }
  /// Several images or videos, one behind the other. What does not see each other goes through the encoder together as far as the device
  /// has room, so that weights cross the link once for all; a token's bits do not depend on that where the host computes, or a simulated
  /// device. `more`: there will be others before the engine's next step. Else weights of the decoder that must come back do so behind the
  /// encoder's last layers.
  VisionEncoding encode(std::span<Patches const> all, bool more = false) {
    std::vector<PatchGrid> grids;
    for (Patches const& p : all) {
      expects(p.patch_elems() == config().patch_elems(), "VisionEncoder: patches are of the projector's sizes");
      grids.push_back(p.grid());
    }
    return encode(
        grids, [&](std::span<std::int64_t const> patches, std::span<float> out) { detail::write_patches(all, patches, out, team_); }, more);
  }
  /// Likewise, of patches that `source` hands out while others are encoded: see VisionCore::PatchSource. What it throws ends it.
  VisionEncoding encode(std::span<PatchGrid const> grids, detail::VisionCore::PatchSource source, bool more = false) {
    return core_->encode(grids, source, more, [this](Action const& a, double begin_s, double end_s) {
      if constexpr (traces) trace_->record_encoder(a, begin_s, end_s);
    });
  }
  /// Likewise: `values` [sum of n_patches, patch_elems], one grid behind the other.
  /// Errors  also precondition where the sizes do not fit.
  VisionEncoding encode(std::span<float const> values, std::span<PatchGrid const> grids, bool more = false) {
    std::size_t const elems = std::size_t(config().patch_elems());
    std::int64_t n = 0;
    for (PatchGrid const& g : grids) check_grid(g, config().merge_size), n += g.n_patches();
    if (values.size() != std::size_t(n) * elems)
      throw Error(Errc::precondition, concat(values.size(), " values for ", n, " patches of ", elems));
    auto const source = [&](std::span<std::int64_t const> patches, std::span<float> out) {
      float* to = out.data();
      for (std::int64_t const patch : patches) to = std::copy_n(values.data() + std::size_t(patch) * elems, elems, to);
    };
    return encode(grids, source, more);
  }

 private:
  static constexpr bool traces = requires(typename P::Trace & trace, Action const& action) { trace.record_encoder(action, 0.0, 0.0); };
  using MachineType = typename Engine<P, M>::MachineType;

  static AnyTier host_tier(MachineType const& machine) {
    if constexpr (requires { machine.passing_tier(); }) return machine.passing_tier();
    return PageableTier();
  }
  static bool maps_host(MachineType const& machine) {
    if constexpr (requires { machine.maps_kv(); }) return machine.maps_kv();
    return false;
  }
  void bring_weights(detail::VisionCore::Parts& parts) {
    ShardTable const table = parts.model->table();
    parts.weights.assign(table.weights.begin(), table.weights.end());
    for (Weight& w : parts.weights) {
      std::span<std::byte const> const bytes = values_.host_memory.bring({w.data, w.bytes()});
      expects(bytes.size() == w.bytes(), "HostMemory: bring() returns as many bytes as it got");
      w.data = bytes.data();
    }
  }
  /// In room of its own where all of it stays there, else in the larger of that and what the engine lends.
  void plan(Engine<P, M>& engine, VisionOptions const& options, detail::VisionCore::Parts& parts) {
    auto& machine = engine.machine();
    auto& memory = machine.device->memory();
    std::size_t left = memory.tier() == Tier::vram ? memory.capacity_bytes() - memory.used_bytes() : 0;
    if constexpr (requires { machine.plan_bytes(); }) left = machine.plan_bytes();
    VramRange const own{0, left / weight_alignment * weight_alignment};
    std::vector<VramRange> const lent = engine.core().lendable();
    std::size_t lent_bytes = 0;
    for (VramRange const& r : lent) lent_bytes += r.bytes();
    parts.plans = plans_for(engine, options, *parts.model, {&own, 1});
    if (left < lent_bytes && !detail::is_all_resident(parts.plans, parts.model->table())) {
      parts.plans = plans_for(engine, options, *parts.model, lent);
    } else if (parts.plans.vram_bytes > 0) {
      parts.vram = Buffer(memory, parts.plans.vram_bytes, weight_alignment);
      if constexpr (requires { machine.account_vision(left); }) machine.account_vision(parts.vram.bytes());
    }
  }
  EnginePlans plans_for(Engine<P, M>& engine, VisionOptions const& options, VisionModel const& model, std::span<VramRange const> room) {
    KernelTable const &host = engine.machine().host->kernels(), &device = engine.machine().device->kernels();
    HardwareProfile const& hardware = engine.profile().hardware;
    typename P::Cost cost = values_.cost;
    if constexpr (requires { cost.hardware = hardware; }) cost.hardware = hardware;
    if constexpr (requires { cost.capabilities = Capabilities{}; })
      cost.capabilities = detail::capabilities_of(host, device, DType::f16, model.config());
    auto const plan = [&](ShardTable const& table, PlannerInput const& input, detail::VisionHome home, std::size_t most_together) {
      detail::VisionCost<typename P::Cost> const costs(cost, model, hardware, home);
      detail::VisionPlacement<typename P::Placement> const placement{&values_.placement, most_together};
      return plan_tier(placement, values_.prefetch, costs, hardware, table, input);
    };
    return detail::make_vision_plans(model, options, room, host, device, plan);
  }

  PolicyValues<P> values_;
  Team* team_ = nullptr;  // the engine's, where its host has one
  typename P::Trace* trace_ = nullptr;
  std::unique_ptr<detail::VisionCore> core_;
};

}  // namespace tiered
