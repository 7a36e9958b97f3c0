/// TileShares: every tile once, first halves first, members begin with rows of their own.
#include "tiered/kernels/cpu/tile_shares.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "catch.hpp"

using tiered::cpu::TileShares;

TEST_CASE("each tile is given out once, second ones after all first ones, whoever takes", "[cpu][tile_shares]") {
  for (int const n_members : {1, 2, 3, 16, 100}) {
    for (std::int32_t const n_first : {1, 5, 48}) {
      constexpr std::int32_t n_second = 7, n_groups = 3;
      TileShares shares(n_first, n_second, n_groups, n_members);
      std::int64_t const n = std::int64_t{n_first + n_second} * n_groups;
      std::vector<int> times(std::size_t(n), 0);
      std::int64_t n_given = 0;
      for (std::int32_t member = 0;; member = (member + 5) % n_members) {
        std::int64_t const tile = shares.take(member);
        REQUIRE(tile >= 0);
        REQUIRE(tile <= n);
        if (tile == n) break;
        CHECK((tile < std::int64_t{n_first} * n_groups) == (n_given < std::int64_t{n_first} * n_groups));
        ++times[std::size_t(tile)];
        ++n_given;
      }
      INFO(n_members << " members, " << n_first << " tiles");
      CHECK(std::ranges::all_of(times, [](int t) { return t == 1; }));
    }
  }
}

TEST_CASE("a member begins with its share of every group's rows, in the order of the groups", "[cpu][tile_shares]") {
  TileShares shares(16, 16, 2, 4);
  for (std::int64_t const tile : {4, 5, 6, 7, 20, 21, 22, 23}) CHECK(shares.take(1) == tile);
  CHECK(shares.take(1) == 8);  // the next member's
}

TEST_CASE("threads that take at once get every tile once", "[cpu][tile_shares]") {
  TileShares shares(40, 30, 8, 4);
  std::vector<std::atomic<int>> times(70 * 8);
  std::vector<std::thread> threads;
  for (std::int32_t member = 0; member < 4; ++member) {
    threads.emplace_back([&, member] {
      for (std::int64_t tile; (tile = shares.take(member)) < 70 * 8;) ++times[std::size_t(tile)];
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::ranges::all_of(times, [](std::atomic<int> const& t) { return t == 1; }));
}
