/// What attention gives, and how far f32 sums in other orders may be off: for the tests of every backend.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "numerics/cpu_cases.hpp"

namespace tiered_test {

struct Outputs {
  std::vector<float> out, log_sum_exp;
};

inline constexpr DType kv_types[] = {DType::f16, DType::f32, DType::q8_0};

/// What outputs and logarithms may be off by, |q|, |k|, |v| <= 2 (and a little more after quantising): a score is a sum of head_dim
/// products, each a rounding, of which none passes scale * 4 head_dim; its exponential is off relatively by as much, and by the
/// exponential's own error; sums add a rounding for each of their steps.
inline double relative_error(std::int32_t head_dim, std::int32_t n_positions) {
  double const score_error = (head_dim + 5) * epsilon * 4.1 * std::sqrt(double(head_dim));
  return 2 * (score_error + 8 * epsilon) + (n_positions + 40) * epsilon;
}

inline void check_close(std::vector<float> const& out, std::vector<float> const& expected, double relative) {
  REQUIRE(out.size() == expected.size());
  Worst worst;
  for (std::size_t i = 0; i < out.size(); ++i) worst.compare(std::int64_t(i), double(out[i]), double(expected[i]), 2 * relative);
  INFO("outputs, " << worst.text());
  CHECK(worst.factor <= 1);
}
inline void check_close(Outputs const& got, Outputs const& expected, double relative) {
  check_close(got.out, expected.out, relative);
  REQUIRE(got.log_sum_exp.size() == expected.log_sum_exp.size());
  Worst worst;
  for (std::size_t i = 0; i < got.log_sum_exp.size(); ++i)
    worst.compare(std::int64_t(i), double(got.log_sum_exp[i]), double(expected.log_sum_exp[i]),
                  relative + 8 * epsilon * std::abs(double(expected.log_sum_exp[i])));
  INFO("logarithms, " << worst.text());
  CHECK(worst.factor <= 1);
}

}  // namespace tiered_test
