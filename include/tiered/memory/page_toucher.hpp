/// Brings pages of a mapping into the process's page table, before somebody needs them who would do so one by one.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tiered/core/clock.hpp"

namespace tiered {

/// Reads a byte of each page of the ranges in the background, from the lowest address on; what is not in the page cache is read from the
/// disk. Page-locking a mapping that was touched costs a half to a quarter (tmpfs, pages of 4 KiB: 16 in place of 4.4 GB/s on one core),
/// and needs no device, so that it may go on while one is opened. The ranges outlive it.
class PageToucher {
 public:
  using Bytes = std::span<std::byte const>;

  /// Where a thread does not start, it does with those that there are: nothing depends on it.
  PageToucher(std::vector<Bytes> ranges, int n_threads) : ranges_(std::move(ranges)), begin_s_(steady_seconds()), end_s_(begin_s_) {
    std::sort(ranges_.begin(), ranges_.end(), [](Bytes a, Bytes b) { return a.data() < b.data(); });
    for (Bytes const range : ranges_) n_parts_ += (range.size() + part_bytes - 1) / part_bytes;
    threads_.reserve(std::size_t(n_threads > 0 ? n_threads : 0));
    try {
      for (int i = 0; i < n_threads && n_parts_ != 0; ++i) threads_.emplace_back([this] { run(); });
    } catch (std::system_error const&) {
    }
  }
  PageToucher(PageToucher const&) = delete;
  PageToucher& operator=(PageToucher const&) = delete;
  /// Stops it within a page or two.
  ~PageToucher() {
    stop_ = true;
    wait();
  }
  /// From when to when, of steady_seconds(), so far.
  std::pair<double, double> times() const { return {begin_s_, end_s_.load()}; }
  /// Until all is touched.
  void wait() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }

 private:
  static constexpr std::size_t part_bytes = std::size_t{4} << 20, page_bytes = 4096;

  void run() {
    std::size_t range = 0, first_part = 0;  // of the range
    for (std::size_t part = next_++; part < n_parts_ && !stop_; part = next_++) {
      auto const parts_of = [&](std::size_t r) { return (ranges_[r].size() + part_bytes - 1) / part_bytes; };
      while (part - first_part >= parts_of(range)) first_part += parts_of(range++);
      touch(ranges_[range].subspan((part - first_part) * part_bytes));
      end_s_ = steady_seconds();
    }
  }
  void touch(Bytes bytes) {
    std::size_t const n = bytes.size() < part_bytes ? bytes.size() : part_bytes;
    for (std::size_t at = 0; at < n && !stop_.load(std::memory_order_relaxed); at += page_bytes)
      static_cast<void>(*static_cast<std::byte const volatile*>(bytes.data() + at));
  }

  std::vector<Bytes> ranges_;
  std::size_t n_parts_ = 0;
  double begin_s_;
  std::atomic<double> end_s_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace tiered
