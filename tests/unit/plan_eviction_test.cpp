#include <set>

#include "catch.hpp"
#include "tiered/plan/frequency_decay.hpp"
#include "tiered/plan/lru.hpp"

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
