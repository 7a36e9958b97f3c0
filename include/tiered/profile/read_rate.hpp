/// How fast a team of threads reads memory: a yardstick for whatever reads each weight once. Link tiered::cpu.
#pragma once

#include <cstddef>
#include <span>

#include "tiered/kernels/cpu/team.hpp"

namespace tiered {

/// Bytes per second that all members of the team together read from `regions`, where they lie: the best of several rounds of some
/// milliseconds, `seconds` in all. A round goes on where the one before stopped, so that nothing is read again soon, unless all of it
/// fits the caches. With the widest loads of the machine (64 bytes with AVX-512, 32 with AVX2), as its kernels read: those of 16 bytes
/// reached 101 to 107 GB/s where these reach 125 to 129 (16 cores). Still what was measured, and no hard bound. 0 where there is
/// nothing to read. A caller of the team, so not from within a loop of it.
double read_rate(Team& team, std::span<std::span<std::byte const> const> regions, double seconds = 0.05);

}  // namespace tiered
