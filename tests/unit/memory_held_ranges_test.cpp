#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "tiered/memory/detail/held_ranges.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using detail::HeldRanges;

TEST_CASE("the first who holds a range takes it, the last gives it back", "[memory][held_ranges]") {
  HeldRanges ranges;
  int n_taken = 0, n_given = 0;
  auto const take = [&] { ++n_taken; };
  auto const give = [&] { ++n_given; };
  HeldRanges::Key const key{4096, 8192, 1};
  ranges.hold(key, take);
  ranges.hold(key, take);
  CHECK(n_taken == 1);
  ranges.release(key, give);
  CHECK(n_given == 0);
  ranges.release(key, give);
  CHECK(n_given == 1);
  CHECK(ranges.n_held() == 0);
  ranges.hold(key, take);
  CHECK(n_taken == 2);
  for (HeldRanges::Key const& other : {HeldRanges::Key{4096, 8192, 0}, {4096, 12288, 1}, {0, 8192, 1}}) ranges.hold(other, take);
  CHECK(n_taken == 5);  // each its own
  CHECK(ranges.n_held() == 4);
}

TEST_CASE("who fails to take a range does not hold it, and the next one tries anew", "[memory][held_ranges]") {
  HeldRanges ranges;
  HeldRanges::Key const key{0, 4096};
  CHECK_THROWS_AS(ranges.hold(key, [] { throw std::runtime_error("refused"); }), std::runtime_error);
  CHECK(ranges.n_held() == 0);
  int n_taken = 0, n_given = 0;
  ranges.hold(key, [&] { ++n_taken; });
  CHECK(n_taken == 1);
  ranges.release(key, [&] { ++n_given; });
  ranges.release(key, [&] { ++n_given; });  // of nobody
  CHECK(n_given == 1);
}

TEST_CASE("a range is taken while somebody holds it and at no other time, whoever comes and goes", "[memory][held_ranges]") {
  HeldRanges ranges;
  constexpr std::uint64_t n_keys = 3;
  std::atomic<int> taken[n_keys] = {};
  std::atomic<int> n_wrong{0};
  std::vector<std::thread> threads;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([&, seed] {
      SplitMix64 random(seed);
      for (int i = 0; i < 3000; ++i) {
        std::uint64_t const k = random.below(n_keys);
        HeldRanges::Key const key{4096 * k, 4096 * (k + 1)};
        bool const fails = random.below(8) == 0;
        try {
          ranges.hold(key, [&] {
            if (fails) throw std::runtime_error("refused");
            n_wrong += taken[k].fetch_add(1) != 0;
          });
        } catch (std::runtime_error const&) {
          continue;
        }
        n_wrong += taken[k].load() != 1;
        if (random.below(2) == 0) std::this_thread::yield();
        ranges.release(key, [&] { n_wrong += taken[k].fetch_sub(1) != 1; });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(n_wrong == 0);
  CHECK(ranges.n_held() == 0);
  for (std::atomic<int> const& n : taken) CHECK(n == 0);
}
