/// The default placement: VRAM goes to what saves most seconds per byte, the link and the host share the rest.
#pragma once

#include "tiered/plan/placement.hpp"

namespace tiered {

/// Keeps in VRAM what saves most seconds per byte, weights, states and experts alike; streams where that wins, the more so while the
/// host is busy with something else. For any budget, any number of rows.
struct SecondsPerByte {
  double margin = 1.0;  ///< stream only where it is faster by this factor
  bool operator==(SecondsPerByte const&) const = default;

  Placements place(PlanRequest const& r) const;
};
static_assert(PlacementPolicy<SecondsPerByte>);

}  // namespace tiered
