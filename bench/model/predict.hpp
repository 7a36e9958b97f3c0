/// What the engine's own plans say that a step takes, for any number of rows and positions: as the engine cuts it into blocks, with the
/// costs that the plans were made with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiered/engine/planning.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/plan/estimate.hpp"

namespace bench {

struct Prediction {
  double seconds = 0, copied_bytes = 0, host_bytes = 0;
};

/// What the plans' costs and estimates depend on.
struct PredictionBasis {
  tiered::ShardTable table;  ///< states with their bytes in the KV type that is used
  tiered::AnalyticCost cost;
  int n_sequences = 1;
};

/// The plan with the expert cache that it has behind `rows`: it was made for a typical context, and states leave the cache what they do not
/// use.
inline tiered::ShardPlan with_unused_states(tiered::ShardPlan plan, tiered::ShardTable const& table, tiered::Rows rows,
                                            std::int32_t max_context, double used) {
  if (plan.cache_bytes == 0) return plan;
  tiered::PlanRequest request;
  request.states = table.states;
  request.rows = {rows.n, std::max(max_context, rows.context), rows.n_sequences};
  request.states_used = used;
  std::size_t const unused = tiered::unused_state_bytes(request, plan.state_in_vram);
  plan.cache_bytes += unused - plan.shared_bytes;
  plan.shared_bytes = unused;
  return plan;
}

/// Of n rows behind `before` positions, as one block of a plan.
inline Prediction predict_block(tiered::PlanImage const& image, PredictionBasis const& basis, std::int32_t n, std::int32_t before,
                                std::int32_t max_context, bool looks_ahead = true, bool reads_ahead = false) {
  tiered::Rows const rows{n, before + n, basis.n_sequences};
  auto const shard_cost = [&](tiered::Shard const& s, tiered::Rows r) { return basis.cost.cost(s, r); };
  auto const state_cost = [&](tiered::LayerState const& s, tiered::Rows r) { return basis.cost.cost(s, r); };
  tiered::PassCosts costs =
      pass_costs(basis.table, rows, image.limits.chunk, image.limits.block, shard_cost, state_cost, image.limits.experts);
  costs.states_used = double(rows.context) / std::max(max_context, rows.context);
  costs.streams_states = image.activations.kv_stream.half_pages > 0;
  costs.looks_ahead = looks_ahead;
  costs.reads_ahead = reads_ahead;
  costs.grown = 0;
  tiered::ShardPlan const plan = with_unused_states(image.plan, basis.table, rows, max_context, costs.states_used);
  tiered::Estimate const e = estimate(image.schedule, plan, basis.table, costs, basis.cost.hardware, rows);
  return {e.seconds, e.copied_bytes, e.host_bytes};
}

/// Of n rows behind `before` positions: block after block, each with the plan that the engine takes for what is left.
inline Prediction predict(tiered::EnginePlans const& plans, PredictionBasis const& basis, std::int32_t n, std::int32_t before) {
  Prediction sum;
  while (n > 0) {
    auto const tier = std::ranges::find_if(plans.tiers, [&](tiered::TierPlan const& t) { return t.rows.n >= n; });
    std::size_t const index = tier == plans.tiers.end() ? plans.tiers.size() - 1 : std::size_t(tier - plans.tiers.begin());
    tiered::PlanImage const& image = plans.images.at(index);
    std::int32_t const block = std::min(n, std::max(image.limits.block, 1));
    Prediction const p = predict_block(image, basis, block, before, plans.max_context, plans.looks_ahead, plans.reads_ahead);
    sum.seconds += p.seconds, sum.copied_bytes += p.copied_bytes, sum.host_bytes += p.host_bytes;
    n -= block, before += block;
  }
  return sum;
}

}  // namespace bench
