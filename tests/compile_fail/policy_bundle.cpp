// A bundle with one wrong member: the engine says so once, and where to read on.
// expect-error: P is no policy bundle: see the table in engine/policies.hpp
#include "tiered/tiered.hpp"

struct MyPlacement {
#ifdef FIXED
  tiered::Placements place(tiered::PlanRequest const& request) const { return tiered::Placements{request}; }
#else
  int place(tiered::PlanRequest const&) const { return 0; }
#endif
};
struct MyPolicies : tiered::CpuPolicies {
  using Placement = MyPlacement;
};
std::size_t n = sizeof(tiered::Engine<MyPolicies>);
