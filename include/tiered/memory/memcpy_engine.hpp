/// Copies at once, on the calling thread.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/detail/piece_pack.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {

/// The simplest CopyEngine: submit() waits for `after`, copies and returns a ticket that is done. For programs whose memory
/// is all of one kind, and as the yardstick for engines that copy behind the work.
class MemcpyEngine {
 public:
  /// For callers whose `after` is always empty or done; a ticket of a lane is then refused with Errc::precondition.
  MemcpyEngine() = default;
  /// `lanes`: whose tickets may come in `after`.
  explicit MemcpyEngine(std::shared_ptr<LaneSet> lanes) : lanes_(std::move(lanes)) {}

  /// Throws the Error of the lane that `after` names, if that failed.
  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    for (Ticket ticket : after) wait(ticket);
    for (CopyPiece const& piece : pieces) detail::copy_piece(piece);
    return {};
  }
  bool done(Ticket ticket) const { return ticket.value == 0 || lanes().done(ticket); }
  void wait(Ticket ticket) {
    if (ticket.value != 0) lanes().wait(ticket);
  }

 private:
  LaneSet& lanes() const {
    expects(lanes_ != nullptr, "a MemcpyEngine without lanes knows no ticket");
    return *lanes_;
  }
  std::shared_ptr<LaneSet> lanes_;
};
static_assert(CopyEngine<MemcpyEngine>);

}  // namespace tiered
