/// Plans token tiers: asks the placement for several ring, chunk and block sizes and keeps the answer estimated fastest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/function_ref.hpp"
#include "tiered/plan/estimate.hpp"

namespace tiered {

/// All that is known of one token tier: what it does, in which order, how long that takes.
struct TierPlan {
  Rows rows;
  ShardPlan plan;
  Schedule schedule;
  Estimate estimate;
  bool operator==(TierPlan const&) const = default;
};

/// A borrowed function that gives the bytes of scratch on the device for a chunk of rows within a block of hidden rows. It must
/// outlive the PlannerInput, so it is a named one: a temporary does not compile.
class ScratchBytes {
 public:
  template <class F>
  requires std::is_invocable_r_v<std::size_t, F&, std::int32_t, std::int32_t> ScratchBytes(F& function) : function_(function) {}
  std::size_t operator()(std::int32_t chunk_tokens, std::int32_t block_tokens) const { return function_(chunk_tokens, block_tokens); }

 private:
  FunctionRef<std::size_t(std::int32_t, std::int32_t)> function_;
};

/// Of a token tier: buffers for so many rows are counted in 64 bits, rows themselves in 32.
inline constexpr std::int32_t most_rows = 1 << 20;

struct PlannerInput {
  Budget budget;
  Rows rows;  ///< n: most rows of the token tier; context: positions that a state in VRAM has room for
  ScratchBytes scratch_bytes;
  std::span<float const> fixed_state_in_vram = {};  ///< as in PlanRequest
  std::int32_t cost_context = 0;                    ///< positions that costs are for; 0: rows.context
  std::int32_t generated_per_prompt = 128;          ///< what plan_tiers weighs decode against a prompt with
  std::int32_t state_pages = 0;                     ///< as in PlanRequest
  bool deterministic = false;                       ///< as in PlanRequest
  bool streams_states = false;                      ///< many rows can attend to states in host memory by way of VRAM
  bool launches_attention = false;                  ///< as in PlanRequest
  bool looks_ahead = true;                          ///< as in PassCosts
  bool reads_ahead = false;                         ///< likewise
  /// Where the device can add the outputs of some experts to the rows before others have run: scratch with outputs of one chunk only,
  /// for plans whose experts all come in windows (plan/expert_flow.hpp) or are resident.
  std::optional<ScratchBytes> scratch_in_windows = {};
  bool shares_windows = false;  ///< the host can take a part of such experts (plan/expert_share.hpp)
};

namespace detail {

using PlaceRef = FunctionRef<Placements(PlanRequest const&)>;
using PrefetchRef = FunctionRef<Schedule(ShardPlan const&, ShardTable const&)>;
template <class Cost>
concept PricesAlike = requires {
  requires Cost::same_for_alike;
};

struct CostRefs {
  FunctionRef<PassCost(Shard const&, Rows)> shard;
  FunctionRef<PassCost(LayerState const&, Rows)> state;
  bool same_for_alike = false;  ///< as CostModel says
};
TierPlan plan_tier(HardwareProfile const& hardware, ShardTable const& table, PlannerInput const& input, PlaceRef place,
                   PrefetchRef prefetch, CostRefs costs);

/// One plan for each bound, by plan(bound, states in VRAM that are fixed).
std::vector<TierPlan> plan_tiers(std::span<int const> bounds, PlannerInput const& input, std::size_t n_states,
                                 FunctionRef<TierPlan(int bound, std::span<float const> fixed)> plan);

}  // namespace detail

/// Errors  unsupported where no device has a kernel; over_budget where fixed states alone pass the budget; precondition where a
///         policy breaks the rules of plan/schedule.hpp or plan/placement.hpp. Not fitting is no error: then the host computes.
/// Threads any; pure.
template <class Placement, class Prefetch, class Cost>
TierPlan plan_tier(Placement const& placement, Prefetch const& prefetch, Cost const& cost, HardwareProfile const& hardware,
                   ShardTable const& table, PlannerInput const& input) {
  auto place = [&](PlanRequest const& r) { return placement.place(r); };
  auto schedule = [&](ShardPlan const& plan, ShardTable const& t) { return prefetch.schedule(plan, t); };
  auto shard_cost = [&](Shard const& s, Rows rows) { return cost.cost(s, rows); };
  auto state_cost = [&](LayerState const& s, Rows rows) { return cost.cost(s, rows); };
  return detail::plan_tier(hardware, table, input, place, schedule, {shard_cost, state_cost, detail::PricesAlike<Cost>});
}

/// One plan for each of `bounds` (most tokens, ascending), all with the same states in VRAM. input.rows.n is not used.
/// Errors, threads  as plan_tier.
template <class Placement, class Prefetch, class Cost>
std::vector<TierPlan> plan_tiers(Placement const& placement, Prefetch const& prefetch, Cost const& cost, HardwareProfile const& hardware,
                                 ShardTable const& table, PlannerInput const& input, std::span<int const> bounds) {
  expects(!bounds.empty(), "plan_tiers: there must be a token tier");
  auto plan = [&](int bound, std::span<float const> fixed) {
    PlannerInput one = input;
    one.rows.n = bound;
    one.fixed_state_in_vram = fixed;
    return plan_tier(placement, prefetch, cost, hardware, table, one);
  };
  return detail::plan_tiers(bounds, input, table.states.size(), plan);
}

}  // namespace tiered
