/// Products on a GPU whose rows keep more bits than halves have: against the rows in two parts, and against the rows themselves.
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/fresh_seed.hpp"
#include "cuda/half_rows.hpp"

using namespace tiered_test;

namespace {

constexpr std::int32_t fine_bits = 16;

/// Weights of binary16, and rows some of which have a factor.
struct Problem {
  Problem(Gpu& gpu, std::int32_t dim_, std::int32_t rows_, std::int32_t n_tokens_, std::uint64_t seed, Values values = Values::ordinary)
      : product(gpu.table().product(DType::f16, fine_bits)), dim(dim_), rows(rows_), n_tokens(n_tokens_) {
    SplitMix64 random(seed);
    w = random_weights(DType::f16, std::int64_t(rows) * dim, random);
    x = random_floats(std::size_t(n_tokens) * std::size_t(dim), random, values);
    for (std::int32_t t = 1; t < n_tokens && values == Values::ordinary; t += 3)
      for (std::int32_t k = 0; k < dim; ++k) x[std::size_t(t) * std::size_t(dim) + std::size_t(k)] *= 1e6f;
    bias = random_floats(std::size_t(rows), random);
  }
  RowProduct product;
  std::int32_t dim, rows, n_tokens;
  std::vector<std::byte> w;
  std::vector<float> x, bias;
};

/// Converted and multiplied by the device. before: what is in y, to which the product is added; empty: it is stored.
std::vector<float> multiply(Gpu& gpu, Problem const& p, bool with_bias, std::int32_t y_stride, std::vector<float> const& before = {}) {
  DeviceArray<std::byte> const w(p.w);
  DeviceArray<float> const x(p.x), bias(p.bias);
  DeviceArray<std::byte> input(activation_bytes(p.product.activation, std::uint64_t(p.n_tokens), std::uint64_t(p.dim)));
  gpu.run(gpu.table().convert[activation_form(p.product.activation)], QuantizeArgs{x.data(), input.data(), p.n_tokens, p.dim});
  DeviceArray<float> y(before.empty() ? poisoned(std::size_t(p.n_tokens) * std::size_t(y_stride)) : before);
  MatmulArgs args;
  args.w = w.data(), args.x = input.data(), args.y = y.data();
  args.bias = with_bias ? bias.data() : nullptr;
  args.n_tokens = p.n_tokens, args.rows = p.rows, args.dim = p.dim, args.y_stride = y_stride;
  gpu.run(before.empty() ? p.product.matmul : p.product.matmul_add, args);
  return y.download();
}

/// Of every row_step-th row of every token_step-th token: from products of the rows in two parts, and from those of the rows as they are.
struct Off {
  Worst rounded, exact;
};
Off compare(Problem const& p, std::vector<float> const& y, bool with_bias, std::int32_t y_stride, std::int32_t row_step = 1,
            std::int32_t token_step = 1, std::vector<float> const& before = {}) {
  DType const form = p.product.activation;
  std::vector<std::byte> const input = half_rows(form, p.x, p.n_tokens, p.dim);
  Off off;
  for (std::int32_t t = 0; t < p.n_tokens; t += token_step) {
    float const* const x = p.x.data() + std::int64_t(t) * p.dim;
    double const factor = double(reference::detail::half_row_factor(x, p.dim));
    std::vector<double> const rounded = half_row_values(form, input, p.n_tokens, p.dim, t), exact(x, x + p.dim);
    for (std::int32_t r = 0; r < p.rows; r += row_step) {
      std::vector<float> const w = decoded_row(DType::f16, p.w.data(), p.dim, r);
      std::int64_t const i = std::int64_t(t) * y_stride + r;
      double const bias = with_bias ? double(p.bias[std::size_t(r)]) : 0, was = before.empty() ? 0 : double(before[std::size_t(i)]);
      Expected e = expected_product(DType::f16, rounded, w, bias + was), of_exact = expected_product(DType::f16, exact, w, bias + was);
      // The second product is added to the first, which is rounded once more; bias and what was there, too.
      double lost = 4 * epsilon * (std::abs(e.value) + std::abs(bias) + std::abs(was)), left = 0;
      for (std::size_t k = 0; k < w.size(); ++k) left += (0x1p-23 * std::abs(exact[k]) + 0x1p-25 * factor) * std::abs(double(w[k]));
      off.rounded.compare(i, double(y[std::size_t(i)]), e.value, e.tolerance + lost);
      off.exact.compare(i, double(y[std::size_t(i)]), of_exact.value, of_exact.tolerance + lost + left);
    }
    for (std::int32_t r = p.rows; r < y_stride; ++r) {
      std::int64_t const i = std::int64_t(t) * y_stride + r;
      off.rounded.compare(i, double(y[std::size_t(i)]), before.empty() ? double(poison) : double(before[std::size_t(i)]), 0);
    }
  }
  return off;
}

struct Shape {
  std::int32_t dim, rows, n_tokens;
};
/// Tiles with ends of all kinds, long rows, and what is large enough for a library.
constexpr Shape shapes[] = {{72, 1, 1},     {67, 33, 2},    {72, 129, 15},  {201, 7, 17},       {32, 128, 60},    {1176, 32, 240},
                            {1280, 65, 64}, {5120, 40, 70}, {72, 301, 130}, {1024, 2061, 1030}, {1280, 3840, 515}};

}  // namespace

TEST_CASE("CUDA products whose rows must keep 16 bits equal those of rows in two parts, and nearly those of exact rows") {
  if (!has_gpu()) return;
  Gpu gpu;
  RowProduct const fine = gpu.table().product(DType::f16, fine_bits);
  CHECK(fine.fine);
  CHECK(fine.activation == DType::act_f16_two);
  CHECK_FALSE(gpu.table().product(DType::f16, act_bits(DType::act_f16_rows)).fine);
  std::uint64_t seed = fresh_seed();
  INFO("TIERED_SEED=" << seed);
  for (Shape const& s : shapes) {
    std::int32_t const y_stride = s.rows + 3, row_step = s.rows > 1000 ? 61 : 1, token_step = s.rows > 1000 ? 97 : 1;
    for (bool const bias : {false, true}) {
      for (bool const add : {false, true}) {
        Problem const p(gpu, s.dim, s.rows, s.n_tokens, ++seed);
        SplitMix64 random(seed);
        std::vector<float> before;
        if (add) before = random_floats(std::size_t(s.n_tokens) * std::size_t(y_stride), random);
        Off const off = compare(p, multiply(gpu, p, bias, y_stride, before), bias, y_stride, row_step, token_step, before);
        INFO(s.rows << " x " << s.dim << ", " << s.n_tokens << " tokens" << (bias ? ", bias" : "") << (add ? ", added: " : ": "));
        INFO(off.rounded.text() << "; of exact rows: " << off.exact.text());
        CHECK(off.rounded.factor <= 1);
        CHECK(off.exact.factor <= 1);
      }
    }
  }
  for (Values const values : {Values::zeros, Values::subnormal, Values::large}) {
    Problem const p(gpu, 130, 35, 18, ++seed, values);
    Off const off = compare(p, multiply(gpu, p, true, 35), true, 35);
    INFO(name(values) << ": " << off.rounded.text() << "; of exact rows: " << off.exact.text());
    CHECK(off.rounded.factor <= 1);
    CHECK(off.exact.factor <= 1);
  }
}

TEST_CASE("a token with an infinity or a NaN spoils its own row of a CUDA product in two parts only, and visibly") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (float const bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Problem p(gpu, 134, 6, 5, 3);
    std::vector<float> const good = multiply(gpu, p, false, 6);
    p.x[std::size_t(p.dim) * 2 + 7] = bad;
    std::vector<float> const y = multiply(gpu, p, false, 6);
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (i / 6 == 2) {
        CHECK_FALSE(std::isfinite(y[i]));
      } else {
        CHECK(y[i] == good[i]);
      }
    }
  }
}
