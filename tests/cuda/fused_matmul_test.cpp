/// Products of few rows on the GPU, with norms, biases, sums and gates inside: every format against double arithmetic.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "catch.hpp"
#include "cuda/few_rows_cases.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/gpu.hpp"

using namespace tiered_test;

namespace {

using Then = FusedMatmulArgs::Then;

struct FusedCase {
  std::int32_t n_blocks, rows[3], n_tokens;
  Then then;
  bool norm, bias;
  Values values = Values::ordinary;
  Activation activation = Activation::silu;
};

std::vector<FusedCase> fused_cases() {
  std::vector<FusedCase> cases;
  for (std::int32_t const n_tokens : {1, 2, 3, 5, 8, 16}) {
    bool const odd = n_tokens % 2 == 1;
    cases.push_back({2, {7, 0, 3}, n_tokens, Then::store, odd, !odd});
    cases.push_back({1, {5, 0, 0}, n_tokens, Then::add, !odd, odd});
    cases.push_back({3, {9, 9, 0}, n_tokens, Then::gate, true, false, Values::ordinary, odd ? Activation::silu : Activation::gelu_tanh});
  }
  cases.push_back({17, {301, 33, 2}, 1, Then::store, true, true});
  cases.push_back({17, {1, 0, 0}, 1, Then::add, false, false});
  cases.push_back({17, {40, 40, 0}, 1, Then::gate, false, false});
  cases.push_back({17, {3, 2, 0}, 4, Then::store, false, false});
  for (std::int32_t const n_tokens : {1, 2, 4}) {  // rows at multiples of 16, as models have them
    cases.push_back({8, {64, 32, 32}, n_tokens, Then::store, true, false});
    cases.push_back({24, {77, 0, 0}, n_tokens, Then::add, false, true});
    cases.push_back({72, {50, 50, 0}, n_tokens, Then::gate, true, false});
  }
  for (Values const values : {Values::zeros, Values::subnormal, Values::large}) {
    cases.push_back({3, {9, 0, 0}, 3, Then::store, false, false, values});
    cases.push_back({8, {9, 6, 0}, 1, Then::store, false, false, values});
  }
  return cases;
}

/// One call with all that it points to, here and on the device.
struct FusedProblem {
  FusedProblem(DType type_, FusedCase const& c_, std::uint64_t seed, std::int32_t dim_ = 0)
      : type(type_), c(c_), dim(dim_ != 0 ? dim_ : few_dim(type_, c_.n_blocks)) {
    SplitMix64 random(seed);
    x = random_floats(std::size_t(c.n_tokens) * std::size_t(dim), random, c.values);
    norm_weight = random_floats(std::size_t(dim), random);
    if (c.then == Then::gate) {
      for (float& v : norm_weight) v *= 0.05f;  // activations of a size that matters
      for (float& v : x) v *= 0.05f;
    }
    for (int i = 0; i < 3; ++i) {
      std::int32_t const rows = c.rows[i];
      stride[i] = rows + rows % 3;
      shift[i] = c.n_blocks % 8 == 0 ? 0 : alignment_of(type) * random.below(16);
      w[i] = random_weights(type, std::int64_t(rows) * dim, random);
      w[i].insert(w[i].begin(), shift[i], std::byte{0xff});
      bias[i] = random_floats(std::size_t(rows), random);
      before[i] = random_floats(std::size_t(c.n_tokens) * std::size_t(stride[i]), random);
    }
  }
  int n_parts() const { return c.rows[2] != 0 ? 3 : c.rows[1] != 0 ? 2 : 1; }

  /// y of all parts.
  std::vector<std::vector<float>> run(Gpu& gpu) const {
    DeviceArray<float> const device_x(x), device_norm(norm_weight);
    std::vector<std::unique_ptr<DeviceArray<std::byte>>> device_w;
    std::vector<std::unique_ptr<DeviceArray<float>>> device_y, device_bias;
    FusedMatmulArgs a;
    a.x = device_x.data();
    a.norm = c.norm;
    a.norm_weight = device_norm.data();
    a.eps = 1e-5f;
    a.n_tokens = c.n_tokens;
    a.dim = dim;
    a.then = c.then;
    a.activation = c.activation;
    a.n_parts = n_parts();
    for (int i = 0; i < n_parts(); ++i) {
      device_w.push_back(std::make_unique<DeviceArray<std::byte>>(w[i]));
      device_bias.push_back(std::make_unique<DeviceArray<float>>(bias[i]));
      device_y.push_back(std::make_unique<DeviceArray<float>>(before[i].size()));
      if (c.then == Then::add) device_y.back()->upload(before[i]);
      a.parts[i].w = device_w.back()->data() + shift[i];
      a.parts[i].bias = c.bias ? device_bias.back()->data() : nullptr;
      a.parts[i].y = device_y.back()->data();
      a.parts[i].y_stride = stride[i];
      a.parts[i].rows = c.rows[i];
      a.parts[i].type = type;
    }
    REQUIRE(format_kernels_of(type).fused_matmul(a, Range{0, a.n_parts}, gpu.queue()) == 0);
    cuda_check(cudaDeviceSynchronize());
    std::vector<std::vector<float>> y;
    for (auto const& part : device_y) y.push_back(part->download());
    return y;
  }

  Worst compare(std::vector<std::vector<float>> const& y) const {
    Worst worst;
    for (std::int32_t t = 0; t < c.n_tokens; ++t) {
      float const* const row = x.data() + std::int64_t(t) * dim;
      std::vector<double> const plain(row, row + dim);
      ReadRow const read =
          c.norm ? read_row(type, normed_row(row, dim, norm_weight.data(), 1e-5f), 32 * epsilon) : read_row(type, plain, 0);
      for (int i = 0; i < (c.then == Then::gate ? 1 : n_parts()); ++i) {
        for (std::int32_t r = 0; r < stride[i]; ++r) {
          std::int64_t const at = t * stride[i] + r;
          double const got = double(y[std::size_t(i)][std::size_t(at)]);
          if (r >= c.rows[i]) {  // between rows: as it was
            double const was = c.then == Then::add ? double(before[i][std::size_t(at)]) : std::nan("");
            worst.compare(at, got, was, 0);
            continue;
          }
          Sum const sum = expected(i, r, std::size_t(at), read);
          worst.compare(at, got, sum.value, sum.allowed);
        }
      }
    }
    return worst;
  }

  Sum expected(int i, std::int32_t r, std::size_t at, ReadRow const& read) const {
    Sum sum = exact_product(type, w[i].data() + shift[i], r, read);
    if (c.then == Then::gate) return exact_gate(c.activation, sum, exact_product(type, w[1].data() + shift[1], r, read));
    if (c.bias) sum.value += double(bias[i][std::size_t(r)]);
    if (c.then == Then::add) sum.value += double(before[i][at]);
    sum.allowed += 4 * epsilon * (std::abs(sum.value) + std::abs(double(bias[i][std::size_t(r)])) + std::abs(double(before[i][at])));
    return sum;
  }

  DType type;
  FusedCase c;
  std::int32_t dim, stride[3];
  std::size_t shift[3];
  std::vector<std::byte> w[3];
  std::vector<float> x, norm_weight, bias[3], before[3];
};

}  // namespace

TEST_CASE("fused products of few rows equal double arithmetic within float rounding, in every format") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (FusedCase const& c : fused_cases()) {
      FusedProblem const p(type, c, ++seed);
      Worst const worst = p.compare(p.run(gpu));
      INFO(name(type) << ", seed " << seed << " (TIERED_SEED=" << fresh_seed() << "): " << c.rows[0] << ' ' << c.rows[1] << ' ' << c.rows[2]
                      << " rows of " << p.dim << ", " << c.n_tokens << " tokens, then " << int(c.then) << (c.norm ? ", normed, " : ", ")
                      << name(c.values));
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("fused products of long rows: slices, warps that share a row, and more rows than shared memory holds") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q8_0, DType::q6_k, DType::q2_k, DType::f16, DType::f32}) {
    for (std::int32_t const n_tokens : {1, 2, 16}) {
      FusedProblem const p(type, {0, {5, 0, 0}, n_tokens, Then::store, true, false}, 7, 8192 + 256);
      Worst const worst = p.compare(p.run(gpu));
      INFO(name(type) << ", " << n_tokens << " tokens: " << worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("a matrix of many rows, two of them to a warp at a time") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::f16}) {
    FusedProblem const p(type, {0, {40000, 0, 0}, 1, Then::store, false, false}, 8, 256);
    Worst const worst = p.compare(p.run(gpu));
    INFO(name(type) << ": " << worst.text());
    CHECK(worst.factor <= 1);
  }
}

TEST_CASE("a row's fused product does not depend on the other rows of as many; what is not a number stays so") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q4_k, DType::bf16}) {
    FusedProblem p(type, {2, {21, 0, 0}, 4, Then::store, false, false}, 9);
    std::vector<float> const all = p.run(gpu)[0];
    for (std::int32_t k = 0; k < p.dim; ++k) p.x[std::size_t(k)] = k == 3 ? std::numeric_limits<float>::infinity() : 1;
    std::vector<float> const other = p.run(gpu)[0];
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::int32_t const r = std::int32_t(i) % p.stride[0];
      if (r >= 21) continue;
      if (i < std::size_t(p.stride[0])) {
        CHECK_FALSE(std::isfinite(other[i]));
      } else {
        CHECK(other[i] == all[i]);
      }
    }
  }
}

TEST_CASE("what is not a number stays so in one row with regular weights, normed or not") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : {DType::q4_0, DType::q4_k, DType::bf16, DType::f32}) {
    for (bool const norm : {false, true}) {
      for (float const odd : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        FusedProblem p(type, {8, {21, 5, 0}, 1, Then::store, norm, false}, 10);
        p.x[3] = odd;
        std::vector<std::vector<float>> const y = p.run(gpu);
        for (std::size_t i = 0; i < 21; ++i) CHECK_FALSE(std::isfinite(y[0][i]));
      }
    }
  }
}
