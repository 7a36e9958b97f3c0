/// The largest of each row, slow and obvious.
#pragma once

#include <cmath>
#include <cstdint>

#include "tiered/kernels/args.hpp"

namespace tiered::reference {

inline void argmax(ArgmaxArgs const& a) {
  for (std::int64_t t = 0; t < a.n_rows; ++t) {
    float const* const values = a.values + t * a.n;
    std::int32_t best = 0;
    for (std::int32_t i = 1; i < a.n; ++i) {
      if (values[i] > values[best] || (std::isnan(values[best]) && !std::isnan(values[i]))) best = i;
    }
    a.ids[t] = best;
  }
}

}  // namespace tiered::reference
