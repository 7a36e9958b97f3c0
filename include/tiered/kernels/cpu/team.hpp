/// A team of threads that work through the parts of one loop at a time.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/function_ref.hpp"
#include "tiered/core/text.hpp"

namespace tiered {

/// The caller of parallel_for() is member 0; the others are threads of the team. Parts of a loop are handed out in ascending
/// order to whoever is free, and the caller waits only for members that took a part. So a member that the system does not let
/// run (more threads than cores, several teams) delays nobody, and nothing here can deadlock.
///
/// Members that have nothing to do watch for the next loop for a bounded time, as the ops of a token follow each other within
/// microseconds, and then sleep.
class Team {
 public:
  static constexpr int max_threads = 4096;

  /// Throws Error{precondition} for a size outside 1..max_threads, and Error{device} where the system refuses a thread.
  explicit Team(int n_threads) : n_threads_(n_threads) {
    expects(n_threads >= 1 && n_threads <= max_threads, "a team has 1 to 4096 threads");
    threads_.reserve(std::size_t(n_threads - 1));
    try {
      for (int thread = 1; thread < n_threads; ++thread) threads_.emplace_back([this, thread] { work(thread); });
    } catch (std::exception const& error) {
      stop();
      throw Error(Errc::device, concat("thread ", threads_.size() + 1, " of a team of ", n_threads, " did not start: ", error.what()));
    }
  }
  Team(Team const&) = delete;
  Team& operator=(Team const&) = delete;
  ~Team() { stop(); }

  int size() const { return n_threads_; }

  /// Calls body(begin, end) for ranges that together are [0, n), each of `grain` elements but for the last, from all members at
  /// once; returns when all are done. What a body throws first is thrown here, and ranges not begun by then are left out.
  /// Not from within a body. Callers on several threads take turns.
  void parallel_for(std::int64_t n, std::int64_t grain, FunctionRef<void(std::int64_t begin, std::int64_t end)> body) {
    if (n <= 0) return;
    grain = std::max<std::int64_t>(grain, 1);
    if (n_threads_ == 1 || n <= grain) {
      for (std::int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain));
      return;
    }
    std::lock_guard turn(caller_);
    Loop loop(n, grain, body);
    open(loop);
    loop.run();
    close();
    if (loop.error) std::rethrow_exception(loop.error);
  }

  /// A grain that gives every member a few ranges, of at least `smallest` elements.
  std::int64_t grain(std::int64_t n, std::int64_t smallest = 1) const {
    std::int64_t const parts = n_threads_ == 1 ? 1 : std::int64_t{n_threads_} * 4;
    return std::max(smallest, (n + parts - 1) / parts);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds watch_time{40};

  struct Loop {
    Loop(std::int64_t n_, std::int64_t grain_, FunctionRef<void(std::int64_t, std::int64_t)> body_) : n(n_), grain(grain_), body(body_) {}
    void run() {
      for (;;) {
        std::int64_t const begin = next.fetch_add(grain, std::memory_order_relaxed);
        if (begin >= n) return;
        try {
          body(begin, std::min(n, begin + grain));
        } catch (...) {
          if (!failed.exchange(true)) error = std::current_exception();
          next.store(n, std::memory_order_relaxed);
        }
      }
    }
    std::int64_t const n, grain;
    FunctionRef<void(std::int64_t, std::int64_t)> body;
    alignas(64) std::atomic<std::int64_t> next{0};
    std::atomic<bool> failed{false};
    std::exception_ptr error;  // written by the one who set `failed`, read after close()
  };

  // state_ is (number of the loop << 32) | open_bit | members inside. Only the caller opens and closes.
  static constexpr std::uint64_t one_loop = std::uint64_t{1} << 32, open_bit = std::uint64_t{1} << 31, members_mask = open_bit - 1;

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  /// Watches until `ready()` or the time is over; whether it is ready.
  template <class Ready>
  static bool watch(Ready ready) {
    Clock::time_point const begin = Clock::now();
    for (;;) {
      for (int i = 0; i < 32; ++i) {
        if (ready()) return true;
        pause();
      }
      if (Clock::now() - begin > watch_time) return ready();
    }
  }

  void open(Loop& loop) {
    loop_ = &loop;
    std::uint64_t const number = state_.load(std::memory_order_relaxed) / one_loop + 1;
    state_.store((number & 0xffffffffu) * one_loop | open_bit);
    wake_members();
  }

  /// No member enters any more; waits for those inside.
  void close() {
    state_.fetch_and(~open_bit);
    if (watch([&] { return (state_.load() & members_mask) == 0; })) return;
    // A member was interrupted in its part. It signals `left_` after it has lowered the count.
    for (;;) {
      std::int32_t const seen = left_.load();
      if ((state_.load() & members_mask) == 0) return;
      left_.wait(seen);
    }
  }

  void wake_members() {
    if (n_asleep_.load() == 0) return;
    wake_.fetch_add(1);
    wake_.notify_all();
  }

  void stop() {
    stopping_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  void work(int) {
    std::uint64_t last = 0;  // number of the last loop looked at
    auto const changed = [&] {
      std::uint64_t const state = state_.load();
      return stopping_.load(std::memory_order_relaxed) || ((state & open_bit) != 0 && state / one_loop != last);
    };
    for (;;) {
      if (!watch(changed)) sleep(changed);
      if (stopping_.load()) return;
      std::uint64_t state = state_.load();
      while ((state & open_bit) != 0 && state / one_loop != last) {
        if (!state_.compare_exchange_weak(state, state + 1)) continue;
        last = state / one_loop;
        loop_->run();
        if ((state_.fetch_sub(1) & (members_mask | open_bit)) == 1) {  // the last one out of a closed loop
          left_.fetch_add(1);
          left_.notify_all();
        }
        break;
      }
    }
  }

  template <class Changed>
  void sleep(Changed const& changed) {
    std::int32_t const seen = wake_.load();
    n_asleep_.fetch_add(1);
    // The caller publishes a loop before it looks at n_asleep_, and this looks for a loop after it raised it: one sees the other.
    if (!changed()) wake_.wait(seen);
    n_asleep_.fetch_sub(1);
  }

  int const n_threads_;
  std::mutex caller_;
  Loop* loop_ = nullptr;
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::atomic<std::int32_t> n_asleep_{0};
  std::atomic<std::int32_t> wake_{0}, left_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace tiered
