/// Normalisation of rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

/// Elements below which a thread more costs more than it saves (rows of this op and of the other light ones).
inline constexpr std::int64_t light_grain = 8192;

/// Rows a thread takes at a time where an op is light: neither so few that handing out dominates, nor unevenly many.
inline std::int64_t row_grain(Team const& team, std::int64_t n_rows, std::int64_t dim) {
  return team.grain(n_rows, std::max<std::int64_t>(1, light_grain / std::max<std::int64_t>(dim, 1)));
}

template <class Leaf>
void rms_norm(RmsNormArgs const& a, Team& team) {
  team.parallel_for(a.n_rows, row_grain(team, a.n_rows, a.dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) Leaf::rms_norm(a.x + i * a.dim, a.weight, a.eps, a.dim, a.y + i * a.dim);
  });
}

template <class Leaf>
void layer_norm(LayerNormArgs const& a, Team& team) {
  team.parallel_for(a.n_rows, row_grain(team, a.n_rows, a.dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) Leaf::layer_norm(a.x + i * a.dim, a.weight, a.bias, a.eps, a.dim, a.y + i * a.dim);
  });
}

}  // namespace tiered::cpu
