/// Budgeted: the lower of two limits, and what goes through to the tier below.
#include "tiered/memory/budgeted.hpp"

#include "catch.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/sim/sim_tier.hpp"

using tiered::Budgeted;
using tiered::Buffer;
using tiered::PageableTier;

TEST_CASE("a budget refuses what the tier below would give", "[memory][budgeted]") {
  PageableTier tier(1000);
  Budgeted<PageableTier> budget(tier, 300);
  Buffer const a(budget, 200);
  REQUIRE_THROWS_AS(Buffer(budget, 101), tiered::Error);
  REQUIRE(budget.used_bytes() == 200);
  REQUIRE(tier.used_bytes() == 200);
  Buffer const direct(tier, 101);
  REQUIRE(budget.used_bytes() == 200);
  REQUIRE(&budget.upstream() == &tier);
}

TEST_CASE("what the tier below refuses leaves the budget unchanged", "[memory][budgeted]") {
  PageableTier tier(100);
  Budgeted<PageableTier> budget(tier, 300);
  REQUIRE(budget.capacity_bytes() == 100);
  REQUIRE_THROWS_AS(Buffer(budget, 200), tiered::Error);
  REQUIRE(budget.used_bytes() == 0);
  REQUIRE(tier.used_bytes() == 0);
}

TEST_CASE("budgets nest and keep the tier's kind", "[memory][budgeted]") {
  tiered::SimTier vram(1000);
  Budgeted<tiered::SimTier> engine(vram, 500);
  Budgeted<Budgeted<tiered::SimTier>> cache(engine, 200);
  REQUIRE(cache.tier() == tiered::Tier::vram);
  {
    Buffer const buffer(cache, 150);
    REQUIRE(vram.owns(buffer.data()));
    REQUIRE(engine.used_bytes() == 150);
  }
  REQUIRE(vram.used_bytes() == 0);
  REQUIRE(cache.peak_bytes() == 150);
}
