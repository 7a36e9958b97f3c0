/// LaneSet: order, tickets, errors, the seeded mode, the end.
#include "tiered/memory/lane.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/split_mix.hpp"

using tiered::Errc;
using tiered::Error;
using tiered::LaneSet;
using tiered::SplitMix64;
using tiered::Ticket;
using tiered_test::error_of;

namespace {

std::vector<std::shared_ptr<LaneSet>> both_modes() { return {LaneSet::threads(), LaneSet::seeded(7)}; }

/// Tasks on several lanes with waits between them, drawn by a seed; returns how often a task ran before one it waits for.
int count_broken_orders(LaneSet& lanes, std::uint64_t seed, int n_tasks) {
  struct Shared {
    std::vector<std::atomic<bool>> ran;
    std::atomic<int> broken{0};
    explicit Shared(int n) : ran(std::size_t(n)) {}
  } shared(n_tasks);
  SplitMix64 random(seed);
  std::vector<LaneSet::Lane> lane;
  for (int i = 0; i < 4; ++i) lane.push_back(lanes.open("lane"));
  std::vector<int> last_of_lane(lane.size(), -1);
  std::vector<Ticket> tickets;
  for (int task = 0; task < n_tasks; ++task) {
    std::size_t const where = random.below(lane.size());
    int const before = last_of_lane[where];
    int other = -1;
    if (task > 0 && random.below(2) == 0) {
      other = int(random.below(std::uint64_t(task)));
      lanes.wait_for(lane[where], tickets[std::size_t(other)]);
    }
    lanes.submit(lane[where], [&shared, task, before, other] {
      if (before >= 0 && !shared.ran[std::size_t(before)].load(std::memory_order_relaxed)) ++shared.broken;
      if (other >= 0 && !shared.ran[std::size_t(other)].load(std::memory_order_relaxed)) ++shared.broken;
      shared.ran[std::size_t(task)].store(true, std::memory_order_relaxed);
    });
    tickets.push_back(lanes.record(lane[where]));
    last_of_lane[where] = task;
  }
  for (Ticket ticket : tickets) lanes.wait(ticket);
  for (auto const& ran : shared.ran) {
    if (!ran.load()) ++shared.broken;
  }
  return shared.broken.load();
}

/// Appends its own id; lanes run on one thread at a time in the seeded mode.
std::vector<int> seeded_order(std::uint64_t seed) {
  std::vector<int> order;
  auto const lanes = LaneSet::seeded(seed);
  for (int lane = 0; lane < 3; ++lane) {
    LaneSet::Lane const opened = lanes->open("lane");
    for (int i = 0; i < 4; ++i) lanes->submit(opened, [&order, id = lane * 10 + i] { order.push_back(id); });
  }
  for (LaneSet::Lane lane = 1; lane <= 3; ++lane) lanes->synchronize(lane);
  return order;
}

}  // namespace

TEST_CASE("a lane runs its tasks in the order of submission", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const lane = lanes->open("only");
    std::vector<int> order;  // touched by the lane alone, then read after synchronize
    for (int i = 0; i < 1000; ++i) lanes->submit(lane, [&order, i] { order.push_back(i); });
    lanes->synchronize(lane);
    REQUIRE(order.size() == 1000);
    for (int i = 0; i < 1000; ++i) REQUIRE(order[std::size_t(i)] == i);
  }
}

TEST_CASE("no task starts before the tickets that its lane waits for", "[memory][lane]") {
  SECTION("on threads") {
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      INFO("seed " << seed);
      REQUIRE(count_broken_orders(*LaneSet::threads(), seed, 300) == 0);
    }
  }
  SECTION("seeded") {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
      INFO("seed " << seed);
      REQUIRE(count_broken_orders(*LaneSet::seeded(seed), seed + 1, 60) == 0);
    }
  }
}

TEST_CASE("a lane that waits sees the bytes that were written before the ticket", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const writer = lanes->open("writer"), reader = lanes->open("reader");
    int value = 0, wrong = 0;  // not atomic: the tickets alone order the accesses, and TSan looks on
    for (int i = 1; i <= 200; ++i) {
      lanes->wait_for(writer, lanes->record(reader));
      lanes->submit(writer, [&value, i] { value = i; });
      lanes->wait_for(reader, lanes->record(writer));
      lanes->submit(reader, [&value, &wrong, i] { wrong += value != i; });
    }
    lanes->synchronize(reader);
    REQUIRE(value == 200);
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("the seed decides the order, and replays it", "[memory][lane]") {
  std::set<std::vector<int>> orders;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<int> const order = seeded_order(seed);
    REQUIRE(order == seeded_order(seed));
    orders.insert(order);
  }
  REQUIRE(orders.size() > 40);  // 34650 orders are possible
}

TEST_CASE("seeded lanes do nothing until somebody waits, and asking for done() is waiting", "[memory][lane]") {
  auto const lanes = LaneSet::seeded(1);
  LaneSet::Lane const lane = lanes->open("lane");
  int n = 0;
  for (int i = 0; i < 5; ++i) lanes->submit(lane, [&n] { ++n; });
  REQUIRE(n == 0);
  Ticket const ticket = lanes->record(lane);
  int asked = 0;
  while (!lanes->done(ticket)) ++asked;
  REQUIRE(n == 5);
  REQUIRE(asked == 4);
}

TEST_CASE("Ticket{} was always done", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const lane = lanes->open("lane");
    REQUIRE(lane != Ticket{}.lane);
    REQUIRE(lanes->done(Ticket{}));
    lanes->wait(Ticket{});
    lanes->wait_for(lane, Ticket{});
    REQUIRE(lanes->record(lane) == Ticket{lane, 0});
    REQUIRE(lanes->done(lanes->record(lane)));
  }
}

TEST_CASE("a failed task fails its lane from there on, and nothing before", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const lane = lanes->open("lane");
    int ran = 0;
    lanes->submit(lane, [&ran] { ++ran; });
    Ticket const before = lanes->record(lane);
    lanes->submit(lane, [] { throw Error(Errc::io, "first"); });
    Ticket const failed = lanes->record(lane);
    lanes->submit(lane, [&ran] { ran += 100; });
    lanes->submit(lane, [] { throw Error(Errc::device, "second"); });
    Ticket const after = lanes->record(lane);

    REQUIRE(error_of([&] { lanes->wait(after); }).code == Errc::io);
    REQUIRE(error_of([&] { lanes->wait(failed); }).code == Errc::io);
    REQUIRE(error_of([&] { lanes->synchronize(lane); }).code == Errc::io);
    lanes->wait(before);
    REQUIRE(lanes->done(after));
    REQUIRE(ran == 1);

    lanes->clear_errors();
    lanes->wait(after);
    lanes->submit(lane, [&ran] { ++ran; });
    lanes->synchronize(lane);
    REQUIRE(ran == 2);
  }
}

TEST_CASE("a failure goes to the lanes that wait for it, and to no others", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const copy = lanes->open("copy"), compute = lanes->open("compute"), third = lanes->open("third"), other = lanes->open("other");
    int computed = 0, other_ran = 0;
    lanes->submit(copy, [] {});
    lanes->wait_for(other, lanes->record(copy));  // of before the failure
    lanes->submit(copy, [] { throw Error(Errc::device, "no copy"); });
    lanes->wait_for(compute, lanes->record(copy));
    lanes->submit(compute, [&computed] { ++computed; });
    lanes->wait_for(third, lanes->record(compute));
    lanes->submit(third, [&computed] { ++computed; });
    lanes->submit(other, [&other_ran] { ++other_ran; });

    REQUIRE(error_of([&] { lanes->synchronize(third); }).code == Errc::device);
    REQUIRE(error_of([&] { lanes->synchronize(compute); }).code == Errc::device);
    lanes->synchronize(other);
    REQUIRE(computed == 0);
    REQUIRE(other_ran == 1);

    lanes->clear_errors();
    lanes->wait_for(compute, lanes->record(copy));
    lanes->submit(compute, [&computed] { ++computed; });
    lanes->synchronize(compute);
    REQUIRE(computed == 1);
  }
}

TEST_CASE("clear_errors waits for work that still runs, and keeps none of its errors", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const lane = lanes->open("lane"), second = lanes->open("second");
    for (int i = 0; i < 100; ++i) lanes->submit(lane, [] {});
    lanes->submit(lane, [] { throw Error(Errc::device, "late"); });
    lanes->wait_for(second, lanes->record(lane));
    lanes->clear_errors();
    lanes->synchronize(lane);
    lanes->synchronize(second);
  }
}

TEST_CASE("drain waits and swallows", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const lane = lanes->open("lane");
    int ran = 0;
    lanes->submit(lane, [&ran] { ++ran; });
    lanes->submit(lane, [] { throw Error(Errc::device, "kept"); });
    lanes->drain(lane);
    REQUIRE(ran == 1);
    REQUIRE(error_of([&] { lanes->synchronize(lane); }).code == Errc::device);
  }
}

TEST_CASE("destruction finishes what was submitted", "[memory][lane]") {
  for (bool const seeded : {false, true}) {
    int ran = 0;
    {
      auto const lanes = seeded ? LaneSet::seeded(3) : LaneSet::threads();
      LaneSet::Lane const a = lanes->open("a"), b = lanes->open("b");
      for (int i = 0; i < 300; ++i) {
        lanes->wait_for(a, lanes->record(b));
        lanes->submit(a, [&ran] { ++ran; });
        lanes->wait_for(b, lanes->record(a));
        lanes->submit(b, [&ran] { ++ran; });
      }
      lanes->submit(a, [] { throw Error(Errc::device, "nobody waits for this"); });
    }
    REQUIRE(ran == 600);
  }
}

TEST_CASE("many threads wait for many tickets at once", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const a = lanes->open("a"), b = lanes->open("b");
    std::vector<int> done_a, done_b;  // by the tasks of one lane, in order, whichever thread runs them
    std::vector<Ticket> tickets;
    for (int i = 0; i < 200; ++i) {
      lanes->submit(a, [&done_a, i] { done_a.push_back(i); });
      lanes->wait_for(b, lanes->record(a));
      lanes->submit(b, [&done_b, i] { done_b.push_back(i); });
      tickets.push_back(lanes->record(b));
    }
    std::atomic<int> not_done{0};
    std::vector<std::thread> waiters;
    for (std::size_t first = 0; first < 8; ++first) {
      waiters.emplace_back([&, first] {
        for (std::size_t i = first; i < tickets.size(); i += 8) {
          lanes->wait(tickets[i]);
          if (!lanes->done(tickets[i])) ++not_done;
        }
      });
    }
    for (std::thread& waiter : waiters) waiter.join();
    REQUIRE(not_done.load() == 0);
    REQUIRE(done_a.size() == 200);
    REQUIRE(done_b.size() == 200);
    for (int i = 0; i < 200; ++i) REQUIRE(done_b[std::size_t(i)] == i);
  }
}

TEST_CASE("several threads and tasks submit to one lane", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const lane = lanes->open("shared"), source = lanes->open("source");
    int ran = 0;
    std::vector<std::thread> submitters;
    for (int i = 0; i < 4; ++i) {
      submitters.emplace_back([&] {
        for (int k = 0; k < 100; ++k) lanes->submit(lane, [&ran] { ++ran; });
      });
    }
    for (std::thread& submitter : submitters) submitter.join();
    for (int k = 0; k < 100; ++k) {
      lanes->submit(source, [set = lanes.get(), lane, &ran] { set->submit(lane, [&ran] { ++ran; }); });
    }
    lanes->synchronize(source);
    lanes->synchronize(lane);
    REQUIRE(ran == 500);
  }
}

TEST_CASE("tickets and lanes that do not exist are refused", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const lane = lanes->open("lane");
    lanes->submit(lane, [] {});
    Ticket const future{lane, 2}, foreign{lane + 1, 1};
    REQUIRE(error_of([&] { lanes->wait(future); }).code == Errc::precondition);
    REQUIRE(error_of([&] { lanes->wait(foreign); }).code == Errc::precondition);
    REQUIRE(error_of([&] { lanes->wait_for(lane, foreign); }).code == Errc::precondition);
    REQUIRE(error_of([&] { static_cast<void>(lanes->done(future)); }).code == Errc::precondition);
    REQUIRE(error_of([&] { static_cast<void>(lanes->record(0)); }).code == Errc::precondition);
    REQUIRE(error_of([&] { lanes->submit(lane + 1, [] {}); }).code == Errc::precondition);
  }
}

TEST_CASE("lanes have names and a limit", "[memory][lane]") {
  auto const lanes = LaneSet::seeded(0);
  for (std::size_t i = 1; i <= LaneSet::max_lanes; ++i) REQUIRE(lanes->open("lane " + std::to_string(i)) == i);
  REQUIRE(lanes->size() == LaneSet::max_lanes);
  REQUIRE(lanes->name(3) == "lane 3");
  REQUIRE(error_of([&] { lanes->open("one more"); }).code == Errc::precondition);
}

TEST_CASE("times are kept on demand, in the order that the tickets ask for", "[memory][lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const a = lanes->open("a"), b = lanes->open("b");
    lanes->submit(a, [] {});
    lanes->synchronize(a);
    Ticket const before = lanes->record(a);
    REQUIRE_FALSE(lanes->times({}, before));  // nobody had asked

    lanes->keep_times();
    lanes->submit(a, [] {});
    lanes->submit(a, [] {});
    Ticket const first = lanes->record(a);
    lanes->wait_for(b, first);
    Ticket const waited = lanes->record(b);
    lanes->submit(b, [] {});
    Ticket const second = lanes->record(b);
    lanes->wait(second);

    auto const of_a = lanes->times(before, first), of_b = lanes->times({}, second);
    REQUIRE(of_a);
    REQUIRE(of_b);
    REQUIRE(of_a->first <= of_a->second);
    REQUIRE(of_a->second <= of_b->first);
    REQUIRE_FALSE(lanes->times({}, waited));  // a wait is no task
    REQUIRE_FALSE(lanes->times(first, first));
    REQUIRE_FALSE(lanes->times({}, Ticket{}));
    lanes->forget_times();
    REQUIRE_FALSE(lanes->times(before, first));
  }
}
