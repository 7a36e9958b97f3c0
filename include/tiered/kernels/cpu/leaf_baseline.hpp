/// The innermost loops of all ops but quantised products, in plain C++ for every machine.
///
/// A leaf is a struct of static functions, one struct for each instruction set; ops are templates on it. Sums run in eight
/// lanes, element i in lane i % 8, which are added pairwise at the end: an order that vector units keep and that no caller sees.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/gemm_baseline.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/half.hpp"

namespace tiered::cpu::baseline {

struct Leaf {
  static constexpr int lanes = 8;

  static float sum_lanes(float const* v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }

  [[gnu::noinline]] static float dot(float const* a, float const* b, std::int32_t n) {
    float sums[lanes] = {};
    std::int32_t i = 0;
    for (; i + lanes <= n; i += lanes) {
      for (int l = 0; l < lanes; ++l) sums[l] += a[i + l] * b[i + l];
    }
    for (int l = 0; i + l < n; ++l) sums[l] += a[i + l] * b[i + l];
    return sum_lanes(sums);
  }

  // For f32_tile.
  template <class F>
  static void decode(std::byte const* src, std::int32_t n, float* dst) {
    decode_any<F>(src, n, dst);
  }
  static constexpr int dots_tokens = 2;
  template <class F, int n_tokens>
  requires(F::dtype == DType::f32) static void dots(std::byte const* const* w, std::int32_t n, float const* const* x, float* sums) {
    baseline::dots<n_tokens>(w, n, x, sums);
  }

  // Elementwise, and rows.
  static void rms_norm(float const* x, float const* weight, float eps, std::int32_t dim, float* y) {
    float const factor = 1.0f / std::sqrt(dot(x, x, dim) / float(dim) + eps);
    for (std::int32_t i = 0; i < dim; ++i) y[i] = weight != nullptr ? x[i] * factor * weight[i] : x[i] * factor;
  }
  static void layer_norm(float const* x, float const* weight, float const* bias, float eps, std::int32_t dim, float* y) {
    constexpr int n = 2 * lanes;
    float sums[n] = {}, squares[n] = {};
    auto const add_up = [](float* v) {
      for (int l = 0; l < lanes; ++l) v[l] += v[l + lanes];
      return sum_lanes(v);
    };
    for (std::int32_t i = 0; i < dim; ++i) sums[i % n] += x[i];
    float const mean = add_up(sums) / float(dim);
    for (std::int32_t i = 0; i < dim; ++i) squares[i % n] += (x[i] - mean) * (x[i] - mean);
    float const factor = 1.0f / std::sqrt(add_up(squares) / float(dim) + eps);
    for (std::int32_t i = 0; i < dim; ++i)
      y[i] = (x[i] - mean) * factor * (weight != nullptr ? weight[i] : 1.0f) + (bias != nullptr ? bias[i] : 0.0f);
  }
  /// All but gelu_erf are v * sigmoid(z): tanh(u) = 2 sigmoid(2u) - 1, so gelu_tanh has z = 2 sqrt(2 / pi) (v + 0.044715 v^3).
  static float activated(float v, Activation activation) {
    if (activation == Activation::gelu_erf) return v < -14.0f ? 0.0f : 0.5f * v * std::erfc(v * -0.70710678f);
    float const z = activation == Activation::silu         ? v
                    : activation == Activation::quick_gelu ? 1.702f * v
                                                           : v * (1.5957691216057308f + (1.5957691216057308f * 0.044715f) * (v * v));
    return z < -88.0f ? 0.0f : v / (1.0f + std::exp(-z));
  }
  static void gated(float const* gate, float const* up, Activation activation, std::int64_t n, float* out) {
    for (std::int64_t i = 0; i < n; ++i) out[i] = activated(gate[i], activation) * up[i];
  }
  static void activate(Activation activation, std::int64_t n, float* x) {
    for (std::int64_t i = 0; i < n; ++i) x[i] = activated(x[i], activation);
  }
  static void add_taps(float const* const* rows, float const* share, std::int32_t dim, float* y) {
    for (std::int32_t i = 0; i < dim; ++i)
      y[i] += ((share[0] * rows[0][i] + share[1] * rows[1][i]) + share[2] * rows[2][i]) + share[3] * rows[3][i];
  }
  static void add(float const* x, std::int64_t n, float* y) {
    for (std::int64_t i = 0; i < n; ++i) y[i] += x[i];
  }
  static void quantize(float const* x, std::int64_t n_blocks, ActQ8x32* y) {
    for (std::int64_t b = 0; b < n_blocks; ++b) quantize_block(x + b * 32, y[b]);
  }
};

}  // namespace tiered::cpu::baseline
