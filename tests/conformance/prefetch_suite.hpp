/// What every PrefetchPolicy must do with a sound plan: a sound schedule, or over_budget where one row does not fit the ring.
#pragma once

#include <algorithm>
#include <vector>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/core/error.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/verify_schedule.hpp"

namespace tiered_test {

/// A random plan, whatever a policy would have chosen.
inline tiered::ShardPlan random_plan(tiered::ShardTable const& table, tiered::SplitMix64& random) {
  tiered::ShardPlan plan;
  plan.shards.resize(table.shards.size());
  plan.state_in_vram.resize(table.states.size());
  for (float& share : plan.state_in_vram) share = float(random.below(2));
  tiered::ExpertLayers const experts{table.shards};
  plan.cache_bytes = experts.min_cache_bytes();
  std::size_t largest = 0;
  bool streams = false;
  for (tiered::Shard const& s : table.shards) {
    tiered::Placement& p = plan.shards[std::size_t(s.id)];
    if (s.kind == tiered::ShardKind::embedding) continue;
    std::uint64_t const choice = random.below(4);
    if (choice == 0) p = {tiered::Tier::vram, 1, false};
    if (choice == 1) p = {tiered::Tier::pinned, 1, s.kind == tiered::ShardKind::expert};
    if (!p.streamed()) continue;
    streams = true;
    largest = std::max(largest, s.bytes);
  }
  if (streams) plan.ring_bytes = 256 * std::size_t(1 + random.below(1 + 3 * largest / 256));
  plan.chunk_tokens = 1 << random.below(4);
  plan.block_tokens = plan.chunk_tokens << random.below(2);
  return plan;
}

template <class Policy>
void check_prefetch(Policy const& policy, std::uint64_t seed) {
  INFO("seed " << seed);
  tiered::SplitMix64 random{seed};
  fake::Model const model{fake::random_spec(random)};
  tiered::ShardTable const table = model.table();
  tiered::ShardPlan const plan = random_plan(table, random);
  REQUIRE(verify(plan, table) == "");
  try {
    tiered::Schedule const schedule = policy.schedule(plan, table);
    REQUIRE(policy.schedule(plan, table) == schedule);
    bool const by_rows = std::any_of(schedule.begin(), schedule.end(), [](tiered::Action const& a) { return a.rows != tiered::Range{}; });
    if (by_rows && plan.chunk_tokens != plan.block_tokens) return;  // the planner takes another plan
    REQUIRE(verify(schedule, plan, table) == "");
  } catch (tiered::Error const& error) {
    REQUIRE(error.code() == tiered::Errc::over_budget);
    REQUIRE(plan.ring_bytes > 0);
  }
}

}  // namespace tiered_test
