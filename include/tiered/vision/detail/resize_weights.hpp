/// The weights of an antialiased bicubic resize along one side.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tiered::detail {

/// Output i is the sum of weight[i * stride + j] * input[first[i] + j] for j < count[i], shifted right by `shift` after adding half.
struct ResizeWeights {
  std::vector<std::int64_t> first;
  std::vector<std::int32_t> count;
  std::vector<std::int16_t> weight;
  std::size_t stride = 0;
  int shift = 0;
};

inline double cubic(double x) {
  constexpr double a = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * a;
  return 0.0;
}

/// As PyTorch computes them for 8-bit images: in double, then scaled to as many bits as the largest leaves in 16.
inline ResizeWeights resize_weights(std::int64_t from, std::int64_t to) {
  double const scale = double(from) / double(to);
  double const support = scale >= 1.0 ? 2.0 * scale : 2.0;
  double const inverse = scale >= 1.0 ? 1.0 / scale : 1.0;
  ResizeWeights out;
  out.stride = std::size_t(std::ceil(support)) * 2 + 1;
  out.first.resize(std::size_t(to));
  out.count.resize(std::size_t(to));
  std::vector<double> exact(std::size_t(to) * out.stride);
  double largest = 0;
  for (std::int64_t i = 0; i < to; ++i) {
    double const center = scale * (double(i) + 0.5);
    std::int64_t const begin = std::max<std::int64_t>(std::int64_t(center - support + 0.5), 0);
    std::int64_t const end = std::min<std::int64_t>(std::int64_t(center + support + 0.5), from);
    std::int64_t const n = std::clamp<std::int64_t>(end - begin, 0, std::int64_t(out.stride));
    double* const w = exact.data() + std::size_t(i) * out.stride;
    double total = 0;
    for (std::int64_t j = 0; j < n; ++j) total += w[j] = cubic((double(j + begin) - center + 0.5) * inverse);
    for (std::int64_t j = 0; j < n; ++j) {
      if (total != 0) w[j] /= total;
      largest = std::max(largest, w[j]);
    }
    out.first[std::size_t(i)] = begin;
    out.count[std::size_t(i)] = std::int32_t(n);
  }
  while (out.shift < 22 && int(0.5 + largest * double(1 << (out.shift + 1))) < 1 << 15) ++out.shift;
  out.weight.resize(exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    double const scaled = exact[i] * double(1 << out.shift);
    out.weight[i] = std::int16_t(scaled < 0 ? int(scaled - 0.5) : int(scaled + 0.5));
  }
  return out;
}

}  // namespace tiered::detail
