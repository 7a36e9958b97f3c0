// expect-error: a lane task holds values and borrowed pointers only
#include <string>

#include "tiered/memory/lane.hpp"

void enqueue(tiered::LaneSet& lanes, std::string const& text) {
#ifdef FIXED
  lanes.submit(1, [view = &text] { (void)view->size(); });
#else
  lanes.submit(1, [copy = text] { (void)copy.size(); });
#endif
}
