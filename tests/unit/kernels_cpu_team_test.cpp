/// Team: every element once, who takes what, errors, sharing, sizes, more threads than cores, sleep, places.
#include "tiered/kernels/cpu/team.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/system.hpp"
#include "tiered/kernels/cpu/detail/reader.hpp"
#include "tiered/kernels/cpu/detail/team_parts.hpp"
#include "tiered/kernels/cpu/topology.hpp"

using tiered::Errc;
using tiered::Team;
using tiered::detail::PartRanges;
using tiered::detail::PartSplit;
using tiered::detail::Reader;

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

/// Runs `body` on all members of a team at the same time.
template <class Body>
void on_each_member(Team& team, Body const& body) {
  std::atomic<int> inside{0};
  team.parallel_for(team.size(), 1, [&](std::int64_t, std::int64_t) {
    ++inside;
    while (inside.load() < team.size()) std::this_thread::yield();
    body();
  });
}

void wait_until_all_sleep(Team const& team) {
  while (team.activity().n_asleep < team.size() - 1) std::this_thread::yield();
}

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

TEST_CASE("each worker begins with neighbouring parts of its own; together they are all parts") {
  for (std::uint32_t const n_workers : {1u, 2u, 7u, 16u}) {
    for (std::uint32_t const n_parts : {16u, 17u, 100u, 4194303u}) {
      PartSplit const split{1, n_parts, n_workers};
      std::uint32_t end = 0;
      for (std::uint32_t worker = 0; worker < n_workers; ++worker) {
        auto const parts = split.first_of(worker);
        CHECK(parts.begin == end);
        CHECK(parts.end - parts.begin >= n_parts / n_workers);
        CHECK(parts.end - parts.begin <= n_parts / n_workers + 1);
        end = parts.end;
      }
      CHECK(end == n_parts);
    }
  }
}

TEST_CASE("a worker takes its own parts in order, then the later half of what the next one has left") {
  PartRanges ranges(3);
  PartSplit const split{1, 12, 3};
  auto const take = [&](std::uint32_t worker, int n) {
    std::vector<std::int64_t> parts;
    for (int i = 0; i < n; ++i) parts.push_back(ranges.take(split, worker));
    return parts;
  };
  CHECK(take(0, 4) == std::vector<std::int64_t>{0, 1, 2, 3});
  CHECK(take(0, 2) == std::vector<std::int64_t>{6, 7});  // of {4, 5, 6, 7}
  CHECK(take(1, 1) == std::vector<std::int64_t>{4});
  CHECK(take(0, 1) == std::vector<std::int64_t>{5});
  CHECK(take(0, 1) == std::vector<std::int64_t>{10});      // of {8 .. 11}, whose worker never comes
  CHECK(take(1, 2) == std::vector<std::int64_t>{9, 8});    // {8, 9} of the one that never comes
  CHECK(take(1, 2) == std::vector<std::int64_t>{11, -1});  // what the first had taken away and not begun
  CHECK(take(0, 1) == std::vector<std::int64_t>{-1});
  CHECK(take(2, 1) == std::vector<std::int64_t>{-1});

  PartSplit const next{2, 2, 2};  // another loop: words of the last one count no more
  CHECK(ranges.take(next, 1) == 1);
  CHECK(ranges.take(next, 1) == 0);
  CHECK(ranges.take(next, 0) == -1);
  ranges.forget_tags();
  CHECK(ranges.take(next, 0) == 0);
}

TEST_CASE("workers that take from each other get every part once, though one of them never comes") {
  constexpr std::uint32_t n_parts = 20000, n_workers = 5;
  PartRanges ranges(int{n_workers});
  for (std::uint32_t tag = 1; tag <= 5; ++tag) {
    PartSplit const split{tag, n_parts, n_workers};
    Seen seen(n_parts);
    std::vector<std::thread> threads;
    for (std::uint32_t worker = 1; worker < n_workers; ++worker) {
      threads.emplace_back([&, worker] {
        for (std::int64_t part; (part = ranges.take(split, worker)) >= 0;) ++seen.counts[std::size_t(part)];
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(seen.each_once());
  }
}

TEST_CASE("members begin at different places of a loop") {
  Team team(3);
  std::mutex mutex;
  std::set<std::thread::id> begun;
  std::set<std::int64_t> firsts;
  team.parallel_for(300, 1, [&](std::int64_t begin, std::int64_t) {
    std::unique_lock lock(mutex);
    if (!begun.insert(std::this_thread::get_id()).second) return;
    firsts.insert(begin);
    while (begun.size() < 3) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    }
  });
  CHECK(firsts == std::set<std::int64_t>{0, 100, 200});
}

TEST_CASE("more parts than a word has room for, and more loops than there are tags") {
  Team team(2);
  std::atomic<std::int64_t> sum{0};
  std::int64_t const n = PartRanges::max_parts * 2 + 12345;
  team.parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
    if (begin % 1000 == 0) sum += end;
  });
  std::int64_t const thousands = (n + 999) / 1000;
  CHECK(sum == thousands * (thousands - 1) / 2 * 1000 + thousands);

  std::int64_t ran[2][8] = {};  // each by one member at a time, on lines of their own
  std::int64_t const n_loops = PartRanges::tag_mask + std::int64_t{100};
  for (std::int64_t i = 0; i < n_loops; ++i) team.parallel_for(2, 1, [&](std::int64_t begin, std::int64_t) { ++ran[begin][0]; });
  CHECK(ran[0][0] == n_loops);
  CHECK(ran[1][0] == n_loops);
}

TEST_CASE("a caller whose part is done long before the others' waits for them") {
  Team team(2);
  std::atomic<int> inside{0}, finished{0};
  std::thread::id const caller = std::this_thread::get_id();
  team.parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    ++inside;
    while (inside.load() < 2) std::this_thread::yield();
    if (std::this_thread::get_id() == caller) return;
    for (int i = 0; i < 30000; ++i) std::this_thread::yield();  // longer than the caller watches
    ++finished;
  });
  CHECK(finished == 1);
}

TEST_CASE("members that have nothing to do sleep, and stay asleep while another team works") {
  Team idle(4), busy(2);
  on_each_member(idle, [] {});
  wait_until_all_sleep(idle);
  auto const before = idle.activity();
  CHECK(before.n_loops == 1);
  CHECK(before.n_sleeps >= 3);
  std::int64_t sum[2][8] = {};
  for (int i = 0; i < 2000; ++i) busy.parallel_for(2, 1, [&](std::int64_t begin, std::int64_t) { ++sum[begin][0]; });
  CHECK(sum[0][0] + sum[1][0] == 4000);
  CHECK(busy.activity().n_loops == 2000);
  CHECK(idle.activity().n_sleeps == before.n_sleeps);
  CHECK(idle.activity().n_asleep == 3);
  on_each_member(idle, [] {});  // and all of them come when they are needed
}

TEST_CASE("a loop of fewer ranges than members is for so many members, always the same; one of one range for none") {
  Team team(8);
  std::mutex mutex;
  std::set<std::thread::id> ids{std::this_thread::get_id()};
  for (int i = 0; i < 300; ++i) {
    team.parallel_for(3, 1, [&](std::int64_t, std::int64_t) {
      std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
    });
  }
  CHECK(ids.size() <= 3);
  CHECK(team.activity().n_loops == 300);
  team.parallel_for(100, 100, [](std::int64_t, std::int64_t) {});
  CHECK(team.activity().n_loops == 300);
}

TEST_CASE("members stay on the CPUs that they were given; the caller's thread is left alone") {
  std::vector<int> const allowed = tiered::allowed_cpus();
  if (allowed.empty()) return;
  std::vector<int> const cpus = tiered::cpus_to_pin(allowed);
  CHECK(std::set<int>(cpus.begin(), cpus.end()) == std::set<int>(allowed.begin(), allowed.end()));
  Team team(int(std::min<std::size_t>(cpus.size(), 8)), cpus);
  std::mutex mutex;
  std::vector<std::vector<int>> places;
  std::thread::id const caller = std::this_thread::get_id();
  on_each_member(team, [&] {
    if (std::this_thread::get_id() == caller) return;
    std::lock_guard lock(mutex);
    places.push_back(tiered::allowed_cpus());
  });
  std::sort(places.begin(), places.end());
  std::vector<std::vector<int>> expected;
  for (int i = 1; i < team.size(); ++i) expected.push_back({cpus[std::size_t(i)]});
  std::sort(expected.begin(), expected.end());
  CHECK(places == expected);
  CHECK(tiered::allowed_cpus() == allowed);
}

TEST_CASE("places that are too few or do not exist are refused") {
  auto const few = tiered_test::error_of([] { Team team(3, {0, 1}); });
  CHECK(few.code == Errc::precondition);
  CHECK(few.says("3 threads", "2 CPUs"));
  if (tiered::allowed_cpus().empty()) return;
  auto const missing = tiered_test::error_of([] { Team team(2, {0, 60000}); });
  CHECK(missing.code == Errc::device);
  CHECK(missing.says("CPU 60000"));
}

TEST_CASE("what is read ahead: every byte of every part once, and a worker's share of each part is its own") {
  std::vector<std::byte> const memory(300000);
  std::span<std::byte const> const all(memory);
  for (std::size_t const n_workers : {1, 2, 3, 16}) {
    std::vector<std::span<std::byte const>> const parts = {all.subspan(0, 100001), all.subspan(100001, 1), all.subspan(100002, 0),
                                                           all.subspan(100002, 63), all.subspan(100065)};
    Reader reader;
    std::int64_t const n = reader.take(parts, n_workers);
    REQUIRE(n % std::int64_t(n_workers) == 0);
    std::vector<int> seen(memory.size());
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      std::span<std::byte const> const page = reader.page(i);
      std::size_t const worker = std::size_t(i) / (std::size_t(n) / n_workers);
      for (std::byte const& b : page) {
        std::size_t const at = std::size_t(&b - memory.data());
        ++seen[at];
        // The last part is long enough for a share each; its first bytes are the first worker's, its last ones the last one's.
        wrong += at == 100065 && worker != 0;
        wrong += at == memory.size() - 1 && worker != n_workers - 1;
      }
    }
    INFO(n_workers << " workers");
    CHECK(wrong == 0);
    CHECK(std::ranges::all_of(seen, [](int times) { return times == 1; }));
  }
  Reader nothing;
  CHECK(nothing.take({}, 4) == 0);
}

TEST_CASE("a team that reads ahead leaves it for any loop, of any thread, and for its end") {
  std::vector<std::byte> const memory(std::size_t{8} << 20);
  std::vector<std::span<std::byte const>> const parts = {memory, std::span(memory).subspan(4096)};
  Team team(2);
  std::atomic<std::int64_t> sum{0};
  auto const loop = [&] { team.parallel_for(100, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; }); };
  for (int i = 0; i < 200; ++i) {
    team.read_ahead(parts);
    if (i % 3 == 0) team.read_ahead(std::span(parts).first(std::size_t(i / 3 % 3)));  // in place of what was begun; of nothing, too
    if (i % 2 == 0) {
      loop();
    } else {
      std::thread(loop).join();
    }
  }
  CHECK(sum == 200 * 100);
  team.read_ahead(parts);  // what nobody ended: the team's end does
  Team one(1);
  one.read_ahead(parts);
  std::vector<std::span<std::byte const>> const many(Team::max_read_parts + 1, parts[0]);
  CHECK(tiered_test::error_of([&] { team.read_ahead(many); }).code == Errc::precondition);
}

namespace {

/// Pages that nobody has touched yet.
class FreshPages {
 public:
  explicit FreshPages(std::size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(data_ != MAP_FAILED);
    madvise(data_, bytes, MADV_NOHUGEPAGE);
  }
  FreshPages(FreshPages const&) = delete;
  FreshPages& operator=(FreshPages const&) = delete;
  ~FreshPages() { munmap(data_, bytes_); }
  std::span<std::byte const> bytes() const { return {static_cast<std::byte const*>(data_), bytes_}; }
  std::vector<bool> touched() const {
    std::vector<unsigned char> present(bytes_ / 4096);
    REQUIRE(mincore(data_, bytes_, present.data()) == 0);
    std::vector<bool> out;
    for (unsigned char const p : present) out.push_back((p & 1) != 0);
    return out;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace

TEST_CASE("members of a team read what loops to come want, each its share, while they have nothing to do") {
  if (tiered::allowed_cpus().size() < 2 || tiered::cgroup_cpus().value_or(3) <= 2) return;  // a crowded team reads nothing
  constexpr std::size_t n_pages = 64;                                                       // a share of 32 for each of two
  FreshPages const memory(n_pages * 4096), never(n_pages * 4096);
  Team team(2);
  std::vector<std::span<std::byte const>> const parts{memory.bytes()};
  team.read_when_idle(parts);
  std::vector<bool> touched;
  for (int i = 0; i < 1000000; ++i) {
    team.parallel_for(2, 1, [](std::int64_t, std::int64_t) {});
    touched = memory.touched();
    if (touched[n_pages - 1]) break;
  }
  for (std::size_t p = 0; p < n_pages; ++p) CHECK(touched[p] == (p >= n_pages / 2));  // member 0 is the caller
  team.read_when_idle({});
  for (int i = 0; i < 1000; ++i) team.parallel_for(2, 1, [](std::int64_t, std::int64_t) {});
  CHECK(std::ranges::none_of(never.touched(), [](bool t) { return t; }));
}

TEST_CASE("memory that a team may read when idle can go once nobody reads any more") {
  FreshPages const last(std::size_t{1} << 20);  // longer than the team
  Team team(2);
  std::atomic<std::int64_t> sum{0};
  auto const loop = [&] { team.parallel_for(64, 1, [&](std::int64_t begin, std::int64_t end) { sum += end - begin; }); };
  for (int i = 0; i < 300; ++i) {
    auto first = std::make_unique<FreshPages>(std::size_t{1} << 20), second = std::make_unique<FreshPages>(std::size_t{1} << 18);
    std::vector<std::span<std::byte const>> const both{first->bytes(), second->bytes()}, one{second->bytes()};
    team.read_when_idle(both);
    if (i % 2 == 0) loop();
    if (i % 3 == 0) team.read_when_idle(one);
    if (i % 5 != 0) std::thread(loop).join();
    team.read_when_idle({});
    first.reset();
    second.reset();
    loop();
  }
  CHECK(sum > 300 * 64);
  std::vector<std::span<std::byte const>> const parts{last.bytes()};
  team.read_when_idle(parts);  // what nobody ended: the team's end does
  Team(1).read_when_idle(parts);
  std::vector<std::span<std::byte const>> const many(Team::max_read_parts + 1, parts[0]);
  CHECK(tiered_test::error_of([&] { team.read_when_idle(many); }).code == Errc::precondition);
}
