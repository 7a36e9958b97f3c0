/// What the tests of fused products share: one call with all that it points to, and what it should give.
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/few_rows_cases.hpp"
#include "cuda/gpu.hpp"

namespace tiered_test {

using Then = FusedMatmulArgs::Then;

/// n_blocks: of a row, where the problem is not told its length; weights begin at a multiple of 256 where it is one of 8, else at one of 8
/// where it is one of 4, else anywhere.
struct FusedCase {
  std::int32_t n_blocks, rows[3], n_tokens;
  Then then;
  bool norm, bias;
  Values values = Values::ordinary;
  Activation activation = Activation::silu;
};

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
      shift[i] = c.n_blocks % 8 == 0 ? 0 : (c.n_blocks % 8 == 4 ? 8 : alignment_of(type)) * random.below(16);
      w[i] = random_weights(type, std::int64_t(rows) * dim, random);
      w[i].insert(w[i].begin(), shift[i], std::byte{0xff});
      bias[i] = random_floats(std::size_t(rows), random);
      before[i] = random_floats(std::size_t(c.n_tokens) * std::size_t(stride[i]), random);
    }
  }
  int n_parts() const { return c.rows[2] != 0 ? 3 : c.rows[1] != 0 ? 2 : 1; }

  /// y of all parts.
  std::vector<std::vector<float>> run(Gpu& gpu) const { return run(gpu.queue()); }
  std::vector<std::vector<float>> run(Queue queue) const {
    std::vector<std::vector<float>> y;
    REQUIRE(run(queue, y) == 0);
    return y;
  }
  /// The status, and y as it is then.
  int run(Queue queue, std::vector<std::vector<float>>& y) const {
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
    int const status = format_kernels_of(type).fused_matmul(a, Range{0, a.n_parts}, queue);
    cuda_check(cudaDeviceSynchronize());
    for (auto const& part : device_y) y.push_back(part->download());
    return status;
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

}  // namespace tiered_test
