/// Products by weights, slow and obvious: what every other backend is compared with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/kernels/reference/elementwise.hpp"
#include "tiered/kernels/reference/norm.hpp"
#include "tiered/kernels/reference/quantize.hpp"

// All of tiered::reference: host memory, done on return, on the calling thread; sums in f64, one rounding to f32 at the end.
namespace tiered::reference {

/// Which type activations are rounded to before they meet weights of a type.
using ActivationRule = DType (*)(DType weights);
constexpr DType f32_activation(DType) { return DType::f32; }

/// The values of row `row` of `n_rows` activation rows of `dim` elements in the given type: f32, or a form of activations.
inline std::vector<double> activation_row(DType type, void const* x, std::int32_t n_rows, std::int32_t dim, std::int32_t row) {
  if (act_part(type) != type) {
    std::vector<double> values = activation_row(act_part(type), x, n_rows, dim, row);
    auto const* const second = static_cast<std::byte const*>(x) + act_second_offset(type, std::uint64_t(n_rows), std::uint64_t(dim));
    std::vector<double> const rest = activation_row(act_part(type), second, n_rows, dim, row);
    for (std::size_t k = 0; k < values.size(); ++k) values[k] += rest[k];
    return values;
  }
  std::vector<double> values(static_cast<std::size_t>(dim));
  auto const* const halves = static_cast<std::uint16_t const*>(x);
  std::uint64_t const half_row = std::uint64_t(row) * act_row_elems(std::uint64_t(dim));
  float const* const factors =
      type == DType::act_f16_rows
          ? reinterpret_cast<float const*>(halves + act_factors_offset(std::uint64_t(n_rows), std::uint64_t(dim)) / 2)
          : nullptr;
  for (std::int32_t k = 0; k < dim; ++k) {
    double& value = values[std::size_t(k)];
    std::int64_t const i = std::int64_t(row) * dim + k;
    if (type == DType::f32) {
      value = double(static_cast<float const*>(x)[i]);
    } else if (type == DType::act_bf16) {
      value = double(bfloat16_to_float(halves[panel_index(n_rows, dim, row, k)]));
    } else if (type == DType::act_f16_rows) {
      value = double(half_to_float(halves[half_row + std::uint64_t(k)])) * double(factors[row]);
    } else if (type == DType::act_bf16_rows) {
      value = double(bfloat16_to_float(halves[half_row + std::uint64_t(k)]));
    } else {
      expects(type == DType::act_q8, "activations are f32, or in a form of their own");
      ActQ8x32 const& block = static_cast<ActQ8x32 const*>(x)[i / 32];
      value = double(block.scale) * block.q[i % 32];
    }
  }
  return values;
}

/// Row `row` of a.w as products with activations of a type read it.
inline std::vector<float> weight_row(MatmulArgs const& a, DType weights, DType activation, std::int32_t row) {
  std::vector<float> values(static_cast<std::size_t>(a.dim));
  std::uint64_t const bytes = row_bytes(weights, std::uint64_t(a.dim));
  decode_row(weights, static_cast<std::byte const*>(a.w) + std::uint64_t(row) * bytes, a.dim, values.data());
  for (float& value : values) {
    if (act_part(activation) != DType::act_bf16) break;
    float const rest = activation == DType::act_bf16_two ? bfloat16_to_float(float_to_panel_rest(value)) : 0;
    value = bfloat16_to_float(float_to_panel(value)) + rest;
  }
  return values;
}

/// MatmulArgs in the given weight and activation types; any mix of them.
inline void matmul(MatmulArgs const& a, DType weights, DType activation = DType::f32) {
  expects(a.y_stride >= a.rows, "y_stride is at least the number of rows");
  std::vector<std::vector<double>> x;
  for (std::int32_t t = 0; t < a.n_tokens; ++t) x.push_back(activation_row(activation, a.x, a.n_tokens, a.dim, t));
  for (std::int32_t r = 0; r < a.rows; ++r) {
    std::vector<float> const w = weight_row(a, weights, activation, r);
    for (std::int32_t t = 0; t < a.n_tokens; ++t) {
      double sum = a.bias != nullptr ? double(a.bias[r]) : 0;
      for (std::size_t k = 0; k < w.size(); ++k) sum += x[std::size_t(t)][k] * double(w[k]);
      a.y[t * a.y_stride + r] = float(sum);
    }
  }
}

/// The same added to y: two roundings, as of one op after the other.
inline void matmul_add(MatmulArgs const& a, DType weights, DType activation = DType::f32) {
  std::vector<float> product(std::size_t(a.n_tokens) * std::size_t(a.rows));
  MatmulArgs args = a;
  args.y = product.data();
  args.y_stride = a.rows;
  matmul(args, weights, activation);
  for (std::int64_t t = 0; t < a.n_tokens; ++t)
    for (std::int64_t r = 0; r < a.rows; ++r) a.y[t * a.y_stride + r] += product[std::size_t(t * a.rows + r)];
}

namespace detail {

/// One activation row in `type`, from f32.
inline std::vector<std::byte> to_activation(float const* x, std::int32_t dim, DType type) {
  std::vector<std::byte> row(activation_bytes(type, 1, std::uint64_t(dim)));
  if (type == DType::f32) {
    std::copy_n(reinterpret_cast<std::byte const*>(x), row.size(), row.begin());
  } else {
    quantize(QuantizeArgs{x, row.data(), 1, dim}, type);
  }
  return row;
}

/// Rows of f32, normed where `norm`.
inline std::vector<float> normed_rows(float const* x, float const* weight, std::int32_t n_rows, std::int32_t dim, float eps, bool norm) {
  std::vector<float> rows(x, x + std::int64_t(n_rows) * dim);
  if (norm) rms_norm(RmsNormArgs{rows.data(), weight, rows.data(), n_rows, dim, eps});
  return rows;
}

/// part.w times one row of f32, plus bias, in f64.
inline std::vector<double> fused_product(FusedMatmulArgs::Part const& part, float const* x, std::int32_t dim, ActivationRule rule) {
  DType const activation = rule(part.type);
  std::vector<double> const row = activation_row(activation, to_activation(x, dim, activation).data(), 1, dim, 0);
  MatmulArgs const weights{part.w, nullptr, nullptr, nullptr, 1, part.rows, dim, part.rows};
  std::vector<double> y;
  for (std::int32_t r = 0; r < part.rows; ++r) {
    std::vector<float> const w = weight_row(weights, part.type, activation, r);
    double sum = part.bias != nullptr ? double(part.bias[r]) : 0;
    for (std::size_t k = 0; k < w.size(); ++k) sum += row[k] * double(w[k]);
    y.push_back(sum);
  }
  return y;
}

}  // namespace detail

/// FusedMatmulArgs; normed rows are rounded to f32, then as `rule` says for each part's weights.
inline void fused_matmul(FusedMatmulArgs const& a, ActivationRule rule = f32_activation) {
  bool const gate = a.then == FusedMatmulArgs::Then::gate;
  expects(a.n_parts >= 1 && a.n_parts <= FusedMatmulArgs::max_parts && (!gate || a.n_parts == 2), "one to three parts, two to gate");
  std::vector<float> const x = detail::normed_rows(a.x, a.norm_weight, a.n_tokens, a.dim, a.eps, a.norm);
  for (std::int32_t t = 0; t < a.n_tokens; ++t) {
    std::vector<std::vector<double>> products;
    for (std::int32_t i = 0; i < a.n_parts; ++i)
      products.push_back(detail::fused_product(a.parts[i], x.data() + std::int64_t(t) * a.dim, a.dim, rule));
    for (std::int32_t i = 0; i < (gate ? 1 : a.n_parts); ++i) {
      FusedMatmulArgs::Part const& part = a.parts[i];
      expects(part.y_stride >= part.rows, "y_stride is at least the number of rows");
      float* const y = part.y + t * part.y_stride;
      for (std::size_t r = 0; r < std::size_t(part.rows); ++r) {
        double const value = products[std::size_t(i)][r];
        if (gate) {
          y[r] = float(activate(a.activation, value) * products[1][r]);
        } else {
          y[r] = float(a.then == FusedMatmulArgs::Then::add ? double(y[r]) + value : value);
        }
      }
    }
  }
}

}  // namespace tiered::reference
