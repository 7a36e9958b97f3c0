/// PageableTier: what its error says. The rules of every tier are in conformance/memory_tier_suite.hpp.
#include "tiered/memory/pageable.hpp"

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"

using tiered::PageableTier;

TEST_CASE("a full tier names the numbers", "[memory][pageable]") {
  PageableTier tier(1000);
  tiered::Block const block = tier.allocate(600, 64);
  auto const error = tiered_test::error_of([&] { tier.allocate(500, 64); });
  INFO(error.message);
  REQUIRE(error.code == tiered::Errc::out_of_memory);
  REQUIRE(error.says("500 bytes", "600 B are used", "400 B left"));
  tier.deallocate(block);
}

TEST_CASE("without a limit, only what no object can be is refused", "[memory][pageable]") {
  PageableTier tier;
  REQUIRE(tier.capacity_bytes() == PageableTier::unlimited);
  REQUIRE_THROWS_AS(tier.allocate(PageableTier::unlimited, 64), tiered::Error);
  REQUIRE_THROWS_AS(tier.allocate(PageableTier::unlimited - 64, 4096), tiered::Error);
  REQUIRE(tier.used_bytes() == 0);
}

TEST_CASE("the peak is the most that was ever used", "[memory][pageable]") {
  PageableTier tier;
  tiered::Block const a = tier.allocate(100, 64), b = tier.allocate(50, 64);
  tier.deallocate(a);
  tiered::Block const c = tier.allocate(20, 64);
  REQUIRE(tier.used_bytes() == 70);
  REQUIRE(tier.peak_bytes() == 150);
  tier.deallocate(b);
  tier.deallocate(c);
  REQUIRE(tier.used_bytes() == 0);
  REQUIRE(tier.peak_bytes() == 150);
}
