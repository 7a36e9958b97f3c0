/// Copies between host memory and a device, behind the work of both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/cuda/detail/driver.hpp"
#include "tiered/memory/cuda/pinned.hpp"
#include "tiered/memory/cuda/registered.hpp"
#include "tiered/memory/cuda/stream_lane.hpp"
#include "tiered/memory/detail/piece_pack.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {

/// What kind of memory addresses are. CUDA says so, in a microsecond or two; what is a device's or page-locked is remembered as a
/// range, pageable memory is asked for each time, since it may be registered meanwhile. One thread.
class CudaAddresses {
 public:
  enum class Kind : std::uint8_t { pageable, pinned, device };
  /// The first `bytes` of what was asked about are one allocation or one registration, or pageable for all that is known.
  struct Stretch {
    Kind kind = Kind::pageable;
    std::size_t bytes = 0;
  };

  Stretch find(void const* data, std::size_t bytes) {
    std::uintptr_t const at = address(data);
    if (Range const* const range = holding(at)) return {range->kind, std::min<std::size_t>(bytes, range->end - at)};
    Range const range = asked(data, bytes);
    if (range.kind == Kind::pageable) return {Kind::pageable, bytes};
    add(range);
    return {range.kind, std::min<std::size_t>(bytes, range.end - at)};
  }
  /// For memory that is known: an arena, a registration.
  void add(void const* data, std::size_t bytes, Kind kind) {
    if (bytes != 0) add({address(data), address(data) + bytes, kind});
  }
  /// What is in the range is asked for anew: when it was freed, or its registration taken back.
  void forget(void const* data, std::size_t bytes) { remove(address(data), address(data) + bytes); }
  std::size_t size() const { return ranges_.size(); }

 private:
  struct Range {
    std::uintptr_t begin = 0, end = 0;
    Kind kind = Kind::pageable;
  };
  static std::uintptr_t address(void const* data) { return reinterpret_cast<std::uintptr_t>(data); }

  Range const* holding(std::uintptr_t at) const {
    auto const next = std::upper_bound(ranges_.begin(), ranges_.end(), at, [](std::uintptr_t a, Range const& r) { return a < r.end; });
    return next != ranges_.end() && next->begin <= at ? &*next : nullptr;
  }
  void remove(std::uintptr_t begin, std::uintptr_t end) {
    auto const gone = [&](Range const& r) { return r.begin < end && begin < r.end; };
    ranges_.erase(std::remove_if(ranges_.begin(), ranges_.end(), gone), ranges_.end());
  }
  void add(Range range) {
    remove(range.begin, range.end);
    auto const at =
        std::upper_bound(ranges_.begin(), ranges_.end(), range.begin, [](std::uintptr_t a, Range const& r) { return a < r.begin; });
    ranges_.insert(at, range);
  }
  static Range asked(void const* data, std::size_t bytes) {
    cudaPointerAttributes attributes{};
    cuda_check(cudaPointerGetAttributes(&attributes, data), "cudaPointerGetAttributes");
    if (attributes.type == cudaMemoryTypeUnregistered) return {};
    Kind const kind = attributes.type == cudaMemoryTypeHost ? Kind::pinned : Kind::device;
    auto const pointer = reinterpret_cast<CUdeviceptr>(attributes.devicePointer != nullptr ? attributes.devicePointer : data);
    auto const [begin, size] = allocation_of(pointer);
    if (begin <= pointer && pointer - begin < size) {
      std::uintptr_t const first = address(data) - std::uintptr_t(pointer - begin);
      return {first, first + size, kind};
    }
    // One DMA must not cross from one registration to the next, wherever that is; the device's addresses are as good as one.
    return {address(data), address(data) + bytes, kind == Kind::pinned ? Kind::pageable : kind};
  }
  /// {0, 0} where the driver does not say.
  static std::pair<CUdeviceptr, std::size_t> allocation_of(CUdeviceptr pointer) {
    struct Driver {
      decltype(&::cuPointerGetAttribute) attribute = nullptr;
      decltype(&::cuMemGetAddressRange) range = nullptr;
    };
    static Driver const driver = [] {
      Driver d;
      detail::find_driver_function(d.attribute, "cuPointerGetAttribute", 4000);
      detail::find_driver_function(d.range, "cuMemGetAddressRange", 3020);
      return d;
    }();
    CUdeviceptr begin = 0;
    std::size_t size = 0;
    if (driver.attribute != nullptr && driver.attribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, pointer) == CUDA_SUCCESS &&
        driver.attribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, pointer) == CUDA_SUCCESS && size != 0) {
      return {begin, size};
    }
    if (driver.range != nullptr && driver.range(&begin, &size, pointer) == CUDA_SUCCESS) return {begin, size};
    return {0, 0};
  }

  std::vector<Range> ranges_;  // ascending, none overlapping
};

struct StreamCopyOptions {
  std::size_t staging_bytes = 4 * MiB;  ///< of each of the buffers that pageable memory goes through; 4 MiB cross at 51 of 54 GB/s
  std::size_t n_staging = 4;            ///< 0: copies between pageable memory and the device are refused
  std::string lane_name = "copy";
  int priority = 0;  ///< as of a StreamLane
};

/// The copy engine of a CUDA device. Between the device and page-locked memory (allocated, or registered), pieces are DMAs in one stream.
/// Pageable memory goes through a ring of pinned buffers, which a thread fills and empties while the stream copies: 7 GB/s or so, for
/// what is small or rare. Between host addresses the thread copies. submit() waits for nothing but room in the driver's queue and
/// registrations (wait_for_registration).
///
/// After a ticket that failed, nothing is copied by the thread; DMAs run, since a stream skips nothing, and who waits gets the error.
/// Memory that was page-locked and is no more must be told to addresses().forget().
///
/// One stream, in which everything ends in the order of submission. The link is duplex: what goes the other way, or must not stand behind
/// large copies, has an engine of its own (CudaMachine::kv_copy), tied to this one by tickets only.
/// Many small pieces: 16 GB/s at 64 KiB each, the driver's 2 us a call; cudaMemcpyBatchAsync (12.8) would stand in copy_async().
class StreamCopyEngine {
 public:
  /// Errors  as StreamLane and PinnedTier.
  explicit StreamCopyEngine(std::shared_ptr<LaneSet> lanes, int device = 0, StreamCopyOptions const& options = {})
      : stream_(std::move(lanes), device, options.lane_name, true, options.priority),
        lanes_(stream_.lanes()),
        host_lane_(lanes_.open(options.lane_name + " by hand")) {
    detail::UseDevice const use(device);
    for (std::size_t i = 0; i < options.n_staging; ++i) staging_.push_back({Buffer(pinned_, options.staging_bytes), {}});
  }
  StreamCopyEngine(StreamCopyEngine const&) = delete;
  StreamCopyEngine& operator=(StreamCopyEngine const&) = delete;
  /// Waits for its copies, so that the bytes may go after it.
  ~StreamCopyEngine() {
    lanes_.drain(host_lane_);
    lanes_.drain(stream_.lane());
  }

  /// Copies from what `sources` is registering wait, in submit(), until their part of it is. It must outlive them; null: none.
  void wait_for_registration(RegisteredMapping* sources) { sources_ = sources; }

  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    stream_.use_device();
    for (Ticket const ticket : after) stream_.wait_for(ticket);
    Turn turn{after};
    for (CopyPiece piece : pieces) {
      while (piece.bytes != 0) {
        CudaAddresses::Stretch const from = source_at(piece), to = addresses_.find(piece.dst, from.bytes);
        copy({piece.dst, piece.src, to.bytes}, from.kind, to.kind, turn);
        piece = {piece.dst + to.bytes, piece.src + to.bytes, piece.bytes - to.bytes};
      }
    }
    if (turn.by_hand) stream_.wait_for(lanes_.record(host_lane_));
    last_ = stream_.ticket();
    if (turn.dma_to_host) last_to_host_ = last_;
    return last_;
  }
  bool done(Ticket ticket) const { return lanes_.done(ticket); }
  void wait(Ticket ticket) { lanes_.wait(ticket); }
  /// Waits for everything on all lanes of the set, and forgets errors.
  void recover() { lanes_.clear_errors(); }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) { return lanes_.times(begin, end); }

  /// By its first byte on either side.
  LinkWay way_of(CopyPiece const& piece) {
    if (piece.bytes == 0) return LinkWay::none;
    bool const to = addresses_.find(piece.dst, piece.bytes).kind == CudaAddresses::Kind::device;
    bool const from = addresses_.find(piece.src, piece.bytes).kind == CudaAddresses::Kind::device;
    if (to == from) return LinkWay::none;
    return to ? LinkWay::to_device : LinkWay::to_host;
  }

  LaneSet::Lane lane() const { return stream_.lane(); }
  CudaAddresses& addresses() { return addresses_; }
  /// Whether a copy from or to all of it is one DMA that nothing is copied for by hand.
  bool is_dma_able(void const* data, std::size_t bytes) {
    CudaAddresses::Stretch const stretch = addresses_.find(data, bytes);
    return stretch.kind != CudaAddresses::Kind::pageable && stretch.bytes == bytes;
  }
  /// Page-locked for the ring.
  std::size_t staging_bytes() const { return pinned_.used_bytes(); }

 private:
  using Kind = CudaAddresses::Kind;
  /// What one submit() has done so far.
  struct Turn {
    std::span<Ticket const> after;
    bool by_hand = false, dma_to_host = false;
  };
  struct Staging {
    Buffer buffer;
    Ticket free;  // of the last copy out of it
  };

  void copy(CopyPiece const& piece, Kind from, Kind to, Turn& turn) {
    if (from != Kind::device && to != Kind::device) {
      begin_by_hand(turn);
      lanes_.wait_for(host_lane_, last_);  // DMAs that read or write page-locked memory
      copy_by_hand(piece);
    } else if (from == Kind::pageable || to == Kind::pageable) {
      copy_staged(piece, to == Kind::device, turn);
    } else {
      copy_async(piece);
      turn.dma_to_host |= to == Kind::pinned;
    }
  }
  void copy_async(CopyPiece const& piece) {
    stream_.touch();
    cudaError_t const status = cudaMemcpyAsync(piece.dst, piece.src, piece.bytes, cudaMemcpyDefault, stream_.stream());
    if (status != cudaSuccess) cuda_check(status, "cudaMemcpyAsync", concat(piece.bytes, " bytes"));
  }
  void copy_by_hand(CopyPiece const& piece) {
    lanes_.submit(host_lane_, [piece] { detail::copy_piece(piece); });
  }
  /// Pageable memory is read and written by the thread only, so that its order is the lane's; but a piece that is pageable in part may
  /// hold what a DMA wrote.
  void begin_by_hand(Turn& turn) {
    if (std::exchange(turn.by_hand, true)) return;
    for (Ticket const ticket : turn.after) lanes_.wait_for(host_lane_, ticket);
    lanes_.wait_for(host_lane_, last_to_host_);
  }
  void copy_staged(CopyPiece piece, bool to_device, Turn& turn) {
    if (staging_.empty()) {
      throw Error(Errc::unsupported, concat(format_bytes(piece.bytes), " of pageable memory cannot be copied ", to_device ? "to" : "from",
                                            " the device: the copy engine was made without staging buffers"));
    }
    begin_by_hand(turn);
    while (piece.bytes != 0) {
      Staging& s = staging_[next_staging_++ % staging_.size()];
      std::size_t const bytes = std::min(piece.bytes, s.buffer.bytes());
      if (to_device) {
        lanes_.wait_for(host_lane_, s.free);
        copy_by_hand({s.buffer.data(), piece.src, bytes});
        stream_.wait_for(lanes_.record(host_lane_));
        copy_async({piece.dst, s.buffer.data(), bytes});
        s.free = stream_.ticket();
      } else {
        stream_.wait_for(s.free);
        copy_async({s.buffer.data(), piece.src, bytes});
        lanes_.wait_for(host_lane_, stream_.ticket());
        copy_by_hand({piece.dst, s.buffer.data(), bytes});
        s.free = lanes_.record(host_lane_);
      }
      piece = {piece.dst + bytes, piece.src + bytes, piece.bytes - bytes};
    }
  }

  /// A source that is going to be registered is waited for: much sooner than the thread would have copied it. Before the driver is asked,
  /// which may say that memory is page-locked while another thread is still in the call that does it; a copy is refused then.
  CudaAddresses::Stretch source_at(CopyPiece const& piece) {
    if (sources_ != nullptr) static_cast<void>(sources_->wait_until(piece.src, 1));
    return addresses_.find(piece.src, piece.bytes);
  }

  RegisteredMapping* sources_ = nullptr;
  PinnedTier pinned_;
  std::vector<Staging> staging_;
  std::size_t next_staging_ = 0;
  CudaAddresses addresses_;
  Ticket last_, last_to_host_;
  StreamLane stream_;
  LaneSet& lanes_;
  LaneSet::Lane host_lane_;
};
static_assert(CopyEngine<StreamCopyEngine>);

}  // namespace tiered
