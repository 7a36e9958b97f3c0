#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/plan/any_eviction.hpp"
#include "tiered/plan/frequency_decay.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/plan/prior_frequency.hpp"

using namespace tiered;

TEST_CASE("Lru evicts what was used longest ago", "[plan][lru]") {
  Lru lru;
  for (std::uint32_t s : {5, 2, 9}) lru.insert(ShardId{s});
  REQUIRE(lru.victim() == ShardId{5});
  lru.touch(ShardId{5}, 1);
  REQUIRE(lru.victim() == ShardId{2});
  lru.touch(ShardId{7}, 2);  // not cached: nothing changes
  REQUIRE(lru.victim() == ShardId{2});
  lru.erase(ShardId{2});
  lru.touch(ShardId{9}, 3);
  REQUIRE(lru.victim() == ShardId{5});
  lru.insert(ShardId{2});
  lru.erase(ShardId{5});
  REQUIRE(lru.victim() == ShardId{9});
}

TEST_CASE("FrequencyDecay evicts what was used least, lately", "[plan][frequency_decay]") {
  FrequencyDecay policy{10};
  for (std::uint32_t s : {1, 2, 3}) policy.insert(ShardId{s});
  REQUIRE(policy.victim() == ShardId{1});  // none used: the lowest
  policy.touch(ShardId{1}, 0);
  policy.touch(ShardId{1}, 0);
  policy.touch(ShardId{2}, 0);
  policy.touch(ShardId{3}, 0);
  REQUIRE(policy.victim() == ShardId{2});
  policy.touch(ShardId{2}, 25);  // 2^-2.5 times two old uses weigh less than this one
  policy.touch(ShardId{3}, 25);
  REQUIRE(policy.victim() == ShardId{1});
  policy.erase(ShardId{1});
  policy.touch(ShardId{1}, 26);
  policy.touch(ShardId{1}, 27);
  policy.insert(ShardId{1});  // what it did outside counts
  REQUIRE(policy.victim() == ShardId{2});
}

TEST_CASE("FrequencyDecay keeps its order after very many steps", "[plan][frequency_decay]") {
  FrequencyDecay policy{4};
  policy.insert(ShardId{0});
  policy.insert(ShardId{1});
  for (std::uint64_t step = 64; step < 2'000'000'000'000; step *= 2) {
    policy.touch(ShardId{0}, step);
    REQUIRE(policy.victim() == ShardId{1});
    policy.touch(ShardId{1}, step + 1);
    policy.touch(ShardId{1}, step + 1);
    REQUIRE(policy.victim() == ShardId{0});
  }
}

TEST_CASE("FrequencyDecay names the least of all scores, whatever was touched, inserted and erased before", "[plan][frequency_decay]") {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random{seed};
    double const half_life = 1 + double(random.below(20));
    FrequencyDecay policy{half_life};
    std::map<std::uint32_t, double> scores;  // of all uses, in the order that they were made: sums round alike
    std::set<std::uint32_t> inside;
    auto const score = [&](std::uint32_t s) { return scores.count(s) != 0 ? scores[s] : -1e9; };
    for (std::uint64_t step = 0; step < 600; ++step) {
      auto const s = std::uint32_t(random.below(30));
      switch (random.below(5)) {
        case 0:
        case 1: {
          policy.touch(ShardId{s}, step);
          double const use = double(step) / half_life, high = std::fmax(score(s), use), low = std::fmin(score(s), use);
          scores[s] = high + std::log2(1 + std::exp2(low - high));
          break;
        }
        case 2:
          if (inside.insert(s).second) policy.insert(ShardId{s});
          break;
        case 3:
          inside.erase(s);
          policy.erase(ShardId{s});
          break;
        default:
          if (random.below(8) != 0) break;
          policy.assume(ShardId{s}, 0.5, step);
          scores[s] = std::log2(0.5) + double(step) / half_life;
      }
      if (random.below(3) != 0) continue;  // or nothing would ever be out of order
      std::optional<std::pair<double, std::uint32_t>> least;
      for (std::uint32_t const i : inside) {
        if (std::pair const mine(score(i), i); !least || mine < *least) least = mine;
      }
      std::optional<ShardId> const victim = policy.victim();
      REQUIRE(victim.has_value() == least.has_value());
      if (victim) REQUIRE(std::uint32_t(*victim) == least->second);
    }
  }
}

TEST_CASE("PriorFrequency begins with what earlier runs used, and forgets it for what this one does", "[plan][prior_frequency]") {
  PriorFrequency policy{8, 16};
  for (std::uint32_t s : {0, 1, 2, 3}) policy.insert(ShardId{s});
  policy.touch(ShardId{0}, 100);  // while loading
  policy.begin_with(std::vector<double>{0.1, 0.5, 0.3});
  CHECK(policy.uses().empty());
  REQUIRE(policy.victim() == ShardId{3});  // nobody has ever used it
  policy.erase(ShardId{3});
  REQUIRE(policy.victim() == ShardId{0});
  policy.touch(ShardId{0}, 101);
  policy.touch(ShardId{0}, 101);
  policy.touch(ShardId{0}, 102);
  policy.touch(ShardId{0}, 103);
  REQUIRE(policy.victim() == ShardId{2});  // 4.8 uses of before, 1.6 and 4 of the other
  policy.touch(ShardId{2}, 140);
  REQUIRE(policy.victim() == ShardId{0});  // five half-lives later one use weighs more than those
  policy.touch(ShardId{0}, 141);
  REQUIRE(policy.victim() == ShardId{1});
  CHECK(std::vector<std::uint64_t>(policy.uses().begin(), policy.uses().end()) == std::vector<std::uint64_t>{5, 0, 1});
}

TEST_CASE("PriorFrequency without a prior is FrequencyDecay", "[plan][prior_frequency]") {
  FrequencyDecay plain{16};
  PriorFrequency policy{16, 100};
  SplitMix64 random{1};
  for (std::uint64_t step = 0; step < 500; ++step) {
    ShardId const s{std::uint32_t(random.below(20))};
    plain.touch(s, step);
    policy.touch(s, step);
    if (random.below(2) == 0) {
      plain.insert(s);
      policy.insert(s);
    } else {
      plain.erase(s);
      policy.erase(s);
    }
    REQUIRE(plain.victim() == policy.victim());
  }
}

TEST_CASE("policies are made by name, and say whether they learn", "[plan][eviction]") {
  for (std::string_view const name : eviction_names) {
    INFO(std::string(name));
    AnyEviction policy = make_eviction(name);
    policy.insert(ShardId{2});
    policy.insert(ShardId{1});
    policy.begin_with(std::vector<double>{0, 0.5, 0.1});
    policy.touch(ShardId{1}, 1);
    CHECK(policy.learns() == (name == "prior_frequency"));
    CHECK(policy.uses().size() == (policy.learns() ? 2u : 0u));
    CHECK(policy.victim() == ShardId{2});
  }
  CHECK(AnyEviction().learns());
  auto const refused = tiered_test::error_of([] { make_eviction("fifo"); });
  CHECK(refused.code == Errc::precondition);
  CHECK(refused.says("\"fifo\"", "lru", "frequency_decay", "prior_frequency"));
}
