/// How a thread waits for what another one is about to do: it watches for as long as that has paid off lately, then sleeps.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace tiered::detail {

/// One turn of a loop that watches memory: 15 ns (AMD) to 50 ns (Intel) that the core's other hardware thread can use.
inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// For what another thread is about to end, within microseconds where it is let run: never sleeps.
template <class Ready>
void wait_until(Ready const& ready) {
  constexpr int n_looks = 256;  // then whoever is waited for may need this core
  for (int i = 0; i < n_looks; ++i) {
    if (ready()) return;
    pause_briefly();
  }
  while (!ready()) std::this_thread::yield();
}

/// Of one thread. A thread that is woken from sleep is late by 5 us at best, and by 50 us and more where its core went to a deeper
/// sleep than the thread; ops of a token follow each other within microseconds, tokens within 50 to 200 us, which somebody samples.
/// So watching pays, but only on a core that nobody else wants and only where the next thing does come soon. Both are learnt:
/// the time to watch is twice the last pause where that was short (or a little less than before: pauses between layers differ), little
/// where it was long, and less where another thread took the core meanwhile.
class Watch {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = std::chrono::nanoseconds;

  /// Watches without giving up the core for `spin`, and lets other threads run in between up to `most`.
  Watch(Time spin, Time most) : spin_(spin), most_(most), patience_(most) {}

  /// Whether `ready()` came true; if not, sleep, and call woke().
  template <class Ready>
  bool until(Ready const& ready) {
    if (spin_until(ready, n_blind_looks)) return true;
    Clock::time_point last = begin_ = Clock::now();
    while (last - begin_ < patience_) {
      if (last - begin_ >= spin_) std::this_thread::yield();
      if (spin_until(ready, last - begin_ < spin_ ? n_looks : 1)) return true;
      Clock::time_point const now = Clock::now();
      if (now - last > taken_away) {
        patience_ = std::max(patience_ / 4, least_time);
        n_distrust_ = n_to_forget;
        break;
      }
      last = now;
    }
    return ready();
  }
  /// After a sleep that followed until(): learns how long the pause was.
  void woke() {
    if (n_distrust_ > 0) {
      --n_distrust_;
      return;
    }
    Time const pause = Clock::now() - begin_;
    patience_ = pause < most_ ? std::min(std::max(2 * pause, patience_ - patience_ / 8), most_) : std::min(spin_, most_);
  }

  /// Looks n times.
  template <class Ready>
  static bool spin_until(Ready const& ready, int n) {
    for (int i = 0; i < n; ++i) {
      if (ready()) return true;
      pause_briefly();
    }
    return ready();
  }

 private:
  static constexpr int n_blind_looks = 32;  // before the clock is read, which costs as much as two pauses
  static constexpr int n_looks = 32, n_to_forget = 32;
  static constexpr Time least_time{2'000}, taken_away{50'000};

  Time spin_, most_, patience_;
  int n_distrust_ = 0;  // pauses from which nothing is learnt, since the core was taken away
  Clock::time_point begin_{};
};

}  // namespace tiered::detail
