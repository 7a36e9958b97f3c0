// Products that cuBLAS makes, by the kernels that it is allowed.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/gpu.hpp"
#include "tiered/kernels/cuda/gemm_plans.hpp"
#include "tiered/kernels/format/half.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using tiered_test::DeviceArray;

namespace {

constexpr std::int32_t rows = 200, dim = 192, most = 512;

/// Small whole numbers: their products' sums are exact in f32, in any order.
std::vector<std::uint16_t> whole_numbers(SplitMix64& random, std::size_t n) {
  std::vector<std::uint16_t> out(n);
  for (std::uint16_t& h : out) h = float_to_half(float(int(random.below(9)) - 4));
  return out;
}

}  // namespace

TEST_CASE("CUDA: products of any number of rows by kernels that were loaded for powers of two", "[cuda][sanitize]") {
  if (!tiered_test::has_gpu()) return;
  SplitMix64 random(tiered_test::fresh_seed());
  INFO("TIERED_SEED=" << tiered_test::fresh_seed());
  std::vector<std::uint16_t> const w = whole_numbers(random, std::size_t{rows} * dim), x = whole_numbers(random, std::size_t{most} * dim);
  std::vector<float> bias(rows);
  for (float& b : bias) b = float(int(random.below(9)) - 4);
  DeviceArray<std::uint16_t> const on_w(w), on_x(x);
  DeviceArray<float> const on_bias(bias);
  DeviceArray<std::byte> workspace(std::size_t{32} << 20);
  GemmPlans plans(workspace.data(), workspace.size());
  REQUIRE(plans.status() == CUBLAS_STATUS_SUCCESS);

  auto const check = [&](std::int32_t n, bool add, bool biased) {
    INFO(n << " rows" << (add ? ", added" : "") << (biased ? ", with a bias" : ""));
    std::vector<float> y(std::size_t(n) * rows, add ? 3.0f : NAN);
    DeviceArray<float> on_y(y);
    GemmArgs args{CUDA_R_16F, on_w.data(), on_x.data(), biased ? on_bias.data() : nullptr, on_y.data(), dim, dim, rows, rows, n, dim, add};
    REQUIRE(plans.run(args, nullptr) == CUBLAS_STATUS_SUCCESS);
    tiered_test::cuda_check(cudaDeviceSynchronize());
    y = on_y.download();
    std::size_t n_wrong = 0;
    for (std::int32_t t = 0; t < n; ++t) {
      for (std::int32_t r = 0; r < rows; ++r) {
        float sum = (add ? 3.0f : 0.0f) + (biased ? bias[std::size_t(r)] : 0.0f);
        for (std::int32_t k = 0; k < dim; ++k)
          sum += half_to_float(w[std::size_t(r) * dim + std::size_t(k)]) * half_to_float(x[std::size_t(t) * dim + std::size_t(k)]);
        n_wrong += y[std::size_t(t) * rows + std::size_t(r)] != sum;
      }
    }
    CHECK(n_wrong == 0);
  };
  auto const check_all = [&](std::int32_t n) {
    for (bool const add : {false, true}) {
      for (bool const biased : {false, true}) check(n, add, biased);
    }
  };
  for (std::int32_t n = 32; n <= most; n *= 2) check_all(n);
  std::size_t const n_kernels = plans.n_kernels();
  CHECK(n_kernels > 0);
  plans.settle(true);
  for (std::int32_t const n : {1, 17, 33, 63, 65, 130, 200, 257, 300, 391, 449, 511, 512}) check_all(n);
  CHECK(plans.n_kernels() == n_kernels);
  plans.settle(false);
  check_all(300);
  CHECK(plans.n_kernels() >= n_kernels);
}
