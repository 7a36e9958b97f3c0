/// Defines Team: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered {

struct Team::Threads {
  explicit Threads(int n_threads) {
    threads_.reserve(std::size_t(n_threads - 1));
    try {
      for (int thread = 1; thread < n_threads; ++thread) threads_.emplace_back([this] { work(); });
    } catch (std::exception const& error) {
      stop();
      throw Error(Errc::device, concat("thread ", threads_.size() + 1, " of a team of ", n_threads, " did not start: ", error.what()));
    }
  }
  Threads(Threads const&) = delete;
  Threads& operator=(Threads const&) = delete;
  ~Threads() { stop(); }

  void run(std::int64_t n, std::int64_t grain, Body body) {
    std::lock_guard turn(caller_);
    Loop loop(n, grain, body);
    open(loop);
    loop.run();
    close();
    if (loop.error) std::rethrow_exception(loop.error);
  }

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

  void work() {
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

  std::mutex caller_;
  Loop* loop_ = nullptr;
  alignas(64) std::atomic<std::uint64_t> state_{0};
  alignas(64) std::atomic<std::int32_t> n_asleep_{0};
  std::atomic<std::int32_t> wake_{0}, left_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};


Team::Team(int n_threads) : n_threads_(n_threads) {
  expects(n_threads >= 1 && n_threads <= max_threads, "a team has 1 to 4096 threads");
  threads_ = std::make_unique<Threads>(n_threads);
}
Team::~Team() = default;
void Team::run_on_all(std::int64_t n, std::int64_t grain, Body body) { threads_->run(n, grain, body); }

}  // namespace tiered
