/// The PrefetchPolicy suite over every model of it.
#include "conformance/prefetch_suite.hpp"

#include "tiered/plan/any_policy.hpp"

using namespace tiered;

TEST_CASE("RingPrefetch is a prefetch policy", "[plan][prefetch]") {
  RingPrefetch one_ahead, eager;
  one_ahead.most_ahead = 1;
  eager.split_above = 0.2;
  eager.piece = 0.1;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    tiered_test::check_prefetch(RingPrefetch{}, seed);
    tiered_test::check_prefetch(one_ahead, seed);
    tiered_test::check_prefetch(eager, seed);
  }
}

TEST_CASE("AnyPrefetch is a prefetch policy", "[plan][prefetch]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) tiered_test::check_prefetch(AnyPrefetch{}, seed);
}
