/// Products by weights, slow and obvious: what every other backend is compared with.
#pragma once

#include <cstdint>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/decode.hpp"

// All of tiered::reference: host memory, done on return, on the calling thread; sums in f64, one rounding to f32 at the end.
namespace tiered::reference {

/// Which type activations are rounded to before they meet weights of a type.
using ActivationRule = DType (*)(DType weights);
inline DType f32_activation(DType) { return DType::f32; }

/// The values of one activation row of `dim` elements in the given type: f32 or act_q8.
inline std::vector<double> activation_row(DType type, void const* row, std::int32_t dim) {
  std::vector<double> values(static_cast<std::size_t>(dim));
  for (std::size_t k = 0; k < values.size(); ++k) {
    if (type == DType::f32) {
      values[k] = double(static_cast<float const*>(row)[k]);
    } else {
      expects(type == DType::act_q8, "activations are f32 or act_q8");
      ActQ8x32 const& block = static_cast<ActQ8x32 const*>(row)[k / 32];
      values[k] = double(block.scale) * block.q[k % 32];
    }
  }
  return values;
}

/// MatmulArgs in the given weight and activation types; any mix of them.
inline void matmul(MatmulArgs const& a, DType weights, DType activation = DType::f32) {
  expects(a.y_stride >= a.rows, "y_stride is at least the number of rows");
  std::uint64_t const w_bytes = row_bytes(weights, std::uint64_t(a.dim)), x_bytes = row_bytes(activation, std::uint64_t(a.dim));
  std::vector<float> w(static_cast<std::size_t>(a.dim));
  for (std::int32_t t = 0; t < a.n_tokens; ++t) {
    std::vector<double> const x = activation_row(activation, static_cast<std::byte const*>(a.x) + std::uint64_t(t) * x_bytes, a.dim);
    for (std::int32_t r = 0; r < a.rows; ++r) {
      decode_row(weights, static_cast<std::byte const*>(a.w) + std::uint64_t(r) * w_bytes, a.dim, w.data());
      double sum = a.bias != nullptr ? double(a.bias[r]) : 0;
      for (std::size_t k = 0; k < w.size(); ++k) sum += x[k] * double(w[k]);
      a.y[t * a.y_stride + r] = float(sum);
    }
  }
}

}  // namespace tiered::reference
