/// Plans of all token tiers for a model and a budget, without reading a weight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/engine/policies.hpp"
#include "tiered/model/model.hpp"
#include "tiered/pipeline/executor.hpp"
#include "tiered/plan/planner.hpp"

namespace tiered {

/// Positions that plans are priced for: what fits must hold the whole context, but most steps see far less of it.
inline constexpr std::int32_t typical_context = 4096;

struct EngineOptions {
  std::size_t vram_bytes = 0;                               ///< the budget: never passed
  std::int32_t max_context = 0;                             ///< of a sequence, in tokens; 0: the smaller of the trained length and 32,768
  std::int32_t n_sequences = 1;                             ///< at once
  int n_threads = 0;                                        ///< see MachineOptions
  HardwareProfile hardware = HardwareProfile::simulated();  ///< what plans are estimated with
  bool f32_activations = false;
  std::optional<Isa> isa = std::nullopt;  ///< of the host's kernels; nothing: the best that this machine has
  int device = 0;                         ///< which of several GPUs
  /// vram_bytes does not count what the CUDA context and libraries take: for comparison with engines that do not count it either.
  bool vram_excludes_context = false;
  DType kv_type = DType::f16;  ///< of keys and values: f16; q8_0, which takes 53 % of that; or f32, for comparison
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
};

namespace detail {

/// Throws Error{out_of_memory} where a budget is more than the device has.
void check_device_memory(std::size_t budget_bytes, std::size_t capacity_bytes);

/// What each device has kernels for, asked when plans are made and never during a step.
Capabilities capabilities_of(KernelTable const& host, KernelTable const& device, DType kv_type);

/// make_plans with the model and the policies as functions: scratch that a step takes at most, and plans of all token tiers.
EnginePlans make_plans(ShardTable table, ModelConfig const& config, EngineOptions const& options, KernelTable const& host,
                       KernelTable const& device,
                       FunctionRef<std::size_t(ScratchMeter& meter, std::int32_t n_rows, std::int32_t n_outputs)> measure,
                       FunctionRef<std::vector<TierPlan>(ShardTable const&, PlannerInput const&)> plan);

}  // namespace detail

/// Every type of the model must have kernels on the host, which is where a shard goes that fits nowhere else; a device without
/// a kernel is not given what needs it.
/// Errors  Errc::unsupported (a type without kernels), over_budget or precondition (an answer of a policy that cannot be run).
template <EnginePolicies P, Model M>
EnginePlans make_plans(M const& model, EngineOptions const& options, PolicyValues<P> const& values, KernelTable const& host,
                       KernelTable const& device) {
  typename P::Cost cost = values.cost;
  if constexpr (requires { cost.hardware = options.hardware; }) cost.hardware = options.hardware;  // one machine for costs and estimates
  if constexpr (requires { cost.capabilities = Capabilities{}; })
    cost.capabilities = detail::capabilities_of(host, device, options.kv_type);
  auto const measure = [&](ScratchMeter& meter, std::int32_t n_rows, std::int32_t n_outputs) {
    return meter.measure(model, n_rows, n_outputs);
  };
  auto const plan = [&](ShardTable const& table, PlannerInput const& input) {
    return plan_tiers(values.placement, values.prefetch, cost, options.hardware, table, input, values.token_tiers.bounds());
  };
  return detail::make_plans(model.table(), model.config(), options, host, device, measure, plan);
}

}  // namespace tiered
