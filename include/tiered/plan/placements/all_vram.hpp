/// Everything resident, for a budget that holds the model; of a smaller one what fits, in the order of use.
#pragma once

#include "tiered/plan/placement.hpp"

namespace tiered {

struct AllVram {
  bool operator==(AllVram const&) const = default;

  Placements place(PlanRequest const& r) const;
};
static_assert(PlacementPolicy<AllVram>);

}  // namespace tiered
