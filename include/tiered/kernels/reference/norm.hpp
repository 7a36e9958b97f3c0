/// Normalisation of rows, slow and obvious.
#pragma once

#include <cmath>
#include <cstdint>

#include "tiered/kernels/args.hpp"

namespace tiered::reference {

inline void rms_norm(RmsNormArgs const& a) {
  for (std::int32_t t = 0; t < a.n_rows; ++t) {
    float const* const x = a.x + std::int64_t(t) * a.dim;
    float* const y = a.y + std::int64_t(t) * a.dim;
    double sum = 0;
    for (std::int32_t k = 0; k < a.dim; ++k) sum += double(x[k]) * double(x[k]);
    double const factor = 1 / std::sqrt(sum / a.dim + double(a.eps));
    for (std::int32_t k = 0; k < a.dim; ++k) y[k] = float(double(x[k]) * factor * (a.weight != nullptr ? double(a.weight[k]) : 1.0));
  }
}

inline void layer_norm(LayerNormArgs const& a) {
  for (std::int32_t t = 0; t < a.n_rows; ++t) {
    float const* const x = a.x + std::int64_t(t) * a.dim;
    float* const y = a.y + std::int64_t(t) * a.dim;
    double sum = 0, squares = 0;
    for (std::int32_t k = 0; k < a.dim; ++k) sum += double(x[k]);
    double const mean = sum / a.dim;
    for (std::int32_t k = 0; k < a.dim; ++k) squares += (double(x[k]) - mean) * (double(x[k]) - mean);
    double const factor = 1 / std::sqrt(squares / a.dim + double(a.eps));
    for (std::int32_t k = 0; k < a.dim; ++k) {
      double const weight = a.weight != nullptr ? double(a.weight[k]) : 1.0, bias = a.bias != nullptr ? double(a.bias[k]) : 0.0;
      y[k] = float((double(x[k]) - mean) * factor * weight + bias);
    }
  }
}

}  // namespace tiered::reference
