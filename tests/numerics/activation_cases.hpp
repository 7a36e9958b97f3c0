/// Arguments of activation functions, and how far a kernel's values may be off: for the tests of every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

#include "numerics/cpu_cases.hpp"

namespace tiered_test {

inline constexpr Activation activations[] = {Activation::silu, Activation::gelu_tanh, Activation::quick_gelu, Activation::gelu_erf};
inline char const* name(Activation activation) {
  switch (activation) {
    case Activation::silu: return "silu";
    case Activation::gelu_tanh: return "gelu_tanh";
    case Activation::quick_gelu: return "quick_gelu";
    case Activation::gelu_erf: return "gelu_erf";
  }
  return "?";
}

/// From the smallest to the largest; a multiple of four.
inline std::vector<float> activation_arguments() {
  std::vector<float> x;
  for (float v = 1e-38f; v < 1e4f; v *= 1.07f) {
    x.push_back(v);
    x.push_back(-v);
  }
  for (float v : {0.0f, -0.0f, 1e-42f, 1e30f, -1e30f, std::numeric_limits<float>::infinity()}) x.push_back(v);
  while (x.size() % 4 != 0) x.push_back(0.5f);
  return x;
}

/// What act(x), which the reference has as `expected`, perhaps times something, may be off by.
///
/// All but gelu_erf are x / (1 + e^-z): rounding z to within 3 steps changes e^-z by 3 |z| steps; the rest is 8 roundings at most.
/// gelu_erf is x times half of erfc(-x / sqrt 2), which falls as e^(-x^2 / 2): rounding x^2 / 2 to within 2 steps changes that by x^2
/// steps; the rest is 12 roundings, of which an approximation may take 4.
inline double activation_tolerance(Activation activation, float argument, float expected) {
  double const x = double(argument), bounded = std::clamp(x, -14.0, 0.0);
  double z = x, steps = 8;
  if (activation == Activation::quick_gelu) z = 1.702 * x;
  if (activation == Activation::gelu_tanh) z = 1.5957691216 * (x + 0.044715 * x * x * x);
  if (activation != Activation::silu) steps = 8 + 3 * std::abs(std::max(z, -30.0));
  if (activation == Activation::gelu_erf) steps = 12 + 2 * bounded * bounded, z = 2 * x;
  // 1 + tanh of the reference is good to 1e-16 of the argument; below -86 kernels may give 0. What is less than normal is rounded to the
  // spacing there.
  double const subnormal = 1.5 * 1.401298464e-45;
  return steps * epsilon * std::abs(double(expected)) + (z < -25 ? 1e-12 : 0) + 1e-15 * std::abs(x) + subnormal;
}

}  // namespace tiered_test
