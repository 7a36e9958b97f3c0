/// AnyTier: one type, any tier, the same behaviour.
#include "tiered/memory/any_tier.hpp"

#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/sim/sim_tier.hpp"

using tiered::AnyTier;
using tiered::Buffer;
using tiered::PageableTier;

static_assert(!std::is_constructible_v<AnyTier, int>);
static_assert(std::is_nothrow_move_constructible_v<AnyTier>);

TEST_CASE("a tier is chosen at run time", "[memory][any_tier]") {
  std::vector<AnyTier> tiers;
  tiers.emplace_back(PageableTier(100));
  tiers.emplace_back(tiered::SimTier(200));
  REQUIRE(tiers[0].tier() == tiered::Tier::pageable);
  REQUIRE(tiers[1].tier() == tiered::Tier::vram);
  REQUIRE(tiers[0].capacity_bytes() == 100);
  REQUIRE(tiers[1].capacity_bytes() == 200);
  Buffer const buffer(tiers[1], 150);
  REQUIRE(tiers[1].used_bytes() == 150);
  REQUIRE_THROWS_AS(Buffer(tiers[0], 101), tiered::Error);
}

TEST_CASE("the tier moves with its owner, blocks and all", "[memory][any_tier]") {
  AnyTier first(tiered::SimTier(200));
  tiered::Block const block = first.allocate(150, 64);
  AnyTier second(std::move(first));
  REQUIRE(second.used_bytes() == 150);
  second.deallocate(block);
  REQUIRE(second.used_bytes() == 0);
}
