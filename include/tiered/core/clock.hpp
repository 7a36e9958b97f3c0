/// A clock for durations.
#pragma once

#include <ctime>

namespace tiered {

/// Seconds since some moment of the past, never set back. Any thread.
inline double steady_seconds() {
  std::timespec now{};
  static_cast<void>(::clock_gettime(CLOCK_MONOTONIC, &now));
  return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

}  // namespace tiered
