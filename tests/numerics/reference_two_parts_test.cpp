// Rows in two parts by their definition, and products with them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"
#include "tiered/kernels/reference/table.hpp"

using namespace tiered_test;

TEST_CASE("reference rows in two parts: as in one, then what that left; 16 and 22 bits are kept", "[reference]") {
  struct Form {
    DType two;
    double left;
  };
  for (auto const& [two, left] : {Form{DType::act_bf16_two, 0x1p-17}, {DType::act_f16_two, 0x1p-23}}) {
    INFO(name(two));
    DType const one = act_part(two);
    CHECK(act_bits(one) < act_bits(two));
    constexpr std::int32_t n_rows = 19, dim = 1060;
    SplitMix64 random(9);
    std::vector<float> x = random_floats(n_rows * dim, random);
    for (std::size_t k = 0; k < dim; ++k) x[2 * dim + k] *= 1e8f;  // binary16 has a factor
    std::vector<std::byte> rows(activation_bytes(two, n_rows, dim)), first(activation_bytes(one, n_rows, dim)), second = first;
    reference::quantize(QuantizeArgs{x.data(), rows.data(), n_rows, dim}, two);
    reference::quantize(QuantizeArgs{x.data(), first.data(), n_rows, dim}, one);
    CHECK(std::equal(first.begin(), first.end(), rows.begin()));
    REQUIRE(act_second_offset(two, n_rows, dim) >= first.size());
    std::copy_n(rows.begin() + std::ptrdiff_t(act_second_offset(two, n_rows, dim)), second.size(), second.begin());
    double worst = 0, coarsest = 0;
    for (std::int32_t row = 0; row < n_rows; ++row) {
      std::vector<double> const a = reference::activation_row(one, first.data(), n_rows, dim, row),
                                b = reference::activation_row(one, second.data(), n_rows, dim, row),
                                both = reference::activation_row(two, rows.data(), n_rows, dim, row);
      double const least = row == 2 && one == DType::act_f16_rows ? 0x1p-25 * 0x1p14 : 0x1p-25;
      for (std::size_t k = 0; k < dim; ++k) {
        double const exact = double(x[std::size_t(row) * dim + k]);
        REQUIRE(both[k] == a[k] + b[k]);
        worst = std::max(worst, (std::abs(both[k] - exact) - least) / std::abs(exact));
        coarsest = std::max(coarsest, std::abs(a[k] - exact) / std::abs(exact));
      }
    }
    CHECK(worst <= left);
    CHECK(coarsest > 50 * left);
  }
  CHECK(float_to_panel_rest(1.0f) == 0);
  CHECK(float_to_panel_rest(0x1.01p0f) == float_to_panel(0x1p-8f));
  CHECK((float_to_panel_rest(std::numeric_limits<float>::infinity()) & 0x7fff) > 0x7f80);
}

TEST_CASE("reference products of rows in two parts are those of both parts", "[reference]") {
  constexpr std::int32_t n_tokens = 5, rows = 7, dim = 70;
  SplitMix64 random(12);
  std::vector<std::byte> const w = random_weights(DType::f16, rows * dim, random);
  std::vector<float> const x = random_floats(n_tokens * dim, random);
  std::vector<float> exact(n_tokens * rows), got(exact.size());
  reference::matmul(MatmulArgs{w.data(), x.data(), nullptr, exact.data(), n_tokens, rows, dim, rows}, DType::f16);
  for (KernelTable const* const table : {&reference::kernels_bf16(), &reference::kernels_half()}) {
    INFO(table->name);
    double off[2] = {};  // in one part, in two
    for (bool const fine : {false, true}) {
      RowProduct const product = table->product(DType::f16, fine ? 16 : 0);
      REQUIRE(product.fine == fine);
      CHECK(product.activation == (fine ? table->fine_activation : table->activation)[std::uint32_t(DType::f16)]);
      std::vector<std::byte> input(activation_bytes(product.activation, n_tokens, dim));
      table->convert[activation_form(product.activation)](QuantizeArgs{x.data(), input.data(), n_tokens, dim}, Queue{});
      product.matmul(MatmulArgs{w.data(), input.data(), nullptr, got.data(), n_tokens, rows, dim, rows}, Queue{});
      for (std::size_t i = 0; i < got.size(); ++i) off[fine] = std::max(off[fine], std::abs(double(got[i]) - double(exact[i])));
      if (product.matmul_add == nullptr) continue;
      std::vector<float> sum(got.size(), 3);
      product.matmul_add(MatmulArgs{w.data(), input.data(), nullptr, sum.data(), n_tokens, rows, dim, rows}, Queue{});
      for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(sum[i] == 3 + got[i]);
    }
    CHECK(off[1] > 0);
    CHECK(off[1] < off[0] / 50);
  }
  CHECK_FALSE(reference::kernels().product(DType::f16, 24).fine);
  CHECK_FALSE(reference::kernels_bf16().product(DType::q8_0, 24).fine);  // there is none
}
