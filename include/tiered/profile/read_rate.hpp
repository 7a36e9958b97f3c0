/// How fast a team of threads reads memory: the bound of everything that reads each weight once. Link tiered::cpu.
#pragma once

#include <cstddef>
#include <span>

#include "tiered/kernels/cpu/team.hpp"

namespace tiered {

/// Bytes per second that all members of the team together read from `regions`, where they lie: the best of several rounds of some
/// milliseconds, `seconds` in all. A round goes on where the one before stopped, so that nothing is read again soon, unless all of it
/// fits the caches. 0 where there is nothing to read. A caller of the team, so not from within a loop of it.
double read_rate(Team& team, std::span<std::span<std::byte const> const> regions, double seconds = 0.05);

}  // namespace tiered
