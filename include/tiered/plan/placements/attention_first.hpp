/// A fixed order of importance: what every token reads before what only some do, attention before all.
#pragma once

#include "tiered/plan/placement.hpp"

namespace tiered {

/// Attention with its state layer by layer, routers, the output head, dense feed-forwards, then experts. What does not fit is
/// streamed where copying and running it on the device is faster than the host, else the host computes it.
struct AttentionFirst {
  bool operator==(AttentionFirst const&) const = default;

  Placements place(PlanRequest const& r) const;
};
static_assert(PlacementPolicy<AttentionFirst>);

}  // namespace tiered
