/// Activation functions, sums and gathers, slow and obvious.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "tiered/kernels/args.hpp"

namespace tiered::reference {

/// GELU, its tanh approximation and the "quick" one are those of Hendrycks and Gimpel, "Gaussian error linear units", 2016.
inline double activate(Activation activation, double x) {
  constexpr double sqrt_2_over_pi = 0.79788456080286535588, sqrt_half = 0.70710678118654752440;
  switch (activation) {
    case Activation::silu: return x / (1 + std::exp(-x));
    case Activation::gelu_tanh: return 0.5 * x * (1 + std::tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
    case Activation::quick_gelu: return x / (1 + std::exp(-1.702 * x));
    case Activation::gelu_erf: break;
  }
  return 0.5 * x * std::erfc(-sqrt_half * x);
}

inline void activate(ActivateArgs const& a) {
  for (std::int64_t i = 0; i < a.n; ++i) a.x[i] = float(activate(a.activation, double(a.x[i])));
}

inline void gated(GatedArgs const& a) {
  for (std::int64_t i = 0; i < a.n; ++i) a.out[i] = float(activate(a.activation, double(a.gate[i])) * double(a.up[i]));
}

inline void add(AddArgs const& a) {
  for (std::int64_t i = 0; i < a.n; ++i) a.y[i] += a.x[i];
}

inline void add_taps(AddTapsArgs const& a) {
  for (std::int64_t t = 0; t < a.n_rows; ++t)
    for (std::int64_t k = 0; k < a.dim; ++k) {
      double sum = double(a.y[t * a.dim + k]);
      for (std::int64_t j = t * AddTapsArgs::n_taps; j < (t + 1) * AddTapsArgs::n_taps; ++j)
        sum += double(a.share[j]) * double(a.table[std::int64_t(a.index[j]) * a.dim + k]);
      a.y[t * a.dim + k] = float(sum);
    }
}

inline void gather(GatherArgs const& a) {
  for (std::int64_t i = 0; i < a.n_rows; ++i)
    for (std::int64_t k = 0; k < a.dim; ++k) a.y[i * a.dim + k] = a.x[std::int64_t(a.index[i]) * a.dim + k];
}

inline void transfer(TransferArgs const& a) {
  for (std::int32_t i = 0; i < a.n_parts; ++i) std::memcpy(a.parts[i].to, a.parts[i].from, std::size_t(a.parts[i].bytes));
}

}  // namespace tiered::reference
