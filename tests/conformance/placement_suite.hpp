/// What every PlacementPolicy must do: for any model, budget, ring, number of rows and states that are fixed.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/plan/cost.hpp"
#include "tiered/plan/estimate.hpp"
#include "tiered/plan/verify_schedule.hpp"

namespace tiered_test {

/// A random request; owns what the request's spans show.
struct PlacementCase {
  fake::Model model;
  tiered::ShardTable table;
  tiered::PassCosts costs;
  std::vector<float> fixed;
  tiered::PlanRequest request;

  explicit PlacementCase(tiered::SplitMix64 random) : model(fake::random_spec(random)), table(model.table()) {
    tiered::AnalyticCost const cost;
    tiered::Rows const rows{1 << random.below(10), 64 + std::int32_t(random.below(8192)), 1 + std::int32_t(random.below(2))};
    costs = pass_costs(
        table, rows, rows.n, rows.n, [&](tiered::Shard const& s, tiered::Rows r) { return cost.cost(s, r); },
        [&](tiered::LayerState const& s, tiered::Rows r) { return cost.cost(s, r); });
    request = {table.shards, costs.shards,        table.states, costs.states, {}, rows, 0, 256 * std::size_t(random.below(400)),
               {},           2e-5 * random.unit()};
    std::size_t everything = model.bytes();
    for (std::size_t l = 0; l < table.states.size(); ++l) everything += request.state_bytes(l);
    request.budget.vram_bytes = std::size_t(1.2 * random.unit() * random.unit() * double(everything));
    request.budget.pinned_bytes = random.below(2) * std::size_t(random.below(everything));
    if (random.below(4) > 0) request.ring_bytes = 256 * std::size_t(random.below(1 + request.budget.vram_bytes / 256));
    if (random.below(3) == 0) {
      fixed.resize(table.states.size());
      for (float& share : fixed) share = float(random.below(2));
      request.fixed_state_in_vram = fixed;
    }
  }
};

template <class Policy>
void check_placement(Policy const& policy, std::uint64_t seed) {
  INFO("seed " << seed);
  PlacementCase const c{tiered::SplitMix64{seed}};
  tiered::PlanRequest const& r = c.request;
  tiered::Placements const first = policy.place(r), second = policy.place(r);
  REQUIRE(first.shards == second.shards);
  REQUIRE(first.state_in_vram == second.state_in_vram);
  REQUIRE(first.cache_bytes == second.cache_bytes);
  REQUIRE(first.declined == second.declined);
  REQUIRE(first.shards.size() == r.shards.size());
  REQUIRE(first.state_in_vram.size() == r.states.size());
  if (first.declined) return;

  tiered::ShardPlan const plan = make_plan(r, first);
  REQUIRE(verify(plan, c.table) == "");
  bool const nothing_fits = tiered::VramAccount{r}.used_bytes() > r.budget.vram_bytes;
  if (nothing_fits) {  // then the host does everything, but for states that are fixed
    REQUIRE(std::all_of(plan.shards.begin(), plan.shards.end(), [](tiered::Placement const& p) { return p.gpu_rows == 0; }));
    REQUIRE((!c.fixed.empty() || plan.vram_bytes == 0));
  } else {
    REQUIRE(plan.vram_bytes <= r.budget.vram_bytes);
    REQUIRE(plan.shortfall_bytes == 0);
  }
  if (!c.fixed.empty()) REQUIRE(plan.state_in_vram == c.fixed);
  if (r.ring_bytes == 0) {
    REQUIRE(std::none_of(plan.shards.begin(), plan.shards.end(), [](tiered::Placement const& p) { return p.streamed(); }));
  }
  std::size_t pinned = 0;
  for (std::size_t i = 0; i < plan.shards.size(); ++i) pinned += plan.shards[i].home == tiered::Tier::pinned ? r.shards[i].bytes : 0;
  REQUIRE(pinned <= r.budget.pinned_bytes + 256 * plan.shards.size());
}

}  // namespace tiered_test
