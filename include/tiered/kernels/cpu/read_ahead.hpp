/// Weights into the team's caches before they are asked for.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

template <void (Team::*read)(std::span<std::span<std::byte const> const>)>
void read_parts(ReadAheadArgs const& a, Team& team) {
  static_assert(ReadAheadArgs::max_parts <= Team::max_read_parts);
  std::array<std::span<std::byte const>, ReadAheadArgs::max_parts> parts;
  for (int i = 0; i < a.n_parts; ++i) parts[std::size_t(i)] = {static_cast<std::byte const*>(a.parts[i].data), a.parts[i].bytes};
  (team.*read)(std::span(parts).first(std::size_t(a.n_parts)));
}
inline void read_ahead(ReadAheadArgs const& a, Team& team) { read_parts<&Team::read_ahead>(a, team); }
inline void read_when_idle(ReadAheadArgs const& a, Team& team) { read_parts<&Team::read_when_idle>(a, team); }

}  // namespace tiered::cpu
