/// Defines LaneSet: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
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
    std::unique_ptr<State> opened = next_state(std::move(lane_name));
    if (!seeded_) {
      try {
        opened->thread = std::thread([this, s = opened.get()] { work(*s); });
      } catch (std::system_error const& error) {
        throw Error(Errc::device, concat("no thread for lane ", opened->name, ": ", error.what()));
      }
    }
    return add(std::move(opened));
  }

  Lane open_foreign(std::string lane_name, ForeignLane& foreign) override {
    if (keeps_times_) foreign.keep_times();
    std::lock_guard lock(mutex_);
    std::unique_ptr<State> opened = next_state(std::move(lane_name));
    opened->is_foreign = true;
    opened->foreign = &foreign;
    has_foreign_ = true;
    return add(std::move(opened));
  }
  void close_foreign(Lane lane) noexcept override {
    State& s = state(lane);
    std::lock_guard polled(s.poll_mutex);
    std::lock_guard lock(mutex_);
    settle(s);
    s.foreign = nullptr;
    s.completed.store(all_done, std::memory_order_release);
  }
  LaneCounter* counters() override { return page_->counters.data(); }
  void share_counters(FunctionRef<std::shared_ptr<void>(void*, std::size_t)> make) override {
    std::lock_guard lock(share_mutex_);
    if (shared_ == nullptr) shared_ = make(page_.get(), sizeof(CounterPage));
  }
  void fail(Lane lane, std::uint64_t value, std::exception_ptr error) noexcept override {
    std::lock_guard lock(mutex_);
    state(lane).set_error(std::move(error), value);
  }

  void wait_for(Lane lane, Ticket ticket) override {
    check(ticket);
    if (ticket.value == 0 || ticket.lane == lane) return;
    if (State& s = checked(lane); s.is_foreign) return foreign_wait_for(s, ticket);
    push_item(lane, [&](Item& item) {
      item.after = ticket;
      item.is_task = false;
    });
  }

  Ticket record(Lane lane) const override {
    State& s = checked(lane);
    if (ForeignLane* const foreign = s.foreign) s.submitted.store(foreign->record(), std::memory_order_release);
    return {lane, s.submitted.load(std::memory_order_acquire)};
  }

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
    block_until_done(newest(lane, lock), lock);
  }

  void clear_errors() override {
    std::unique_lock lock(mutex_);
    for (Lane lane = 1; lane <= n_lanes_; ++lane) block_until_done(newest(lane, lock), lock);
    for (Lane lane = 1; lane <= n_lanes_; ++lane) settle(state(lane));
    for (Lane lane = 1; lane <= n_lanes_; ++lane) {
      if (!state(lane).lost) state(lane).error = nullptr;
    }
  }

  void keep_times() override {
    keeps_times_.store(true, std::memory_order_relaxed);
    for_each_foreign([](ForeignLane& foreign) { foreign.keep_times(); });
  }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) override {
    check(end);
    if (end.value == 0) return std::nullopt;
    if (State& s = state(end.lane); s.is_foreign) {
      std::lock_guard polled(s.poll_mutex);
      ForeignLane* const foreign = s.foreign;
      return foreign != nullptr ? foreign->times(begin.value, end.value) : std::nullopt;
    }
    std::lock_guard lock(mutex_);
    std::optional<std::pair<double, double>> out;
    for (TaskTime const& t : state(end.lane).times) {
      if (t.value <= begin.value || t.value > end.value) continue;
      out = {out ? out->first : t.begin_s, t.end_s};
    }
    return out;
  }
  void forget_times() override {
    for_each_foreign([](ForeignLane& foreign) { foreign.forget_times(); });
    std::lock_guard lock(mutex_);
    for (Lane lane = 1; lane <= n_lanes_; ++lane) state(lane).times.clear();
  }
  double seconds() const override { return std::chrono::duration<double>(std::chrono::steady_clock::now() - made_at_).count(); }

  std::size_t size() const override { return n_lanes_.load(std::memory_order_acquire); }
  std::string name(Lane lane) const override { return checked(lane).name; }

 private:
  struct Item {
    LaneTask task;
    Ticket after;
    bool is_task = true;
  };
  /// What a foreign lane waits for: its tickets from `value` on have the error of `after`.
  struct Dependency {
    std::uint64_t value = 0;
    Ticket after;
  };
  /// First in, first out, in one array that doubles when full: no allocation once a token has gone through.
  template <class T>
  class Fifo {
   public:
    bool empty() const { return size_ == 0; }
    T const& front() const { return items_[first_]; }
    /// An item to be filled; its former content is still in it.
    T& push() {
      if (size_ == items_.size()) grow();
      return items_[(first_ + size_++) % items_.size()];
    }
    void pop() {
      first_ = (first_ + 1) % items_.size();
      --size_;
    }

   private:
    void grow() {
      std::vector<T> larger(items_.empty() ? 64 : 2 * items_.size());
      for (std::size_t i = 0; i < size_; ++i) larger[i] = items_[(first_ + i) % items_.size()];
      items_.swap(larger);
      first_ = 0;
    }
    std::vector<T> items_;
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
  struct alignas(4096) CounterPage {
    std::array<LaneCounter, max_lanes> counters;
  };
  static_assert(sizeof(CounterPage) == 4096);
  /// All but the two counters, which are read without it and written under it, is guarded by the mutex.
  struct State {
    explicit State(std::atomic<std::uint64_t>& done) : completed(done) {}
    void set_error(std::exception_ptr e, std::uint64_t value) {
      if (error && failed_at <= value) return;
      error = std::move(e);
      failed_at = value;
    }

    std::string name;
    Fifo<Item> queue;
    std::atomic<std::uint64_t> submitted{0};
    std::atomic<std::uint64_t>& completed;  // in the page of counters; a device writes those of foreign lanes
    std::exception_ptr error;
    std::uint64_t failed_at = 0;  // where error is set: the number of the item that failed
    Sleeper* sleepers = nullptr;
    std::condition_variable runnable;  // its thread sleeps here while the queue is empty
    bool idle = false, running = false;
    std::vector<TaskTime> times;  // ascending
    std::thread thread;

    bool is_foreign = false;                        // and, where it is, in place of queue, sleepers, times and thread:
    std::atomic<ForeignLane*> foreign{nullptr};     // null: closed
    std::mutex poll_mutex;                          // held while somebody asks the device; taken before the mutex of the set
    bool lost = false;                              // the device will do nothing more
    Fifo<Dependency> dependencies;                  // ascending values
    std::array<std::uint64_t, max_lanes> waited{};  // by lane - 1: the last value that was waited for; of the enqueuing thread
  };

  std::unique_ptr<State> next_state(std::string lane_name) {
    if (n_lanes_ >= max_lanes) throw Error(Errc::precondition, concat("a LaneSet has at most ", max_lanes, " lanes"));
    auto opened = std::make_unique<State>(page_->counters[n_lanes_].done);
    opened->name = std::move(lane_name);
    return opened;
  }
  Lane add(std::unique_ptr<State> opened) {
    lanes_[n_lanes_] = std::move(opened);
    return n_lanes_.fetch_add(1, std::memory_order_release) + 1;
  }

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
    State& s = state(t.lane);
    settle(s);
    return s.error && s.failed_at <= t.value ? s.error : nullptr;
  }

  void foreign_wait_for(State& s, Ticket ticket) {
    std::uint64_t& waited = s.waited[ticket.lane - 1];
    if (waited >= ticket.value) return;
    State const& before = state(ticket.lane);
    bool const is_over = is_done(ticket);
    ForeignLane* const foreign = s.foreign;
    expects(foreign != nullptr, "nothing is enqueued on a foreign lane that was closed");
    {
      std::unique_lock lock = lock_soon();
      if (is_over && error_at(ticket) == nullptr) {
        waited = ticket.value;
        return;
      }
      settle(s);
      s.dependencies.push() = {s.submitted.load(std::memory_order_relaxed) + 1, ticket};
    }
    foreign->wait_for(page_->counters[ticket.lane - 1], ticket.value, before.foreign);
    waited = ticket.value;
  }
  /// Takes over the errors of what a foreign lane has waited for. Tickets that are done without an error stay so, hence no dependency
  /// is looked at twice. Lanes may have waited for each other by turns: each takes a dependency off before it looks at it.
  void settle(State& s) const {
    while (!s.dependencies.empty() && is_done(s.dependencies.front().after)) {
      Dependency const d = s.dependencies.front();
      s.dependencies.pop();
      if (std::exception_ptr error = error_at(d.after)) s.set_error(std::move(error), d.value);
    }
  }
  /// What record() gives, without the mutex where the device is asked: its queue may be full, with work that waits for a lane of ours.
  Ticket newest(Lane lane, std::unique_lock<std::mutex>& lock) {
    State& s = state(lane);
    if (!s.is_foreign || s.lost) return {lane, s.submitted.load(std::memory_order_relaxed)};
    lock.unlock();
    std::exception_ptr error;
    try {
      static_cast<void>(record(lane));
    } catch (Error const& e) {
      if (e.code() != Errc::precondition) error = std::current_exception();  // of a lane that cannot be asked just now
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) lose(s, std::move(error));
    return {lane, s.submitted.load(std::memory_order_relaxed)};
  }
  /// Nobody waits for a device that is gone; whatever it had not done has failed.
  void lose(State& s, std::exception_ptr error) {
    if (!s.lost) s.set_error(std::move(error), s.completed.load(std::memory_order_acquire) + 1);
    s.lost = true;
    s.completed.store(all_done, std::memory_order_release);
  }
  void poll(State& s) {
    std::exception_ptr error;
    {
      std::lock_guard polled(s.poll_mutex);
      ForeignLane* const foreign = s.foreign;
      if (foreign == nullptr) return;
      try {
        foreign->poll();
      } catch (...) {
        error = std::current_exception();
      }
    }
    if (!error) return;
    std::lock_guard lock(mutex_);
    lose(s, std::move(error));
  }
  template <class Call>
  void for_each_foreign(Call const& call) {
    for (Lane lane = 1; lane <= size(); ++lane) {
      State& s = state(lane);
      if (!s.is_foreign) continue;
      std::lock_guard polled(s.poll_mutex);
      if (ForeignLane* const foreign = s.foreign) call(*foreign);
    }
  }
  /// What a thread that waits looks at. That of a lane does not call devices: their driver may be held by a thread that waits for the
  /// device to be idle (the first launch of a kernel that was not loaded) or for room in its queue, and so for what this lane is to do.
  enum class Looks : std::uint8_t { at_counters, at_devices };

  /// A device wakes nobody: looks, lets others run, and sleeps for a part of a long wait. `lock` is not held meanwhile.
  void block_on_foreign(State& s, Ticket ticket, std::unique_lock<std::mutex>& lock, Looks looks) {
    using Clock = std::chrono::steady_clock;
    Clock::time_point const begin = Clock::now();
    Clock::time_point polled = begin;
    while (!is_done(ticket)) {
      if (seeded_ && step(lock)) continue;
      lock.unlock();
      do {
        if (Watch::spin_until([&] { return is_done(ticket); }, n_spins)) break;
        Clock::time_point const now = Clock::now();
        if (looks == Looks::at_devices && now - polled >= poll_time) {
          seeded_ ? poll_all() : poll(s);
          polled = now;
        }
        if (now - begin < yield_time) {
          std::this_thread::yield();
        } else {
          std::this_thread::sleep_for(std::min<Clock::duration>((now - begin) / nap_share, longest_nap));
        }
      } while (!seeded_ && !is_done(ticket));
      lock.lock();
    }
  }
  void poll_all() {
    for (Lane lane = 1; lane <= size(); ++lane) {
      if (state(lane).is_foreign) poll(state(lane));
    }
  }

  void push(Lane lane, LaneTask const& task) override {
    if (State& s = checked(lane); s.is_foreign) {
      ForeignLane* const foreign = s.foreign;
      expects(foreign != nullptr, "nothing is enqueued on a foreign lane that was closed");
      return foreign->submit(task, s.submitted.load(std::memory_order_relaxed) + 1);
    }
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
    if (error) s.set_error(std::move(error), finished);
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
        block_until_done(after, lock, Looks::at_counters);
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

  void block_until_done(Ticket ticket, std::unique_lock<std::mutex>& lock, Looks looks = Looks::at_devices) {
    if (is_done(ticket)) return;
    State& s = state(ticket.lane);
    if (s.is_foreign || (seeded_ && has_foreign_)) return block_on_foreign(s, ticket, lock, looks);
    if (seeded_) {
      while (!is_done(ticket)) {
        if (!step(lock)) stepped_.wait(lock);  // another thread runs the task that all else waits for
      }
      return;
    }
    Sleeper self;
    self.value = ticket.value;
    self.next = std::exchange(s.sleepers, &self);
    while (!is_done(ticket)) {
      if (looks == Looks::at_counters || !has_foreign_) {
        self.woken.wait(lock);
      } else if (self.woken.wait_for(lock, host_poll_time) == std::cv_status::timeout) {  // that lane may wait for a device that is lost
        lock.unlock();
        poll_all();
        lock.lock();
      }
    }
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
  // For a device: an answer of a token comes within 2 ms or is long, and then a sixteenth of the time more is little beside a free core.
  static constexpr std::chrono::microseconds poll_time{500}, yield_time{2000}, longest_nap{200}, host_poll_time{20'000};
  static constexpr int nap_share = 16;
  static constexpr std::uint64_t all_done = std::numeric_limits<std::int64_t>::max();  // devices compare the difference with its sign

  bool const seeded_;
  std::chrono::steady_clock::time_point const made_at_ = std::chrono::steady_clock::now();
  std::atomic<bool> keeps_times_{false};
  SplitMix64 random_;
  std::mutex mutex_;
  std::condition_variable stepped_;  // seeded, where several threads wait
  std::unique_ptr<CounterPage> const page_ = std::make_unique<CounterPage>();
  std::mutex share_mutex_;
  std::shared_ptr<void> shared_;  // goes before the page
  std::atomic<bool> has_foreign_{false};
  std::array<std::unique_ptr<State>, max_lanes> lanes_;
  std::atomic<Lane> n_lanes_{0};
  std::atomic<bool> stopping_{false};  // written under the mutex
};

}  // namespace detail

std::shared_ptr<LaneSet> LaneSet::threads() { return std::make_shared<detail::Lanes>(false, 0); }
std::shared_ptr<LaneSet> LaneSet::seeded(std::uint64_t seed) { return std::make_shared<detail::Lanes>(true, seed); }

}  // namespace tiered
