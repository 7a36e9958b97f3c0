// Weight formats against fixtures of the reference dequantisation, bit for bit; conversions, encoders, 8-bit activations.
//
// The decoders' promise holds whatever the compiler's flags. Besides the usual build, run this file compiled by g++ and clang++ with
//   -O3 -march=native -ffp-contract=fast   and with   -O3 -march=native -ffast-math
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/kernels/format/encode.hpp"
#include "tiered/sim/split_mix.hpp"

#ifndef TIERED_TEST_DATA
#define TIERED_TEST_DATA "tests/data"
#endif

namespace {

using namespace tiered;
using tiered::detail::bits_to_float;
using tiered::detail::float_to_bits;

struct Fixture {
  std::vector<char> blocks;
  std::vector<float> values;
};

Fixture read_fixture(DType dtype) {
  std::string const path = std::string(TIERED_TEST_DATA "/formats/") + name(dtype) + ".bin";
  std::ifstream file(path, std::ios::binary);
  std::vector<char> const bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  INFO(path);
  REQUIRE(bytes.size() > 4);
  std::uint32_t n = 0;
  std::memcpy(&n, bytes.data(), 4);
  std::size_t const n_block_bytes = std::size_t(n) * block_bytes(dtype), n_values = std::size_t(n) * block_elems(dtype);
  REQUIRE(bytes.size() == 4 + n_block_bytes + 4 * n_values);
  Fixture out{{bytes.data() + 4, bytes.data() + 4 + n_block_bytes}, std::vector<float>(n_values)};
  std::memcpy(out.values.data(), bytes.data() + 4 + n_block_bytes, 4 * n_values);
  return out;
}

/// Index of the first element whose bits differ, or -1.
std::ptrdiff_t first_difference(std::vector<float> const& a, std::vector<float> const& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (float_to_bits(a[i]) != float_to_bits(b[i])) return std::ptrdiff_t(i);
  return -1;
}

std::vector<float> gaussian(std::size_t n, std::uint64_t seed, float scale) {
  SplitMix64 random(seed);
  std::vector<float> x(n);
  for (float& v : x) {
    double sum = 0;  // of twelve uniforms: variance one
    for (int k = 0; k < 12; ++k) sum += random.unit();
    v = scale * float(sum - 6);
  }
  return x;
}

double relative_rms_error(std::vector<float> const& x, std::vector<float> const& y) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += (double(x[i]) - y[i]) * (double(x[i]) - y[i]);
    norm += double(x[i]) * x[i];
  }
  return std::sqrt(error / norm);
}

}  // namespace

TEST_CASE("every format decodes as its reference does, bit for bit", "[format]") {
  for_each_format([](auto format) {
    using F = decltype(format);
    static_assert(WeightFormat<F>);
    INFO(name(F::dtype));
    Fixture const fixture = read_fixture(F::dtype);
    std::size_t const n = fixture.values.size();
    auto const* const blocks = reinterpret_cast<typename F::Block const*>(fixture.blocks.data());

    std::vector<float> rows(n), single(n);
    decode_row(F::dtype, fixture.blocks.data(), std::int64_t(n), rows.data());
    CHECK(first_difference(rows, fixture.values) == -1);
    for (std::size_t i = 0; i < n; ++i) single[i] = F::decode(blocks[i / F::block_elems], int(i % F::block_elems));
    CHECK(first_difference(single, fixture.values) == -1);
  });
}

TEST_CASE("decoding inside an expression rounds as it does alone", "[format]") {
  // What a compiler may contract or regroup once decode() is inlined: a sum, a difference and a product with the decoded value.
  for_each_format([](auto format) {
    using F = decltype(format);
    INFO(name(F::dtype));
    Fixture const fixture = read_fixture(F::dtype);
    std::size_t const n = fixture.values.size();
    auto const* const blocks = reinterpret_cast<typename F::Block const*>(fixture.blocks.data());
    std::vector<float> got(3 * n), want(3 * n);
    for (std::size_t i = 0; i < n; ++i) {
      float const other = fixture.values[(i * 7 + 3) % n] * 0.3f;
      typename F::Block const& block = blocks[i / F::block_elems];
      int const k = int(i % F::block_elems);
      got[3 * i] = other + F::decode(block, k);
      got[3 * i + 1] = F::decode(block, k) - other;
      got[3 * i + 2] = F::decode(block, k) * other;
      float volatile const value = fixture.values[i], addend = other;
      want[3 * i] = addend + value;
      want[3 * i + 1] = value - addend;
      want[3 * i + 2] = value * addend;
    }
#ifdef __FAST_MATH__  // flushes subnormal results in some compilers' start-up code: not the decoder's doing
    for (std::size_t i = 0; i < 3 * n; ++i)
      if (std::fabs(want[i]) < 0x1p-120f) got[i] = want[i];
#endif
    CHECK(first_difference(got, want) == -1);
  });
}

TEST_CASE("types without a decoder are refused by name", "[format]") {
  float out[256];
  std::uint32_t const block[64] = {};
  for (DType dtype : {DType::q8_1, DType::iq2_xxs, DType::i32, DType::act_q8}) {
    CHECK_FALSE(is_weight_format(dtype));
    try {
      decode_row(dtype, block, 256, out);
      FAIL("no error for " << name(dtype));
    } catch (Error const& e) {
      CHECK(e.code() == Errc::unsupported);
      CHECK(std::string(e.what()).find(name(dtype)) != std::string::npos);
    }
  }
  try {
    decode_row(DType(45), block, 256, out);
    FAIL("no error for type 45");
  } catch (Error const& e) {
    CHECK(e.code() == Errc::unsupported);
    CHECK(std::string(e.what()).find("45") != std::string::npos);
  }
  CHECK_THROWS_AS(decode_row(DType::q4_k, block, 128, out), Error);
  CHECK_THROWS_AS(encode_row(DType::q4_0, out, 33, out), Error);
}

TEST_CASE("dispatch_format calls with the format asked for", "[format]") {
  for_each_format([](auto format) {
    DType const dtype = decltype(format)::dtype;
    CHECK(is_weight_format(dtype));
    CHECK(dispatch_format(dtype, [](auto f) { return decltype(f)::dtype; }) == dtype);
  });
}

TEST_CASE("binary16 to f32 is exact for all 65536", "[format]") {
  int wrong = 0;
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    int const exponent = int(h >> 10 & 31), fraction = int(h & 1023);
    if (exponent == 31) continue;
    double const magnitude = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    float const want = float((h & 0x8000) != 0 ? -magnitude : magnitude);
    wrong += float_to_bits(half_to_float(std::uint16_t(h))) != float_to_bits(want);
  }
  CHECK(wrong == 0);
  CHECK(float_to_bits(half_to_float(0x7c00)) == 0x7f800000u);
  CHECK(float_to_bits(half_to_float(0xfc00)) == 0xff800000u);
  for (std::uint32_t h = 0x7c01; h < 0x8000; ++h) wrong += float_to_bits(half_to_float(std::uint16_t(h))) <= 0x7f800000u;
  CHECK(wrong == 0);
  static_assert(half_to_float(0x3c00) == 1.0f && float_to_half(-2.0f) == 0xc000);
}

TEST_CASE("f32 to binary16 rounds to the nearest, ties to even", "[format]") {
  // Between neighbours a < b: everything up to their middle gives a, above it b, the middle itself the even one.
  int wrong = 0;
  for (std::uint32_t h = 0; h < 0x7c00; ++h) {
    float const a = half_to_float(std::uint16_t(h));
    float const b = h == 0x7bff ? 65536.0f : half_to_float(std::uint16_t(h + 1));  // where infinity takes over
    std::uint32_t const middle = float_to_bits((a + b) / 2);
    for (std::uint32_t sign : {0u, 0x80000000u}) {
      std::uint16_t const s = std::uint16_t(sign >> 16);
      auto const half = [&](std::uint32_t bits) { return float_to_half(bits_to_float(bits | sign)); };
      wrong += half(float_to_bits(a)) != (h | s);
      wrong += half(middle - 1) != (h | s);
      wrong += half(middle) != ((h + (h & 1)) | s);
      wrong += half(middle + 1) != ((h + 1) | s);
      if (h != 0) wrong += half(float_to_bits(b) - 1) != ((h + 1) | s);
    }
  }
  CHECK(wrong == 0);
  CHECK(float_to_half(bits_to_float(1)) == 0);  // smallest subnormal f32
  CHECK(float_to_half(bits_to_float(0x80000001u)) == 0x8000);
  CHECK(float_to_half(bits_to_float(0x7f7fffffu)) == 0x7c00);  // largest f32
  CHECK(float_to_half(bits_to_float(0xff800000u)) == 0xfc00);
  for (std::uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffffffffu}) {
    std::uint16_t const half = float_to_half(bits_to_float(nan));
    CHECK((half & 0x7fff) > 0x7c00);
    CHECK((half >> 15) == (nan >> 31));
  }
}

TEST_CASE("f32 to bfloat16 rounds to the nearest, ties to even", "[format]") {
  int wrong = 0;
  for (std::uint32_t h = 0; h < 0x7f80; ++h) {
    for (std::uint32_t sign : {0u, 0x80000000u}) {
      std::uint32_t const low = h << 16 | sign, s = sign >> 16;
      wrong += float_to_bits(bfloat16_to_float(std::uint16_t(h | s))) != low;
      wrong += float_to_bfloat16(bits_to_float(low)) != (h | s);
      wrong += float_to_bfloat16(bits_to_float(low + 0x7fff)) != (h | s);
      wrong += float_to_bfloat16(bits_to_float(low + 0x8000)) != ((h + (h & 1)) | s);
      wrong += float_to_bfloat16(bits_to_float(low + 0x8001)) != ((h + 1) | s);
    }
  }
  CHECK(wrong == 0);
  CHECK(float_to_bfloat16(bits_to_float(0x7f800001u)) == 0x7fc0);
  CHECK(float_to_bfloat16(bits_to_float(0xffc12345u)) == 0xffc1);
}

TEST_CASE("power-of-two scales", "[format]") {
  for (int e = 0; e < 255; ++e) {
    CHECK(float_to_bits(e8m0_to_float(std::uint8_t(e))) == float_to_bits(float(std::ldexp(1.0, e - 127))));
    CHECK(float_to_bits(e8m0_to_half_float(std::uint8_t(e))) == float_to_bits(float(std::ldexp(1.0, e - 128))));
  }
  CHECK((float_to_bits(e8m0_to_float(255)) & 0x7fffffffu) > 0x7f800000u);
  CHECK(float_to_e8m0_floor(1.0f) == 127);
  CHECK(float_to_e8m0_floor(-1.99f) == 127);
  CHECK(float_to_e8m0_floor(0.0f) == 0);
}

TEST_CASE("encoders lose what their bits must lose, and no more", "[format]") {
  struct Case {
    DType dtype;
    double largest_error;  // relative, root mean square, of normally distributed values
  };
  Case const cases[] = {{DType::f32, 0},      {DType::f16, 3e-4},     {DType::bf16, 2e-3},    {DType::q4_0, 0.09},
                        {DType::q4_1, 0.08},  {DType::q5_0, 0.045},   {DType::q5_1, 0.04},    {DType::q8_0, 0.006},
                        {DType::q2_k, 0.36},  {DType::q3_k, 0.2},     {DType::q4_k, 0.085},   {DType::q5_k, 0.045},
                        {DType::q6_k, 0.025}, {DType::iq4_nl, 0.085}, {DType::iq4_xs, 0.085}, {DType::mxfp4, 0.13}};
  CHECK(std::size(cases) == 16);
  std::vector<float> const x = gaussian(8192, 11, 0.05f);
  for (Case const& c : cases) {
    INFO(name(c.dtype));
    std::vector<std::uint32_t> bytes(row_bytes(c.dtype, x.size()) / 4 + 1);
    std::vector<float> y(x.size());
    encode_row(c.dtype, x.data(), std::int64_t(x.size()), bytes.data());
    decode_row(c.dtype, bytes.data(), std::int64_t(x.size()), y.data());
    double const error = relative_rms_error(x, y);
    CHECK(error <= c.largest_error);
    CHECK(error >= c.largest_error * 0.5);
  }
}

TEST_CASE("encoders keep zeros, and survive constants, huge and tiny values", "[format]") {
  for_each_format([](auto format) {
    using F = decltype(format);
    INFO(name(F::dtype));
    typename F::Block block;
    std::vector<float> x(F::block_elems), y(F::block_elems);
    for (float value : {0.0f, 1.0f, -1.0f, 0.37f, 1e-30f, -3e4f, 1e20f}) {
      if (F::dtype == DType::f16 && value > 65504) continue;  // infinity, tested above
      INFO(value);
      for (float& v : x) v = value;
      encode_block(format, x.data(), block);
      F::decode_block(block, y.data());
      float const tolerance = F::dtype == DType::mxfp4 ? 0.2f : 0.04f;  // 4 and 6 are neighbours there
      for (float v : y) {
        REQUIRE(std::fabs(v) <= std::fabs(value) * (1 + tolerance) + 1e-7f);
        if (std::fabs(value) >= 0.3f && std::fabs(value) < 5e4f) REQUIRE(std::fabs(v - value) <= tolerance * std::fabs(value));
      }
    }
  });
}

TEST_CASE("values that a format can represent come back as they were", "[format]") {
  // d * q with d a power of two and one extreme q in each group
  SplitMix64 random(5);
  std::vector<float> x(256), y(256);
  struct Case {
    DType dtype;
    int low, high;
  };
  for (Case c : {Case{DType::q4_0, -8, 7},
                 {DType::q5_0, -16, 15},
                 {DType::q8_0, -127, 127},
                 {DType::q6_k, -32, 31},
                 {DType::q3_k, -4, 3},
                 {DType::q4_1, 0, 15},
                 {DType::q5_1, 0, 31},
                 {DType::q4_k, 0, 15},
                 {DType::q5_k, 0, 31},
                 {DType::q2_k, 0, 3}}) {
    INFO(name(c.dtype));
    for (std::size_t i = 0; i < x.size(); ++i) {
      int q = c.low + int(random.below(std::uint64_t(c.high - c.low + 1)));
      if (i % 16 == 0) q = c.low;
      if (i % 16 == 1) q = c.high;
      x[i] = float(q) * 0.25f;
    }
    std::vector<std::uint32_t> bytes(row_bytes(c.dtype, x.size()) / 4 + 1);
    encode_row(c.dtype, x.data(), 256, bytes.data());
    decode_row(c.dtype, bytes.data(), 256, y.data());
    for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::fabs(x[i] - y[i]) <= 1e-3f * 0.25f * float(c.high));
  }
}

TEST_CASE("activation blocks", "[format]") {
  constexpr int n = ActQ8x32::block_elems;
  static_assert(dtype_info(ActQ8x32::dtype).block_elems == n && dtype_info(ActQ8x32::dtype).block_bytes == sizeof(ActQ8x32));
  ActQ8x32 block;
  std::vector<float> x = gaussian(n, 3, 2.0f);

  SECTION("each element within half a step, the largest exact to one rounding") {
    x[7] = -9.5f;
    quantize_block(x.data(), block);
    CHECK(block.scale == 9.5f / 127.0f);
    CHECK(block.q[7] == -127);
    for (int i = 0; i < n; ++i) REQUIRE(std::fabs(double(block.q[i]) * block.scale - x[std::size_t(i)]) <= 0.5001 * block.scale);
  }
  SECTION("ties go to even") {
    for (int i = 0; i < n; ++i) x[std::size_t(i)] = float(i % 20) + 0.5f;
    x[5] = 127;
    quantize_block(x.data(), block);
    CHECK(block.scale == 1.0f);
    CHECK(block.q[0] == 0);
    CHECK(block.q[1] == 2);
    CHECK(block.q[2] == 2);
    CHECK(block.q[3] == 4);
  }
  SECTION("zeros, and what is too small") {
    for (float value : {0.0f, -0.0f, 0x1p-101f, bits_to_float(1)}) {
      for (float& v : x) v = value;
      quantize_block(x.data(), block);
      CHECK(float_to_bits(block.scale) == 0);
      for (std::int8_t q : block.q) REQUIRE(q == 0);
    }
    x[3] = 0x1p-100f;
    quantize_block(x.data(), block);
    CHECK(block.q[3] == 127);
  }
#ifndef __FAST_MATH__  // makes of a division a product with a reciprocal that was rounded, or flushed
  SECTION("product and rounding are two steps, fused nowhere") {
    SplitMix64 random(77);
    int wrong = 0;
    for (int round = 0; round < 1000000 / n; ++round) {  // products that round to a tie are few
      float largest = 0;
      for (float& v : x) v = random.between(-1, 1), largest = std::fabs(v) > largest ? std::fabs(v) : largest;
      quantize_block(x.data(), block);
      float const volatile inverse = 127.0f / largest;
      for (int i = 0; i < n; ++i) {
        float const volatile product = x[std::size_t(i)] * inverse;
        wrong += block.q[i] != int(std::nearbyint(product));
      }
    }
    CHECK(wrong == 0);
  }
  SECTION("the largest f32") {
    x[3] = -std::numeric_limits<float>::max();
    quantize_block(x.data(), block);
    CHECK(block.q[3] == -127);
    CHECK(block.q[4] == 0);
  }
#endif
  SECTION("not finite: the scale is NaN") {
    for (std::uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u, 0x7f800001u}) {
      x[n - 1] = bits_to_float(bits);
      quantize_block(x.data(), block);
      CHECK((float_to_bits(block.scale) & 0x7fffffffu) > 0x7f800000u);
      for (std::int8_t q : block.q) REQUIRE(q == 0);
      CHECK(block.sums[0] == 0);
      CHECK(block.sums[1] == 0);
    }
  }
  SECTION("sums") {
    quantize_block(x.data(), block);
    for (int half = 0; half < 2; ++half) {
      int sum = 0;
      for (int i = 0; i < 16; ++i) sum += block.q[half * 16 + i];
      CHECK(block.sums[half] == sum);
      CHECK(sum != 0);
    }
    for (float& v : x) v = -1;  // the largest sums there are
    quantize_block(x.data(), block);
    CHECK(block.sums[0] == -127 * 16);
    CHECK(block.sums[1] == -127 * 16);
  }
}
