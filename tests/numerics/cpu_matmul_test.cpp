/// Matrix products of the CPU tables: against the reference on the same activations, and bit for bit among themselves.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"
#include "tiered/kernels/reference/matmul.hpp"
#include "tiered/kernels/reference/quantize.hpp"

using namespace tiered_test;

namespace {

struct MatmulCase {
  std::int32_t n_blocks, rows, n_tokens;
  bool bias;
  Values values;
};

/// Rows and tokens around every tile border, one block, two, an odd number.
std::vector<MatmulCase> matmul_cases() {
  std::vector<MatmulCase> cases;
  for (std::int32_t const rows : {1, 2, 3, 5, 7, 12}) cases.push_back({2, rows, 1, rows % 2 == 1, Values::ordinary});
  for (std::int32_t const n_tokens : {2, 3, 4, 5, 6, 7, 8, 9, 11, 12})
    cases.push_back({1, 5, n_tokens, n_tokens % 2 == 1, Values::ordinary});
  cases.push_back({17, 11, 5, true, Values::ordinary});
  cases.push_back({17, 1, 1, false, Values::ordinary});
  cases.push_back({17, 301, 3, false, Values::ordinary});
  cases.push_back({2, 37, 70, true, Values::ordinary});
  for (Values const values : {Values::zeros, Values::subnormal, Values::large}) cases.push_back({3, 9, 5, false, values});
  return cases;
}

/// Which bits rows must keep in fine products.
constexpr std::int32_t fine_bits = 16;
RowProduct product_of(Cpu& cpu, DType weights, bool fine) { return cpu.table().product(weights, fine ? fine_bits : 0); }

/// One problem with all it points to.
struct Problem {
  Problem(DType weights_, DType activation_, std::int32_t dim_, std::int32_t rows_, std::int32_t n_tokens_, std::uint64_t seed,
          Values values = Values::ordinary, std::size_t offset = 0)
      : weights(weights_), activation(activation_), dim(dim_), rows(rows_), n_tokens(n_tokens_), shift(offset) {
    SplitMix64 random(seed);
    w = random_weights(weights, std::int64_t(rows) * dim, random);
    w.insert(w.begin(), offset, std::byte{0});
    x = random_floats(std::size_t(n_tokens) * std::size_t(dim), random, values);
    bias = random_floats(std::size_t(rows), random);
    quantize();
  }
  /// x, as it is now, in the type that the product reads.
  void quantize() { quantized = input_of(0, n_tokens); }
  /// Some tokens by themselves: rows in panels cannot be cut out of those of all tokens.
  std::vector<std::byte> input_of(std::int32_t first, std::int32_t n) const {
    std::vector<std::byte> bytes(activation_bytes(activation, std::uint64_t(n), std::uint64_t(dim)));
    float const* const from = x.data() + std::int64_t(first) * dim;
    if (activation == DType::f32) {
      std::memcpy(bytes.data(), from, bytes.size());
    } else {
      reference::quantize(QuantizeArgs{from, bytes.data(), n, dim}, activation);
    }
    return bytes;
  }
  void const* input() const { return quantized.data(); }
  MatmulArgs args(float* y, bool with_bias, std::int64_t y_stride) const {
    return {w.data() + shift, input(), with_bias ? bias.data() : nullptr, y, n_tokens, rows, dim, y_stride};
  }
  DType weights, activation;
  std::int32_t dim, rows, n_tokens;
  std::size_t shift;
  std::vector<std::byte> w, quantized;
  std::vector<float> x, bias;
};

std::vector<std::pair<DType, bool>> types_and_fine() {
  std::vector<std::pair<DType, bool>> out{{DType::f16, true}};
  for (DType const type : all_formats()) out.emplace_back(type, false);
  return out;
}

std::int32_t dim_of(DType type, std::int32_t n_blocks) {
  std::int32_t const elems = std::int32_t(block_elems(type));
  return elems == 1 ? n_blocks * 67 : n_blocks * elems;  // floats have no blocks: an odd number of elements
}

/// Roundings of a sum: those along its longest chain of additions, and a few for products and the joining of lanes. With 8-bit
/// activations a chain has one addition for each block of weights and one more for its minimum; a block of 256 has eight before
/// that, each of a rounded product where it is not fused. Panels on tiles: a chain of 16 products, joined with another, for each 32
/// elements, in two parts of three products; on vectors: two roundings for each 32 elements of a piece of 2048, and one for each piece.
double tolerance_factor(Problem const& p) {
  double const n_blocks = p.dim / double(block_elems(p.weights)), inside = block_elems(p.weights) == 256 ? 16 : 0;
  if (p.activation == DType::act_bf16_two) return (3 * (p.dim / 32 + 1) + 17 + 10) * epsilon + 0x1p-16;  // the least products are left out
  if (p.activation == DType::act_bf16) return (std::max(p.dim / 32 + 18, std::min(p.dim, 2048) / 16 + p.dim / 2048) + 10) * epsilon;
  double const chain = p.activation == DType::f32 ? 256 + p.dim / 1024 : 2 * n_blocks + inside;
  return (chain + 10) * epsilon;
}

/// `more`: what rows may be off besides, relative to their magnitudes; then also by what matrix units take for zeros.
Worst compare_with_reference(Problem const& p, bool with_bias, std::vector<float> const& y, std::int64_t y_stride, double more = 0) {
  std::vector<float> expected(y.size(), poison);
  reference::matmul(p.args(expected.data(), with_bias, y_stride), p.weights, p.activation);
  std::vector<std::vector<double>> w;
  for (std::int32_t r = 0; r < p.rows; ++r) {
    w.push_back(magnitudes(p.weights, p.w.data() + p.shift + std::size_t(r) * row_bytes(p.weights, std::uint64_t(p.dim)), p.dim));
  }
  Worst worst;
  for (std::int32_t t = 0; t < p.n_tokens; ++t) {
    std::vector<double> const x = reference::activation_row(p.activation, p.input(), p.n_tokens, p.dim, t);
    for (std::int64_t r = 0; r < y_stride; ++r) {
      std::int64_t const i = t * y_stride + r;
      double sum = 0, sum_w = 0;
      if (r < p.rows) {
        for (std::size_t k = 0; k < x.size(); ++k) sum += w[std::size_t(r)][k] * std::abs(x[k]), sum_w += w[std::size_t(r)][k];
        if (with_bias) sum += std::abs(double(p.bias[std::size_t(r)]));
      }
      // Products below the normal range lose all relative precision: at most half of the smallest f32 each. Matrix units make zeros
      // of them.
      double const lost = act_part(p.activation) == DType::act_bf16 ? 1.2e-38 : 1e-45;
      double const allowed = r < p.rows ? (tolerance_factor(p) + more) * sum + (more > 0 ? 1.2e-38 * sum_w : 0) + lost * p.dim : 0;
      worst.compare(i, double(y[std::size_t(i)]), double(expected[std::size_t(i)]), allowed);
    }
  }
  return worst;
}

std::vector<float> multiply(Cpu& cpu, Problem const& p, bool with_bias, std::int64_t y_stride, bool fine = false) {
  std::vector<float> y = poisoned(std::size_t(p.n_tokens) * std::size_t(y_stride));
  cpu.run(product_of(cpu, p.weights, fine).matmul, p.args(y.data(), with_bias, y_stride));
  return y;
}

}  // namespace

TEST_CASE("CPU products equal the reference on the same activations within float rounding") {
  for (Isa const isa : available_isas()) {
    for (bool const f32 : {false, true}) {
      Cpu cpu(isa, f32);
      for (DType const type : all_formats()) {
        std::uint64_t seed = 1;
        for (MatmulCase const& c : matmul_cases()) {
          Problem const p(type, cpu.table().activation[std::uint32_t(type)], dim_of(type, c.n_blocks), c.rows, c.n_tokens, ++seed,
                          c.values);
          std::int64_t const y_stride = c.rows + c.rows % 3;
          Worst const worst = compare_with_reference(p, c.bias, multiply(cpu, p, c.bias, y_stride), y_stride);
          INFO(name(isa) << (f32 ? " f32 " : " ") << name(type) << ": " << c.rows << " x " << p.dim << ", " << c.n_tokens << " tokens, "
                         << name(c.values));
          INFO(worst.text());
          CHECK(worst.factor <= 1);
        }
      }
    }
  }
}

TEST_CASE("rows that must keep 16 bits do, in products with binary16: as the reference, and as if they were exact") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    RowProduct const product = product_of(cpu, DType::f16, true);
    CHECK(act_bits(product.activation) >= fine_bits);
    CHECK(product.fine == (act_bits(cpu.table().activation[std::uint32_t(DType::f16)]) < fine_bits));
    std::uint64_t seed = 300;
    for (MatmulCase const& c : matmul_cases()) {
      Problem p(DType::f16, product.activation, dim_of(DType::f16, c.n_blocks), c.rows, c.n_tokens, ++seed, c.values);
      std::vector<float> const y = multiply(cpu, p, c.bias, c.rows, true);
      Worst const worst = compare_with_reference(p, c.bias, y, c.rows);
      p.activation = DType::f32;
      p.quantize();
      // Two parts of 8 bits leave 2^-17 of an element, or a subnormal; the least products are 2^-16.
      Worst const from_exact = compare_with_reference(p, c.bias, y, c.rows, 0x1p-17 + 0x1p-16);
      INFO(name(isa) << ": " << c.rows << " x " << p.dim << ", " << c.n_tokens << " tokens, " << name(c.values));
      INFO(worst.text() << "; exact rows: " << from_exact.text());
      CHECK(worst.factor <= 1);
      CHECK(from_exact.factor <= 1);
    }
  }
}

TEST_CASE("rows of any length: sums of long ones are joined in stretches") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const type : {DType::f16, DType::bf16, DType::q4_1, DType::q8_0, DType::q2_k, DType::q4_k, DType::q6_k}) {
      for (std::int32_t const n_tokens : {1, 6, 17, 20}) {
        Problem const p(type, cpu.table().activation[std::uint32_t(type)], 140 * 256, 3, n_tokens, 12);
        Worst const worst = compare_with_reference(p, true, multiply(cpu, p, true, 3), 3);
        INFO(name(isa) << ' ' << name(type) << ", " << n_tokens << " tokens: " << worst.text());
        CHECK(worst.factor <= 1);
      }
    }
  }
}

TEST_CASE("a table names the activations that its products read") {
  for (Isa const isa : available_isas()) {
    bool const panels = isa == Isa::amx || (isa == Isa::avx512 && can_emulate_amx());  // where AVX-512 has BF16
    for (DType const type : all_formats()) {
      CHECK(table_of(isa).supports(type));
      CHECK(table_of(isa).activation[std::uint32_t(type)] == (panels ? panel_activation(type) : quantized_activation(type)));
      CHECK(table_of(isa, true).activation[std::uint32_t(type)] == DType::f32);
    }
    CHECK(table_of(isa).convert[activation_form(DType::act_q8)] != nullptr);
    CHECK((table_of(isa).convert[activation_form(DType::act_bf16)] != nullptr) == panels);
    CHECK((table_of(isa).convert[activation_form(DType::act_bf16_two)] != nullptr) == (isa == Isa::amx));
    CHECK_FALSE(table_of(isa, true).product(DType::f16, 24).fine);
    CHECK_FALSE(table_of(isa).supports(DType::q8_1));
    CHECK_FALSE(table_of(isa).supports(DType::act_q8));
    CHECK(std::string(table_of(isa).name) == name(isa));
  }
}

TEST_CASE("a CPU product is the same for every thread count, with one token or many, and for every range of rows") {
  for (Isa const isa : available_isas()) {
    for (bool const f32 : {false, true}) {
      Cpu one(isa, f32, 1), two(isa, f32, 2), three(isa, f32, 3), seven(isa, f32, 7);
      for (auto const& [type, fine] : types_and_fine()) {
        INFO(name(isa) << (f32 ? " f32 " : " ") << name(type) << (fine ? ", fine rows" : ""));
        std::int32_t const dim = type == DType::f16 || type == DType::bf16 ? 2100 : dim_of(type, 5), rows = 83, n_tokens = 37;
        Problem const p(type, product_of(one, type, fine).activation, dim, rows, n_tokens, 99);
        std::vector<float> const all = multiply(one, p, true, rows, fine);
        for (Cpu* cpu : {&two, &three, &seven}) CHECK(same_bits(multiply(*cpu, p, true, rows, fine), all));

        std::vector<float> single = poisoned(all.size()), parts = poisoned(all.size());
        for (std::int32_t t = 0, step = 1; t < n_tokens; t += step, step = step % 5 + 1) {  // 1, 2, 3, 4, 5, 1 ... tokens at a time
          MatmulArgs args = p.args(single.data() + t * rows, true, rows);
          args.n_tokens = std::min(step, n_tokens - t);
          std::vector<std::byte> const x = p.input_of(t, args.n_tokens);
          args.x = x.data();
          two.run(product_of(two, type, fine).matmul, args);
        }
        CHECK(same_bits(single, all));
        for (std::int32_t r = 0, step = 1; r < rows; r += step, step = step % 13 + 3) {
          MatmulArgs args = p.args(parts.data() + r, true, rows);
          args.w = static_cast<std::byte const*>(args.w) + std::uint64_t(r) * row_bytes(type, std::uint64_t(dim));
          args.bias += r;
          args.rows = std::min(step, rows - r);
          three.run(product_of(three, type, fine).matmul, args);
        }
        CHECK(same_bits(parts, all));
      }
    }
  }
}

TEST_CASE("weights may lie where a file has them: aligned to no more than 2 bytes") {
  for (Isa const isa : available_isas()) {
    for (bool const f32 : {false, true}) {
      Cpu cpu(isa, f32);
      for (DType const type : all_formats()) {
        Problem const p(type, cpu.table().activation[std::uint32_t(type)], dim_of(type, 3), 6, 3, 5, Values::ordinary, 2);
        Problem const aligned(type, p.activation, p.dim, 6, 3, 5, Values::ordinary, 0);
        INFO(name(isa) << ' ' << name(type));
        CHECK(same_bits(multiply(cpu, p, false, 6), multiply(cpu, aligned, false, 6)));
      }
    }
  }
}

TEST_CASE("a token with an infinity or a NaN spoils its own row of a product only, and visibly") {
  for (Isa const isa : available_isas()) {
    Cpu cpu(isa);
    for (DType const type : all_formats()) {
      INFO(name(isa) << ' ' << name(type));
      for (float const bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        DType const activation = cpu.table().activation[std::uint32_t(type)];
        Problem p(type, activation, dim_of(type, 2), 6, 5, 3);
        std::vector<float> const good = multiply(cpu, p, false, 6);
        p.x[std::size_t(p.dim) * 2 + 7] = bad;
        p.quantize();
        std::vector<float> const y = multiply(cpu, p, false, 6);
        for (std::size_t i = 0; i < y.size(); ++i) {
          if (i / 6 == 2) {
            CHECK_FALSE(std::isfinite(y[i]));
          } else {
            CHECK(y[i] == good[i]);
          }
        }
      }
    }
  }
}
