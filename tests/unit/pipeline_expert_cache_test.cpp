#include <algorithm>
#include <map>
#include <vector>

#include "catch.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/pipeline/expert_cache.hpp"
#include "tiered/plan/lru.hpp"

using namespace tiered;

namespace {

ExpertCache::Room take(ExpertCache& cache, std::uint32_t id, std::size_t bytes) {
  auto const room = cache.acquire(ShardId(id), bytes);
  REQUIRE(room.has_value());
  room->entry->pins = 0;
  return *room;
}

}  // namespace

TEST_CASE("entries never overlap and never leave the pool, whatever their sizes") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    std::size_t const pool = 500 + random.below(2000);
    ExpertCache cache(pool, Lru{});
    std::map<std::uint32_t, std::size_t> size_of;
    for (std::uint64_t step = 0; step < 200; ++step) {
      auto const id = std::uint32_t(random.below(40));
      size_of.try_emplace(id, 20 + random.below(200));
      if (cache.find(ShardId(id), step) == nullptr) {
        auto const room = cache.acquire(ShardId(id), size_of[id]);
        REQUIRE(room.has_value());
        room->entry->last_use = {1, step + 1};
        room->entry->pins = 0;
        if (random.below(8) == 0) cache.drop(ShardId(id));
      }
      std::map<std::size_t, std::size_t> ranges;
      std::size_t used = 0;
      for (auto const& [other, bytes] : size_of) {
        ExpertCache::Entry* const entry = cache.find(ShardId(other), step);
        if (entry == nullptr) continue;
        CHECK(entry->bytes == bytes);
        ranges[entry->offset] = entry->offset + entry->bytes;
        used += bytes;
      }
      std::size_t end = 0;
      for (auto const& [begin, range_end] : ranges) {
        CHECK(begin >= end);
        end = range_end;
      }
      CHECK(end <= pool);
      CHECK(used == cache.used_bytes());
    }
  }
}

TEST_CASE("the least recently used goes, and its last use guards what takes its bytes") {
  ExpertCache cache(100, Lru{});
  for (std::uint32_t id = 0; id < 4; ++id) {
    cache.find(ShardId(id), id);
    take(cache, id, 25).entry->last_use = {3, 10 + id};
  }
  cache.find(ShardId(0), 9);  // 1 is the oldest now
  cache.find(ShardId(7), 10);
  auto const room = take(cache, 7, 25);
  CHECK(room.after == Ticket{3, 11});
  CHECK(cache.find(ShardId(1), 11) == nullptr);
  CHECK(cache.find(ShardId(0), 11) != nullptr);
  CHECK(cache.counters().evictions == 1);
}

TEST_CASE("neighbours merge: a large entry takes the place of several, after the last of their uses") {
  ExpertCache cache(100, Lru{});
  for (std::uint32_t id = 0; id < 4; ++id) {
    cache.find(ShardId(id), id);
    take(cache, id, 25).entry->last_use = {3, 20 - id};
  }
  auto const room = take(cache, 9, 100);
  CHECK(room.after == Ticket{3, 20});
  CHECK(cache.size() == 1);
}

TEST_CASE("entries in use stay; where they leave no room, there is none, and nothing is lost") {
  ExpertCache cache(100, Lru{});
  for (std::uint32_t id = 0; id < 4; ++id) {
    cache.find(ShardId(id), id);
    take(cache, id, 25);
  }
  for (std::uint32_t id : {0u, 2u}) cache.find(ShardId(id), 4)->pins = 1;
  CHECK_FALSE(cache.acquire(ShardId(9), 50).has_value());
  CHECK(cache.find(ShardId(0), 5) != nullptr);
  CHECK(cache.find(ShardId(2), 5) != nullptr);
  cache.find(ShardId(0), 6)->pins = 0;
  CHECK(cache.acquire(ShardId(9), 50).has_value());
  CHECK(cache.find(ShardId(2), 7) != nullptr);
}

TEST_CASE("room is made without an entry for it: the policy's victims go until enough is free, those in use stay") {
  ExpertCache cache(100, Lru{});
  for (std::uint32_t id = 0; id < 4; ++id) take(cache, id, 25);
  std::vector<ShardId> evicted;
  CHECK(cache.make_free(0, evicted));
  CHECK(evicted.empty());
  cache.find(ShardId(0), 1)->pins = 1;
  cache.find(ShardId(1), 2);
  CHECK(cache.make_free(30, evicted));
  CHECK(evicted == std::vector<ShardId>{ShardId(2), ShardId(3)});
  CHECK(cache.free_bytes() == 50);
  CHECK(cache.make_free(50, evicted));  // is there already
  CHECK(evicted.size() == 2);
  CHECK_FALSE(cache.make_free(100, evicted));
  CHECK(evicted.back() == ShardId(1));
  CHECK(cache.size() == 1);
  cache.peek(ShardId(0))->pins = 0;
  CHECK(cache.make_free(100, evicted));  // the policy still knows it
  CHECK(cache.size() == 0);
}

TEST_CASE("a cleared cache is empty and whole") {
  ExpertCache cache(64, Lru{});
  take(cache, 1, 30);
  cache.clear({2, 5});
  CHECK(cache.used_bytes() == 0);
  CHECK(cache.find(ShardId(1), 0) == nullptr);
  CHECK(take(cache, 2, 64).after == Ticket{2, 5});
}

TEST_CASE("a pool whose ends move keeps what is wholly inside, whoever is pinned, and gives all that is free in between") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    std::size_t begin = 0, end = 1000;
    ExpertCache cache(end, Lru{});
    std::map<std::uint32_t, std::pair<std::size_t, std::size_t>> expected;  // by id: the entry's range
    for (int step = 0; step < 80; ++step) {
      if (random.below(4) == 0) {
        if (end > begin && random.below(3) == 0) cache.lend(1 + random.below(end - begin));
        std::erase_if(expected, [&](auto const& e) { return cache.peek(ShardId(e.first)) == nullptr; });
        begin = random.below(3) == 0 ? 0 : random.below(1500);
        end = begin + (random.below(5) == 0 ? 0 : random.below(1500));
        std::uint64_t filled = 0;  // last of what goes
        for (auto const& [id, range] : expected) {
          if (range.first < begin || range.second > end) filled = std::max(filled, cache.peek(ShardId(id))->filled.value);
        }
        CHECK(cache.resize(end, begin).value == filled);
        std::erase_if(expected, [&](auto const& e) { return e.second.first < begin || e.second.second > end; });
        CHECK(cache.lent_bytes() == 0);
      } else if (std::uint32_t const id = std::uint32_t(random.below(64)); cache.peek(ShardId(id)) == nullptr && end - begin >= 90) {
        std::vector<ShardId> evicted;
        auto const room = cache.acquire(ShardId(id), 1 + random.below(90), &evicted);
        for (ShardId const e : evicted) expected.erase(std::uint32_t(e));
        if (!room) {
          CHECK(cache.lent_bytes() + expected.size() > 0);
          continue;
        }
        expected[id] = {room->entry->offset, room->entry->offset + room->entry->bytes};
        room->entry->pins = random.below(8) == 0 ? 1 : 0;
        room->entry->filled = {1, std::uint64_t(step) + 1};
      }
      REQUIRE(cache.bytes() == end - begin);
      REQUIRE(cache.size() == expected.size());
      std::vector<bool> taken(3000, false);
      std::size_t used = 0;
      for (auto const& [id, range] : expected) {
        ExpertCache::Entry const* const entry = cache.peek(ShardId(id));
        REQUIRE(entry != nullptr);
        REQUIRE(entry->offset == range.first);
        REQUIRE(range.first >= begin);
        REQUIRE(range.second <= end - cache.lent_bytes());
        for (std::size_t at = range.first; at < range.second; ++at) {
          REQUIRE_FALSE(taken[at]);
          taken[at] = true;
        }
        used += range.second - range.first;
      }
      REQUIRE(cache.used_bytes() == used);
      REQUIRE(cache.free_bytes() == end - begin - used - cache.lent_bytes());
      // The longest stretch that nobody has can be had, and no byte more.
      std::size_t longest = 0, run = 0;
      for (std::size_t at = begin; at < end - cache.lent_bytes(); ++at) longest = std::max(longest, run = taken[at] ? 0 : run + 1);
      CHECK_FALSE(cache.acquire_free(ShardId(99), longest + 1).has_value());
      if (longest == 0) continue;
      CHECK(cache.acquire_free(ShardId(99), longest).has_value());
      cache.drop(ShardId(99));
    }
  }
}
