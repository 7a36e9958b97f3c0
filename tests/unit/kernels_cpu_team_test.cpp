/// Team: every element once, errors, sharing, sizes, more threads than cores.
#include "tiered/kernels/cpu/team.hpp"

#include <atomic>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"

using tiered::Errc;
using tiered::Team;

namespace {

/// How often each of n elements was given out, and the ranges.
struct Seen {
  explicit Seen(std::int64_t n) : counts(static_cast<std::size_t>(n)) {}
  std::vector<std::atomic<int>> counts;
  std::mutex mutex;
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  void take(std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++counts[std::size_t(i)];
    std::lock_guard lock(mutex);
    ranges.emplace_back(begin, end);
  }
  bool each_once() const {
    for (auto const& count : counts) {
      if (count != 1) return false;
    }
    return true;
  }
};

}  // namespace

TEST_CASE("a team gives out every element once, in ranges of the grain but for the last") {
  for (int const n_threads : {1, 2, 3, 7, 16}) {
    Team team(n_threads);
    CHECK(team.size() == n_threads);
    for (std::int64_t const n : {0, 1, 2, 9, 100, 1001}) {
      for (std::int64_t const grain : {1, 2, 7, 5000}) {
        Seen seen(n);
        team.parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) { seen.take(begin, end); });
        INFO(n_threads << " threads, " << n << " elements, grain " << grain);
        CHECK(seen.each_once());
        CHECK(seen.ranges.size() == std::size_t((n + grain - 1) / grain));
        for (auto const& [begin, end] : seen.ranges) {
          if (begin % grain != 0 || (end != begin + grain && end != n)) FAIL("a range that is no multiple of the grain");
        }
      }
    }
  }
}

TEST_CASE("a grain below 1 counts as 1, and no elements call nothing") {
  Team team(2);
  int calls = 0;
  team.parallel_for(0, 1, [&](std::int64_t, std::int64_t) { ++calls; });
  team.parallel_for(-5, 1, [&](std::int64_t, std::int64_t) { ++calls; });
  CHECK(calls == 0);
  Seen seen(4);
  team.parallel_for(4, 0, [&](std::int64_t begin, std::int64_t end) { seen.take(begin, end); });
  CHECK(seen.ranges.size() == 4);
}

TEST_CASE("one part, or a team of one, runs on the calling thread") {
  for (int const n_threads : {1, 4}) {
    Team team(n_threads);
    std::set<std::thread::id> ids;
    team.parallel_for(n_threads == 1 ? 100 : 1, 1, [&](std::int64_t, std::int64_t) { ids.insert(std::this_thread::get_id()); });
    CHECK(ids == std::set<std::thread::id>{std::this_thread::get_id()});
  }
}

TEST_CASE("members take part: two ranges that wait for each other both run") {
  Team team(2);
  std::atomic<int> inside{0};
  team.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    ++inside;
    while (inside.load() < 2) std::this_thread::yield();
  });
  CHECK(inside == 2);
}

TEST_CASE("a member that went to sleep is woken") {
  Team team(2);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 1000 * round; ++i) std::this_thread::yield();  // from no pause to one that is longer than members watch
    std::atomic<int> inside{0};
    team.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
      ++inside;
      while (inside.load() < 2) std::this_thread::yield();
    });
    CHECK(inside == 2);
  }
}

TEST_CASE("what a body throws reaches the caller, from any member, and the team works on") {
  for (int const n_threads : {1, 2, 5}) {
    Team team(n_threads);
    for (std::int64_t const bad : {0, 1, 57, 99}) {
      std::string what;
      try {
        team.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t) {
          if (begin == bad) throw std::runtime_error("at " + std::to_string(begin));
        });
      } catch (std::runtime_error const& error) {
        what = error.what();
      }
      CHECK(what == "at " + std::to_string(bad));
      Seen seen(100);
      team.parallel_for(100, 3, [&](std::int64_t begin, std::int64_t end) { seen.take(begin, end); });
      CHECK(seen.each_once());
    }
  }
}

TEST_CASE("many loops in a row, on more threads than cores, see what the one before wrote") {
  for (int const n_threads : {2, 3, 24}) {
    Team team(n_threads);
    std::vector<std::int64_t> values(64, 0);
    for (int round = 0; round < 3000; ++round) {
      team.parallel_for(64, 1 + round % 5, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) ++values[std::size_t(i)];
      });
    }
    CHECK(values == std::vector<std::int64_t>(64, 3000));
  }
}

TEST_CASE("several teams at once, and several callers of one team, do not disturb each other") {
  Team shared(3);
  std::vector<std::int64_t> totals(4, 0);
  std::atomic<std::int64_t> shared_total{0};
  std::vector<std::thread> callers;
  for (std::size_t c = 0; c < totals.size(); ++c) {
    callers.emplace_back([&, c] {
      Team own(3);
      for (int round = 0; round < 200; ++round) {
        std::atomic<std::int64_t> sum{0};
        own.parallel_for(50, 3, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) sum += i;
        });
        totals[c] += sum;
        shared.parallel_for(50, 3, [&](std::int64_t begin, std::int64_t end) { shared_total += end - begin; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(totals == std::vector<std::int64_t>(4, 200 * 49 * 50 / 2));
  CHECK(shared_total == 4 * 200 * 50);
}

TEST_CASE("a team of no thread, or of too many, is refused") {
  CHECK(tiered_test::error_of([] { Team team(0); }).code == Errc::precondition);
  CHECK(tiered_test::error_of([] { Team team(-3); }).code == Errc::precondition);
  CHECK(tiered_test::error_of([] { Team team(Team::max_threads + 1); }).code == Errc::precondition);
}

TEST_CASE("the suggested grain gives every member work and respects the smallest") {
  Team one(1), four(4);
  CHECK(one.grain(1000) == 1000);
  CHECK(four.grain(1600) == 100);
  CHECK(four.grain(3) == 1);
  CHECK(four.grain(100, 50) == 50);
  CHECK(four.grain(0) >= 1);
}
