/// Products on f32 activations in plain C++, with the vectors that Eigen knows for the target: see matmul_f32.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include <Eigen/Core>

#include "tiered/kernels/cpu/matmul_f32.hpp"

namespace tiered::cpu::baseline {

/// Four rows and up to two tokens: eight sums, as targets have sixteen registers or more. Eigen's own matrix product is not used: it cuts
/// sums by the size of the problem, so that an element would depend on how many tokens there are. One core of Zen 4 with SSE2: 41
/// GFLOP/s, twice what compilers made of plain loops.
template <int n_tokens>
void dots(std::byte const* const* w, std::int32_t n, float const* const* x, float* sums) {
  using Lanes = Eigen::Array<float, 4, 1>;
  using Four = Eigen::Map<Lanes const>;
  Lanes lanes[n_tokens][f32_rows];
  float const* rows[f32_rows];
  for (int r = 0; r < f32_rows; ++r) rows[r] = reinterpret_cast<float const*>(w[r]);
#pragma GCC unroll 8
  for (int t = 0; t < n_tokens; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) lanes[t][r].setZero();
  }
  std::int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    Lanes tokens[n_tokens];
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; ++t) tokens[t] = Four(x[t] + i);
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) {
      Lanes const row = Four(rows[r] + i);
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; ++t) lanes[t][r] += row * tokens[t];
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < n_tokens; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) {
      float sum = lanes[t][r].sum();
      for (std::int64_t j = i; j < n; ++j) sum += rows[r][j] * x[t][j];
      sums[t * f32_rows + r] += sum;
    }
  }
}

}  // namespace tiered::cpu::baseline
