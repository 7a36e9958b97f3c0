#include "tiered/plan/token_tiers.hpp"

#include <vector>

#include "catch.hpp"

using tiered::DecodePrefillTiers;

namespace {
std::vector<int> bounds(int max_tokens) {
  DecodePrefillTiers const tiers{max_tokens};
  auto const b = tiers.bounds();
  return {b.begin(), b.end()};
}
}  // namespace

TEST_CASE("token tiers hold prompts up to 8192 rows at once by themselves", "[plan][token_tiers]") {
  REQUIRE(DecodePrefillTiers{} == DecodePrefillTiers{8192});
}

TEST_CASE("token tiers end at the maximum given", "[plan][token_tiers]") {
  REQUIRE(bounds(1) == std::vector<int>{1});
  REQUIRE(bounds(0) == std::vector<int>{1});
  REQUIRE(bounds(2) == std::vector<int>{1, 2});
  REQUIRE(bounds(16) == std::vector<int>{1, 16});
  REQUIRE(bounds(512) == std::vector<int>{1, 16, 64, 512});
  REQUIRE(bounds(513) == std::vector<int>{1, 16, 64, 512, 513});
  REQUIRE(bounds(10000) == std::vector<int>{1, 16, 64, 512, 2048, 8192, 10000});
  REQUIRE(bounds(2147483647).back() == 2147483647);
}
