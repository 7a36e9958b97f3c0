// The AMX products: on emulated tiles against the documented arithmetic, bit for bit; on real ones against the emulation.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "at_the_end.hpp"
#include "catch.hpp"
#include "cpu_cases.hpp"
#include "emulated_tiles.hpp"
#include "tiered/kernels/reference/matmul.hpp"
#include "tiered/kernels/reference/quantize.hpp"

#if defined(__x86_64__)

#include <cpuid.h>
#include "tiered/kernels/cpu/amx.hpp"

using namespace tiered_test;

namespace tiered_test {

bool can_emulate_amx() {  // leaf 7, subleaf 1, EAX bit 5: AVX-512 with bfloat16
  unsigned a = 0, b = 0, c = 0, d = 0;
  return available(Isa::avx512) && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 5 & 1) != 0;
}
KernelTable const& emulated_amx(bool f32_activations) { return cpu::kernel_table<cpu::amx::KernelsOn<EmulatedTiles>>(f32_activations); }

}  // namespace tiered_test

namespace {

namespace amx = cpu::amx;

/// True, with a message, where the kernels cannot run even on emulated tiles.
bool skipped() {
  if (!can_emulate_amx()) WARN("skipped: this processor has no AVX-512 with bfloat16");
  return !can_emulate_amx();
}

float as_float(std::uint16_t bits) { return bfloat16_to_float(bits); }

/// y[t, r] after the pseudo-code, 32 elements a step, added to `sum`; a row of weights and one of activations, both rounded, filled up with
/// zeros.
float documented_sum(std::vector<std::uint16_t> const& w, std::vector<std::uint16_t> const& x, float sum) {
  for (std::size_t k = 0; k < w.size(); k += 32) {
    float even = 0, odd = 0;
    for (std::size_t i = k; i < k + 32; i += 2) {
      even = std::fma(as_float(w[i]), as_float(x[i]), even);
      odd = std::fma(as_float(w[i + 1]), as_float(x[i + 1]), odd);
    }
    float const both = even + odd;
    sum = sum + both;
  }
  return sum;
}

/// The parts of an operand.
struct Parts {
  std::vector<std::uint16_t> first, second;
  Parts(float const* values, std::int32_t n) : first(std::size_t(n + 31) / 32 * 32), second(first.size()) {
    std::transform(values, values + n, first.begin(), float_to_panel);
    std::transform(values, values + n, second.begin(), float_to_panel_rest);
  }
};

/// A matrix and tokens in panels, of one part or of two, for calls of tile functions without a table.
struct PanelCase {
  PanelCase(DType type_, std::int32_t dim_, std::int32_t rows_, std::int32_t n_tokens_, std::uint64_t seed, bool two_ = false)
      : type(type_), dim(dim_), rows(rows_), n_tokens(n_tokens_), two(two_) {
    SplitMix64 random(seed);
    w = random_weights(type, std::int64_t(rows) * dim, random);
    x = random_floats(std::size_t(n_tokens) * std::size_t(dim), random);
    bias = random_floats(std::size_t(rows), random);
    DType const form = two ? DType::act_bf16_two : DType::act_bf16;
    panels.resize(activation_bytes(form, std::uint64_t(n_tokens), std::uint64_t(dim)));
    reference::quantize({x.data(), panels.data(), n_tokens, dim}, form);
  }
  cpu::Product product(std::vector<float>& y, bool with_bias) const {
    cpu::Product p;
    static_cast<MatmulArgs&>(p) = {w.data(), panels.data(), with_bias ? bias.data() : nullptr, y.data(), n_tokens, rows, dim, rows};
    return p;
  }
  std::vector<float> documented(bool with_bias) const {
    std::vector<float> y(std::size_t(n_tokens) * std::size_t(rows));
    std::vector<Parts> tokens;
    for (std::int32_t t = 0; t < n_tokens; ++t) tokens.emplace_back(x.data() + std::int64_t(t) * dim, dim);
    std::vector<float> decoded(static_cast<std::size_t>(dim));
    for (std::int32_t r = 0; r < rows; ++r) {
      decode_row(type, w.data() + std::size_t(r) * row_bytes(type, std::uint64_t(dim)), dim, decoded.data());
      Parts const row(decoded.data(), dim);
      for (std::int32_t t = 0; t < n_tokens; ++t) {
        Parts const& token = tokens[std::size_t(t)];
        float sum = 0;
        if (two) sum = documented_sum(row.first, token.second, documented_sum(row.second, token.first, sum));
        sum = documented_sum(row.first, token.first, sum);
        y[std::size_t(t) * std::size_t(rows) + std::size_t(r)] = (with_bias ? bias[std::size_t(r)] : 0.0f) + sum;
      }
    }
    return y;
  }
  DType type;
  std::int32_t dim, rows, n_tokens;
  bool two;
  std::vector<std::byte> w, panels;
  std::vector<float> x, bias;
};

template <class Tiles, amx::Blocking blocking = amx::Blocking{}>
void run_tile(DType type, bool two, cpu::Product const& p, Range rows, Range tokens) {
  if (two) return amx::two_panels_tile<F16, Tiles, blocking>(p, rows, tokens);
  type == DType::f16 ? amx::panel_tile<F16, Tiles, blocking>(p, rows, tokens) : amx::panel_tile<BF16, Tiles, blocking>(p, rows, tokens);
}

template <class Tiles, amx::Blocking blocking = amx::Blocking{}>
std::vector<float> multiply(PanelCase const& c, bool with_bias) {
  std::vector<float> y = poisoned(std::size_t(c.n_tokens) * std::size_t(c.rows));
  run_tile<Tiles, blocking>(c.type, c.two, c.product(y, with_bias), {0, c.rows}, {0, c.n_tokens});
  return y;
}

std::size_t n_different(std::vector<float> const& a, std::vector<float> const& b) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) n += std::memcmp(&a[i], &b[i], 4) != 0;
  return n;
}

}  // namespace

TEST_CASE("emulated tiles multiply as documented, subnormals being zeros", "[amx]") {
  if (skipped()) return;
  SplitMix64 random(3);
  for (int const scale : {0, -60, 50}) {  // products of 2^-130 and less vanish, and sums of 2^100 round
    alignas(64) std::uint16_t a[16][32], b[16][32];
    alignas(64) float c[16][16], got[16][16];
    for (auto& row : a) {
      for (auto& v : row) v = float_to_bfloat16(std::ldexp(random.between(-2, 2), scale));
    }
    for (auto& row : b) {
      for (auto& v : row) v = float_to_bfloat16(std::ldexp(random.between(-2, 2), scale - int(random.below(16))));
    }
    a[3][5] = 0x0012, b[2][7] = 0x8001;  // subnormal
    for (auto& row : c) {
      for (auto& v : row) v = std::ldexp(random.between(-1, 1), 2 * scale);
    }
    amx::TileConfig config;
    constexpr int rows = 5, columns = 3;
    config.rows[0] = config.rows[4] = rows;
    config.rows[6] = 16;
    config.row_bytes[0] = config.row_bytes[6] = columns * 4;
    config.row_bytes[4] = 64;
    int const before = EmulatedTiles::n_faults;
    EmulatedTiles::configure(config);
    EmulatedTiles::load<0>(c, 64);
    EmulatedTiles::load<4>(a, 64);
    EmulatedTiles::load<6>(b, 64);
    EmulatedTiles::multiply<0, 4, 6>();
    EmulatedTiles::store<0>(got, 64);
    CHECK(EmulatedTiles::n_faults == before);
    EmulatedTiles::store<1>(got, 64);  // not configured
    CHECK(EmulatedTiles::n_faults == before + 1);
    EmulatedTiles::n_faults = before;
    EmulatedTiles::release();
    auto const flushed = [](float v) { return std::fabs(v) < 0x1p-126f ? std::copysign(0.0f, v) : v; };
    for (int m = 0; m < rows; ++m) {
      for (int n = 0; n < columns; ++n) {
        float chain[2] = {};
        for (int k = 0; k < 32; ++k)
          chain[k % 2] = flushed(std::fma(flushed(as_float(a[m][k])), flushed(as_float(b[k / 2][2 * n + k % 2])), chain[k % 2]));
        float const expected = flushed(c[m][n] + flushed(chain[0] + chain[1]));
        CHECK(std::memcmp(&got[m][n], &expected, 4) == 0);
      }
    }
  }
}

TEST_CASE("16-bit weights unpack to what they round to, and to what that leaves of binary16", "[amx]") {
  if (skipped()) return;
  SplitMix64 random(5);
  alignas(64) static std::byte to[amx::step_stride * 8];
  for (DType const type : {DType::f16, DType::bf16}) {
    for (int round = 0; round < 200; ++round) {
      std::int32_t const n = std::int32_t(random.below(256)) + 1;
      std::vector<std::byte> const w = random_weights(type, n, random);
      std::vector<float> exact(static_cast<std::size_t>(n));
      decode_row(type, w.data(), n, exact.data());
      Parts const parts(exact.data(), n);
      auto const n_wrong = [&](std::vector<std::uint16_t> const& expected) {
        std::int32_t wrong = 0;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          std::uint16_t got;
          std::memcpy(&got, to + i / 32 * amx::step_stride + i % 32 * 2, 2);
          wrong += got != expected[i];
        }
        return wrong;
      };
      (type == DType::f16 ? amx::unpack<F16> : amx::unpack<BF16>)(w.data(), n, to);
      INFO(name(type) << ", " << n << " elements");
      REQUIRE(n_wrong(parts.first) == 0);
      if (type != DType::f16) continue;
      amx::unpack<F16, true>(w.data(), n, to);
      REQUIRE(n_wrong(parts.second) == 0);
      for (std::size_t i = 0; i < exact.size(); ++i) REQUIRE(as_float(parts.first[i]) + as_float(parts.second[i]) == exact[i]);
    }
  }
}

TEST_CASE("AMX products equal the documented arithmetic bit for bit, around every border of tiles, pairs and stretches", "[amx]") {
  if (skipped()) return;
  struct Sizes {
    std::int32_t dim, rows, n_tokens;
  };
  std::vector<Sizes> sizes;
  for (std::int32_t const rows : {1, 15, 16, 17, 31, 32, 33, 65}) sizes.push_back({512, rows, 3});
  for (std::int32_t const n_tokens : {1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 97}) sizes.push_back({768, 37, n_tokens});
  sizes.push_back({256, 300, 35});  // more rows than a tile has
  sizes.push_back({256, 18, 530});  // more tokens
  sizes.push_back({2048, 5, 39});   // two stretches
  sizes.push_back({2150, 33, 49});  // a short third, and a panel of one token
  sizes.push_back({200, 33, 49});   // a piece and a part of one
  sizes.push_back({2048, 40, 70});
  sizes.push_back({2560, 50, 1});
  sizes.push_back({1792, 70, 40});
  for (DType const type : {DType::bf16, DType::f16}) {
    std::uint64_t seed = 40;
    for (Sizes const& s : sizes) {
      ++seed;
      PanelCase const c(type, s.dim - 5 * std::int32_t(seed % 2), s.rows, s.n_tokens, seed);
      bool const bias = s.rows % 2 == 1;
      INFO(name(type) << ": " << c.rows << " x " << c.dim << ", " << c.n_tokens << " tokens");
      CHECK(n_different(multiply<EmulatedTiles>(c, bias), c.documented(bias)) == 0);
      if (type != DType::f16) continue;
      PanelCase const two(type, c.dim, c.rows, c.n_tokens, seed, true);
      CHECK(n_different(multiply<EmulatedTiles>(two, bias), two.documented(bias)) == 0);
    }
  }
  for (std::int32_t const dim : {1, 2, 31, 32, 33, 255, 257, 511, 513, 1023, 1025}) {
    for (std::int32_t const n_tokens : {1, 33}) {
      PanelCase const c(DType::bf16, dim, 20, n_tokens, 7);
      INFO(dim << " elements, " << n_tokens << " tokens");
      CHECK(n_different(multiply<EmulatedTiles>(c, true), c.documented(true)) == 0);
    }
  }
  for (bool const two : {false, true}) {
    PanelCase const c(DType::f16, 300, 150, 150, 8, two);  // many tiles, and stretches of 64, or 32 where a tile has few tokens
    CHECK(n_different(multiply<EmulatedTiles, amx::Blocking{64, 64, 64, 32}>(c, true), c.documented(true)) == 0);
  }
  CHECK(EmulatedTiles::n_faults == 0);
  CHECK_FALSE(EmulatedTiles::in_use());
}

TEST_CASE("an AMX tile writes its own rows and tokens only", "[amx]") {
  if (skipped()) return;
  PanelCase const c(DType::f16, 96, 80, 70, 11);
  std::vector<float> const all = multiply<EmulatedTiles>(c, true);
  for (Range const rows : {Range{0, 16}, Range{16, 64}, Range{48, 80}}) {
    for (Range const tokens : {Range{0, 32}, Range{32, 70}, Range{16, 48}, Range{64, 70}}) {
      std::vector<float> y = poisoned(all.size()), expected = y;
      run_tile<EmulatedTiles>(c.type, false, c.product(y, true), rows, tokens);
      for (std::int32_t t = tokens.begin; t < tokens.end; ++t) {
        for (std::int32_t r = rows.begin; r < rows.end; ++r) expected[std::size_t(t * 80 + r)] = all[std::size_t(t * 80 + r)];
      }
      CHECK(n_different(y, expected) == 0);
    }
  }
}

#if defined(__linux__)

TEST_CASE("AMX products read nothing after the end of weights and activations", "[amx]") {
  if (skipped()) return;
  for (auto const& [type, two] : {std::pair{DType::f16, false}, {DType::bf16, false}, {DType::f16, true}}) {
    for (std::int32_t const n_tokens : {1, 19, 50}) {
      PanelCase const c(type, 333, 35, n_tokens, 2, two);
      AtTheEnd const w(c.w), x(c.panels);
      std::vector<float> y = poisoned(std::size_t(c.rows) * std::size_t(n_tokens));
      cpu::Product p = c.product(y, false);
      p.w = w.begin();
      p.x = x.begin();
      run_tile<EmulatedTiles>(type, two, p, {0, c.rows}, {0, n_tokens});
      INFO(name(type) << (two ? " in two parts, " : ", ") << n_tokens << " tokens");
      CHECK(n_different(y, multiply<EmulatedTiles>(c, false)) == 0);
    }
  }
}
#endif

TEST_CASE("tiles for many tokens cover a product, and are enough for all threads", "[amx]") {
  constexpr cpu::ProductKernel kernel = amx::Kernels::product<F16>();
  for (int const n_threads : {1, 2, 5, 16}) {
    for (std::int32_t const rows : {1, 31, 768, 2048, 4096, 32001}) {
      for (std::int32_t const n_tokens : {33, 64, 100, 512, 700}) {
        cpu::Tiling const tiling = cpu::make_block_tiling(rows, n_tokens, n_threads, kernel);
        INFO(rows << " rows, " << n_tokens << " tokens, " << n_threads << " threads: " << tiling.tile_rows << " x " << tiling.tile_tokens);
        std::int64_t elements = 0;
        for (std::int64_t i = 0; i < tiling.size(); ++i) {
          elements += std::int64_t(tiling.rows(i).size()) * tiling.tokens(i).size();
          if (tiling.rows(i).begin % 16 != 0 || tiling.tokens(i).begin % 16 != 0) FAIL("tile " << i << " begins within a panel");
          if (tiling.rows(i).size() > kernel.most_rows || tiling.tokens(i).size() > kernel.most_tokens)
            FAIL("tile " << i << " is too large");
        }
        CHECK(elements == std::int64_t(rows) * n_tokens);
        if (rows >= 768) CHECK(tiling.size() >= n_threads);
      }
    }
  }
}

TEST_CASE("AMX tiles equal emulated ones bit for bit", "[amx]") {
  if (!available(Isa::amx)) {
    WARN("skipped: this processor has no AMX");
    return;
  }
  for (auto const& [type, two] : {std::pair{DType::f16, false}, {DType::bf16, false}, {DType::f16, true}}) {
    for (std::int32_t const n_tokens : {1, 16, 23, 70}) {
      PanelCase const c(type, 1280, 83, n_tokens, 77, two);
      INFO(name(type) << (two ? " in two parts, " : ", ") << n_tokens << " tokens");
      CHECK(n_different(multiply<amx::HardwareTiles>(c, true), multiply<EmulatedTiles>(c, true)) == 0);
    }
  }
}

#else

namespace tiered_test {
bool can_emulate_amx() { return false; }
KernelTable const& emulated_amx(bool f32_activations) { return cpu_kernels(Isa::amx, f32_activations); }
}  // namespace tiered_test

#endif
