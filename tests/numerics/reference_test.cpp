// The reference kernels against values worked out by hand and properties that follow from their definitions.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "tiered/kernels/reference/table.hpp"
#include "tiered/sim/split_mix.hpp"

namespace {

using namespace tiered;

std::vector<float> uniform(std::size_t n, std::uint64_t seed, float limit = 1) {
  SplitMix64 random(seed);
  std::vector<float> x(n);
  for (float& v : x) v = random.between(-limit, limit);
  return x;
}

/// Encoded rows, in storage aligned for every block.
std::vector<std::uint32_t> encoded(DType dtype, std::vector<float> const& x) {
  std::vector<std::uint32_t> bytes(row_bytes(dtype, x.size()) / 4 + 1);
  encode_row(dtype, x.data(), std::int64_t(x.size()), bytes.data());
  return bytes;
}

/// KV pages of one sequence, with storage.
struct Pages {
  std::vector<std::vector<std::uint16_t>> storage;
  std::vector<std::byte*> k, v;
  Pages(std::size_t n_pages, std::size_t elems_per_page) : storage(2 * n_pages, std::vector<std::uint16_t>(elems_per_page)) {
    for (std::size_t p = 0; p < n_pages; ++p) {
      k.push_back(reinterpret_cast<std::byte*>(storage[2 * p].data()));
      v.push_back(reinterpret_cast<std::byte*>(storage[2 * p + 1].data()));
    }
  }
  KvTable table() const { return {k.data(), v.data()}; }
};

}  // namespace

TEST_CASE("reference matmul: by hand, with bias and stride", "[reference]") {
  float const w[] = {1, 2, 3, 4, 5, 6}, x[] = {1, 1, 2, -1}, bias[] = {0, 10, 100};
  std::vector<float> y(8, -7);
  reference::matmul(MatmulArgs{w, x, bias, y.data(), 2, 3, 2, 4}, DType::f32);
  CHECK(y == std::vector<float>{3, 17, 111, -7, 0, 12, 104, -7});
  CHECK_THROWS_AS(reference::matmul(MatmulArgs{w, x, bias, y.data(), 2, 3, 2, 2}, DType::f32), Error);
  CHECK_THROWS_AS(reference::matmul(MatmulArgs{w, x, bias, y.data(), 2, 3, 2, 3}, DType::f32, DType::f16), Error);
}

TEST_CASE("reference matmul: every format, f32 and 8-bit activations", "[reference]") {
  constexpr std::int32_t n_tokens = 3, rows = 5, dim = 512;
  std::vector<float> const x = uniform(n_tokens * dim, 1), dense = uniform(rows * dim, 2, 0.1f);
  for_each_format([&](auto format) {
    using F = decltype(format);
    INFO(name(F::dtype));
    std::vector<std::uint32_t> const w = encoded(F::dtype, dense);
    auto const* const blocks = reinterpret_cast<typename F::Block const*>(w.data());
    std::vector<float> y(n_tokens * rows), y_q8 = y;
    reference::matmul(MatmulArgs{w.data(), x.data(), nullptr, y.data(), n_tokens, rows, dim, rows}, F::dtype);
    DType const activation = quantized_activation(F::dtype);
    std::vector<std::uint32_t> x_q8(row_bytes(activation, x.size()) / 4);
    if (activation == DType::f32) {
      std::copy(x.begin(), x.end(), reinterpret_cast<float*>(x_q8.data()));
    } else {
      reference::quantize(QuantizeArgs{x.data(), x_q8.data(), n_tokens, dim});
    }
    reference::matmul(MatmulArgs{w.data(), x_q8.data(), nullptr, y_q8.data(), n_tokens, rows, dim, rows}, F::dtype, activation);
    for (std::int32_t t = 0; t < n_tokens; ++t) {
      for (std::int32_t r = 0; r < rows; ++r) {
        double want = 0, sum_of_magnitudes = 0;
        for (std::int32_t k = 0; k < dim; ++k) {
          std::int32_t const i = r * dim + k;
          double const value = double(F::decode(blocks[i / F::block_elems], i % F::block_elems));
          want += value * double(x[std::size_t(t * dim + k)]);
          sum_of_magnitudes += std::fabs(value);
        }
        std::size_t const at = std::size_t(t * rows + r);
        REQUIRE(std::fabs(double(y[at]) - want) <= 1e-7 * sum_of_magnitudes);
        // 8 bits: each activation, at most 1 in magnitude, is off by at most half a step of 1 / 127
        double const allowed = activation == DType::f32 ? 1e-7 : 0.5001 / 127;
        REQUIRE(std::fabs(double(y_q8[at]) - want) <= allowed * sum_of_magnitudes);
      }
    }
  });
}

TEST_CASE("reference matmul: an activation that is not a number makes its own row NaN, and no other", "[reference]") {
  std::vector<float> x = uniform(3 * 256, 4);
  x[256 + 17] = std::numeric_limits<float>::infinity();
  std::vector<std::uint32_t> const w = encoded(DType::q4_k, uniform(2 * 256, 5));
  std::vector<std::uint32_t> blocks(3 * 8 * sizeof(ActQ8x32) / 4);
  reference::quantize(QuantizeArgs{x.data(), blocks.data(), 3, 256});
  std::vector<float> y(6);
  reference::matmul(MatmulArgs{w.data(), blocks.data(), nullptr, y.data(), 3, 2, 256, 2}, DType::q4_k, DType::act_q8);
  for (std::size_t i = 0; i < 6; ++i) CHECK(std::isnan(y[i]) == (i / 2 == 1));
}

TEST_CASE("reference panels: rows side by side, neighbours in k together, subnormals and the end of a row zero", "[reference]") {
  CHECK(float_to_panel(1.0f) == 0x3f80);
  CHECK(float_to_panel(0x1.01p0f) == 0x3f80);  // a tie, to even
  CHECK(float_to_panel(0x1.03p0f) == 0x3f82);
  CHECK(float_to_panel(-0x1.fep-127f) == 0x8000);  // the nearest bfloat16 would be normal
  CHECK(float_to_panel(0x1p-126f) == 0x0080);
  CHECK(float_to_panel(0x1.ffp127f) == 0x7f80);
  CHECK((float_to_panel(std::numeric_limits<float>::quiet_NaN()) & 0x7fc0) == 0x7fc0);

  constexpr std::int32_t n_rows = 18, dim = 35;  // a panel of 16 rows, one of 2; 64 elements each
  std::vector<float> x(n_rows * dim);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = float(i / dim * 3 + i % dim);  // below 256: exact
  std::vector<std::uint16_t> panels(activation_bytes(DType::act_bf16, n_rows, dim) / 2, 0x5555);
  REQUIRE(panels.size() == 18 * 64);
  reference::quantize(QuantizeArgs{x.data(), panels.data(), n_rows, dim}, DType::act_bf16);
  CHECK(panels[0] == float_to_panel(x[0]));
  CHECK(panels[1] == float_to_panel(x[1]));
  CHECK(panels[2] == float_to_panel(x[dim]));                   // row 1, element 0
  CHECK(panels[2 * 16 + 6] == float_to_panel(x[3 * dim + 2]));  // row 3, element 2
  CHECK(panels[16 * 64] == float_to_panel(x[16 * dim]));
  CHECK(panels[16 * 64 + 4 + 3] == float_to_panel(x[17 * dim + 3]));
  CHECK(panels[34 / 2 * 32] == float_to_panel(x[34]));
  CHECK(panels[34 / 2 * 32 + 1] == 0);
  CHECK(panels[16 * 64 + 63 * 2] == 0);
  for (std::int32_t row = 0; row < n_rows; ++row) {
    std::vector<double> const values = reference::activation_row(DType::act_bf16, panels.data(), n_rows, dim, row);
    for (std::size_t k = 0; k < values.size(); ++k) REQUIRE(values[k] == double(x[std::size_t(row) * dim + k]));
  }
  CHECK_THROWS_AS(reference::quantize(QuantizeArgs{x.data(), panels.data(), n_rows, dim}, DType::f32), Error);
}

TEST_CASE("reference panels of long rows: all panels of a stretch, then those of the next, every half-word once", "[reference]") {
  constexpr std::int32_t n_rows = 18, dim = 1024 + 35;  // stretches of 1024 and 64
  CHECK(panel_index(n_rows, dim, 0, 1023) == 511 * 32 + 1);
  CHECK(panel_index(n_rows, dim, 16, 0) == 16 * 1024);
  CHECK(panel_index(n_rows, dim, 17, 1022) == 16 * 1024 + 511 * 4 + 2);
  CHECK(panel_index(n_rows, dim, 0, 1024) == 18 * 1024);
  CHECK(panel_index(n_rows, dim, 3, 1026) == 18 * 1024 + 32 + 6);
  CHECK(panel_index(n_rows, dim, 16, 1024) == 18 * 1024 + 16 * 64);
  CHECK(panel_index(n_rows, dim, 17, 1058) == 18 * 1024 + 16 * 64 + 17 * 4 + 2);
  for (std::int32_t const d : {1, 31, 32, 992, 1023, 1024, 1025, 2048, 2080, 3071}) {
    for (std::int32_t const n : {1, 15, 16, 17, 33}) {
      std::vector<int> times(activation_bytes(DType::act_bf16, std::uint64_t(n), std::uint64_t(d)) / 2);
      for (std::int32_t row = 0; row < n; ++row) {
        for (std::int32_t k = 0; k < (d + 31) / 32 * 32; ++k) ++times.at(std::size_t(panel_index(n, d, row, k)));
      }
      INFO(n << " rows of " << d);
      CHECK(std::count(times.begin(), times.end(), 1) == std::ptrdiff_t(times.size()));
    }
  }
}

TEST_CASE("reference rms_norm", "[reference]") {
  float const x[] = {3, 4, 0, 0, 1, -1, 1, -1}, weight[] = {1, 2, 3, 4};
  std::vector<float> y(8);
  reference::rms_norm(RmsNormArgs{x, weight, y.data(), 2, 4, 0});
  CHECK(y == std::vector<float>{1.2f, 3.2f, 0, 0, 1, -2, 3, -4});  // the mean square of the first row is 2.5^2
  std::copy(std::begin(x), std::end(x), y.begin());
  reference::rms_norm(RmsNormArgs{y.data(), nullptr, y.data(), 2, 4, 3});  // in place; 1 / sqrt(1 + 3) for the second row
  CHECK(y[4] == 0.5f);
  CHECK(y[7] == -0.5f);
  CHECK(y[0] == Approx(3 / std::sqrt(9.25)));
  std::vector<float> zeros(4);
  reference::rms_norm(RmsNormArgs{zeros.data(), weight, zeros.data(), 1, 4, 1e-6f});
  CHECK(zeros == std::vector<float>(4));
}

TEST_CASE("reference rope", "[reference]") {
  float const quarter = 1.57079632679489661923f;
  float const inv_freq[] = {quarter, 2 * quarter};
  std::int32_t const positions[] = {0, 1};
  std::vector<float> const start = {1, 2, 3, 4, 9, 8, 1, 2, 3, 4, 9, 8};  // two tokens, one head of 6, of which 4 turn
  SECTION("adjacent") {
    std::vector<float> x = start;
    reference::rope(RopeArgs{x.data(), positions, inv_freq, 2, 1, 6, 4, RopeKind::adjacent, 1});
    float const want[] = {1, 2, 3, 4, 9, 8, -2, 1, -3, -4, 9, 8};  // (1, 2) by a quarter, (3, 4) by a half
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == Approx(want[i]).margin(1e-6));
  }
  SECTION("halves") {
    std::vector<float> x = start;
    reference::rope(RopeArgs{x.data(), positions, inv_freq, 2, 1, 6, 4, RopeKind::halves, 2});
    float const want[] = {2, 4, 6, 8, 9, 8, -6, -4, 2, -8, 9, 8};  // (1, 3) by a quarter, (2, 4) by a half, all twice as long
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(x[i] == Approx(want[i]).margin(1e-6));
  }
  SECTION("of several rows of positions, each pair by its own") {
    SplitMix64 random(77);
    constexpr std::int32_t n_tokens = 3, n_heads = 2, head_dim = 22, n_rot = 18, n_rows = 4, stride = 5;
    for (RopeKind const kind : {RopeKind::adjacent, RopeKind::halves}) {
      std::vector<float> const x = uniform(n_tokens * n_heads * head_dim, 9), frequencies = uniform(n_rot / 2, 10);
      std::vector<std::int32_t> places(n_rows * stride);
      for (std::int32_t& p : places) p = std::int32_t(random.below(100));
      std::vector<std::uint8_t> row(n_rot / 2);
      for (std::uint8_t& r : row) r = std::uint8_t(random.below(n_rows));
      RopeArgs args{nullptr, places.data(), frequencies.data(), n_tokens, n_heads, head_dim, n_rot, kind, 1.5f};
      std::vector<std::vector<float>> by_row(n_rows, x);
      for (std::size_t r = 0; r < n_rows; ++r) {
        args.x = by_row[r].data();
        args.positions = places.data() + r * stride;
        reference::rope(args);
      }
      std::vector<float> mixed = x;
      args.x = mixed.data();
      args.positions = places.data();
      args.position_row = row.data();
      args.position_stride = stride;
      reference::rope(args);
      for (std::size_t i = 0; i < x.size(); ++i) {
        std::size_t const k = i % head_dim, half = n_rot / 2;
        std::size_t const pair = k >= n_rot ? 0 : kind == RopeKind::adjacent ? k / 2 : k % half;
        CHECK(mixed[i] == by_row[row[pair]][i]);
      }
    }
  }
  SECTION("a product of two vectors depends on the distance of their positions only") {
    for (RopeKind kind : {RopeKind::adjacent, RopeKind::halves}) {
      float const frequencies[] = {1, 0.1f, 0.01f, 0.001f};
      auto const product = [&](std::int32_t p, std::int32_t q) {
        std::int32_t const at[] = {p, q};
        std::vector<float> x = uniform(16, 8);
        reference::rope(RopeArgs{x.data(), at, frequencies, 2, 1, 8, 8, kind, 1});
        double sum = 0;
        for (std::size_t k = 0; k < 8; ++k) sum += double(x[k]) * double(x[k + 8]);
        return sum;
      };
      CHECK(product(3, 10) == Approx(product(1003, 1010)).epsilon(1e-5));
      CHECK(product(3, 10) != Approx(product(3, 11)).epsilon(1e-5));
    }
  }
}

TEST_CASE("reference attention: softmax, pages, heads, windows", "[reference]") {
  // Two KV heads of 4 for four query heads, pages of 2 positions, 5 positions. Values are multiples of 1/8, exact in f16.
  constexpr std::int32_t head_dim = 4, n_kv = 2, page_tokens = 2, n = 5;
  Pages const pages(3, n_kv * page_tokens * head_dim), other(3, n_kv * page_tokens * head_dim);
  KvTable const tables[] = {other.table(), pages.table()};
  std::vector<float> k(n * n_kv * head_dim), v(k.size());
  SplitMix64 random(12);
  for (float& value : k) value = float(int(random.below(33)) - 16) / 8;
  for (float& value : v) value = float(int(random.below(33)) - 16) / 8;
  std::vector<KvRow> rows;
  for (std::int32_t p = 0; p < n; ++p) rows.push_back({1, p});
  reference::kv_write(KvWriteArgs{k.data(), v.data(), rows.data(), tables, n, n_kv, head_dim, page_tokens});
  CHECK(half_to_float(pages.storage[2][1 * 8 + 1 * 4 + 2]) == k[(3 * n_kv + 1) * head_dim + 2]);  // page 1, head 1, its second place

  AttentionArgs a;
  std::vector<float> q(4 * head_dim), out(4 * head_dim), lse(4);
  a.q = q.data(), a.out = out.data(), a.log_sum_exp = lse.data(), a.tables = tables;
  a.n_tokens = 1, a.n_heads = 4, a.n_kv_heads = n_kv, a.head_dim = head_dim, a.page_tokens = page_tokens, a.max_position = n - 1;
  a.scale = 0.5f;
  auto const value = [&](std::int32_t p, std::int32_t kv_head, std::int32_t d) {
    return double(v[std::size_t((p * n_kv + kv_head) * head_dim + d)]);
  };

  SECTION("equal scores: the mean of all values up to the row's position, or of those in the window") {
    for (std::int32_t position : {0, 1, 4}) {
      for (std::int32_t window : {0, 1, 2, 3, 100}) {
        KvRow const row{1, position};
        a.rows = &row, a.window = window;
        reference::attention(a);
        std::int32_t const first = window == 0 ? 0 : std::max(0, position - window + 1);
        for (std::int32_t h = 0; h < 4; ++h) {
          CHECK(lse[std::size_t(h)] == Approx(std::log(double(position - first + 1))).margin(1e-7));
          for (std::int32_t d = 0; d < head_dim; ++d) {
            double mean = 0;
            for (std::int32_t p = first; p <= position; ++p) mean += value(p, h / 2, d) / (position - first + 1);
            CHECK(out[std::size_t(h * head_dim + d)] == Approx(mean).margin(1e-6));
          }
        }
      }
    }
  }
  SECTION("scores as defined") {
    q = uniform(q.size(), 13, 3);
    a.q = q.data();
    KvRow const row{1, 4};
    a.rows = &row;
    reference::attention(a);
    for (std::int32_t h = 0; h < 4; ++h) {
      double sum = 0, want[head_dim] = {};
      for (std::int32_t p = 0; p < n; ++p) {
        double score = 0;
        for (std::int32_t d = 0; d < head_dim; ++d)
          score += double(q[std::size_t(h * head_dim + d)]) * double(k[std::size_t((p * n_kv + h / 2) * head_dim + d)]);
        double const weight = std::exp(0.5 * score);
        sum += weight;
        for (std::int32_t d = 0; d < head_dim; ++d) want[d] += weight * value(p, h / 2, d);
      }
      CHECK(lse[std::size_t(h)] == Approx(std::log(sum)));
      for (std::int32_t d = 0; d < head_dim; ++d) CHECK(out[std::size_t(h * head_dim + d)] == Approx(want[d] / sum).margin(1e-6));
    }
  }
  SECTION("huge scores do not overflow") {
    for (float& x : q) x = 1e30f;
    KvRow const row{1, 4};
    a.rows = &row;
    reference::attention(a);
    for (float x : out) CHECK(std::isfinite(x));
  }
}

TEST_CASE("reference elementwise ops and gather", "[reference]") {
  std::vector<float> const gate = {0, 1, -2, 30, -200}, up = {5, 2, 1, 2, 3};
  std::vector<float> out(5);
  reference::gated(GatedArgs{gate.data(), up.data(), out.data(), 5, Activation::silu});
  double const silu[] = {0, 2 / (1 + std::exp(-1.0)), -2 / (1 + std::exp(2.0)), 60, 0};
  for (std::size_t i = 0; i < 5; ++i) CHECK(out[i] == Approx(silu[i]).margin(1e-30));
  reference::gated(GatedArgs{gate.data(), up.data(), out.data(), 5, Activation::gelu_tanh});
  double const gelu[] = {0, 2 * 0.8411919906, -0.0454023059, 60, 0};  // values of the published approximation
  for (std::size_t i = 0; i < 5; ++i) CHECK(out[i] == Approx(gelu[i]).margin(1e-9));

  std::vector<float> x = {0, 1, -2, 30, -200};
  reference::activate(ActivateArgs{x.data(), 5, Activation::quick_gelu});
  double const quick[] = {0, 1 / (1 + std::exp(-1.702)), -2 / (1 + std::exp(2 * 1.702)), 30, 0};
  for (std::size_t i = 0; i < 5; ++i) CHECK(x[i] == Approx(quick[i]).margin(1e-30));
  x = {0, 1, -2, 30, -200};
  reference::activate(ActivateArgs{x.data(), 5, Activation::gelu_erf});
  double const exact[] = {0, 0.8413447461, -0.0455002639, 30, 0};  // x times the normal distribution's table
  for (std::size_t i = 0; i < 5; ++i) CHECK(x[i] == Approx(exact[i]).margin(1e-9));

  reference::add(AddArgs{up.data(), out.data(), 1});
  CHECK(out[0] == 5);
  CHECK(out[3] == 60);
  std::int32_t const index[] = {1, 1, 0};
  std::vector<float> y(6);
  reference::gather(GatherArgs{up.data(), index, y.data(), 3, 2});
  CHECK(y == std::vector<float>{1, 2, 1, 2, 5, 2});
}

TEST_CASE("reference layer_norm and add_taps", "[reference]") {
  std::vector<float> const x = {1, 3, 5, 7, -2, -2, -2, -2}, weight = {1, 2, 1, -1}, bias = {0, 0, 1, 10};
  std::vector<float> y(8);
  reference::layer_norm(LayerNormArgs{x.data(), weight.data(), bias.data(), y.data(), 2, 4, 4});  // mean 4, variance 5, and 4: a root of 3
  double const normed[] = {-1, -2.0 / 3, 1 + 1.0 / 3, 9, 0, 0, 1, 10};
  for (std::size_t i = 0; i < 8; ++i) CHECK(y[i] == Approx(normed[i]));
  reference::layer_norm(LayerNormArgs{x.data(), nullptr, nullptr, y.data(), 1, 4, 4});
  for (std::size_t i = 0; i < 4; ++i) CHECK(y[i] == Approx((double(x[i]) - 4) / 3));

  std::vector<float> const table = {1, 10, 2, 20, 3, 30}, share = {1, 0.5f, -2, 0, 0.25f, 0.25f, 0.25f, 0.25f};
  std::int32_t const index[] = {2, 1, 0, 0, 1, 1, 1, 1};
  std::vector<float> sums = {100, 200, 0, -1};
  reference::add_taps(AddTapsArgs{table.data(), index, share.data(), sums.data(), 2, 2});
  CHECK(sums == std::vector<float>{102, 220, 2, 19});
}

TEST_CASE("reference embed", "[reference]") {
  std::vector<float> const dense = uniform(3 * 64, 20);
  std::vector<std::uint32_t> const table = encoded(DType::q8_0, dense);
  std::vector<float> rows(3 * 64), out(2 * 64);
  decode_row(DType::q8_0, table.data(), 3 * 64, rows.data());
  std::int32_t const tokens[] = {2, 0};
  reference::embed(EmbedArgs{table.data(), tokens, out.data(), 2, 64, 8}, DType::q8_0);
  for (std::size_t k = 0; k < 64; ++k) {
    CHECK(out[k] == 8 * rows[2 * 64 + k]);
    CHECK(out[64 + k] == 8 * rows[k]);
  }
}

TEST_CASE("reference route", "[reference]") {
  std::int32_t ids[2] = {};
  float weights[2] = {};
  auto const route = [&](std::vector<float> const& logits, float const* bias, Gating gating, bool normalise, float scale) {
    reference::route(RouteArgs{logits.data(), bias, ids, weights, 1, std::int32_t(logits.size()), 2, gating, normalise, scale});
  };
  float const ln2 = 0.69314718055994530942f, nan = std::numeric_limits<float>::quiet_NaN();
  SECTION("softmax: ids ascend, weights follow them") {
    route({2 * ln2, 0, 3 * ln2, 0}, nullptr, Gating::softmax, false, 1);  // 4, 1, 8, 1 of 14
    CHECK((ids[0] == 0 && ids[1] == 2));
    CHECK(weights[0] == Approx(4.0 / 14));
    CHECK(weights[1] == Approx(8.0 / 14));
    route({3 * ln2, 0, 2 * ln2, 0}, nullptr, Gating::softmax, true, 3);
    CHECK((ids[0] == 0 && ids[1] == 2));
    CHECK(weights[0] == Approx(2.0));
    CHECK(weights[1] == Approx(1.0));
  }
  SECTION("equal scores: the lower ids") {
    route({1, 1, 1, 1}, nullptr, Gating::softmax, true, 1);
    CHECK((ids[0] == 0 && ids[1] == 1));
    route({0, 1, 2, 1}, nullptr, Gating::sigmoid, true, 1);
    CHECK((ids[0] == 1 && ids[1] == 2));
  }
  SECTION("a bias changes the choice, not the weights") {
    float const bias[] = {0, 0, 0, 5};
    route({0, -ln2, ln2, -2 * ln2}, bias, Gating::sigmoid, false, 1);
    CHECK((ids[0] == 2 && ids[1] == 3));
    CHECK(weights[0] == Approx(2.0 / 3));
    CHECK(weights[1] == Approx(1.0 / 5));
  }
  SECTION("what is not a number is chosen last") {
    route({nan, 0, nan, 1}, nullptr, Gating::sigmoid, false, 1);
    CHECK((ids[0] == 1 && ids[1] == 3));
    route({nan, nan, nan, 1}, nullptr, Gating::sigmoid, false, 1);
    CHECK((ids[0] == 0 && ids[1] == 3));
    route({nan, nan, nan, nan}, nullptr, Gating::softmax, true, 1);
    CHECK((ids[0] == 0 && ids[1] == 1));
  }
  SECTION("more experts asked for than there are") { CHECK_THROWS_AS(route({1}, nullptr, Gating::softmax, true, 1), Error); }
}

TEST_CASE("reference experts and combine", "[reference]") {
  constexpr std::int32_t dim = 32, hidden = 64, n_tokens = 2, n_used = 2;
  std::vector<float> const x = uniform(n_tokens * dim, 30);
  std::vector<std::vector<std::uint32_t>> w;
  for (std::uint64_t i = 0; i < 2; ++i) {
    w.push_back(encoded(DType::q8_0, uniform(hidden * dim, 31 + 3 * i)));
    w.push_back(encoded(DType::q4_1, uniform(hidden * dim, 32 + 3 * i)));
    w.push_back(encoded(DType::f16, uniform(hidden * dim, 33 + 3 * i)));
  }
  std::int32_t const slots[] = {3, 0, 2};  // expert 0: both tokens; expert 1: the second; slot 1 is another device's
  ExpertGroup const groups[] = {{w[0].data(), w[1].data(), w[2].data(), 0, 2}, {w[3].data(), w[4].data(), w[5].data(), 2, 1}};
  std::vector<float> y(n_tokens * n_used * dim, -7);
  ExpertsArgs a;
  a.x = x.data(), a.y = y.data(), a.groups = groups, a.slots = slots;
  a.n_groups = 2, a.n_tokens = n_tokens, a.n_used = n_used, a.dim = dim, a.hidden_dim = hidden, a.n_slots = 3;
  a.gate_type = DType::q8_0, a.up_type = DType::q4_1, a.down_type = DType::f16, a.activation = Activation::silu;
  reference::experts(a);

  auto const expected = [&](std::size_t expert, std::size_t token) {
    std::vector<float> gate(hidden), up(hidden), out(dim);
    float const* const row = x.data() + token * dim;
    reference::matmul(MatmulArgs{w[3 * expert].data(), row, nullptr, gate.data(), 1, hidden, dim, hidden}, DType::q8_0);
    reference::matmul(MatmulArgs{w[3 * expert + 1].data(), row, nullptr, up.data(), 1, hidden, dim, hidden}, DType::q4_1);
    reference::gated(GatedArgs{gate.data(), up.data(), gate.data(), hidden, Activation::silu});
    reference::matmul(MatmulArgs{w[3 * expert + 2].data(), gate.data(), nullptr, out.data(), 1, dim, hidden, dim}, DType::f16);
    return out;
  };
  auto const slot = [&](std::size_t s) {
    return std::vector<float>(y.begin() + std::ptrdiff_t(s * dim), y.begin() + std::ptrdiff_t((s + 1) * dim));
  };
  CHECK(slot(0) == expected(0, 0));
  CHECK(slot(3) == expected(0, 1));
  CHECK(slot(2) == expected(1, 1));
  CHECK(slot(1) == std::vector<float>(dim, -7));

  SECTION("8-bit activations: close, and not the same") {
    std::vector<float> const exact = slot(0);
    reference::experts(a, quantized_activation);
    double error = 0, norm = 0;
    for (std::size_t k = 0; k < dim; ++k) error += std::pow(double(y[k]) - exact[k], 2), norm += std::pow(double(exact[k]), 2);
    CHECK(error > 0);
    CHECK(std::sqrt(error / norm) < 0.03);
  }
  SECTION("combine") {
    float const weights[] = {0.5f, 2, 1, -1};
    std::vector<float> out(n_tokens * dim);
    reference::combine(CombineArgs{y.data(), weights, out.data(), n_tokens, n_used, dim});
    for (std::size_t k = 0; k < dim; ++k) {
      CHECK(out[k] == Approx(0.5 * y[k] + 2.0 * y[dim + k]));
      CHECK(out[dim + k] == Approx(double(y[2 * dim + k]) - y[3 * dim + k]).margin(1e-6));
    }
  }
}

TEST_CASE("the reference tables have every entry", "[reference]") {
  for (KernelTable const* table : {&reference::kernels(), &reference::kernels_q8(), &reference::kernels_bf16()}) {
    for_each_format([&](auto format) {
      constexpr DType dtype = decltype(format)::dtype;
      CHECK(table->supports(dtype));
      CHECK(table->embed[std::uint32_t(dtype)] != nullptr);
      DType const converted = table == &reference::kernels_bf16() ? panel_activation(dtype) : quantized_activation(dtype);
      CHECK(table->activation[std::uint32_t(dtype)] == (table == &reference::kernels() ? DType::f32 : converted));
    });
    CHECK_FALSE(table->supports(DType::q8_1));
    CHECK((table->convert[0] && table->convert[1] && table->rms_norm && table->rope && table->kv_write[std::uint32_t(DType::f16)] &&
           table->attention[std::uint32_t(DType::f16)]));
    CHECK((table->gated && table->add && table->gather && table->route && table->experts && table->combine));
  }
  float const w[] = {1, 2}, x[] = {3, 4};
  float y = 0;
  CHECK(reference::kernels().matmul[0](MatmulArgs{w, x, nullptr, &y, 1, 1, 2, 1}, Queue{}) == 0);
  CHECK(y == 11);
}
