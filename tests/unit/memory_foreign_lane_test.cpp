/// ForeignLane: a lane that the set does not run, here one that a thread of the test plays, joins the tickets of the host's lanes.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/memory/lane.hpp"

using tiered::Errc;
using tiered::Error;
using tiered::LaneCounter;
using tiered::LaneSet;
using tiered::LaneTask;
using tiered::SplitMix64;
using tiered::Ticket;
using tiered_test::error_of;

namespace {

std::vector<std::shared_ptr<LaneSet>> both_modes() { return {LaneSet::threads(), LaneSet::seeded(7)}; }

/// A device of one stream: a thread that does what was enqueued, in order, and like a device never learns of errors.
class Stream final : public tiered::ForeignLane {
 public:
  explicit Stream(std::shared_ptr<LaneSet> lanes) : lanes_(std::move(lanes)), lane_(lanes_->open_foreign("stream", *this)) {
    counter_ = lanes_->counters() + lane_ - 1;
    thread_ = std::thread([this] { work(); });
  }
  ~Stream() override {
    lanes_->drain(lane_);
    push([this] { ends_ = true; });
    thread_.join();
    lanes_->close_foreign(lane_);
  }
  LaneSet::Lane lane() const { return lane_; }
  Ticket ticket() { return lanes_->record(lane_); }
  void launch(std::function<void()> work) {
    push([this, work = std::move(work)] {
      if (!is_broken_.load()) work();
    });
    is_new_ = true;
  }
  /// What was enqueued and what comes is never done, and poll() says so.
  void break_down() { is_broken_.store(true); }
  int n_waits() const { return n_waits_; }
  int n_records() const { return n_records_; }
  LaneCounter const* last_counter() const { return last_counter_; }
  tiered::ForeignLane* last_other() const { return last_other_; }

  std::uint64_t record() override {
    if (is_broken_.load()) throw Error(Errc::device, "the device is lost");
    if (!is_new_) return value_;
    is_new_ = false;
    ++n_records_;
    push([this, value = ++value_] {
      if (!is_broken_.load()) counter_->done.store(value, std::memory_order_release);
    });
    return value_;
  }
  void wait_for(LaneCounter const& counter, std::uint64_t value, tiered::ForeignLane* other) override {
    ++n_waits_;
    last_counter_ = &counter;
    last_other_ = other;
    launch([this, &counter, value] {
      // As cuStreamWaitValue64 compares.
      while (std::int64_t(counter.done.load(std::memory_order_acquire) - value) < 0 && !is_broken_.load()) std::this_thread::yield();
    });
  }
  void submit(LaneTask const& task, std::uint64_t value) override {
    launch([this, task, value] {
      try {
        LaneTask copy = task;
        copy();
      } catch (...) {
        lanes_->fail(lane_, value, std::current_exception());
      }
    });
  }
  void poll() override {
    if (on_poll) on_poll();
    if (is_broken_.load()) throw Error(Errc::device, "the device is lost");
  }
  std::function<void()> on_poll;  ///< set before anybody waits

 private:
  void push(std::function<void()> work) {
    std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    came_.notify_one();
  }
  void work() {
    while (!ends_) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex_);
        came_.wait(lock, [&] { return !queue_.empty(); });
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      next();
    }
  }

  std::shared_ptr<LaneSet> lanes_;
  LaneSet::Lane lane_;
  LaneCounter* counter_ = nullptr;
  LaneCounter const* last_counter_ = nullptr;
  tiered::ForeignLane* last_other_ = nullptr;
  std::uint64_t value_ = 0;
  bool is_new_ = false, ends_ = false;
  int n_waits_ = 0, n_records_ = 0;
  std::atomic<bool> is_broken_{false};
  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> queue_;
  std::thread thread_;
};

/// Work on host lanes and streams with waits between them, drawn by a seed; returns how often some ran before what it waits for.
int count_broken_orders(std::shared_ptr<LaneSet> const& lanes, std::uint64_t seed, int n_tasks) {
  std::vector<std::atomic<bool>> ran(static_cast<std::size_t>(n_tasks));
  std::atomic<int> broken{0};
  SplitMix64 random(seed);
  LaneSet::Lane const host[2] = {lanes->open("first"), lanes->open("second")};
  Stream streams[2] = {Stream(lanes), Stream(lanes)};
  int last[4] = {-1, -1, -1, -1};
  std::vector<Ticket> tickets;
  for (int i = 0; i < n_tasks; ++i) {
    std::size_t const where = random.below(4);
    LaneSet::Lane const lane = where < 2 ? host[where] : streams[where - 2].lane();
    int const before = last[where];
    int other = -1;
    if (i > 0 && random.below(2) == 0) {
      other = int(random.below(std::uint64_t(i)));
      lanes->wait_for(lane, tickets[std::size_t(other)]);
    }
    auto const task = [&ran, &broken, i, before, other] {
      if (before >= 0 && !ran[std::size_t(before)].load(std::memory_order_relaxed)) ++broken;
      if (other >= 0 && !ran[std::size_t(other)].load(std::memory_order_relaxed)) ++broken;
      ran[std::size_t(i)].store(true, std::memory_order_relaxed);
    };
    if (where < 2) {
      lanes->submit(lane, task);
    } else {
      streams[where - 2].launch(task);
    }
    tickets.push_back(lanes->record(lane));
    last[where] = i;
  }
  for (Ticket const ticket : tickets) lanes->wait(ticket);
  for (auto const& r : ran) broken += !r.load();
  return broken.load();
}

}  // namespace

TEST_CASE("streams and host lanes wait for each other's tickets", "[memory][foreign_lane]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    REQUIRE(count_broken_orders(LaneSet::threads(), seed, 200) == 0);
    REQUIRE(count_broken_orders(LaneSet::seeded(seed), seed + 1, 60) == 0);
  }
}

TEST_CASE("bytes written before a ticket are seen after it, across host lanes and streams", "[memory][foreign_lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const host = lanes->open("host");
    Stream stream(lanes);
    int value = 0, wrong = 0;  // not atomic: the tickets alone order the accesses
    for (int i = 1; i <= 100; ++i) {
      lanes->wait_for(host, stream.ticket());
      lanes->submit(host, [&value, i] { value = i; });
      lanes->wait_for(stream.lane(), lanes->record(host));
      stream.launch([&value, &wrong, i] { wrong += value != i; });
    }
    lanes->wait(stream.ticket());
    REQUIRE(value == 100);
    REQUIRE(wrong == 0);
  }
}

TEST_CASE("neither waiting of a stream nor recording it blocks the caller", "[memory][foreign_lane]") {
  auto const lanes = LaneSet::threads();
  LaneSet::Lane const host = lanes->open("host"), after = lanes->open("after");
  Stream stream(lanes);
  std::atomic<bool> open{false}, ran{false};
  lanes->submit(host, [&open] {
    while (!open.load()) std::this_thread::yield();
  });
  lanes->wait_for(stream.lane(), lanes->record(host));
  stream.launch([] {});
  Ticket const ticket = stream.ticket();
  lanes->wait_for(after, ticket);
  lanes->submit(after, [&ran] { ran.store(true); });
  REQUIRE_FALSE(lanes->done(ticket));
  REQUIRE_FALSE(ran.load());
  open.store(true);
  lanes->wait(ticket);
  REQUIRE(lanes->done(ticket));
  lanes->synchronize(after);
  REQUIRE(ran.load());
}

TEST_CASE("what a stream need not wait for is not enqueued", "[memory][foreign_lane]") {
  auto const lanes = LaneSet::threads();
  LaneSet::Lane const host = lanes->open("host");
  Stream stream(lanes), other(lanes);
  REQUIRE(stream.ticket() == Ticket{stream.lane(), 0});
  lanes->submit(host, [] {});
  Ticket const over = lanes->record(host);
  lanes->wait(over);
  lanes->wait_for(stream.lane(), over);
  lanes->wait_for(stream.lane(), Ticket{});
  lanes->wait_for(stream.lane(), stream.ticket());
  REQUIRE(stream.n_waits() == 0);

  std::atomic<bool> open{false};
  other.launch([&open] {
    while (!open.load()) std::this_thread::yield();
  });
  Ticket const first = other.ticket();
  other.launch([] {});
  Ticket const second = other.ticket();
  lanes->wait_for(stream.lane(), second);
  lanes->wait_for(stream.lane(), second);
  lanes->wait_for(stream.lane(), first);
  REQUIRE(stream.n_waits() == 1);
  REQUIRE(stream.last_other() == &other);
  REQUIRE(stream.last_counter() == lanes->counters() + other.lane() - 1);
  Ticket const ticket = stream.ticket();
  REQUIRE(ticket == stream.ticket());
  REQUIRE(stream.n_records() == 1);
  open.store(true);
  lanes->wait(ticket);
}

TEST_CASE("a stream works on after a failure, and whoever waits for its later tickets gets the error", "[memory][foreign_lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const failing = lanes->open("failing"), after = lanes->open("after");
    Stream stream(lanes), second(lanes);
    std::atomic<int> ran{0};
    int on_host = 0;
    stream.launch([&ran] { ++ran; });
    Ticket const before = stream.ticket();
    lanes->submit(failing, [] { throw Error(Errc::io, "no bytes"); });
    lanes->wait_for(stream.lane(), lanes->record(failing));
    stream.launch([&ran] { ++ran; });
    Ticket const ticket = stream.ticket();
    lanes->wait_for(second.lane(), ticket);
    second.launch([&ran] { ++ran; });
    lanes->wait_for(after, second.ticket());
    lanes->submit(after, [&on_host] { ++on_host; });

    REQUIRE(error_of([&] { lanes->synchronize(after); }).code == Errc::io);
    REQUIRE(error_of([&] { lanes->wait(second.ticket()); }).code == Errc::io);
    REQUIRE(error_of([&] { lanes->wait(ticket); }).code == Errc::io);
    stream.launch([&ran] { ++ran; });
    REQUIRE(error_of([&] { lanes->wait(stream.ticket()); }).code == Errc::io);
    lanes->wait(before);
    REQUIRE(ran.load() == 4);
    REQUIRE(on_host == 0);

    lanes->clear_errors();
    lanes->wait(ticket);
    lanes->wait_for(stream.lane(), lanes->record(failing));
    stream.launch([&ran] { ++ran; });
    lanes->wait_for(after, stream.ticket());
    lanes->submit(after, [&on_host] { ++on_host; });
    lanes->synchronize(after);
    REQUIRE(ran.load() == 5);
    REQUIRE(on_host == 1);
  }
}

TEST_CASE("a failure that was over before the stream waited for it reaches it too", "[memory][foreign_lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const failing = lanes->open("failing");
    Stream stream(lanes);
    lanes->submit(failing, [] { throw Error(Errc::io, "no bytes"); });
    lanes->drain(failing);
    lanes->wait_for(stream.lane(), lanes->record(failing));
    REQUIRE(error_of([&] { lanes->synchronize(stream.lane()); }).code == Errc::io);
  }
}

TEST_CASE("errors go round by turns of two streams", "[memory][foreign_lane]") {
  auto const lanes = LaneSet::threads();
  LaneSet::Lane const failing = lanes->open("failing");
  Stream a(lanes), b(lanes);
  std::atomic<bool> open{false};
  lanes->submit(failing, [&open] {
    while (!open.load()) std::this_thread::yield();
    throw Error(Errc::io, "no bytes");
  });
  a.launch([] {});
  Ticket const clean = a.ticket();
  lanes->wait_for(b.lane(), lanes->record(failing));
  for (int i = 0; i < 300; ++i) {
    lanes->wait_for(a.lane(), b.ticket());
    a.launch([] {});
    lanes->wait_for(b.lane(), a.ticket());
    b.launch([] {});
  }
  open.store(true);
  REQUIRE(error_of([&] { lanes->wait(a.ticket()); }).code == Errc::io);
  REQUIRE(error_of([&] { lanes->wait(b.ticket()); }).code == Errc::io);
  lanes->wait(clean);
  lanes->clear_errors();
  lanes->synchronize(a.lane());
}

TEST_CASE("a stream runs host tasks in their turn", "[memory][foreign_lane]") {
  for (auto const& lanes : both_modes()) {
    Stream stream(lanes);
    std::vector<int> order;
    stream.launch([&order] { order.push_back(1); });
    lanes->submit(stream.lane(), [&order] { order.push_back(2); });
    stream.launch([&order] { order.push_back(3); });
    lanes->synchronize(stream.lane());
    REQUIRE(order == std::vector<int>{1, 2, 3});
    lanes->submit(stream.lane(), [] { throw Error(Errc::io, "no bytes"); });
    REQUIRE(error_of([&] { lanes->synchronize(stream.lane()); }).code == Errc::io);
    lanes->clear_errors();
    lanes->synchronize(stream.lane());
  }
}

TEST_CASE("nobody waits for ever for a device that is lost", "[memory][foreign_lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const host = lanes->open("host");
    Stream stream(lanes);
    stream.launch([] {});
    Ticket const good = stream.ticket();
    lanes->wait(good);
    std::atomic<bool> started{false}, goes_on{false};
    stream.launch([&] {
      started.store(true);
      while (!goes_on.load()) std::this_thread::yield();
    });
    Ticket const never = stream.ticket();
    lanes->wait_for(host, never);
    lanes->submit(host, [] {});
    Ticket const after = lanes->record(host);
    while (!started.load()) std::this_thread::yield();
    stream.break_down();
    REQUIRE(error_of([&] { lanes->wait(never); }).code == Errc::device);
    REQUIRE(error_of([&] { lanes->wait(after); }).code == Errc::device);
    lanes->wait(good);
    REQUIRE(error_of([&] { static_cast<void>(stream.ticket()); }).code == Errc::device);
    lanes->clear_errors();  // of the host's lane; a lost device stays lost
    lanes->synchronize(host);
    REQUIRE(error_of([&] { lanes->wait(never); }).code == Errc::device);
    goes_on.store(true);
  }
}

TEST_CASE("a lane's thread asks no device: its driver may be held by whoever waits for the lane", "[memory][foreign_lane]") {
  auto const lanes = LaneSet::threads();
  LaneSet::Lane const host = lanes->open("host");
  Stream stream(lanes);
  std::atomic<bool> goes_on{false};
  std::atomic<int> asked_by_waiter{0}, asked_by_others{0};
  std::thread::id const waiter = std::this_thread::get_id();
  stream.on_poll = [&] {
    if (std::this_thread::get_id() != waiter) ++asked_by_others;
    if (std::this_thread::get_id() == waiter && ++asked_by_waiter == 2) goes_on.store(true);  // many times as long as a lane looks
  };
  stream.launch([&] {
    while (!goes_on.load()) std::this_thread::yield();
  });
  lanes->wait_for(host, stream.ticket());
  bool ran = false;
  lanes->submit(host, [done = &ran] { *done = true; });
  lanes->synchronize(host);
  CHECK(ran);
  CHECK(asked_by_waiter.load() == 2);
  CHECK(asked_by_others.load() == 0);
}

TEST_CASE("who waits for a lane that waits for a device learns that this is lost", "[memory][foreign_lane]") {
  for (auto const& lanes : both_modes()) {
    LaneSet::Lane const host = lanes->open("host");
    Stream stream(lanes);
    std::atomic<bool> goes_on{false};
    stream.launch([&] {
      while (!goes_on.load()) std::this_thread::yield();
    });
    lanes->wait_for(host, stream.ticket());
    lanes->submit(host, [] {});
    stream.break_down();
    REQUIRE(error_of([&] { lanes->synchronize(host); }).code == Errc::device);
    lanes->clear_errors();
    goes_on.store(true);
  }
}

TEST_CASE("tickets of a closed lane are done, and it takes no more work", "[memory][foreign_lane]") {
  auto const lanes = LaneSet::threads();
  LaneSet::Lane const host = lanes->open("host");
  LaneSet::Lane closed = 0;
  Ticket ticket;
  std::atomic<bool> ran{false};
  {
    Stream stream(lanes);
    closed = stream.lane();
    stream.launch([&ran] { ran.store(true); });
    ticket = stream.ticket();
  }
  REQUIRE(ran.load());
  REQUIRE(lanes->done(ticket));
  lanes->wait(ticket);
  lanes->wait_for(host, ticket);
  lanes->synchronize(host);
  REQUIRE(lanes->record(closed) == ticket);
  lanes->submit(host, [] {});
  REQUIRE(error_of([&] { lanes->wait_for(closed, lanes->record(host)); }).code == Errc::precondition);
  REQUIRE(error_of([&] { lanes->submit(closed, [] {}); }).code == Errc::precondition);
  lanes->clear_errors();
  Stream another(lanes);
  REQUIRE(another.lane() != closed);
}

TEST_CASE("errors of a lane outlive its closing, and a stream that waits for it is not held up", "[memory][foreign_lane]") {
  auto const lanes = LaneSet::threads();
  LaneSet::Lane const failing = lanes->open("failing");
  lanes->submit(failing, [] { throw Error(Errc::io, "no bytes"); });
  Ticket ticket;
  {
    Stream stream(lanes);
    lanes->wait_for(stream.lane(), lanes->record(failing));
    ticket = stream.ticket();
  }
  REQUIRE(error_of([&] { lanes->wait(ticket); }).code == Errc::io);
  Stream another(lanes);
  lanes->wait_for(another.lane(), ticket);
  REQUIRE(another.n_waits() == 1);
  REQUIRE(error_of([&] { lanes->wait(another.ticket()); }).code == Errc::io);
  lanes->clear_errors();
  lanes->wait(ticket);
  lanes->wait(another.ticket());
}

TEST_CASE("the counters lie in one page, which is made known to a device once", "[memory][foreign_lane]") {
  int n_made = 0, n_gone = 0;
  void* page = nullptr;
  {
    auto const lanes = LaneSet::seeded(1);
    lanes->open("first");
    LaneSet::Lane const second = lanes->open("second");
    auto const make = [&](void* begin, std::size_t bytes) {
      ++n_made;
      page = begin;
      REQUIRE(bytes == 4096);
      REQUIRE(reinterpret_cast<std::uintptr_t>(begin) % 4096 == 0);
      return std::shared_ptr<void>(&n_gone, [](void* n) { ++*static_cast<int*>(n); });
    };
    lanes->share_counters(make);
    lanes->share_counters(make);
    REQUIRE(lanes->counters() == page);
    lanes->submit(second, [] {});
    lanes->synchronize(second);
    REQUIRE(lanes->counters()[second - 1].done.load() == 1);
    REQUIRE(n_gone == 0);
  }
  REQUIRE(n_made == 1);
  REQUIRE(n_gone == 1);
}
