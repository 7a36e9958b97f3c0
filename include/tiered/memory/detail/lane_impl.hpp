/// Defines LaneSet: for one source file of a program.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/core/text.hpp"
#include "tiered/memory/detail/lane_wait.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {
namespace detail {

class Lanes final : public LaneSet {
 public:
  Lanes(bool seeded, std::uint64_t seed) : seeded_(seeded), random_(seed) {}

  ~Lanes() override {
    {
      std::unique_lock lock(mutex_);
      if (seeded_) {
        while (step(lock)) {
        }
      }
      stopping_ = true;
      for (Lane lane = 1; lane <= n_lanes_; ++lane) state(lane).runnable.notify_one();
    }
    for (Lane lane = 1; lane <= n_lanes_; ++lane) {
      if (state(lane).thread.joinable()) state(lane).thread.join();
    }
  }

  Lane open(std::string lane_name) override {
    std::lock_guard lock(mutex_);
    Lane const lane = n_lanes_ + 1;
    if (lane > max_lanes) throw Error(Errc::precondition, concat("a LaneSet has at most ", max_lanes, " lanes"));
    auto opened = std::make_unique<State>();
    opened->name = std::move(lane_name);
    if (!seeded_) {
      try {
        opened->thread = std::thread([this, s = opened.get()] { work(*s); });
      } catch (std::system_error const& error) {
        throw Error(Errc::device, concat("no thread for lane ", opened->name, ": ", error.what()));
      }
    }
    lanes_[lane - 1] = std::move(opened);
    n_lanes_.store(lane, std::memory_order_release);
    return lane;
  }

  void wait_for(Lane lane, Ticket ticket) override {
    check(ticket);
    if (ticket.value == 0 || ticket.lane == lane) return;
    push_item(lane, [&](Item& item) {
      item.after = ticket;
      item.is_task = false;
    });
  }

  Ticket record(Lane lane) const override { return {lane, checked(lane).submitted.load(std::memory_order_acquire)}; }

  bool done(Ticket ticket) override {
    check(ticket);
    if (seeded_ && !is_done(ticket)) {
      std::unique_lock lock(mutex_);
      step(lock);
    }
    return is_done(ticket);
  }

  void wait(Ticket ticket) override {
    check(ticket);
    if (ticket.value == 0) return;
    Watch::spin_until([&] { return is_done(ticket); }, n_spins);
    std::unique_lock lock(mutex_);
    block_until_done(ticket, lock);
    std::exception_ptr const error = error_at(ticket);
    lock.unlock();
    if (error) std::rethrow_exception(error);
  }

  void drain(Lane lane) noexcept override {
    std::unique_lock lock(mutex_);
    block_until_done(record(lane), lock);
  }

  void clear_errors() override {
    std::unique_lock lock(mutex_);
    for (Lane lane = 1; lane <= n_lanes_; ++lane) block_until_done(record(lane), lock);
    for (Lane lane = 1; lane <= n_lanes_; ++lane) state(lane).error = nullptr;
  }

  void keep_times() override { keeps_times_.store(true, std::memory_order_relaxed); }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) override {
    check(end);
    if (end.value == 0) return std::nullopt;
    std::lock_guard lock(mutex_);
    std::optional<std::pair<double, double>> out;
    for (TaskTime const& t : state(end.lane).times) {
      if (t.value <= begin.value || t.value > end.value) continue;
      out = {out ? out->first : t.begin_s, t.end_s};
    }
    return out;
  }
  void forget_times() override {
    std::lock_guard lock(mutex_);
    for (Lane lane = 1; lane <= n_lanes_; ++lane) state(lane).times.clear();
  }

  std::size_t size() const override { return n_lanes_.load(std::memory_order_acquire); }
  std::string name(Lane lane) const override { return checked(lane).name; }

 private:
  struct Item {
    LaneTask task;
    Ticket after;
    bool is_task = true;
  };
  /// First in, first out, in one array that doubles when full: no allocation once a token has gone through.
  class Fifo {
   public:
    bool empty() const { return size_ == 0; }
    Item const& front() const { return items_[first_]; }
    /// An item to be filled; its former content is still in it.
    Item& push() {
      if (size_ == items_.size()) grow();
      return items_[(first_ + size_++) % items_.size()];
    }
    void pop() {
      first_ = (first_ + 1) % items_.size();
      --size_;
    }

   private:
    void grow() {
      std::vector<Item> larger(items_.empty() ? 64 : 2 * items_.size());
      for (std::size_t i = 0; i < size_; ++i) larger[i] = items_[(first_ + i) % items_.size()];
      items_.swap(larger);
      first_ = 0;
    }
    std::vector<Item> items_;
    std::size_t first_ = 0, size_ = 0;
  };
  /// A thread that sleeps until a ticket of some lane is done; lies on its stack.
  struct Sleeper {
    std::uint64_t value = 0;
    std::condition_variable woken;
    Sleeper* next = nullptr;
  };
  struct TaskTime {
    std::uint64_t value = 0;  // the number of the item
    double begin_s = 0, end_s = 0;
  };
  /// All but the two counters, which are read without it and written under it, is guarded by the mutex.
  struct State {
    std::string name;
    Fifo queue;
    std::atomic<std::uint64_t> submitted{0}, completed{0};
    std::exception_ptr error;
    std::uint64_t failed_at = 0;  // where error is set: the number of the item that failed
    Sleeper* sleepers = nullptr;
    std::condition_variable runnable;  // its thread sleeps here while the queue is empty
    bool idle = false, running = false;
    std::vector<TaskTime> times;  // ascending
    std::thread thread;
  };

  State& state(Lane lane) const { return *lanes_[lane - 1]; }
  State& checked(Lane lane) const {
    if (lane == 0 || lane > size()) throw Error(Errc::precondition, concat("there is no lane ", lane, " among ", size()));
    return state(lane);
  }
  /// A ticket of another set, or of work that nobody submitted, would never be done.
  void check(Ticket t) const {
    if (t.value != 0 && checked(t.lane).submitted.load(std::memory_order_acquire) < t.value) {
      throw Error(Errc::precondition, concat("ticket ", t.value, " of lane ", t.lane, " is of work that was not submitted"));
    }
  }
  bool is_done(Ticket t) const { return t.value == 0 || state(t.lane).completed.load(std::memory_order_acquire) >= t.value; }
  std::exception_ptr error_at(Ticket t) const {
    return state(t.lane).error && state(t.lane).failed_at <= t.value ? state(t.lane).error : nullptr;
  }

  void push(Lane lane, LaneTask const& task) override {
    push_item(lane, [&](Item& item) {
      item.task = task;
      item.after = {};
      item.is_task = true;
    });
  }
  template <class Fill>
  void push_item(Lane lane, Fill const& fill) {
    State& s = checked(lane);
    bool wake = false;
    {
      std::unique_lock lock = lock_soon();
      fill(s.queue.push());
      s.submitted.store(s.submitted.load(std::memory_order_relaxed) + 1, std::memory_order_release);
      wake = std::exchange(s.idle, false);
    }
    if (wake) s.runnable.notify_one();
  }

  /// Runs the front item of a lane; the lock is released while a task runs.
  void run_front(State& s, std::unique_lock<std::mutex>& lock) {
    Item item = s.queue.front();
    s.queue.pop();
    std::exception_ptr error;
    TaskTime time;
    if (!item.is_task) {
      error = error_at(item.after);
    } else if (!s.error) {
      s.running = true;
      lock.unlock();
      bool const timed = keeps_times_.load(std::memory_order_relaxed);
      if (timed) time.begin_s = seconds();
      try {
        item.task();
      } catch (...) {
        error = std::current_exception();
      }
      if (timed) time.end_s = seconds();
      lock = lock_soon();
      s.running = false;
    }
    std::uint64_t const finished = s.completed.load(std::memory_order_relaxed) + 1;
    if (error && !s.error) {
      s.error = std::move(error);
      s.failed_at = finished;
    }
    if (time.end_s > 0) s.times.push_back({finished, time.begin_s, time.end_s});
    s.completed.store(finished, std::memory_order_release);
    for (Sleeper* sleeper = s.sleepers; sleeper != nullptr; sleeper = sleeper->next) {
      if (sleeper->value <= finished) sleeper->woken.notify_one();
    }
    if (seeded_) stepped_.notify_all();
  }

  /// The thread of a lane.
  void work(State& s) {
    Watch watch(watch_time, longest_watch);
    std::unique_lock lock(mutex_);
    for (;;) {
      if (s.queue.empty()) {
        if (stopping_) return;
        wait_for_work(s, lock, watch);
        continue;
      }
      if (Item const& front = s.queue.front(); !front.is_task && !is_done(front.after)) {
        Ticket const after = front.after;
        lock.unlock();
        bool const seen = watch.until([&] { return is_done(after); });
        lock.lock();
        block_until_done(after, lock);
        if (!seen) watch.woke();
      }
      run_front(s, lock);
    }
  }

  void wait_for_work(State& s, std::unique_lock<std::mutex>& lock, Watch& watch) {
    std::uint64_t const seen = s.submitted.load(std::memory_order_relaxed);
    lock.unlock();
    bool const came = watch.until([&] { return s.submitted.load(std::memory_order_acquire) != seen || stopping_.load(); });
    lock.lock();
    while (s.queue.empty() && !stopping_) {
      s.idle = true;
      s.runnable.wait(lock);
    }
    if (!came) watch.woke();
  }

  void block_until_done(Ticket ticket, std::unique_lock<std::mutex>& lock) {
    if (seeded_) {
      while (!is_done(ticket)) {
        if (!step(lock)) stepped_.wait(lock);  // another thread runs the task that all else waits for
      }
      return;
    }
    if (is_done(ticket)) return;
    State& s = state(ticket.lane);
    Sleeper self;
    self.value = ticket.value;
    self.next = std::exchange(s.sleepers, &self);
    while (!is_done(ticket)) self.woken.wait(lock);
    Sleeper** link = &s.sleepers;
    while (*link != &self) link = &(*link)->next;
    *link = self.next;
  }

  /// Seeded: one item of one lane that can run; false where none can.
  bool step(std::unique_lock<std::mutex>& lock) {
    std::array<State*, max_lanes> ready;
    std::size_t n_ready = 0;
    for (Lane lane = 1; lane <= n_lanes_; ++lane) {
      State& s = state(lane);
      if (!s.running && !s.queue.empty() && (s.queue.front().is_task || is_done(s.queue.front().after))) ready[n_ready++] = &s;
    }
    if (n_ready == 0) return false;
    run_front(*ready[random_.below(n_ready)], lock);
    return true;
  }

  /// The mutex is held for a fraction of a microsecond: worth a few tries before sleeping.
  std::unique_lock<std::mutex> lock_soon() {
    std::unique_lock lock(mutex_, std::defer_lock);
    if (!Watch::spin_until([&] { return lock.try_lock(); }, n_lock_spins)) lock.lock();
    return lock;
  }
  // Whoever waits for a ticket looks for 1 to 2 us and then sleeps: all cores may be computing what it waits for (200 looks: 4.4 ->
  // 7.4 us a hand-over, 2 busy cores). The thread of a lane watches on, letting others run, as the next token is submitted 50 to
  // 200 us after the one before: a task then starts 0.7 to 0.9 us after it was submitted in place of 2.4, and submit() and wait() take
  // 0.8 us in place of 5. Where the core is wanted by others, or work is rare, Watch makes it short.
  static constexpr int n_spins = 40, n_lock_spins = 40;
  static constexpr std::chrono::microseconds watch_time{2}, longest_watch{1000};

  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - made_at_).count(); }

  bool const seeded_;
  std::chrono::steady_clock::time_point const made_at_ = std::chrono::steady_clock::now();
  std::atomic<bool> keeps_times_{false};
  SplitMix64 random_;
  std::mutex mutex_;
  std::condition_variable stepped_;  // seeded, where several threads wait
  std::array<std::unique_ptr<State>, max_lanes> lanes_;
  std::atomic<Lane> n_lanes_{0};
  std::atomic<bool> stopping_{false};  // written under the mutex
};

}  // namespace detail

std::shared_ptr<LaneSet> LaneSet::threads() { return std::make_shared<detail::Lanes>(false, 0); }
std::shared_ptr<LaneSet> LaneSet::seeded(std::uint64_t seed) { return std::make_shared<detail::Lanes>(true, seed); }

}  // namespace tiered
