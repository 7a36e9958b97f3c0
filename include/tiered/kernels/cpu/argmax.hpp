/// The largest of each row.
#pragma once

#include <cmath>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {
namespace detail {

inline std::int32_t argmax_row(float const* values, std::int32_t n) {
  std::int32_t best = 0;
  while (best < n - 1 && std::isnan(values[best])) ++best;  // from a number on, what is not one compares false
  if (std::isnan(values[best])) return 0;
  for (std::int32_t i = best + 1; i < n; ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

}  // namespace detail

inline void argmax(ArgmaxArgs const& a, Team& team) {
  team.parallel_for(a.n_rows, row_grain(team, a.n_rows, a.n), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) a.ids[t] = detail::argmax_row(a.values + t * a.n, a.n);
  });
}

}  // namespace tiered::cpu
