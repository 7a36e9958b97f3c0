/// A CUDA stream as a lane of a LaneSet: its tickets and those of the host's lanes wait for each other, and nobody who enqueues waits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/detail/driver.hpp"
#include "tiered/memory/cuda/detail/handles.hpp"
#include "tiered/memory/cuda/detail/stream_times.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {
namespace detail {

struct StreamMemoryDriver {
  decltype(&::cuStreamWriteValue64) write = nullptr;
  decltype(&::cuStreamWaitValue64) wait = nullptr;
  decltype(&::cuDeviceGetAttribute) attribute = nullptr;

  bool works_on(int device) const {
    int can = 0;
    return write && wait && attribute &&
           attribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, CUdevice(device)) == CUDA_SUCCESS && can != 0;
  }
  static StreamMemoryDriver const& get() {
    static StreamMemoryDriver const driver = [] {
      StreamMemoryDriver d;
      find_driver_function(d.write, "cuStreamWriteValue64", 11070);
      find_driver_function(d.wait, "cuStreamWaitValue64", 11070);
      find_driver_function(d.attribute, "cuDeviceGetAttribute", 2000);
      return d;
    }();
    return driver;
  }
};

}  // namespace detail

/// A stream with a counter in memory that the host and the device share: record() has the device write it, in order, and the device
/// itself looks at the counters of the host's lanes. Between streams of one device, events: what is ordered by counters only is not
/// visible to CUDA's scheduler. A process should have no more streams than CUDA_DEVICE_MAX_CONNECTIONS, 8 where the user says nothing:
/// from there on streams share a channel, and one that waits for the host holds up the other.
///
/// While a stream waits for a host lane, calls that wait for the whole device (cudaFree, cudaDeviceSynchronize, the first launch of a
/// kernel that was not loaded) must not be made by a thread that this lane needs to go on.
///
/// One thread at a time enqueues. Errors: Errc::device with CUDA's text; a device that is lost is noticed by whoever waits.
class StreamLane final : public ForeignLane {
 public:
  /// `sees_work`: work is enqueued between touch() and record() only, so that record() may give the last ticket once more. Otherwise each
  /// record() has the device write, some 1 us.
  /// `priority`: as of cudaStreamCreateWithPriority, lower numbers first.
  /// Errors  Errc::unsupported where the device or driver lacks 64-bit stream memory operations; Errc::device.
  StreamLane(std::shared_ptr<LaneSet> lanes, int device, std::string lane_name, bool sees_work = false, int priority = 0)
      : lanes_(std::move(lanes)),
        device_(device),
        sees_work_(sees_work),
        driver_(checked_driver(device)),
        page_(shared_page(*lanes_, device)),
        stream_(make_stream(device, priority)),
        times_(*lanes_, stream_.get()) {
    use_device();
    for (detail::Owned<cudaEvent_t>& event : events_) event = detail::make_event(cudaEventDisableTiming);
    lane_ = lanes_->open_foreign(std::move(lane_name), *this);
    counter_ = address_of(lanes_->counters()[lane_ - 1]);
  }
  StreamLane(StreamLane const&) = delete;
  StreamLane& operator=(StreamLane const&) = delete;
  /// Waits for its work; its tickets count as done afterwards.
  ~StreamLane() override {
    abandon_capture();
    lanes_->drain(lane_);
    static_cast<void>(cudaSetDevice(device_));
    static_cast<void>(cudaStreamSynchronize(stream_.get()));
    lanes_->close_foreign(lane_);
    static_cast<void>(cudaGetLastError());
  }

  LaneSet& lanes() const { return *lanes_; }
  std::shared_ptr<LaneSet> const& shared_lanes() const { return lanes_; }
  LaneSet::Lane lane() const { return lane_; }
  cudaStream_t stream() const { return stream_.get(); }
  int device() const { return device_; }

  /// Binds the calling thread to the device; one that has called nothing of CUDA has no context, which the driver's functions want.
  void use_device() const {
    if (cudaError_t const status = cudaSetDevice(device_); status != cudaSuccess)
      cuda_check(status, "cudaSetDevice", concat("device ", device_));
  }
  Ticket ticket() { return lanes_->record(lane_); }
  void wait_for(Ticket ticket) { lanes_->wait_for(lane_, ticket); }
  void synchronize() { lanes_->synchronize(lane_); }
  /// Work is about to be enqueued: for lanes that see theirs, and for times that leave out what the stream was idle before.
  void touch() {
    touched_ = true;
    if (times_.kept() && !capturing_ && !std::exchange(began_, true)) times_.begin();
  }

  /// From here to end_capture(), work goes into a graph in place of the stream. record() throws Errc::precondition, and so does
  /// wait_for() where there is something to wait for.
  /// Thread-local: what other threads call does not matter.
  void begin_capture() {
    refuse_capture();
    use_device();
    std::lock_guard lock(query_mutex_);
    cuda_check(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    capturing_ = true;
  }
  /// Errc::device where something was called that a graph cannot hold.
  detail::Owned<cudaGraph_t> end_capture() {
    expects(capturing_, "end_capture() follows begin_capture()");
    cudaGraph_t graph = nullptr;
    cudaError_t const status = cudaStreamEndCapture(stream_.get(), &graph);
    detail::Owned<cudaGraph_t> owned(graph);
    capturing_ = false;
    cuda_check(status, "cudaStreamEndCapture");
    return owned;
  }
  /// After an error on the way: what was captured is forgotten. Nothing where no capture is on.
  void abandon_capture() noexcept {
    if (!capturing_) return;
    cudaGraph_t graph = nullptr;
    static_cast<void>(cudaStreamEndCapture(stream_.get(), &graph));
    detail::Owned<cudaGraph_t> const owned(graph);
    capturing_ = false;
    static_cast<void>(cudaGetLastError());
  }
  bool capturing() const { return capturing_; }

  // ---- of ForeignLane: for the set
  std::uint64_t record() override {
    refuse_capture();
    std::uint64_t const value = value_.load(std::memory_order_relaxed);
    if (sees_work_ && !touched_) return value;
    use_device();
    if (times_.kept()) times_.end(value + 1);
    detail::driver_check(driver_.write(stream_.get(), counter_, value + 1, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue64");
    touched_ = began_ = false;
    if (has_readers_.load(std::memory_order_acquire)) record_event(value + 1);
    value_.store(value + 1, std::memory_order_release);
    return value + 1;
  }
  void wait_for(LaneCounter const& counter, std::uint64_t value, ForeignLane* other) override {
    refuse_capture();
    use_device();
    auto* const peer = dynamic_cast<StreamLane*>(other);
    if (cudaEvent_t const event = peer != nullptr && peer->device_ == device_ ? peer->event_after(value) : nullptr) {
      cuda_check(cudaStreamWaitEvent(stream_.get(), event, 0), "cudaStreamWaitEvent");
    } else {
      detail::driver_check(driver_.wait(stream_.get(), address_of(counter), value, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue64");
    }
    touched_ = true;
    if (times_.kept() && !began_) times_.begin();
  }
  /// On a thread of the driver: the task must not call CUDA. For what is rare; a lane of the host starts its tasks sooner.
  void submit(LaneTask const& task, std::uint64_t value) override {
    refuse_capture();
    use_device();
    touch();
    host_tasks_.erase(std::remove_if(host_tasks_.begin(), host_tasks_.end(), [](auto const& t) { return t->is_over.load(); }),
                      host_tasks_.end());
    host_tasks_.push_back(std::make_unique<HostTask>(*this, task, value));
    cudaError_t const status = cudaLaunchHostFunc(
        stream_.get(), [](void* t) { static_cast<HostTask*>(t)->run(); }, host_tasks_.back().get());
    if (status != cudaSuccess) host_tasks_.pop_back();
    cuda_check(status, "cudaLaunchHostFunc");
  }
  /// By whoever waits: a thread that may work on another device, or on none so far.
  void poll() override {
    detail::UseDevice const use(device_);
    std::lock_guard lock(query_mutex_);
    if (capturing_) return;  // to ask would end the capture
    cudaError_t const status = cudaStreamQuery(stream_.get());
    if (status == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
    } else if (status != cudaSuccess) {
      cuda_check(status, "work on a stream", concat("lane ", lanes_->name(lane_)));
    }
  }
  void keep_times() override {
    use_device();
    times_.keep();
  }
  std::optional<std::pair<double, double>> times(std::uint64_t begin, std::uint64_t end) override {
    detail::UseDevice const use(device_);
    return times_.between(begin, end);
  }
  void forget_times() override {
    use_device();
    times_.forget();
  }

 private:
  struct HostTask {
    HostTask(StreamLane& of, LaneTask const& given, std::uint64_t at) : lane(of), task(given), value(at) {}
    void run() noexcept {
      try {
        task();
      } catch (...) {
        lane.lanes_->fail(lane.lane_, value, std::current_exception());
      }
      is_over.store(true);
    }
    StreamLane& lane;
    LaneTask task;
    std::uint64_t value;
    std::atomic<bool> is_over{false};
  };

  static detail::StreamMemoryDriver const& checked_driver(int device) {
    detail::StreamMemoryDriver const& driver = detail::StreamMemoryDriver::get();
    if (!driver.works_on(device)) {
      throw Error(Errc::unsupported, concat("device ", device,
                                            " or its driver has no 64-bit stream memory operations (cuStreamWaitValue64, "
                                            "cuStreamWriteValue64), by which streams and threads wait for each other"));
    }
    return driver;
  }
  static CUdeviceptr shared_page(LaneSet& lanes, int device) {
    detail::UseDevice const use(device);
    lanes.share_counters([](void* page, std::size_t bytes) {
      cuda_check(cudaHostRegister(page, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister",
                 concat("the counters of lanes, ", bytes, " bytes"));
      return std::shared_ptr<void>(page, [](void* p) { static_cast<void>(cudaHostUnregister(p)), static_cast<void>(cudaGetLastError()); });
    });
    void* address = nullptr;
    cuda_check(cudaHostGetDevicePointer(&address, lanes.counters(), 0), "cudaHostGetDevicePointer", "the counters of lanes");
    return reinterpret_cast<CUdeviceptr>(address);
  }
  static detail::Owned<cudaStream_t> make_stream(int device, int priority) {
    detail::UseDevice const use(device);
    cudaStream_t stream = nullptr;
    cuda_check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "cudaStreamCreateWithPriority");
    return detail::Owned<cudaStream_t>(stream);
  }
  CUdeviceptr address_of(LaneCounter const& counter) const { return page_ + CUdeviceptr(&counter - lanes_->counters()) * sizeof counter; }

  void refuse_capture() const {
    expects(!capturing_, "a stream whose work is captured in a graph neither records, waits nor calls the host");
  }
  void record_event(std::uint64_t value) {
    cuda_check(cudaEventRecord(events_[value % n_events].get(), stream_.get()), "cudaEventRecord");
    first_event_.store(std::min(first_event_.load(), value));
  }
  /// An event that comes with `value`, or later where it is the first that anybody asks for; null where it is so old that its event was
  /// used again, and it is most likely done.
  cudaEvent_t event_after(std::uint64_t value) {
    if (!has_readers_.exchange(true)) record_event(value_.load());
    std::uint64_t const newest = value_.load(), at = std::max(value, first_event_.load());
    return at <= newest && newest - at < n_events / 2 ? events_[at % n_events].get() : nullptr;
  }

  static constexpr std::size_t n_events = 128;

  std::shared_ptr<LaneSet> lanes_;
  int device_;
  bool sees_work_;
  detail::StreamMemoryDriver const& driver_;
  CUdeviceptr page_, counter_ = 0;
  detail::Owned<cudaEvent_t> events_[n_events];  // by value % n_events; once another stream has waited for this one
  std::atomic<bool> has_readers_{false};
  std::atomic<std::uint64_t> first_event_{~std::uint64_t{0}}, value_{0};
  std::vector<std::unique_ptr<HostTask>> host_tasks_;
  detail::Owned<cudaStream_t> stream_;  // goes before what its work refers to
  detail::StreamTimes times_;
  LaneSet::Lane lane_ = 0;
  bool touched_ = false, began_ = false;  // since the last record(): anything, work that touch() was told of
  std::mutex query_mutex_;
  std::atomic<bool> capturing_{false};
};

}  // namespace tiered
