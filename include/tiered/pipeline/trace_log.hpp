/// What was done between which tickets, so that times can be asked once a pass is over.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "tiered/memory/copy.hpp"
#include "tiered/plan/schedule.hpp"

namespace tiered {

enum class TraceLane : std::uint8_t { copy, device, host };

struct TraceEntry {
  Action action;
  TraceLane lane{};
  Ticket begin, end;                   ///< of one lane
  std::pair<double, double> within{};  ///< where not both 0: seconds after the begin of what ran between the tickets
};
/// Off (null) costs nothing; the engine hands the entries to its TracePolicy after each pass.
using TraceLog = std::vector<TraceEntry>;

}  // namespace tiered
