/// The most that a figure ever was, while other work goes on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <thread>
#include <utility>

namespace bench {

/// Keeps the most that a figure ever was, looked at every few milliseconds by a thread of its own, and whenever asked.
template <class Figure>
class PeakWatch {
 public:
  explicit PeakWatch(Figure figure) : figure_(std::move(figure)), thread_([this] { watch(); }) {}
  PeakWatch(PeakWatch const&) = delete;
  PeakWatch& operator=(PeakWatch const&) = delete;
  ~PeakWatch() { stop(); }
  void look() {
    std::uint64_t const now = figure_();
    std::uint64_t most = peak_.load();
    while (now > most && !peak_.compare_exchange_weak(most, now)) {
    }
  }
  std::uint64_t peak() {
    look();
    return peak_.load();
  }
  /// Ends the thread, so that it disturbs nothing that is timed.
  void stop() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void watch() {
    while (!done_.load()) {
      try {
        look();
      } catch (std::exception const&) {  // whoever asks gets the same error
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  Figure figure_;
  std::atomic<bool> done_{false};
  std::atomic<std::uint64_t> peak_{0};
  std::thread thread_;
};

}  // namespace bench
