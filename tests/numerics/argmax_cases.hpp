/// Rows to find the largest of: for the tests of every backend.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "numerics/cpu_cases.hpp"

namespace tiered_test {

struct ArgmaxCase {
  std::int32_t n_rows, n;

  /// Random rows, each with something particular in it: two equal ones, not-a-number before and after, infinities, zeros of both signs.
  std::vector<float> values() const {
    float const nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    SplitMix64 random(31);
    std::vector<float> v = random_floats(std::size_t(n_rows) * std::size_t(n), random);
    for (std::int32_t t = 0; t < n_rows; ++t) {
      float* const row = v.data() + std::ptrdiff_t(t) * n;
      auto const anywhere = [&]() -> float& { return row[random.below(std::uint64_t(n))]; };
      switch (t % 8) {
        case 0: anywhere() = anywhere() = 3; break;
        case 1: row[0] = nan; break;
        case 2: row[n - 1] = nan; break;
        case 3: anywhere() = anywhere() = inf; break;
        case 4:
          for (std::int32_t i = 0; i < n; ++i) row[i] = nan;
          break;
        case 5:
          for (std::int32_t i = 0; i < n; ++i) row[i] = i % 3 == 0 ? nan : -inf;
          break;
        case 6:
          for (std::int32_t i = 0; i < n; ++i) row[i] = i % 2 == 0 ? -0.0f : 0.0f;
          break;
        default:
          anywhere() = 2;
          row[n - 1] = 2;
          break;
      }
    }
    return v;
  }
};

inline std::vector<ArgmaxCase> argmax_cases() { return {{1, 1}, {9, 1}, {8, 2}, {8, 31}, {17, 513}, {16, 4097}, {8, 49152}, {3, 151936}}; }

}  // namespace tiered_test
