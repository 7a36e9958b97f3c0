/// Plans of all token tiers for a model and a budget, without reading a weight.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/engine/policies.hpp"
#include "tiered/model/model.hpp"
#include "tiered/pipeline/executor.hpp"
#include "tiered/plan/cost.hpp"
#include "tiered/plan/hardware.hpp"
#include "tiered/plan/planner.hpp"
#include "tiered/profile/hardware_profile.hpp"

namespace tiered {

/// Positions that plans are priced for: what fits must hold the whole context, but most steps see far less of it.
inline constexpr std::int32_t typical_context = 4096;

struct EngineOptions {
  std::size_t vram_bytes = 0;                              ///< the budget: never passed
  std::int32_t max_context = 0;                            ///< of a sequence, in tokens; 0: the smaller of the trained length and 32,768
  std::int32_t n_sequences = 1;                            ///< at once
  int n_threads = 0;                                       ///< see MachineOptions
  std::optional<HardwareProfile> hardware = std::nullopt;  ///< what plans are estimated with; nothing: see `profile`
  ProfileOptions profile = {};                             ///< where figures of this machine come from
  bool f32_activations = false;
  /// The same text whatever is cached on a GPU: experts that a plan lets it cache are computed there, missing ones fetched first. Slower:
  /// the host cannot help with them.
  bool deterministic = false;
  /// Whether experts that earlier runs of the model used most are in the expert cache from the start, and what this run uses is kept for
  /// the next, in the folder of `profile`; nothing: where figures of this machine are looked for (measures()). Never where `deterministic`.
  std::optional<bool> expert_prior = std::nullopt;
  LookAhead look_ahead = LookAhead::planned;  ///< experts that later layers will probably want come ahead of them: for experiments
  /// With look_ahead, the host's caches read what it will probably compute of the next layer, while the device is on its own. On the
  /// reference machine, with nothing else on link and memory and 60 us to read, it takes 24 to 44 % off what one to four
  /// experts of Q4_0 take the host; in whole steps of a 30B mixture in 2 to 8 GiB tokens came 0.6 to 4.4 % faster in each of six cells.
  bool read_ahead = true;
  std::optional<Isa> isa = std::nullopt;  ///< of the host's kernels; nothing: the best that this machine has
  int device = 0;                         ///< which of several GPUs
  /// vram_bytes does not count what the CUDA context and libraries take: for comparison with engines that do not count it either.
  bool vram_excludes_context = false;
  /// Holds copies to the device, and from it, to this rate each, all lanes together, as a slower link would: for experiments. 0: as the
  /// machine has it. Not what loading copies ahead, nor rows of activations that the device itself moves; weights in host memory
  /// it then does not read.
  double link_bytes_per_s = 0;
  int n_register_threads = 0;  ///< of a GPU: that page-lock weights in the background; 0: one for each four cores, 4 at most
  DType kv_type = DType::f16;  ///< of keys and values: f16; q8_0, which takes 53 % of that; or f32, for comparison
  std::int32_t kv_page_tokens = attention_span;  ///< positions of a page of these: a multiple or a divisor of attention_span
  /// Called after each block of a long step with rows done and in all; must not throw; null: nobody listens.
  void (*progress)(void* context, std::int32_t done, std::int32_t total) = nullptr;
  void* progress_context = nullptr;

  Budget budget() const { return {vram_bytes, 0, 0}; }
};

/// The plan of every token tier, in order of their bounds, and where each has everything in VRAM.
struct EnginePlans {
  std::int32_t max_context = 0;
  std::vector<TierPlan> tiers;
  std::vector<PlanImage> images;  ///< one per tier
  std::size_t vram_bytes = 0;     ///< most that any of them takes
  bool looks_ahead = true;        ///< as in PassCosts
  bool reads_ahead = false;       ///< likewise
};

namespace detail {

/// Throws Error{out_of_memory} where a budget is more than the device has.
void check_device_memory(std::size_t budget_bytes, std::size_t capacity_bytes);

/// What each device has kernels for, asked when plans are made and never during a step.
Capabilities capabilities_of(KernelTable const& host, KernelTable const& device, DType kv_type, ModelConfig const& config);

/// Without token tiers of more rows than there are positions for, where a smaller one takes these.
inline std::span<int const> usable_bounds(std::span<int const> bounds, std::int64_t n_positions) {
  auto const enough = std::ranges::find_if(bounds, [&](int bound) { return bound >= n_positions; });
  return enough == bounds.end() ? bounds : std::span<int const>(bounds.begin(), enough + 1);
}

/// A cost model of the machine that plans are estimated for, where it takes such figures.
template <CostModel C>
C cost_for(C cost, HardwareProfile const& hardware, Capabilities const& capabilities) {
  if constexpr (requires { cost.hardware = hardware; }) cost.hardware = hardware;
  if constexpr (requires { cost.capabilities = capabilities; }) cost.capabilities = capabilities;
  return cost;
}

/// make_plans with the model and the policies as functions: scratch that a step takes at most, and plans of all token tiers.
EnginePlans make_plans(ShardTable table, ModelConfig const& config, EngineOptions const& options, KernelTable const& host,
                       KernelTable const& device,
                       FunctionRef<std::size_t(ScratchMeter& meter, std::int32_t n_rows, std::int32_t n_outputs)> measure,
                       FunctionRef<std::vector<TierPlan>(ShardTable const&, PlannerInput const&)> plan, bool reads_host);

}  // namespace detail

/// Whether kernels of the machine's device may read weights, keys and values where these lie in host memory, as far as is known before any
/// is registered: only then a step of one row is enqueued as a whole while its host helps.
template <class Machine>
bool device_reads_host(Machine const& machine) {
  if constexpr (requires { machine.reads_host(); }) return machine.reads_host();
  return false;
}

/// Estimated with options.hardware, or a made-up machine: profile_machine() in engine/profiling.hpp has figures of this one.
/// Every type of the model must have kernels on the host, which is where a shard goes that fits nowhere else; a device without
/// a kernel is not given what needs it. `reads_host`: device_reads_host() of the machine; where there is none, what kernels there are for.
/// Errors  Errc::unsupported (a type without kernels), over_budget or precondition (an answer of a policy that cannot be run).
template <EnginePolicies P, Model M>
EnginePlans make_plans(M const& model, EngineOptions const& options, PolicyValues<P> const& values, KernelTable const& host,
                       KernelTable const& device, bool reads_host = true) {
  HardwareProfile const hardware = options.hardware ? *options.hardware : HardwareProfile::simulated();
  auto const cost = detail::cost_for(values.cost, hardware, detail::capabilities_of(host, device, options.kv_type, model.config()));
  auto const measure = [&](ScratchMeter& meter, std::int32_t n_rows, std::int32_t n_outputs) {
    return meter.measure(model, n_rows, n_outputs);
  };
  auto const plan = [&](ShardTable const& table, PlannerInput const& input) {
    auto const& bounds = values.token_tiers.bounds();
    return plan_tiers(values.placement, values.prefetch, cost, hardware, table, input, detail::usable_bounds(bounds, input.rows.context));
  };
  return detail::make_plans(model.table(), model.config(), options, host, device, measure, plan, reads_host);
}

}  // namespace tiered
