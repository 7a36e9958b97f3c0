/// How fast a team of threads reads memory: a yardstick for whatever reads each weight once. Link tiered::cpu.
#pragma once

#include <cstddef>
#include <span>

#include "tiered/kernels/cpu/team.hpp"

namespace tiered {

/// Bytes per second that all members of the team together read from `regions`, where they lie: the best of several rounds of some
/// milliseconds, `seconds` in all. A round goes on where the one before stopped, so that nothing is read again soon, unless all of it
/// fits the caches. Portable loads of 16 bytes: kernels with wider ones have passed it by a fifth, so it is no hard bound. 0 where
/// there is nothing to read. A caller of the team, so not from within a loop of it.
double read_rate(Team& team, std::span<std::span<std::byte const> const> regions, double seconds = 0.05);

}  // namespace tiered
