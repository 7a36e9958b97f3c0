/// Copying much, once, while others go on: what an engine keeps on a device for good.
#pragma once

#include <utility>
#include <vector>

#include "tiered/memory/copy.hpp"

namespace tiered {

/// Not a CopyEngine: its copies come in an order of its own, there are no tickets, and nothing that a device runs may wait for it.
/// One thread calls.
class BulkCopy {
 public:
  virtual ~BulkCopy() = default;
  /// Begins to copy; returns at once. The bytes live, and nobody reads or writes the targets, until wait() or cancel().
  virtual void start(std::vector<CopyPiece> pieces) = 0;
  /// Blocks until all of it is there. Throws the Error of a copy that failed.
  virtual void wait() = 0;
  /// Leaves out what has not begun, and waits for the rest.
  virtual void cancel() noexcept = 0;
  /// When the last one began and ended, of steady_seconds().
  virtual std::pair<double, double> times() const = 0;
};

}  // namespace tiered
