// The 8-bit AMX products: on emulated tiles, and on real ones, the bits of the AVX-512 table.
#include <cstdint>
#include <cstring>
#include <vector>

#include "catch.hpp"
#include "cpu_cases.hpp"
#include "emulated_tiles.hpp"
#include "tiered/kernels/reference/quantize.hpp"

#if defined(__x86_64__)

#include "tiered/kernels/cpu/amx.hpp"

using namespace tiered_test;

namespace {

namespace amx = cpu::amx;

template <class Tiles>
struct ByTiles {
  template <class F>
  static void run(cpu::Product const& p, Range rows, Range tokens) {
    amx::byte_tile<F, Tiles>(p, rows, tokens);
  }
};
struct ByVectors {
  template <class F>
  static void run(cpu::Product const& p, Range rows, Range tokens) {
    cpu::avx512::quantized_tile<F>(p, rows, tokens);
  }
};

/// A matrix and tokens in blocks, for calls of tile functions without a table.
struct BlockCase {
  BlockCase(DType type_, std::int32_t dim_, std::int32_t rows_, std::int32_t n_tokens_, std::uint64_t seed)
      : type(type_), dim(dim_), rows(rows_), n_tokens(n_tokens_) {
    SplitMix64 random(seed);
    w = random_weights(type, std::int64_t(rows) * dim, random);
    std::vector<float> values = random_floats(std::size_t(n_tokens) * std::size_t(dim), random);
    for (std::int32_t i = 32; i < 64; ++i) values[std::size_t(i)] = 0;
    values[std::size_t(n_tokens - 1) * std::size_t(dim)] = 1e30f;
    bias = random_floats(std::size_t(rows), random);
    x.resize(activation_bytes(DType::act_q8, std::uint64_t(n_tokens), std::uint64_t(dim)));
    reference::quantize(QuantizeArgs{values.data(), x.data(), n_tokens, dim}, DType::act_q8);
  }
  cpu::Product product(std::vector<float>& y, bool with_bias) const {
    cpu::Product p;
    static_cast<MatmulArgs&>(p) = {w.data(), x.data(), with_bias ? bias.data() : nullptr, y.data(), n_tokens, rows, dim, rows};
    return p;
  }
  template <class How>
  std::vector<float> multiply(Range some_rows, Range tokens, std::int32_t const* index = nullptr) const {
    std::vector<float> y = poisoned(std::size_t(n_tokens) * std::size_t(rows));
    cpu::Product p = product(y, rows % 2 == 1);
    p.x_rows = p.y_rows = index;
    dispatch_format(type, [&](auto format) {
      using F = decltype(format);
      if constexpr (F::block_elems > 1) How::template run<F>(p, some_rows, tokens);
    });
    return y;
  }
  DType type;
  std::int32_t dim, rows, n_tokens;
  std::vector<std::byte> w, x;
  std::vector<float> bias;
};

std::size_t n_different(std::vector<float> const& a, std::vector<float> const& b) {
  std::size_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) n += std::memcmp(&a[i], &b[i], 4) != 0;
  return n;
}

template <class Tiles>
void compare(BlockCase const& c, Range rows, Range tokens, std::int32_t const* index = nullptr) {
  INFO(name(c.type) << ": " << c.rows << " x " << c.dim << ", " << c.n_tokens << " tokens");
  CHECK(n_different(c.multiply<ByTiles<Tiles>>(rows, tokens, index), c.multiply<ByVectors>(rows, tokens, index)) == 0);
}

template <class Tiles>
void compare_all() {
  for (DType const type : all_formats()) {
    if (block_elems(type) == 1) continue;
    std::uint64_t seed = 70;
    for (std::int32_t const n_tokens : {17, 24, 25, 32, 40, 51}) {
      BlockCase const c(type, 1280, n_tokens + 2, n_tokens, ++seed);
      compare<Tiles>(c, {0, c.rows}, {0, n_tokens});
    }
    std::int32_t const block = std::int32_t(block_elems(type));
    for (std::int32_t const dim : {block, 3 * block, 768, 2048, 4096 + block, 8192}) {
      BlockCase const c(type, dim, 19, 21, ++seed);
      compare<Tiles>(c, {0, c.rows}, {0, c.n_tokens});
    }
    BlockCase const c(type, 512, 161, 40, ++seed);  // more rows than are kept, and a part of a product
    compare<Tiles>(c, {0, c.rows}, {0, c.n_tokens});
    compare<Tiles>(c, {16, 77}, {8, 40});
    std::vector<std::int32_t> index;
    for (std::int32_t i = 0; i < 40; ++i) index.push_back(i * 27 % 40);
    compare<Tiles>(c, {0, 48}, {0, 31}, index.data());
  }
}

}  // namespace

TEST_CASE("emulated tiles multiply bytes as documented", "[amx]") {
  SplitMix64 random(4);
  alignas(64) std::uint8_t a[16][64], b[16][64];
  alignas(64) std::int32_t before[16][16], got[16][16];
  for (auto& row : a) {
    for (auto& v : row) v = std::uint8_t(random.below(256));
  }
  for (auto& row : b) {
    for (auto& v : row) v = std::uint8_t(random.below(256));
  }
  for (auto& row : before) {
    for (auto& v : row) v = std::int32_t(random.below(1000)) - 500;
  }
  amx::TileConfig config;
  constexpr int rows = 5, elems = 36, columns = 7;
  config.rows[0] = config.rows[4] = rows;
  config.rows[6] = elems / 4;
  config.row_bytes[0] = config.row_bytes[6] = columns * 4;
  config.row_bytes[4] = elems;
  for (bool const is_signed : {false, true}) {
    EmulatedTiles::configure(config);
    EmulatedTiles::load<0>(before, 64);
    EmulatedTiles::load<4>(a, 64);
    EmulatedTiles::load<6>(b, 64);
    is_signed ? EmulatedTiles::multiply_bytes<0, 4, 6, true>() : EmulatedTiles::multiply_bytes<0, 4, 6, false>();
    EmulatedTiles::store<0>(got, 64);
    EmulatedTiles::release();
    for (int m = 0; m < rows; ++m) {
      for (int n = 0; n < columns; ++n) {
        std::int32_t expected = before[m][n];
        for (int k = 0; k < elems; ++k) {
          int const right = b[k / 4][4 * n + k % 4];
          expected += std::int8_t(a[m][k]) * (is_signed && right > 127 ? right - 256 : right);
        }
        CHECK(got[m][n] == expected);
      }
    }
  }
}

TEST_CASE("8-bit AMX products equal those of AVX-512 bit for bit, whatever the format, rows and tokens", "[amx]") {
  if (!available(Isa::avx512)) {
    WARN("skipped: this processor has no AVX-512 with VNNI");
    return;
  }
  int const before = EmulatedTiles::n_faults;
  compare_all<EmulatedTiles>();
  CHECK(EmulatedTiles::n_faults == before);
  CHECK_FALSE(EmulatedTiles::in_use());
  if (available(Isa::amx)) compare_all<amx::HardwareTiles>();
}

#endif
