/// The times of a stream's work, on the clock of its lanes.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/detail/handles.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered::detail {

/// When a stream worked, by events between its ops. A stretch that ends at a record() begins at the last begin() since the record before,
/// or there. Any thread.
class StreamTimes {
 public:
  StreamTimes(LaneSet const& lanes, cudaStream_t stream) : lanes_(lanes), stream_(stream) {}
  bool kept() const { return kept_.load(std::memory_order_relaxed); }

  /// Waits for the stream, to learn what its clock says now.
  void keep() {
    std::lock_guard lock(mutex_);
    if (!base_) base_ = make_event(cudaEventDefault);
    set_base();
    if (!kept_) begin_ = base_.get();
    kept_ = true;
  }
  void begin() {
    std::lock_guard lock(mutex_);
    begin_ = mark();
  }
  void end(std::uint64_t value) {
    std::lock_guard lock(mutex_);
    cudaEvent_t const now = mark();
    stretches_.push_back({value, begin_, now});
    begin_ = now;
  }
  /// Nothing where one of them did not happen yet.
  std::optional<std::pair<double, double>> between(std::uint64_t first, std::uint64_t last) {
    std::lock_guard lock(mutex_);
    auto const after = [](std::uint64_t value, Stretch const& s) { return value < s.value; };
    auto const from = std::upper_bound(stretches_.begin(), stretches_.end(), first, after);
    auto const to = std::upper_bound(from, stretches_.end(), last, after);
    if (from == to) return std::nullopt;
    std::optional<double> const begin = seconds(from->begin), end = seconds((to - 1)->end);
    if (!begin || !end) return std::nullopt;
    return std::pair(*begin, *end);
  }
  /// Whoever calls it has waited for what was recorded.
  void forget() {
    std::lock_guard lock(mutex_);
    stretches_.clear();
    n_used_ = 0;
    if (!kept()) return;
    begin_ = mark();
    // Milliseconds since the base are a float: 2 us after 20 s.
    if (lanes_.seconds() - base_s_ > 20) set_base();
  }

 private:
  struct Stretch {
    std::uint64_t value = 0;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  /// Somewhere between the two readings the event happened; a thread that is late to wake up tries again.
  void set_base() {
    for (int left = 5; left > 0; --left) {
      double const before = lanes_.seconds();
      cuda_check(cudaEventRecord(base_.get(), stream_), "cudaEventRecord");
      cuda_check(cudaEventSynchronize(base_.get()), "cudaEventSynchronize");
      double const after = lanes_.seconds();
      base_s_ = (before + after) / 2;
      if (after - before < 40e-6) return;
    }
  }
  cudaEvent_t mark() {
    if (n_used_ == events_.size()) events_.push_back(make_event(cudaEventDefault));
    cudaEvent_t const event = events_[n_used_++].get();
    cuda_check(cudaEventRecord(event, stream_), "cudaEventRecord");
    return event;
  }
  std::optional<double> seconds(cudaEvent_t event) const {
    float ms = 0;
    cudaError_t const status = cudaEventElapsedTime(&ms, base_.get(), event);
    if (status == cudaSuccess) return base_s_ + double(ms) / 1e3;
    static_cast<void>(cudaGetLastError());
    return std::nullopt;
  }

  LaneSet const& lanes_;
  cudaStream_t stream_;
  std::atomic<bool> kept_{false};
  std::mutex mutex_;
  Owned<cudaEvent_t> base_;
  double base_s_ = 0;
  cudaEvent_t begin_ = nullptr;
  std::vector<Stretch> stretches_;  // ascending
  std::vector<Owned<cudaEvent_t>> events_;
  std::size_t n_used_ = 0;
};

}  // namespace tiered::detail
