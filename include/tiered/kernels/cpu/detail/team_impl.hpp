/// Defines Team: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/cpu/detail/idle_reader.hpp"
#include "tiered/kernels/cpu/detail/reader.hpp"
#include "tiered/kernels/cpu/detail/team_parts.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/kernels/cpu/topology.hpp"
#include "tiered/memory/detail/lane_wait.hpp"

namespace tiered {

/// How a loop begins and ends, with no word that two members write. The caller publishes the loop in `state`; a member that sees it
/// writes the loop's number to its own `inside` and looks at `state` again. The caller ends the loop in `state` and looks at
/// every `inside`. All four accesses are sequentially consistent, so either the member sees that the loop is over and leaves, or
/// the caller sees the member and waits until it is out. What a member reads of a loop lies on the cache line of `state`.
struct Team::Threads {
  Threads(int n_threads, std::vector<int> const& cpus)
      : crowded_(is_crowded(n_threads)), ranges_(n_threads), idle_(n_threads), members_(std::size_t(n_threads)), caller_watch_(watch()) {
    threads_.reserve(std::size_t(n_threads - 1));
    try {
      for (int member = 1; member < n_threads; ++member) {
        threads_.emplace_back([this, member] { work(std::uint32_t(member)); });
        if (!cpus.empty()) pin(threads_.back(), cpus[std::size_t(member)]);
      }
    } catch (Error const&) {
      stop();
      throw;
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
    end_reading();
    std::int64_t const most = PartRanges::max_parts;
    for (std::int64_t begin = 0; begin < n;) {  // once, but for loops of millions of parts
      std::int64_t const end = (n - begin) / grain < most ? n : begin + most * grain;
      open(begin, end, grain, body);
      run_parts(0);
      close();
      if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
      begin = end;
    }
  }

  void read_ahead(std::span<std::span<std::byte const> const> parts) {
    std::lock_guard turn(caller_);
    end_reading();
    if (crowded_) return;
    std::int64_t const n = reader_.take(parts, members_.size());
    if (n == 0 || n > PartRanges::max_parts) return;
    open(0, n, 1, reader_);
    is_reading_ = true;
  }

  void read_when_idle(std::span<std::span<std::byte const> const> parts) {
    std::lock_guard turn(caller_);
    if (!crowded_) idle_.set(parts);
  }

  TeamActivity activity() const {
    TeamActivity total;
    total.n_loops = n_loops_.load(std::memory_order_relaxed);
    for (Member const& member : members_) {
      total.n_sleeps += member.n_sleeps.load(std::memory_order_relaxed);
      total.n_asleep += member.asleep.load() != 0;
    }
    return total;
  }

 private:
  using PartRanges = detail::PartRanges;
  using Watch = detail::Watch;

  static constexpr struct Nothing {
    void operator()(std::int64_t, std::int64_t) const {}
  } nothing{};
  struct alignas(64) Loop {
    std::atomic<std::uint64_t> state{0};  // (number << 16) | (workers << 1) | open
    std::atomic<bool> failed{false};
    detail::PartSplit split;
    std::int64_t begin = 0, end = 0, grain = 1;
    Body body = nothing;
  };
  static constexpr std::uint64_t open_bit = 1;
  static std::uint32_t n_workers(std::uint64_t state) { return std::uint32_t(state >> 1 & 0x7fff); }
  static std::uint32_t short_number(std::uint64_t state) { return std::uint32_t(state >> 16); }  // never 0, see open()

  struct alignas(64) Member {
    std::atomic<std::uint32_t> inside{0};  // short number of the loop that it is in
    alignas(64) std::atomic<std::uint32_t> asleep{0};
    std::atomic<std::uint64_t> n_sleeps{0};
  };

  static bool is_crowded(int n_threads) {
    std::size_t const n_cpus = allowed_cpus().size();
    std::optional<double> const quota = cgroup_cpus();
    return (n_cpus > 0 && std::size_t(n_threads) > n_cpus) || (quota && n_threads >= *quota);
  }
  /// Measured with 2 threads on 2 cores: members that watch are at work 1.0 to 1.4 us after a loop was opened, members that sleep
  /// after 16 to 40 us. 2 ms cover what happens between tokens. Only the first 5 us are spent without letting others run: the thread
  /// that submits work is one more than the team has, and would wait for a core.
  Watch watch() const {
    using std::chrono::microseconds;
    return crowded_ ? Watch(microseconds(1), microseconds(20)) : Watch(microseconds(5), microseconds(2000));
  }

  /// Throws Error{device}: a thread that runs elsewhere than it was told is not what was asked for.
  static void pin(std::thread& thread, int cpu) {
    if (int const status = run_only_on(thread.native_handle(), cpu); status != 0) {
      throw Error(Errc::device, concat("a thread of a team cannot be pinned to CPU ", cpu, ": ", std::generic_category().message(status)));
    }
  }

  void open(std::int64_t begin, std::int64_t end, std::int64_t grain, Body body) {
    ++number_;
    if ((number_ & PartRanges::tag_mask) == 0) {
      ranges_.forget_tags();
      ++number_;
    }
    std::int64_t const n_parts = (end - begin + grain - 1) / grain;
    auto const n = std::uint32_t(std::min(n_parts, std::int64_t(members_.size())));
    loop_.split = {std::uint32_t(number_ & PartRanges::tag_mask), std::uint32_t(n_parts), n};
    loop_.begin = begin;
    loop_.end = end;
    loop_.grain = grain;
    loop_.body = body;
    loop_.failed.store(false, std::memory_order_relaxed);
    n_loops_.store(n_loops_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    loop_.state.store(number_ << 16 | std::uint64_t{n} << 1 | open_bit);
    wake_two(0, n);
  }

  void run_parts(std::uint32_t member) {
    while (!loop_.failed.load(std::memory_order_relaxed)) {
      std::int64_t const part = ranges_.take(loop_.split, member);
      if (part < 0) return;
      std::int64_t const begin = loop_.begin + part * loop_.grain;
      try {
        loop_.body(begin, std::min(loop_.end, begin + loop_.grain));
      } catch (...) {
        if (!loop_.failed.exchange(true)) error_ = std::current_exception();
      }
    }
  }

  /// Members leave after the page that they are at.
  void end_reading() {
    if (!is_reading_) return;
    is_reading_ = false;
    loop_.failed.store(true, std::memory_order_relaxed);
    close();
  }

  /// Nobody enters any more; waits for those inside.
  void close() {
    std::uint64_t const state = loop_.state.load(std::memory_order_relaxed) & ~open_bit;
    loop_.state.store(state);
    for (std::uint32_t m = 1; m < n_workers(state); ++m) {
      std::atomic<std::uint32_t>& inside = members_[m].inside;
      auto const left = [&, number = short_number(state)] { return inside.load() != number; };
      if (left() || caller_watch_.until(left)) continue;
      caller_sleeps_.store(true);  // the member was interrupted in its part; it looks here after it left
      inside.wait(short_number(state));
      caller_sleeps_.store(false);
      caller_watch_.woke();
    }
  }

  void work(std::uint32_t self) {
    Watch patience = watch();
    std::uint64_t seen = 0;
    auto const changed = [&] { return loop_.state.load() != seen; };
    for (;;) {
      idle_.read(self, changed);
      if (!patience.until(changed)) {
        sleep(members_[self], changed);
        patience.woke();
      }
      seen = loop_.state.load();
      if (stopping_.load(std::memory_order_relaxed)) return;
      if ((seen & open_bit) == 0 || self >= n_workers(seen)) continue;
      wake_two(self, n_workers(seen));
      std::atomic<std::uint32_t>& inside = members_[self].inside;
      inside.store(short_number(seen));
      if (loop_.state.load() == seen) run_parts(self);
      inside.store(0);
      if (caller_sleeps_.load()) inside.notify_one();
    }
  }

  template <class Changed>
  static void sleep(Member& self, Changed const& changed) {
    self.n_sleeps.fetch_add(1, std::memory_order_relaxed);
    self.asleep.store(1);
    // A loop is published before its caller looks at `asleep`, and this looks for a loop after it wrote it: one sees the other.
    if (!changed()) self.asleep.wait(1);
    self.asleep.store(0);
  }
  /// Sleepers are woken as in a binary tree, by those that are up: waking takes over a microsecond each.
  void wake_two(std::uint32_t member, std::uint32_t n) {
    for (std::uint32_t other = 2 * member + 1; other < std::min(n, 2 * member + 3); ++other) {
      std::atomic<std::uint32_t>& asleep = members_[other].asleep;
      if (asleep.load() != 0 && asleep.exchange(0) != 0) asleep.notify_one();
    }
  }

  void stop() {
    end_reading();
    idle_.set({});
    stopping_.store(true);
    loop_.state.fetch_add(std::uint64_t{1} << 16);  // as a loop that is over
    for (Member& member : members_) {
      member.asleep.store(0);
      member.asleep.notify_one();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  bool const crowded_;
  std::mutex caller_;
  std::uint64_t number_ = 0;  // of the last loop; its low bits are the tag, and tag 0 is no loop's
  Loop loop_;
  PartRanges ranges_;
  detail::Reader reader_;
  detail::IdleReader idle_;
  bool is_reading_ = false;
  std::vector<Member> members_;  // [0] is the caller, of which only the range is used
  std::exception_ptr error_;     // written by the one who set `failed`, read after close()
  Watch caller_watch_;
  std::atomic<bool> caller_sleeps_{false}, stopping_{false};
  std::atomic<std::uint64_t> n_loops_{0};
  std::vector<std::thread> threads_;
};

Team::Team(int n_threads, std::vector<int> const& cpus) : n_threads_(n_threads) {
  expects(n_threads >= 1 && n_threads <= max_threads, "a team has 1 to 4096 threads");
  if (!cpus.empty() && cpus.size() < std::size_t(n_threads))
    throw Error(Errc::precondition, concat("a team of ", n_threads, " threads cannot be pinned to ", cpus.size(), " CPUs"));
  threads_ = std::make_unique<Threads>(n_threads, cpus);
}
Team::~Team() = default;
void Team::run_on_all(std::int64_t n, std::int64_t grain, Body body) { threads_->run(n, grain, body); }
void Team::read_ahead(std::span<std::span<std::byte const> const> parts) {
  static_assert(max_read_parts <= detail::Reader::most_parts);
  expects(parts.size() <= max_read_parts, "Team::read_ahead: at most max_read_parts");
  if (n_threads_ > 1) threads_->read_ahead(parts);
}
void Team::read_when_idle(std::span<std::span<std::byte const> const> parts) {
  expects(parts.size() <= max_read_parts, "Team::read_when_idle: at most max_read_parts");
  if (n_threads_ > 1) threads_->read_when_idle(parts);
}
TeamActivity Team::activity() const { return threads_->activity(); }

}  // namespace tiered
