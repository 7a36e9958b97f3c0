/// Rotary positions, slow and obvious.
#pragma once

#include <cmath>
#include <cstdint>

#include "tiered/kernels/args.hpp"

namespace tiered::reference {

/// Angles in f64: kernels that multiply position and frequency in f32 differ by up to position * 2^-24 radians.
inline void rope(RopeArgs const& a) {
  std::int32_t const n_pairs = a.n_rot / 2;
  for (std::int64_t row = 0; row < std::int64_t(a.n_tokens) * a.n_heads; ++row) {
    float* const x = a.x + row * a.head_dim;
    for (std::int32_t i = 0; i < n_pairs; ++i) {
      std::int64_t const position_row = a.position_row == nullptr ? 0 : a.position_row[i];
      double const angle = double(a.positions[position_row * a.position_stride + row / a.n_heads]) * double(a.inv_freq[i]);
      double const c = double(a.magnitude) * std::cos(angle), s = double(a.magnitude) * std::sin(angle);
      float& first = x[a.kind == RopeKind::adjacent ? 2 * i : i];
      float& second = x[a.kind == RopeKind::adjacent ? 2 * i + 1 : i + n_pairs];
      double const u = double(first), v = double(second);
      first = float(u * c - v * s);
      second = float(u * s + v * c);
    }
  }
}

}  // namespace tiered::reference
