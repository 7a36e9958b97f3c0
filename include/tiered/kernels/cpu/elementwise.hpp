/// Ops that take each element, or each row, by itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

template <class Leaf>
void gated(GatedArgs const& a, Team& team) {
  team.parallel_for(a.n, team.grain(a.n, light_grain / 4), [&](std::int64_t begin, std::int64_t end) {
    Leaf::gated(a.gate + begin, a.up + begin, a.activation, end - begin, a.out + begin);
  });
}

template <class Leaf>
void activate(ActivateArgs const& a, Team& team) {
  team.parallel_for(a.n, team.grain(a.n, light_grain / 4),
                    [&](std::int64_t begin, std::int64_t end) { Leaf::activate(a.activation, end - begin, a.x + begin); });
}

template <class Leaf>
void add(AddArgs const& a, Team& team) {
  team.parallel_for(a.n, team.grain(a.n, light_grain),
                    [&](std::int64_t begin, std::int64_t end) { Leaf::add(a.x + begin, end - begin, a.y + begin); });
}

template <class Leaf>
void add_taps(AddTapsArgs const& a, Team& team) {
  constexpr std::int64_t n = AddTapsArgs::n_taps;
  team.parallel_for(a.n_rows, row_grain(team, a.n_rows, n * a.dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float const* rows[n];
      for (std::int64_t j = 0; j < n; ++j) rows[j] = a.table + std::int64_t(a.index[t * n + j]) * a.dim;
      Leaf::add_taps(rows, a.share + t * n, a.dim, a.y + t * a.dim);
    }
  });
}

inline void gather(GatherArgs const& a, Team& team) {
  team.parallel_for(a.n_rows, row_grain(team, a.n_rows, a.dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) std::copy_n(a.x + std::int64_t(a.index[i]) * a.dim, a.dim, a.y + i * a.dim);
  });
}

inline void combine(CombineArgs const& a, Team& team) {
  team.parallel_for(a.n_tokens, row_grain(team, a.n_tokens, std::int64_t(a.dim) * a.n_used), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      float* const out = a.out + t * a.dim;
      std::fill_n(out, a.dim, 0.0f);
      for (std::int32_t j = 0; j < a.n_used; ++j) {
        float const weight = a.weights[t * a.n_used + j];
        float const* const y = a.y + (t * a.n_used + j) * a.dim;
        for (std::int32_t i = 0; i < a.dim; ++i) out[i] += weight * y[i];
      }
    }
  });
}

}  // namespace tiered::cpu
