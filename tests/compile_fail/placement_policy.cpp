// A placement that changes itself while it answers: the planner asks one object several times and keeps the best plan.
// expect-error: static.?assert
// expect-error: place
#include "tiered/plan/placement.hpp"

struct MyPlacement {
#ifdef FIXED
  tiered::Placements place(tiered::PlanRequest const& request) const {
#else
  tiered::Placements place(tiered::PlanRequest const& request) {
#endif
    return tiered::Placements{request};
  }
};
static_assert(tiered::PlacementPolicy<MyPlacement>);
