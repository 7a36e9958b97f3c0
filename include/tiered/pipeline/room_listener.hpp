/// What is told, while a block runs, of room in VRAM that the block is done with.
#pragma once

#include <span>

#include "tiered/memory/copy.hpp"
#include "tiered/pipeline/residency.hpp"

namespace tiered {

/// Called by whoever runs the block, between its steps.
class RoomListener {
 public:
  /// From `done` on the block touches nothing of the arena but `busy`, and no weights are copied for it any more. Ranges are fewer each
  /// time.
  virtual void room_left(Ticket done, std::span<VramRange const> busy) = 0;

 protected:
  ~RoomListener() = default;
};

}  // namespace tiered
