/// Rows of halves as products of many rows read them, made on the host by their definition, and what products with them may differ by.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cuda/gpu.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/kernels/reference/matmul.hpp"
#include "tiered/kernels/reference/quantize.hpp"

namespace tiered_test {

/// x in a form of halves, or as it is where `form` is f32.
inline std::vector<std::byte> half_rows(DType form, std::vector<float> const& x, std::int32_t n_rows, std::int32_t dim) {
  std::vector<std::byte> bytes(activation_bytes(form, std::uint64_t(n_rows), std::uint64_t(dim)));
  if (form == DType::f32) {
    std::memcpy(bytes.data(), x.data(), bytes.size());
  } else {
    reference::quantize(QuantizeArgs{x.data(), bytes.data(), n_rows, dim}, form);
  }
  return bytes;
}

/// The values that a row of such an array stands for.
inline std::vector<double> half_row_values(DType form, std::vector<std::byte> const& bytes, std::int32_t n_rows, std::int32_t dim,
                                           std::int32_t row) {
  return reference::activation_row(form, bytes.data(), n_rows, dim, row);
}

/// One product and how far a kernel may be from it.
struct Expected {
  double value = 0, tolerance = 0;
};

/// Activations are compared as they were rounded, weights are rounded to halves by the kernel (those of block formats; the values of
/// MXFP4 are bfloat16). Sums: tensor cores add 16 products to a sum in one step, which loses up to some units of 2^-23 of the largest;
/// f32 has a chain of dim products at most.
inline Expected expected_product(DType type, std::vector<double> const& x, std::vector<float> const& w, double bias) {
  bool const block_format = block_elems(type) > 1 && type != DType::mxfp4;
  Expected e{bias, 0};
  double sum = 0, sum_x = 0;
  for (std::size_t k = 0; k < x.size(); ++k) {
    e.value += x[k] * double(w[k]);
    sum += std::abs(x[k] * double(w[k]));
    sum_x += std::abs(x[k]);
  }
  double const steps = type == DType::f32 ? double(x.size()) : 2 * (double(x.size()) / 8 + 8);
  e.tolerance = (steps + 16) * epsilon * (sum + std::abs(bias)) + 1.2e-38 * double(x.size());
  if (block_format) e.tolerance += 0x1p-11 * sum + 0x1p-25 * sum_x;
  return e;
}

/// Row `row` of weights [rows, dim] in bytes.
inline std::vector<float> decoded_row(DType type, std::byte const* w, std::int32_t dim, std::int32_t row) {
  std::vector<float> values(static_cast<std::size_t>(dim));
  std::vector<std::uint32_t> aligned(row_bytes(type, std::uint64_t(dim)) / 4 + 1);
  std::memcpy(aligned.data(), w + std::uint64_t(row) * row_bytes(type, std::uint64_t(dim)), row_bytes(type, std::uint64_t(dim)));
  decode_row(type, aligned.data(), dim, values.data());
  return values;
}

}  // namespace tiered_test
