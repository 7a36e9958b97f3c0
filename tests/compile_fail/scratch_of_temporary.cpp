// expect-error: (deleted|no matching|cannot bind|rvalue)
#include "tiered/plan/planner.hpp"

std::size_t ask() {
#ifdef FIXED
  auto const bytes = [](std::int32_t, std::int32_t) { return std::size_t{0}; };
  return tiered::ScratchBytes(bytes)(1, 1);
#else
  return tiered::ScratchBytes([](std::int32_t, std::int32_t) { return std::size_t{0}; })(1, 1);  // a PlannerInput would keep what is gone
#endif
}
