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

constexpr std::int32_t rows = 72, dim = 192, most = 1000;

/// Small whole numbers: their products' sums are exact in f32, in any order.
std::vector<std::uint16_t> whole_numbers(SplitMix64& random, std::size_t n) {
  std::vector<std::uint16_t> out(n);
  for (std::uint16_t& h : out) h = float_to_half(float(int(random.below(9)) - 4));
  return out;
}

}  // namespace

TEST_CASE("CUDA: products of any number of rows by kernels that were loaded for others", "[cuda]") {
  if (!tiered_test::has_gpu()) return;
  SplitMix64 random(tiered_test::fresh_seed());
  INFO("TIERED_SEED=" << tiered_test::fresh_seed());
  std::vector<std::uint16_t> const w = whole_numbers(random, std::size_t{rows} * dim), x = whole_numbers(random, std::size_t{most} * dim);
  constexpr std::size_t skipped = 4;  // a bias is aligned to 16, or to 256
  std::vector<float> bias(rows + skipped);
  for (float& b : bias) b = float(int(random.below(9)) - 4);
  DeviceArray<std::uint16_t> const on_w(w), on_x(x);
  DeviceArray<float> const on_bias(bias);
  DeviceArray<std::byte> workspace(std::size_t{32} << 20);
  GemmPlans plans(workspace.data(), workspace.size());
  REQUIRE(plans.status() == CUBLAS_STATUS_SUCCESS);

  enum Bias { none, aligned, shifted };
  auto const check = [&](std::int32_t n, bool add, Bias with) {
    INFO(n << " rows" << (add ? ", added" : "") << (with == none ? "" : with == aligned ? ", a bias" : ", a bias somewhere"));
    std::size_t const from = with == shifted ? skipped : 0;
    std::vector<float> y(std::size_t(n) * rows, add ? 3.0f : NAN);
    DeviceArray<float> on_y(y);
    GemmArgs args{false, on_w.data(), on_x.data(), with != none ? on_bias.data() + from : nullptr, on_y.data(), dim, dim, rows, rows,
                  n,     dim,         add};
    REQUIRE(plans.run(args, nullptr) == CUBLAS_STATUS_SUCCESS);
    tiered_test::cuda_check(cudaDeviceSynchronize());
    y = on_y.download();
    std::size_t n_wrong = 0;
    for (std::int32_t t = 0; t < n; ++t) {
      for (std::int32_t r = 0; r < rows; ++r) {
        float sum = (add ? 3.0f : 0.0f) + (with != none ? bias[from + std::size_t(r)] : 0.0f);
        for (std::int32_t k = 0; k < dim; ++k)
          sum += half_to_float(w[std::size_t(r) * dim + std::size_t(k)]) * half_to_float(x[std::size_t(t) * dim + std::size_t(k)]);
        n_wrong += y[std::size_t(t) * rows + std::size_t(r)] != sum;
      }
    }
    CHECK(n_wrong == 0);
  };
  auto const check_all = [&](std::int32_t n) {
    for (bool const add : {false, true}) {
      for (Bias const with : {none, aligned, shifted}) check(n, add, with);
    }
  };
  for (std::int32_t const n : {32, 64, 256, most}) check_all(n);
  plans.settle(true);
  for (std::int32_t const n : {1, 17, 33, 63, 65, 130, 257, 449, 512, 513, 700, 999, 1000}) check_all(n);
  CHECK(plans.n_late() == 0);
}
