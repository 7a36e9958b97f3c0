/// Rates by class out of those by format.
#pragma once

#include <array>
#include <cstddef>

#include "tiered/plan/cost.hpp"

namespace tiered::detail {

/// Of each class what was measured first, dense before experts; of a class that was not, the nearest that was.
inline void fill_classes(DeviceRates& rates) {
  std::array<FormatRates const*, n_weight_classes> found{};
  for (bool const experts : {false, true}) {
    for (FormatRates const& f : rates.formats) {
      FormatRates const*& place = found[std::size_t(weight_class(f.bits()))];
      if (f.experts == experts && place == nullptr) place = &f;
    }
  }
  for (std::size_t c = 0; c < n_weight_classes; ++c) {
    FormatRates const* nearest = nullptr;
    for (std::size_t away = 0; away < n_weight_classes && nearest == nullptr; ++away) {
      if (c >= away) nearest = found[c - away];
      if (nearest == nullptr && c + away < n_weight_classes) nearest = found[c + away];
    }
    if (nearest != nullptr) rates.matmul[c] = nearest->rates;
  }
}

}  // namespace tiered::detail
