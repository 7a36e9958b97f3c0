/// The link of a simulated device: a lane that copies, and what it would cost.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/memory/copy.hpp"
#include "tiered/memory/detail/piece_pack.hpp"
#include "tiered/memory/lane.hpp"
#include "tiered/sim/faults.hpp"
#include "tiered/sim/sim_clock.hpp"
#include "tiered/sim/sim_tier.hpp"

namespace tiered {

struct SimCopyOptions {
  SimTier const* device = nullptr;            ///< whose memory tells the direction of a copy; must outlive the engine; null: not told
  std::shared_ptr<Faults> faults = nullptr;   ///< one FaultKind::copy for each submit
  std::shared_ptr<SimClock> clock = nullptr;  ///< where copies take virtual time and are recorded; null: neither
  double bytes_per_s = 0;                     ///< 0: a copy takes no virtual time
  double seconds_per_submit = 0;              ///< what a transfer costs whatever its size
  std::string lane_name = "copy";
};

/// One transfer as the clock saw it.
struct SimCopy {
  Ticket ticket;
  std::size_t bytes = 0;
  SimSpan span;
};

/// Copies in a lane of its own, behind whatever else runs. No sleep: speed exists in virtual time only.
/// One submitting thread; the counters are for that thread too.
class SimCopyEngine {
 public:
  explicit SimCopyEngine(std::shared_ptr<LaneSet> lanes, SimCopyOptions options = {})
      : lanes_(std::move(lanes)), options_(std::move(options)), lane_(lanes_->open(options_.lane_name)) {}
  SimCopyEngine(SimCopyEngine const&) = delete;
  SimCopyEngine& operator=(SimCopyEngine const&) = delete;
  /// Waits for its copies, so that the bytes may go after it.
  ~SimCopyEngine() { lanes_->drain(lane_); }

  /// A fault shows where one waits for the ticket: Errc::device.
  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    for (Ticket ticket : after) {
      lanes_->wait_for(lane_, ticket);
      if (options_.clock) options_.clock->wait_for(lane_, ticket);
    }
    if (options_.faults && options_.faults->strikes(FaultKind::copy)) lanes_->submit(lane_, [] { throw Faults::error(FaultKind::copy); });
    detail::for_each_pack(pieces, [&](detail::PiecePack const& pack) {
      lanes_->submit(lane_, [pack] {
        for (CopyPiece const& piece : pack.span()) detail::copy_piece(piece);
      });
    });
    Ticket const ticket = lanes_->record(lane_);
    account(pieces, ticket);
    return ticket;
  }
  /// Waits for everything on all lanes of the set, and forgets errors.
  void recover() { lanes_->clear_errors(); }
  std::optional<std::pair<double, double>> times(Ticket begin, Ticket end) { return lanes_->times(begin, end); }
  bool done(Ticket ticket) const { return lanes_->done(ticket); }
  void wait(Ticket ticket) { lanes_->wait(ticket); }

  /// Without a device all goes to it.
  LinkWay way_of(CopyPiece const& piece) const {
    if (options_.device == nullptr) return LinkWay::to_device;
    bool const to = options_.device->owns(piece.dst), from = options_.device->owns(piece.src);
    if (to == from) return LinkWay::none;
    return to ? LinkWay::to_device : LinkWay::to_host;
  }

  LaneSet::Lane lane() const { return lane_; }
  std::uint64_t n_copies() const { return n_copies_; }
  std::uint64_t bytes_to_device() const { return bytes_to_device_; }
  std::uint64_t bytes_from_device() const { return bytes_from_device_; }
  /// Every copy since the start or the last clear_record(); empty without a clock.
  std::span<SimCopy const> record() const { return record_; }
  void clear_record() { record_.clear(); }

 private:
  void account(std::span<CopyPiece const> pieces, Ticket ticket) {
    ++n_copies_;
    if (options_.device != nullptr) {
      for (CopyPiece const& piece : pieces) {
        LinkWay const way = way_of(piece);
        if (way == LinkWay::to_device) bytes_to_device_ += piece.bytes;
        if (way == LinkWay::to_host) bytes_from_device_ += piece.bytes;
      }
    }
    if (options_.clock) {
      std::size_t const bytes = detail::total_bytes(pieces);
      double const seconds = options_.seconds_per_submit + (options_.bytes_per_s > 0 ? double(bytes) / options_.bytes_per_s : 0);
      record_.push_back({ticket, bytes, options_.clock->charge(lane_, seconds)});
      options_.clock->stamp(ticket);
    }
  }

  std::shared_ptr<LaneSet> lanes_;
  SimCopyOptions options_;
  LaneSet::Lane lane_;
  std::uint64_t n_copies_ = 0, bytes_to_device_ = 0, bytes_from_device_ = 0;
  std::vector<SimCopy> record_;
};
static_assert(CopyEngine<SimCopyEngine>);

}  // namespace tiered
