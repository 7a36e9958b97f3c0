/// Rows of f32 to what products read: the definition itself, which every backend equals bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/convert_args.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/reference/elementwise.hpp"
#include "tiered/kernels/reference/norm.hpp"

namespace tiered::reference {

/// To 8-bit blocks.
inline void quantize(QuantizeArgs const& a) {
  expects(a.dim % ActQ8x32::block_elems == 0, "a row is a whole number of activation blocks");
  std::int64_t const n_blocks = std::int64_t(a.n_rows) * (a.dim / ActQ8x32::block_elems);
  for (std::int64_t i = 0; i < n_blocks; ++i) quantize_block(a.x + i * ActQ8x32::block_elems, static_cast<ActQ8x32*>(a.y)[i]);
}

namespace detail {

/// Panels of to_half(x).
template <class ToHalf>
void pack(QuantizeArgs const& a, std::uint16_t* y, ToHalf to_half) {
  std::fill_n(y, activation_bytes(DType::act_bf16, std::uint64_t(a.n_rows), std::uint64_t(a.dim)) / 2, std::uint16_t{0});
  for (std::int32_t row = 0; row < a.n_rows; ++row) {
    for (std::int32_t k = 0; k < a.dim; ++k) y[panel_index(a.n_rows, a.dim, row, k)] = to_half(a.x[std::int64_t(row) * a.dim + k]);
  }
}

/// The half-words of the second part of y.
inline std::uint16_t* second_part(QuantizeArgs const& a, DType type) {
  return static_cast<std::uint16_t*>(a.y) + act_second_offset(type, std::uint64_t(a.n_rows), std::uint64_t(a.dim)) / 2;
}

/// The factor of a row of act_f16_rows.
inline float half_row_factor(float const* x, std::int32_t dim) {
  float largest = 0;
  for (std::int32_t k = 0; k < dim; ++k) {
    if (!std::isfinite(x[k])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(x[k]));
  }
  float factor = 1;
  while (largest / factor > 32768.0f) factor *= 2;
  return factor;
}

/// Rows of to_half(x / factor), and behind them, of binary16, the factors.
template <class ToHalf>
void put_half_rows(QuantizeArgs const& a, std::uint16_t* y, bool binary16, ToHalf to_half) {
  std::uint64_t const n = std::uint64_t(a.n_rows), dim = std::uint64_t(a.dim), stride = act_row_elems(dim);
  std::fill_n(y, n * stride, std::uint16_t{0});
  auto* const factors = reinterpret_cast<float*>(y + act_factors_offset(n, dim) / 2);
  for (std::size_t row = 0; row < n; ++row) {
    float const* const x = a.x + row * dim;
    float const factor = binary16 ? half_row_factor(x, a.dim) : 1;
    for (std::size_t k = 0; k < dim; ++k) y[row * stride + k] = to_half(x[k] / factor);
    if (binary16) factors[row] = factor;
  }
}

}  // namespace detail

/// To bfloat16 panels.
inline void pack_panels(QuantizeArgs const& a) { detail::pack(a, static_cast<std::uint16_t*>(a.y), float_to_panel); }
/// Likewise in two parts.
inline void pack_two_panels(QuantizeArgs const& a) {
  pack_panels(a);
  detail::pack(a, detail::second_part(a, DType::act_bf16_two), float_to_panel_rest);
}

/// To rows of halves: `type` is act_f16_rows, act_bf16_rows or act_f16_two. y is aligned to 4.
inline void to_half_rows(QuantizeArgs const& a, DType type) {
  auto* const y = static_cast<std::uint16_t*>(a.y);
  if (type == DType::act_bf16_rows) return detail::put_half_rows(a, y, false, float_to_bfloat16);
  detail::put_half_rows(a, y, true, float_to_half);
  if (type == DType::act_f16_rows) return;
  detail::put_half_rows(a, detail::second_part(a, type), true, [](float x) { return float_to_half(x - half_to_float(float_to_half(x))); });
}

/// To `type`, a form of activations.
inline void quantize(QuantizeArgs const& a, DType type) {
  switch (type) {
    case DType::act_q8: return quantize(a);
    case DType::act_bf16: return pack_panels(a);
    case DType::act_bf16_two: return pack_two_panels(a);
    case DType::act_f16_rows:
    case DType::act_bf16_rows:
    case DType::act_f16_two: return to_half_rows(a, type);
    default: throw Error(Errc::precondition, concat("rows are not converted to ", name(type) != nullptr ? name(type) : "?"));
  }
}

inline void convert_normed(ConvertNormedArgs const& a, DType type) {
  std::vector<float> x(std::size_t(a.norm.n_rows) * std::size_t(a.norm.dim));
  RmsNormArgs norm = a.norm;
  norm.y = x.data();
  rms_norm(norm);
  quantize(QuantizeArgs{x.data(), a.y, norm.n_rows, norm.dim}, type);
}

inline void convert_gated(ConvertGatedArgs const& a, DType type) {
  std::vector<float> x(std::size_t(a.n_rows) * std::size_t(a.dim));
  gated(GatedArgs{a.gate, a.up, x.data(), std::int64_t(x.size()), a.activation});
  quantize(QuantizeArgs{x.data(), a.y, a.n_rows, a.dim}, type);
}

}  // namespace tiered::reference
