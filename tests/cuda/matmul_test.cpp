/// Products of many rows on a GPU: every format against the decoded weights, whatever kernel makes them.
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/fresh_seed.hpp"
#include "cuda/half_rows.hpp"

using namespace tiered_test;

namespace {

struct Problem {
  Problem(DType type_, std::int32_t dim_, std::int32_t rows_, std::int32_t n_tokens_, std::uint64_t seed, Values values = Values::ordinary)
      : type(type_), form(product_activation(type_)), dim(dim_), rows(rows_), n_tokens(n_tokens_) {
    SplitMix64 random(seed);
    w = random_weights(type, std::int64_t(rows) * dim, random);
    x = random_floats(std::size_t(n_tokens) * std::size_t(dim), random, values);
    if (values == Values::ordinary) {  // some rows have a factor
      for (std::int32_t t = 1; t < n_tokens; t += 3)
        for (std::int32_t k = 0; k < dim; ++k) x[std::size_t(t) * std::size_t(dim) + std::size_t(k)] *= 1e6f;
    }
    bias = random_floats(std::size_t(rows), random);
    input = half_rows(form, x, n_tokens, dim);
  }
  DType type, form;
  std::int32_t dim, rows, n_tokens;
  std::vector<std::byte> w, input;
  std::vector<float> x, bias;
};

/// Rows of weights [first, first + n) of the problem's, tokens likewise.
struct Part {
  std::int32_t first_row = 0, rows = 0, first_token = 0, n_tokens = 0;
  std::size_t shift = 0;  ///< bytes that lie before the weights
};

/// before: what is in y, to which the product is added; empty: it is stored.
std::vector<float> multiply(Gpu& gpu, Problem const& p, Part const& part, bool with_bias, std::int32_t y_stride,
                            std::vector<float> const& before = {}) {
  std::vector<std::byte> weights(part.shift);
  weights.insert(weights.end(), p.w.begin(), p.w.end());
  DeviceArray<std::byte> const w(weights);
  std::vector<float> const x(p.x.begin() + std::int64_t(part.first_token) * p.dim,
                             p.x.begin() + std::int64_t(part.first_token + part.n_tokens) * p.dim);
  DeviceArray<std::byte> const input(half_rows(p.form, x, part.n_tokens, p.dim));
  DeviceArray<float> const bias(p.bias);
  DeviceArray<float> y(before.empty() ? poisoned(std::size_t(part.n_tokens) * std::size_t(y_stride)) : before);
  MatmulArgs args;
  args.w = w.data() + part.shift + std::uint64_t(part.first_row) * row_bytes(p.type, std::uint64_t(p.dim));
  args.x = input.data();
  args.bias = with_bias ? bias.data() + part.first_row : nullptr;
  args.y = y.data();
  args.n_tokens = part.n_tokens, args.rows = part.rows, args.dim = p.dim, args.y_stride = y_stride;
  gpu.run((before.empty() ? gpu.table().matmul : gpu.table().matmul_add)[std::uint32_t(p.type)], args);
  return y.download();
}

/// Every row_step-th row of every token_step-th token; elements between rows and y_stride must be as they were.
Worst compare(Problem const& p, std::vector<float> const& y, bool with_bias, std::int32_t y_stride, std::int32_t row_step = 1,
              std::int32_t token_step = 1, std::vector<float> const& before = {}) {
  Worst worst;
  std::vector<std::vector<double>> x;
  for (std::int32_t t = 0; t < p.n_tokens; t += token_step) x.push_back(half_row_values(p.form, p.input, p.n_tokens, p.dim, t));
  for (std::int32_t r = 0; r < p.rows; r += row_step) {
    std::vector<float> const w = decoded_row(p.type, p.w.data(), p.dim, r);
    for (std::int32_t t = 0; t < p.n_tokens; t += token_step) {
      std::int64_t const i = std::int64_t(t) * y_stride + r;
      double const bias = with_bias ? double(p.bias[std::size_t(r)]) : 0.0, was = before.empty() ? 0.0 : double(before[std::size_t(i)]);
      Expected e = expected_product(p.type, x[std::size_t(t / token_step)], w, bias + was);
      e.tolerance += before.empty() ? 0 : 4 * epsilon * (std::abs(bias) + std::abs(was));
      worst.compare(i, double(y[std::size_t(i)]), e.value, e.tolerance);
    }
  }
  for (std::int32_t t = 0; t < p.n_tokens; ++t)
    for (std::int32_t r = p.rows; r < y_stride; ++r) {
      std::int64_t const i = std::int64_t(t) * y_stride + r;
      worst.compare(i, double(y[std::size_t(i)]), before.empty() ? double(poison) : double(before[std::size_t(i)]), 0);
    }
  return worst;
}

/// Floats have no blocks: an odd number of elements where `odd`.
std::int32_t dim_of(DType type, std::int32_t n_blocks, bool odd) {
  if (block_elems(type) > 1) return n_blocks * std::int32_t(block_elems(type));
  return odd ? n_blocks * 67 : n_blocks * 72;
}

struct Case {
  std::int32_t n_blocks, rows, n_tokens;
  bool bias, odd;
  Values values = Values::ordinary;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  std::int32_t i = 0;
  for (std::int32_t const n_tokens : {1, 2, 15, 16, 17, 33, 64, 100, 130, 257}) {
    constexpr std::int32_t rows[] = {1, 33, 129, 7, 67, 32, 301, 128, 65, 31};
    all.push_back({1 + i % 3, rows[i], n_tokens, i % 2 == 0, i % 3 == 0});
    ++i;
  }
  all.push_back({7, 131, 19, true, true});
  all.push_back({13, 40, 70, false, false});
  for (Values const values : {Values::zeros, Values::subnormal, Values::large}) all.push_back({2, 35, 18, true, true, values});
  return all;
}

}  // namespace

TEST_CASE("CUDA products equal those of the decoded weights and the rounded rows within rounding") {
  if (!has_gpu()) return;
  Gpu gpu;
  INFO("TIERED_SEED=" << fresh_seed());
  for (DType const type : all_formats()) {
    std::uint64_t seed = fresh_seed();
    for (Case const& c : cases()) {
      Problem const p(type, dim_of(type, c.n_blocks, c.odd), c.rows, c.n_tokens, ++seed, c.values);
      std::int32_t const y_stride = c.rows + c.rows % 3;
      Worst const worst = compare(p, multiply(gpu, p, {0, c.rows, 0, c.n_tokens}, c.bias, y_stride), c.bias, y_stride);
      INFO(name(type) << ": " << c.rows << " x " << p.dim << ", " << c.n_tokens << " tokens, " << name(c.values) << ", seed " << seed);
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("CUDA products that are large enough for a library") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    if (type == DType::f32) continue;
    Problem const p(type, 1024, 2061, 1030, 5);
    Worst const worst = compare(p, multiply(gpu, p, {0, p.rows, 0, p.n_tokens}, true, p.rows + 3), true, p.rows + 3, 61, 97);
    INFO(name(type) << ": " << worst.text());
    CHECK(worst.factor <= 1);
  }
}

/// Cosmos-Reason1's vision encoder has rows of 3420: whole words, but not whole 16 bytes. Others are whole halves only, or lie so.
TEST_CASE("CUDA products of many rows of halves that are no whole 16 bytes") {
  if (!has_gpu()) return;
  struct Shape {
    std::int32_t dim, rows, n_tokens, first_row;
    std::size_t shift;
  };
  std::uint64_t seed = fresh_seed();
  INFO("TIERED_SEED=" << seed);
  for (DType const type : {DType::f16, DType::bf16}) {
    for (Shape const& s : {Shape{3420, 1280, 300, 0, 0},
                           {3420, 1280, 300, 1, 0},
                           {1027, 1101, 530, 0, 0},
                           {1030, 1100, 530, 3, 2},
                           {1148, 1000, 530, 0, 4},
                           {1024, 1100, 530, 0, 2},
                           {3420, 5000, 40, 0, 0}}) {
      Gpu gpu;  // whose workspace is not a number
      Problem const whole(type, s.dim, s.first_row + s.rows, s.n_tokens, ++seed);
      Problem p = whole;
      p.rows = s.rows;
      p.w.erase(p.w.begin(), p.w.begin() + std::ptrdiff_t(std::uint64_t(s.first_row) * row_bytes(type, std::uint64_t(s.dim))));
      p.bias.erase(p.bias.begin(), p.bias.begin() + s.first_row);
      for (bool const add : {false, true}) {
        for (std::int32_t const y_stride : {s.rows, s.rows + 3}) {
          bool const bias = add == (y_stride == s.rows);
          SplitMix64 random(seed);
          std::vector<float> const before =
              add ? random_floats(std::size_t(s.n_tokens) * std::size_t(y_stride), random) : std::vector<float>();
          std::vector<float> const y = multiply(gpu, whole, {s.first_row, s.rows, 0, s.n_tokens, s.shift}, bias, y_stride, before);
          Worst const worst = compare(p, y, bias, y_stride, 61, 7, before);
          INFO(name(type) << ": " << s.rows << " x " << s.dim << " from row " << s.first_row << ", " << s.shift << " bytes further, "
                          << s.n_tokens << " tokens" << (add ? ", added" : "") << (bias ? ", bias: " : ": ") << worst.text());
          CHECK(worst.factor <= 1);
        }
      }
    }
  }
}

TEST_CASE("a token that is not finite spoils its own row of a CUDA product of rows that are no whole 16 bytes") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::int32_t const rows = 1280, n_tokens = 200;
  for (DType const type : {DType::f16, DType::bf16}) {
    Problem p(type, 3420, rows, n_tokens, 12);
    std::vector<float> const good = multiply(gpu, p, {0, rows, 0, n_tokens}, true, rows);
    p.x[std::size_t(p.dim) * 150 + 3419] = std::numeric_limits<float>::infinity();
    std::vector<float> const y = multiply(gpu, p, {0, rows, 0, n_tokens}, true, rows);
    std::int64_t n_wrong = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      bool const spoilt = i / std::size_t(rows) == 150;
      if (spoilt ? std::isfinite(y[i]) : y[i] != good[i]) ++n_wrong;
    }
    INFO(name(type));
    CHECK(n_wrong == 0);
  }
}

TEST_CASE("CUDA products that are added to what is there") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::uint64_t seed = fresh_seed();
  INFO("TIERED_SEED=" << seed);
  for (DType const type : all_formats()) {
    std::int32_t const odd = dim_of(type, 3, true);
    struct Shape {
      std::int32_t dim, rows, n_tokens;
    };
    for (Shape const& s : {Shape{odd, 83, 20}, {odd, 131, 130}, {1024, 2061, 1030}}) {
      if (type == DType::f32 && s.rows > 1000) continue;
      for (bool const bias : {false, true}) {
        Problem const p(type, s.dim, s.rows, s.n_tokens, ++seed);
        SplitMix64 random(seed);
        std::int32_t const y_stride = s.rows + 3, row_step = s.rows > 1000 ? 61 : 1, token_step = s.rows > 1000 ? 97 : 1;
        std::vector<float> before = random_floats(std::size_t(s.n_tokens) * std::size_t(y_stride), random);
        for (std::int32_t t = 0; t < s.n_tokens; t += 4)
          for (std::int32_t r = 0; r < s.rows; ++r) before[std::size_t(t) * std::size_t(y_stride) + std::size_t(r)] *= 1e5f;
        std::vector<float> const y = multiply(gpu, p, {0, s.rows, 0, s.n_tokens}, bias, y_stride, before);
        Worst const worst = compare(p, y, bias, y_stride, row_step, token_step, before);
        INFO(name(type) << ": " << s.rows << " x " << s.dim << ", " << s.n_tokens << " tokens" << (bias ? ", bias: " : ": ")
                        << worst.text());
        CHECK(worst.factor <= 1);
      }
    }
  }
}

TEST_CASE("CUDA products of a few shapes: in tiles, by the library from where weights lie, decoded or copied, and of f32", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  struct Shape {
    DType type;
    std::int32_t dim, rows, n_tokens;
  };
  std::uint64_t seed = fresh_seed();
  for (Shape const& s : {Shape{DType::q4_0, 160, 67, 40},
                         {DType::q6_k, 512, 33, 17},
                         {DType::mxfp4, 96, 65, 100},
                         {DType::f16, 201, 67, 33},
                         {DType::bf16, 201, 33, 130},
                         {DType::f32, 201, 67, 33},
                         {DType::f16, 1024, 67, 33},
                         {DType::q4_0, 1024, 1030, 130},
                         {DType::f16, 1027, 1030, 130},
                         {DType::bf16, 1148, 920, 130}}) {
    Problem const p(s.type, s.dim, s.rows, s.n_tokens, ++seed);
    std::int32_t const step = s.rows > 1000 ? 31 : 1, y_stride = s.rows + 3;
    SplitMix64 random(seed);
    std::vector<float> const before = random_floats(std::size_t(s.n_tokens) * std::size_t(y_stride), random);
    for (bool const add : {false, true}) {
      std::vector<float> const was = add ? before : std::vector<float>();
      Worst const worst =
          compare(p, multiply(gpu, p, {0, s.rows, 0, s.n_tokens}, true, y_stride, was), true, y_stride, step, step > 1 ? 7 : 1, was);
      INFO("TIERED_SEED=" << fresh_seed() << ": " << name(s.type) << ", " << s.rows << " x " << s.dim << ", " << s.n_tokens << " tokens"
                          << (add ? ", added: " : ": ") << worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}

TEST_CASE("CUDA products whose decoded weights are more than the workspace holds") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::int32_t const rows = std::int32_t(cuda_workspace_bytes / 2048 + 1000);
  Problem const p(DType::q4_0, 1024, rows, 515, 6);
  for (bool const bias : {false, true}) {
    Worst const worst = compare(p, multiply(gpu, p, {0, rows, 0, p.n_tokens}, bias, rows), bias, rows, 101, 37);
    INFO(worst.text());
    CHECK(worst.factor <= 1);
  }
}

TEST_CASE("a CUDA product is the same with one token or many, and for every range of rows") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    INFO(name(type));
    Problem const p(type, dim_of(type, 3, true), 83, 140,
                    99);  // an odd dim and few elements keep halves from the library, which chooses by size
    std::vector<float> const all = multiply(gpu, p, {0, p.rows, 0, p.n_tokens}, true, p.rows);
    for (std::int32_t t = 0, step = 1; t < p.n_tokens; t += step, step = step * 3 + 1) {
      std::int32_t const n = std::min(step, p.n_tokens - t);
      std::vector<float> const part = multiply(gpu, p, {0, p.rows, t, n}, true, p.rows);
      CHECK(same_bits(part, std::vector<float>(all.begin() + t * p.rows, all.begin() + (t + n) * p.rows)));
    }
    for (std::int32_t r = 0, step = 1; r < p.rows; r += step, step = step * 2 + 3) {
      std::int32_t const n = std::min(step, p.rows - r);
      std::vector<float> const part = multiply(gpu, p, {r, n, 0, p.n_tokens}, true, n);
      std::vector<float> expected;
      for (std::int32_t t = 0; t < p.n_tokens; ++t)
        expected.insert(expected.end(), all.begin() + t * p.rows + r, all.begin() + t * p.rows + r + n);
      CHECK(same_bits(part, expected));
    }
  }
}

TEST_CASE("a token with an infinity or a NaN spoils its own row of a CUDA product only, and visibly") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const type : all_formats()) {
    INFO(name(type));
    for (float const bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      Problem p(type, dim_of(type, 2, true), 6, 5, 3);
      std::vector<float> const good = multiply(gpu, p, {0, 6, 0, 5}, false, 6);
      p.x[std::size_t(p.dim) * 2 + 7] = bad;
      std::vector<float> const y = multiply(gpu, p, {0, 6, 0, 5}, false, 6);
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
