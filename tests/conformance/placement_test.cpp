/// The PlacementPolicy suite over every built-in placement.
#include "conformance/placement_suite.hpp"

#include "tiered/plan/any_policy.hpp"

namespace {

constexpr std::uint64_t n_seeds = 1500;

template <class Policy>
void check_all(Policy const& policy) {
  for (std::uint64_t seed = 0; seed < n_seeds; ++seed) tiered_test::check_placement(policy, seed);
}

}  // namespace

TEST_CASE("AllVram is a placement policy", "[plan][placement]") { check_all(tiered::AllVram{}); }
TEST_CASE("AttentionFirst is a placement policy", "[plan][placement]") { check_all(tiered::AttentionFirst{}); }
TEST_CASE("SecondsPerByte is a placement policy", "[plan][placement]") {
  check_all(tiered::SecondsPerByte{});
  check_all(tiered::SecondsPerByte{1.5});
}
TEST_CASE("StreamAll is a placement policy", "[plan][placement]") { check_all(tiered::StreamAll{}); }
TEST_CASE("AnyPlacement is a placement policy", "[plan][placement]") { check_all(tiered::AnyPlacement{}); }
