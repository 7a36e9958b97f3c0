/// Activation functions, sums and gathers, slow and obvious.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tiered/kernels/args.hpp"

namespace tiered::reference {

/// silu: x / (1 + e^-x). gelu_tanh: the tanh approximation of Hendrycks and Gimpel, "Gaussian error linear units", 2016.
inline double activate(Activation activation, double x) {
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  constexpr double sqrt_2_over_pi = 0.79788456080286535588;
  return 0.5 * x * (1 + std::tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
}

inline void gated(GatedArgs const& a) {
  for (std::int64_t i = 0; i < a.n; ++i) a.out[i] = float(activate(a.activation, double(a.gate[i])) * double(a.up[i]));
}

inline void add(AddArgs const& a) {
  for (std::int64_t i = 0; i < a.n; ++i) a.y[i] += a.x[i];
}

inline void gather(GatherArgs const& a) {
  for (std::int64_t i = 0; i < a.n_rows; ++i)
    for (std::int64_t k = 0; k < a.dim; ++k) a.y[i * a.dim + k] = a.x[std::int64_t(a.index[i]) * a.dim + k];
}

inline void transfer(TransferArgs const& a) {
  for (std::int32_t i = 0; i < a.n_parts; ++i) std::memcpy(a.parts[i].to, a.parts[i].from, std::size_t(a.parts[i].bytes));
}

}  // namespace tiered::reference
