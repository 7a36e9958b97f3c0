/// The background copy of a CUDA device: from mappings while they are registered, on a thread and a stream of its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <limits>
#include <span>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "tiered/core/clock.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/bulk_copy.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/detail/handles.hpp"
#include "tiered/memory/cuda/registered.hpp"
#include "tiered/memory/strided_copy.hpp"

namespace tiered {

struct BulkCopyOptions {
  std::size_t batch_bytes = 16 * MiB;  ///< 0.3 ms of a PCIe 5 link
  bool merges = true;                  ///< false: a call for each piece
};

/// Copies in order of the sources, which is that in which they are registered; each part waits, on the host, until its own registration
/// is done. Few copies are in flight: loading a kernel may wait for all that a device was given to do, and then waits for those only.
class StreamBulkCopy final : public BulkCopy {
 public:
  /// `sources` outlive it; null: what the driver makes of the addresses. Errors  Errc::device.
  explicit StreamBulkCopy(int device, RegisteredMapping* sources = nullptr, BulkCopyOptions const& options = {})
      : device_(device), sources_(sources), options_(options) {
    detail::UseDevice const use(device);
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    stream_.reset(stream);
    for (detail::Owned<cudaEvent_t>& event : events_) event = detail::make_event(cudaEventDisableTiming | cudaEventBlockingSync);
  }
  StreamBulkCopy(StreamBulkCopy const&) = delete;
  StreamBulkCopy& operator=(StreamBulkCopy const&) = delete;
  ~StreamBulkCopy() override { cancel(); }

  void read_from(RegisteredMapping* sources) { sources_ = sources; }

  /// Errors  Errc::device where the thread does not start.
  void start(std::vector<CopyPiece> pieces) override {
    expects(!thread_.joinable(), "a bulk copy is waited for before the next one");
    stop_ = false;
    error_ = nullptr;
    begin_s_ = end_s_ = steady_seconds();
    try {
      thread_ = std::thread([this, all = std::move(pieces)]() mutable { run(std::move(all)); });
    } catch (std::system_error const& error) {
      throw Error(Errc::device, concat("a thread that copies to the device did not start: ", error.what()));
    }
  }
  void wait() override {
    if (thread_.joinable()) thread_.join();
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }
  void cancel() noexcept override {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    error_ = nullptr;
  }
  std::pair<double, double> times() const override { return {begin_s_, end_s_}; }
  std::size_t n_calls() const { return n_calls_; }

 private:
  static constexpr std::size_t n_in_flight = 4;
  static constexpr std::size_t most_stride = std::numeric_limits<int>::max();  // what cudaDeviceProp::memPitch says of every device

  void run(std::vector<CopyPiece> pieces) noexcept {
    try {
      cuda_check(cudaSetDevice(device_), "cudaSetDevice", concat("device ", device_));
      for (StridedCopy const& copy : cut(std::move(pieces))) {
        if (stop_) break;
        issue(copy);
        flush(options_.batch_bytes);
      }
    } catch (...) {
      error_ = std::current_exception();
    }
    try {
      cuda_check(cudaStreamSynchronize(stream_.get()), "copies to the device");
    } catch (...) {
      if (!error_) error_ = std::current_exception();
    }
    pending_bytes_ = 0;
    end_s_ = steady_seconds();
  }
  std::vector<StridedCopy> cut(std::vector<CopyPiece> pieces) const {
    if (options_.merges) return merge_pieces(std::move(pieces), options_.batch_bytes, most_stride);
    std::sort(pieces.begin(), pieces.end(), [](CopyPiece const& a, CopyPiece const& b) { return a.src < b.src; });
    std::vector<StridedCopy> copies;
    for (CopyPiece const& p : pieces) {
      if (p.bytes != 0) copies.push_back({p.dst, p.src, p.bytes, 1, p.bytes, p.bytes});
    }
    return copies;
  }

  /// Rows that lie in one registration go together, one that crosses from one to the next in parts.
  void issue(StridedCopy rest) {
    while (rest.n_rows > 0) {
      std::size_t const there = sources_ != nullptr ? sources_->wait_for_stretch(rest.src) : 0;
      std::size_t n = there < rest.row_bytes ? 0 : 1 + (there - rest.row_bytes) / rest.src_stride;
      n = std::min(n, rest.n_rows);
      if (n == 0) {
        issue_by_parts({rest.src, rest.row_bytes}, rest.dst);
        n = 1;
      } else if (n == 1) {
        issue_row(rest.dst, rest.src, rest.row_bytes);
      } else {
        cudaError_t const status = cudaMemcpy2DAsync(rest.dst, rest.dst_stride, rest.src, rest.src_stride, rest.row_bytes, n,
                                                     cudaMemcpyHostToDevice, stream_.get());
        issued(status, "cudaMemcpy2DAsync", n * rest.row_bytes);
      }
      rest.dst += n * rest.dst_stride;
      rest.src += n * rest.src_stride;
      rest.n_rows -= n;
    }
  }
  void issue_by_parts(std::span<std::byte const> source, std::byte* dst) {
    if (sources_ == nullptr) return issue_row(dst, source.data(), source.size());
    static_cast<void>(sources_->wait_until(source.data(), source.size()));
    sources_->for_each_part(source, [&](std::span<std::byte const> part, bool) {
      issue_row(dst, part.data(), part.size());
      dst += part.size();
    });
  }
  /// From pageable memory the driver copies by itself, slowly, and returns when it has read all.
  void issue_row(std::byte* dst, std::byte const* src, std::size_t bytes) {
    issued(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, stream_.get()), "cudaMemcpyAsync", bytes);
  }
  void issued(cudaError_t status, char const* call, std::size_t bytes) {
    if (status != cudaSuccess) cuda_check(status, call, concat(format_bytes(bytes), " to the device"));
    pending_bytes_ += bytes;
    ++n_calls_;
  }
  /// Marks what was issued once it is a batch, when the batch n_in_flight before it is there.
  void flush(std::size_t least_bytes) {
    if (pending_bytes_ < least_bytes) return;
    pending_bytes_ = 0;
    cudaEvent_t const event = events_[batch_++ % n_in_flight].get();
    cuda_check(cudaEventSynchronize(event), "copies to the device");  // one that was never recorded is done
    cuda_check(cudaEventRecord(event, stream_.get()), "cudaEventRecord");
  }

  int device_;
  RegisteredMapping* sources_;
  BulkCopyOptions options_;
  detail::Owned<cudaEvent_t> events_[n_in_flight];
  detail::Owned<cudaStream_t> stream_;  // goes before them
  std::size_t batch_ = 0, pending_bytes_ = 0, n_calls_ = 0;
  std::atomic<bool> stop_{false};
  std::exception_ptr error_;                    // the thread's, until it is joined
  std::atomic<double> begin_s_{0}, end_s_{0};
  std::thread thread_;
};

}  // namespace tiered
