/// The EvictionPolicy suite over every model of it.
#include <optional>
#include <set>
#include <vector>

#include "catch.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/plan/any_eviction.hpp"
#include "tiered/plan/frequency_decay.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/plan/prior_frequency.hpp"

using namespace tiered;

namespace {

/// Any sequence of calls: the victim was inserted and not erased, there is one as long as there can be, asking changes nothing,
/// and a second object that hears the same answers the same.
template <class Make>
void check_eviction(Make make) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random{seed};
    auto policy = make(), twin = make();
    std::set<std::uint32_t> inside;
    REQUIRE_FALSE(policy.victim().has_value());
    for (std::uint64_t step = 0; step < 400; ++step) {
      auto const s = std::uint32_t(random.below(40));
      switch (random.below(4)) {
        case 0:
          policy.touch(ShardId{s}, step);
          twin.touch(ShardId{s}, step);
          break;
        case 1:
          if (!inside.insert(s).second) break;
          REQUIRE(policy.admit(ShardId{s}) == twin.admit(ShardId{s}));
          policy.insert(ShardId{s});
          twin.insert(ShardId{s});
          break;
        case 2:
          if (inside.erase(s) == 0) break;
          policy.erase(ShardId{s});
          twin.erase(ShardId{s});
          break;
        default:
          if (std::optional<ShardId> const victim = policy.victim(); victim && random.below(2) == 0) {
            inside.erase(std::uint32_t(*victim));
            policy.erase(*victim);
            twin.erase(*victim);
          }
      }
      std::optional<ShardId> const victim = policy.victim();
      REQUIRE(victim.has_value() == !inside.empty());
      if (victim) REQUIRE(inside.count(std::uint32_t(*victim)) == 1);
      REQUIRE(policy.victim() == victim);
      REQUIRE(twin.victim() == victim);
    }
  }
}

}  // namespace

TEST_CASE("Lru is an eviction policy", "[plan][eviction]") {
  check_eviction([] { return Lru{}; });
}
TEST_CASE("FrequencyDecay is an eviction policy", "[plan][eviction]") {
  check_eviction([] { return FrequencyDecay{8}; });
}
TEST_CASE("PriorFrequency is an eviction policy", "[plan][eviction]") {
  check_eviction([] { return PriorFrequency{8, 4}; });
  check_eviction([] {
    PriorFrequency policy{8, 4};
    policy.begin_with(std::vector<double>{0.1, 0.9, 0, 0.5});
    return policy;
  });
}
TEST_CASE("AnyEviction is an eviction policy", "[plan][eviction]") {
  check_eviction([] { return AnyEviction{Lru{}}; });
}
