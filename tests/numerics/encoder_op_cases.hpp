/// Rows for layer_norm and add_taps, what the reference makes of them, and how far kernels may be off: for the tests of every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "numerics/cpu_cases.hpp"
#include "tiered/kernels/reference/elementwise.hpp"
#include "tiered/kernels/reference/norm.hpp"

namespace tiered_test {

/// Sizes around vector widths, warps, blocks, loads of four elements, and the parts that threads take.
struct EncoderShape {
  std::int32_t n_rows, dim;
  std::size_t n() const { return std::size_t(n_rows) * std::size_t(dim); }
};
inline std::vector<EncoderShape> encoder_shapes() {
  return {{1, 1},    {1, 7},    {1, 8},   {2, 9},   {3, 31},   {5, 576},  {12, 640},  {1, 4096},
          {70, 333}, {41, 128}, {7, 512}, {7, 513}, {3, 5120}, {2, 8191}, {33, 1152}, {300, 1280}};
}

/// Rows that are to be normed: `offset` far from 0, in steps of `spread`.
struct LayerNormCase {
  EncoderShape shape;
  float offset, spread;
  bool weighted, biased;

  struct Data {
    std::vector<float> x, weight, bias, expected;
    std::vector<double> tolerance;
  };

  LayerNormArgs args_of(float const* x, float const* weight, float const* bias, float* y) const {
    return {x, weighted ? weight : nullptr, biased ? bias : nullptr, y, shape.n_rows, shape.dim, eps};
  }

  Data data(SplitMix64& random) const {
    Data d;
    d.x = random_floats(shape.n(), random);
    for (float& v : d.x) v = offset + spread * v;
    d.weight = random_floats(std::size_t(shape.dim), random);
    d.bias = random_floats(std::size_t(shape.dim), random);
    d.expected = poisoned(shape.n());
    reference::layer_norm(args_of(d.x.data(), d.weight.data(), d.bias.data(), d.expected.data()));
    for (std::int32_t t = 0; t < shape.n_rows; ++t) add_tolerances(d, t);
    return d;
  }

 private:
  static constexpr float eps = 1e-6f;

  /// To first order in u = epsilon, with m the mean, e what it is off by, f = 1 / root, and r = x - m, of which 0 is the sum:
  ///   mean      a sum is of at least 16 chains, joined in 5 steps (of 32 and more chains in up to 8, which are shorter by more than that):
  ///             n_sums roundings of no more than sum |x|, and one that divides
  ///   r         off by e; u |r| where it is rounded
  ///   root^2    sum (r + e)^2 is sum r^2 + dim e^2; of every term 2 u for r and u for the square (none where that is fused into the
  ///             sum), n_sums u of adding them, u of dividing, u of adding eps
  ///   f         half of root^2's relative error, u of the root, u of its inverse
  ///   y         |w| f e for the mean; of p = |w r f|: u for r, what f is off by, u for r f, u for its product with w (none where that is
  ///             fused with the bias); u (p + |b|) for the sum with b
  ///   expected  double arithmetic, rounded once: u (p + |b|)
  void add_tolerances(Data& d, std::int32_t t) const {
    float const* const x = d.x.data() + std::ptrdiff_t(t) * shape.dim;
    double const n = shape.dim, n_sums = std::ceil(n / 16) + 5;
    double mean = 0, absolute = 0, variance = 0;
    for (std::int32_t k = 0; k < shape.dim; ++k) mean += double(x[k]) / n, absolute += std::abs(double(x[k])) / n;
    for (std::int32_t k = 0; k < shape.dim; ++k) variance += (double(x[k]) - mean) * (double(x[k]) - mean) / n;
    double const root = std::sqrt(variance + double(eps)), mean_error = (n_sums + 1) * epsilon * absolute;
    double const square_error = (n_sums + 5) * epsilon + mean_error * mean_error / (root * root);
    double const factor_error = square_error / 2 + 2 * epsilon;
    for (std::int32_t k = 0; k < shape.dim; ++k) {
      double const weight = weighted ? std::abs(double(d.weight[std::size_t(k)])) : 1;
      double const bias = biased ? std::abs(double(d.bias[std::size_t(k)])) : 0;
      double const distance = std::abs(double(x[k]) - mean) + mean_error;
      double const product = weight * distance / root;
      d.tolerance.push_back(weight * mean_error / root + product * (factor_error + 5 * epsilon) + 2 * bias * epsilon + 1e-42);
    }
  }
};

inline std::vector<LayerNormCase> layer_norm_cases() {
  std::vector<LayerNormCase> cases;
  for (EncoderShape const& shape : encoder_shapes()) {
    cases.push_back({shape, 0, 1, true, true});
    cases.push_back({shape, 3, 0.25f, true, false});
    cases.push_back({shape, -2, 1, false, true});
    cases.push_back({shape, 1000, 0.5f, true, true});  // a sum of squares would leave nothing of the variance
    cases.push_back({shape, 0, 1e-5f, false, false});  // eps has a part in it
    cases.push_back({shape, 5, 0, true, true});        // no variance at all
  }
  return cases;
}

/// Rows that get four weighted rows of a table added, some of them one row four times, some with shares of 0.
struct TapsCase {
  EncoderShape shape;
  std::int32_t n_table;

  struct Data {
    std::vector<float> table, share, y, expected;
    std::vector<std::int32_t> index;
    std::vector<double> tolerance;
  };

  AddTapsArgs args_of(float const* table, std::int32_t const* index, float const* share, float* y) const {
    return {table, index, share, y, shape.n_rows, shape.dim};
  }

  Data data(SplitMix64& random) const {
    constexpr std::size_t n_taps = AddTapsArgs::n_taps;
    Data d;
    d.table = random_floats(std::size_t(n_table) * std::size_t(shape.dim), random);
    d.share = random_floats(std::size_t(shape.n_rows) * n_taps, random);
    d.y = random_floats(shape.n(), random);
    for (std::size_t i = 0; i < d.share.size(); ++i) {
      d.index.push_back(std::int32_t(random.below(std::uint64_t(n_table))));
      if (random.below(5) == 0) d.share[i] = 0;
      if (i % n_taps > 0 && i / n_taps % 3 == 0) d.index[i] = d.index[i - 1];
    }
    d.expected = d.y;
    reference::add_taps(args_of(d.table.data(), d.index.data(), d.share.data(), d.expected.data()));
    for (std::size_t i = 0; i < d.y.size(); ++i) {  // four products and four sums, each a rounding of no more than all magnitudes together
      std::size_t const row = i / std::size_t(shape.dim), k = i % std::size_t(shape.dim);
      double magnitude = std::abs(double(d.y[i]));
      for (std::size_t j = row * n_taps; j < (row + 1) * n_taps; ++j)
        magnitude += std::abs(double(d.share[j]) * double(d.table[std::size_t(d.index[j]) * std::size_t(shape.dim) + k]));
      d.tolerance.push_back(8 * epsilon * magnitude);
    }
    return d;
  }
};

inline std::vector<TapsCase> taps_cases() {
  std::vector<TapsCase> cases;
  for (EncoderShape const& shape : encoder_shapes()) cases.push_back({shape, shape.n_rows % 2 == 0 ? 1 : 48});
  return cases;
}

inline Worst compare_all(std::vector<float> const& got, std::vector<float> const& expected, std::vector<double> const& tolerance) {
  Worst worst;
  for (std::size_t i = 0; i < expected.size(); ++i) worst.compare(std::int64_t(i), double(got[i]), double(expected[i]), tolerance[i]);
  return worst;
}

}  // namespace tiered_test
