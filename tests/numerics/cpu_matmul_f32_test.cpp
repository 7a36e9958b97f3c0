/// Products on f32 activations where rows and tokens fill more than one block of each kind: a piece of a row, a panel of rows, a chunk
/// of tokens, and both ways of a tile, for few and for many tokens.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"
#include "tiered/kernels/format/dispatch.hpp"

using namespace tiered_test;

namespace {

constexpr std::int32_t rows = 70, n_tokens = 250;

/// 1024 elements and a rest that fills no vector, or one block.
std::int32_t dim_of(DType type) { return block_elems(type) == 1 ? 1024 + 13 : std::int32_t(1024 + block_elems(type)); }

std::vector<double> decoded(DType type, std::vector<std::byte> const& w, std::int64_t n) {
  std::vector<double> out;
  dispatch_format(type, [&](auto format) {
    using F = decltype(format);
    for (std::int64_t b = 0; b < n / F::block_elems; ++b) {
      typename F::Block block;
      std::memcpy(&block, w.data() + b * F::block_bytes, sizeof block);
      for (int i = 0; i < F::block_elems; ++i) out.push_back(double(F::decode(block, i)));
    }
  });
  return out;
}

}  // namespace

TEST_CASE("products on f32 activations are right, and the same bits, for numbers of tokens in and beyond every block") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa, true, 3);
    for (DType const type : {DType::f32, DType::f16, DType::bf16, DType::q4_0, DType::q6_k}) {
      INFO(name(isa) << ' ' << name(type));
      std::int32_t const dim = dim_of(type);
      SplitMix64 random(21);
      std::vector<std::byte> const w = random_weights(type, std::int64_t(rows) * dim, random);
      std::vector<float> const x = random_floats(std::size_t(n_tokens) * std::size_t(dim), random), bias = random_floats(rows, random);
      auto const multiply = [&](std::int32_t first, std::int32_t n, std::vector<float>& y) {
        cpu.run(cpu.table().matmul[std::uint32_t(type)],
                MatmulArgs{w.data(), x.data() + std::int64_t(first) * dim, bias.data(), y.data() + first * rows, n, rows, dim, rows});
      };
      std::vector<float> all = poisoned(std::size_t(n_tokens) * rows), parts = all;
      multiply(0, n_tokens, all);
      for (std::int32_t t = 0, n = 1; t < n_tokens; t += n, n = std::min(n + 3, n_tokens - t)) multiply(t, n, parts);
      CHECK(same_bits(all, parts));

      std::vector<double> const weights = decoded(type, w, std::int64_t(rows) * dim);
      Worst worst;
      for (std::int32_t t = 0; t < n_tokens; ++t) {
        for (std::int32_t r = 0; r < rows; ++r) {
          double sum = double(bias[std::size_t(r)]), magnitude = std::abs(sum);
          for (std::int32_t k = 0; k < dim; ++k) {
            double const product = weights[std::size_t(r * dim + k)] * double(x[std::size_t(t * dim + k)]);
            sum += product, magnitude += std::abs(product);
          }
          // The longest chain of additions: a quarter of 1024 elements (the baseline has four lanes), the lanes, two pieces, the bias.
          worst.compare(t * rows + r, double(all[std::size_t(t * rows + r)]), sum, (256 + 10) * epsilon * magnitude);
        }
      }
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}
