/// As little resident as possible: every weight crosses the link for every pass.
#pragma once

#include "tiered/plan/placement.hpp"

namespace tiered {

/// Dense shards go through the ring, experts through a cache of the smallest size, states stay in VRAM as far as they fit.
/// Declines a ring of no bytes, and one that leaves no room for one token's experts where a smaller one would.
struct StreamAll {
  bool operator==(StreamAll const&) const = default;

  Placements place(PlanRequest const& r) const;
};
static_assert(PlacementPolicy<StreamAll>);

}  // namespace tiered
