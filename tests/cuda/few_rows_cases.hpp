/// What the tests of products of few rows share: rows as the kernels read them, and sums with a tolerance.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/gpu.hpp"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/kernels/reference/elementwise.hpp"

namespace tiered_test {

inline cuda::FormatKernels const& format_kernels_of(DType type) {
  return *dispatch_format(type, [](auto format) { return &cuda::format_kernels<decltype(format)>(); });
}

inline std::size_t alignment_of(DType type) { return type == DType::f32 ? 4 : type == DType::mxfp4 ? 1 : 2; }
inline std::int32_t few_dim(DType type, std::int32_t n_blocks) {
  std::int32_t const elems = std::int32_t(block_elems(type));
  return elems == 1 ? n_blocks * 67 : n_blocks * elems;
}

/// A row as a product reads it, and by how much each element may be off: where rows are normed, a value within rounding of two 8-bit steps
/// may become the other one.
struct ReadRow {
  std::vector<double> value, slack;
};

inline std::vector<double> normed_row(float const* x, std::int32_t dim, float const* norm_weight, double eps) {
  double squares = 0;
  for (std::int32_t k = 0; k < dim; ++k) squares += double(x[k]) * double(x[k]);
  double const norm = 1 / std::sqrt(squares / dim + eps);
  std::vector<double> out;
  for (std::int32_t k = 0; k < dim; ++k) out.push_back(double(x[k]) * norm * (norm_weight == nullptr ? 1.0 : double(norm_weight[k])));
  return out;
}

/// `error`: relative, of the elements of `row`.
inline ReadRow read_row(DType weights, std::vector<double> const& row, double error) {
  ReadRow out{row, std::vector<double>(row.size())};
  for (std::size_t k = 0; k < row.size(); ++k) out.slack[k] = error * std::abs(row[k]);
  if (block_elems(weights) == 1) return out;
  for (std::size_t first = 0; first < row.size(); first += 32) {
    float x[32];
    for (std::size_t i = 0; i < 32; ++i) x[i] = float(row[first + i]);
    ActQ8x32 block;
    quantize_block(x, block);
    for (std::size_t i = 0; i < 32; ++i) {
      double const step = double(block.scale), exact = step > 0 ? row[first + i] / step : 0;
      double const to_tie = std::abs(std::abs(exact - std::floor(exact)) - 0.5);
      out.value[first + i] = step * block.q[i];
      out.slack[first + i] = error * std::abs(out.value[first + i]) + (error > 0 && to_tie <= 3 * error * 128 ? step : 0);
    }
  }
  return out;
}

struct Sum {
  double value = 0, allowed = 0;
};

/// Row r of w times a row that was read: roundings as in cpu_matmul_test.cpp, of chains no longer than those.
inline Sum exact_product(DType type, std::byte const* w, std::int32_t r, ReadRow const& x) {
  std::int64_t const dim = std::int64_t(x.value.size());
  std::byte const* const row = w + std::size_t(r) * row_bytes(type, std::uint64_t(dim));
  std::vector<float> decoded(static_cast<std::size_t>(dim));
  std::vector<std::byte> aligned(row, row + row_bytes(type, std::uint64_t(dim)));
  decode_row(type, aligned.data(), dim, decoded.data());
  std::vector<double> const size = magnitudes(type, row, dim);
  double const n_blocks = double(dim) / double(block_elems(type));
  double const factor = (block_elems(type) == 1 ? 256 + double(dim) / 1024 : 2 * n_blocks + 16) + 10;
  Sum sum;
  for (std::size_t k = 0; k < std::size_t(dim); ++k) {
    sum.value += double(decoded[k]) * x.value[k];
    sum.allowed += factor * epsilon * size[k] * std::abs(x.value[k]) + size[k] * x.slack[k] + 1e-45;
  }
  return sum;
}

inline Sum exact_gate(Activation activation, Sum gate, Sum up) {
  double const act = reference::activate(activation, gate.value);
  // Neither activation is steeper than 1.13; the rest is for its own roundings.
  return {act * up.value, 1.13 * gate.allowed * (std::abs(up.value) + up.allowed) + std::abs(act) * up.allowed +
                              (2e-5 * std::abs(act) + 1e-30) * std::abs(up.value)};
}

}  // namespace tiered_test
