/// Copies that are submitted by a thread of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tiered/memory/copy.hpp"
#include "tiered/pipeline/side.hpp"

namespace tiered {

/// For a thread that must be at hand all the time: to submit a copy takes some ten microseconds of a driver, and milliseconds where another
/// thread has it. One thread orders, and asks. From an order until quiet() nobody else submits to that lane.
class CopySubmitter {
 public:
  /// Of an order, from 1 up.
  using Number = std::uint64_t;
  struct Tickets {
    Ticket before;  ///< of the lane's newest copy before
    Ticket filled;
  };
  /// Whose tickets are remembered.
  static constexpr std::size_t most_orders = 16;

  /// Errors  Errc::device where there is no thread.
  CopySubmitter();
  CopySubmitter(CopySubmitter const&) = delete;
  CopySubmitter& operator=(CopySubmitter const&) = delete;
  /// Submits what was ordered first.
  ~CopySubmitter();

  /// Returns at once. The lane, and what the pieces name, must live until the copy is done.
  /// Errors  Errc::precondition where most_orders are not submitted yet; as done().
  Number order(CopyLane& lane, std::span<CopyPiece const> pieces, std::span<Ticket const> after);
  /// Whether the copy is done.
  /// Errors  of the first submit() that failed: nothing is submitted from then on.
  bool done(Number number) const;
  /// Of an order that is submitted: after done() or quiet(). Not of one that most_orders came behind.
  Tickets tickets(Number number) const;
  /// Waits until all orders are submitted; copies may go on.
  /// Errors  as done().
  void quiet() const;
  /// Likewise, whatever failed.
  void drain() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tiered
