/// Rotary positions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {
namespace detail {

/// Turns pairs [first, first + n) of all heads of one token.
inline void rope_pairs(RopeArgs const& a, std::int64_t token, std::int32_t first, std::int32_t n, float const* cosine, float const* sine) {
  std::int32_t const half = a.n_rot / 2;
  for (std::int32_t h = 0; h < a.n_heads; ++h) {
    float* const x = a.x + (token * a.n_heads + h) * a.head_dim;
    if (a.kind == RopeKind::halves) {
      float *const low = x + first, *const high = x + half + first;
      for (std::int32_t i = 0; i < n; ++i) {
        float const u = low[i], v = high[i];
        low[i] = u * cosine[i] - v * sine[i];
        high[i] = u * sine[i] + v * cosine[i];
      }
    } else {
      for (std::int32_t i = 0; i < n; ++i) {
        float* const pair = x + 2 * (first + i);
        float const u = pair[0], v = pair[1];
        pair[0] = u * cosine[i] - v * sine[i];
        pair[1] = u * sine[i] + v * cosine[i];
      }
    }
  }
}

}  // namespace detail

/// The angle is an f32 product and sine and cosine are those of that angle, as in Hugging Face transformers.
inline void rope(RopeArgs const& a, Team& team) {
  constexpr std::int32_t piece = 128;
  std::int64_t const work = std::int64_t(a.n_heads) * a.n_rot + 8 * std::int64_t(a.n_rot);  // a sine costs some multiplications
  team.parallel_for(a.n_tokens, row_grain(team, a.n_tokens, work), [&](std::int64_t begin, std::int64_t end) {
    float cosine[piece], sine[piece];
    for (std::int64_t t = begin; t < end; ++t) {
      for (std::int32_t first = 0; first < a.n_rot / 2; first += piece) {
        std::int32_t const n = std::min(piece, a.n_rot / 2 - first);
        for (std::int32_t i = 0; i < n; ++i) {
          std::int64_t const row = a.position_row == nullptr ? 0 : a.position_row[first + i];
          float const angle = float(a.positions[row * a.position_stride + t]) * a.inv_freq[first + i];
          cosine[i] = std::cos(angle) * a.magnitude;
          sine[i] = std::sin(angle) * a.magnitude;
        }
        detail::rope_pairs(a, t, first, n, cosine, sine);
      }
    }
  });
}

}  // namespace tiered::cpu
