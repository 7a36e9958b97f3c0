/// The TokenTierPolicy suite over every model of it.
#include <algorithm>

#include "catch.hpp"
#include "tiered/plan/token_tiers.hpp"

namespace {

template <class Policy>
void check_token_tiers(Policy const& policy) {
  std::span<int const> const bounds = policy.bounds();
  REQUIRE_FALSE(bounds.empty());
  REQUIRE(bounds.front() >= 1);
  for (std::size_t i = 1; i < bounds.size(); ++i) REQUIRE(bounds[i - 1] < bounds[i]);
  for (int n = 1; n < std::min(bounds.back(), 10000) + 100; ++n) {
    std::size_t const chosen = policy.select(n);
    REQUIRE(chosen < bounds.size());
    if (n <= bounds.back())
      REQUIRE(bounds[chosen] >= n);
    else
      REQUIRE(chosen == bounds.size() - 1);
    if (chosen > 0) REQUIRE(bounds[chosen - 1] < n);
  }
}

}  // namespace

TEST_CASE("DecodePrefillTiers is a token tier policy", "[plan][token_tiers]") {
  check_token_tiers(tiered::DecodePrefillTiers{});
  for (int const most : {1, 2, 15, 16, 17, 64, 100, 512, 4096, 1 << 30}) check_token_tiers(tiered::DecodePrefillTiers{most});
}
