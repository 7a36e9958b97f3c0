/// Rows of f32 to halves: bit for bit what the host makes by the definition.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "cuda/half_rows.hpp"

using namespace tiered_test;

namespace {

std::vector<std::byte> convert(Gpu& gpu, DType form, std::vector<float> const& x, std::int32_t n_rows, std::int32_t dim) {
  DeviceArray<float> const from(x);
  DeviceArray<std::byte> to(activation_bytes(form, std::uint64_t(n_rows), std::uint64_t(dim)));
  gpu.run(gpu.table().convert[activation_form(form)], QuantizeArgs{from.data(), to.data(), n_rows, dim});
  return to.download();
}

/// Halves of both; where they differ (but for payloads of NaN, and bytes between rows and factors), the first.
std::int64_t first_difference(DType form, std::vector<std::byte> const& got, std::vector<std::byte> const& expected, std::int32_t n_rows,
                              std::int32_t dim) {
  if (act_part(form) != form) {
    auto const middle = std::ptrdiff_t(act_second_offset(form, std::uint64_t(n_rows), std::uint64_t(dim)));
    using Bytes = std::vector<std::byte>;
    std::int64_t const first = first_difference(act_part(form), got, expected, n_rows, dim);
    if (first >= 0) return first;
    return first_difference(act_part(form), Bytes(got.begin() + middle, got.end()), Bytes(expected.begin() + middle, expected.end()),
                            n_rows, dim);
  }
  std::int64_t const n = std::int64_t(n_rows) * std::int64_t(act_row_elems(std::uint64_t(dim)));
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint16_t a, b;
    std::memcpy(&a, got.data() + i * 2, 2);
    std::memcpy(&b, expected.data() + i * 2, 2);
    std::uint16_t const infinity = form == DType::act_f16_rows ? 0x7c00 : 0x7f80;
    bool const both_nan = (a & 0x7fff) > infinity && (b & 0x7fff) > infinity;
    if (a != b && !both_nan) return i;
  }
  if (form == DType::act_bf16_rows) return -1;
  std::uint64_t const at = act_factors_offset(std::uint64_t(n_rows), std::uint64_t(dim));
  for (std::int32_t t = 0; t < n_rows; ++t) {
    float a, b;
    std::memcpy(&a, got.data() + at + std::size_t(t) * 4, 4);
    std::memcpy(&b, expected.data() + at + std::size_t(t) * 4, 4);
    if (a != b && !(std::isnan(a) && std::isnan(b))) return n + t;
  }
  return -1;
}

struct FormShape {
  std::int32_t n_rows, dim;
  std::size_t n() const { return std::size_t(n_rows) * std::size_t(dim); }
};
/// Rows of a warp and of a block, kept and longer than kept, with ends within groups of four and tiles.
std::vector<FormShape> const form_shapes = {{1, 1},    {9, 7},    {3, 64},    {33, 65},  {8, 511},   {17, 512},  {2, 513},    {5, 1000},
                                            {7, 2048}, {3, 4090}, {40, 4096}, {2, 5120}, {3, 11520}, {2, 16387}, {150, 20000}};

/// Rows of every size: with a factor, at its border, far below what halves have, and one that is not a number.
std::vector<float> rows_of_sizes(FormShape const& s, SplitMix64& random) {
  std::vector<float> x = random_floats(s.n(), random);
  constexpr float sizes[] = {1.0f, 1e6f, 1e15f, 65536.0f, 1e-6f, 1e-15f, 16384.0f};
  for (std::int32_t t = 0; t < s.n_rows; ++t)
    for (std::int32_t k = 0; k < s.dim; ++k) x[std::size_t(t) * std::size_t(s.dim) + std::size_t(k)] *= 0.5f * sizes[t % 7];
  if (s.n_rows > 7) x[std::size_t(s.dim) * 7 + std::size_t(s.dim) / 2] = std::numeric_limits<float>::quiet_NaN();
  return x;
}

/// One element further where `odd`, so that nothing is aligned.
std::vector<float> moved(std::vector<float> values, bool odd) {
  if (odd) values.insert(values.begin(), poison);
  return values;
}

void check_normed(Gpu& gpu, DType form, FormShape const& s, bool odd, bool large, SplitMix64& random) {
  INFO(name(form) << ", " << s.n_rows << " rows of " << s.dim << (odd ? ", odd" : "") << (large ? ", large" : ""));
  std::vector<float> weight = random_floats(std::size_t(s.dim), random);
  if (large) weight[std::size_t(s.dim) / 3] = 1e6f;  // halves need a factor
  DeviceArray<float> const x(moved(rows_of_sizes(s, random), odd)), device_weight(moved(weight, odd));
  DeviceArray<float> y(s.n());
  DeviceArray<std::byte> converted(activation_bytes(form, std::uint64_t(s.n_rows), std::uint64_t(s.dim))), fused(converted.size());
  std::size_t const first = odd ? 1 : 0;
  RmsNormArgs norm{x.data() + first, large || !odd ? device_weight.data() + first : nullptr, y.data(), s.n_rows, s.dim, 1e-5f};
  gpu.run(gpu.table().rms_norm, norm);
  gpu.run(gpu.table().convert[activation_form(form)], QuantizeArgs{y.data(), converted.data(), s.n_rows, s.dim});
  norm.y = nullptr;
  gpu.run(gpu.table().convert_normed[activation_form(form)], ConvertNormedArgs{norm, fused.data()});
  CHECK(first_difference(form, fused.download(), converted.download(), s.n_rows, s.dim) == -1);
}

void check_gated(Gpu& gpu, DType form, FormShape const& s, bool odd, Activation activation, SplitMix64& random) {
  INFO(name(form) << ", " << s.n_rows << " rows of " << s.dim << (odd ? ", odd" : ""));
  DeviceArray<float> const gate(moved(random_floats(s.n(), random), odd)), up(moved(rows_of_sizes(s, random), odd));
  DeviceArray<float> y(s.n());
  DeviceArray<std::byte> converted(activation_bytes(form, std::uint64_t(s.n_rows), std::uint64_t(s.dim))), fused(converted.size());
  float const *const gates = gate.data() + (odd ? 1 : 0), *const ups = up.data() + (odd ? 1 : 0);
  gpu.run(gpu.table().gated, GatedArgs{gates, ups, y.data(), std::int64_t(s.n()), activation});
  gpu.run(gpu.table().convert[activation_form(form)], QuantizeArgs{y.data(), converted.data(), s.n_rows, s.dim});
  gpu.run(gpu.table().convert_gated[activation_form(form)], ConvertGatedArgs{gates, ups, fused.data(), s.n_rows, s.dim, activation});
  CHECK(first_difference(form, fused.download(), converted.download(), s.n_rows, s.dim) == -1);
}

}  // namespace

TEST_CASE("CUDA conversions out of a norm have the bits of norm and conversion") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(11);
  for (DType const form : {DType::act_f16_rows, DType::act_bf16_rows}) {
    for (FormShape const& s : form_shapes) {
      for (bool const odd : {false, true}) {
        for (bool const large : {false, true}) check_normed(gpu, form, s, odd, large, random);
      }
    }
  }
}

TEST_CASE("CUDA conversions out of a gate have the bits of gate and conversion") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(12);
  for (DType const form : {DType::act_f16_rows, DType::act_bf16_rows}) {
    for (FormShape const& s : form_shapes) {
      for (bool const odd : {false, true}) {
        for (Activation const activation : {Activation::silu, Activation::gelu_tanh}) check_gated(gpu, form, s, odd, activation, random);
      }
    }
  }
}

TEST_CASE("CUDA conversions of a few rows: a warp's, a block's, and longer than a block keeps", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(13);
  for (DType const form : {DType::act_f16_rows, DType::act_bf16_rows}) {
    for (FormShape const& s : {FormShape{9, 65}, {8, 1000}, {1, 16387}}) {
      check_normed(gpu, form, s, s.n_rows == 9, s.n_rows == 8, random);
      check_gated(gpu, form, s, s.n_rows == 8, Activation::silu, random);
    }
  }
}

TEST_CASE("CUDA rows of halves have the bits of the definition") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const form : {DType::act_f16_rows, DType::act_bf16_rows, DType::act_f16_two}) {
    std::uint64_t seed = 1;
    for (std::int32_t const dim : {1, 3, 31, 64, 65, 256, 1000, 2048, 2049, 5000}) {
      for (std::int32_t const n_rows : {1, 2, 7, 33}) {
        SplitMix64 random(++seed);
        std::vector<float> x = random_floats(std::size_t(n_rows) * std::size_t(dim), random);
        // Rows of every size: with a factor, at its border, far below what halves have.
        constexpr float sizes[] = {1.0f, 1e6f, 1e30f, 3e38f, 1e-6f, 1e-30f, 16384.0f};
        for (std::int32_t t = 0; t < n_rows; ++t)
          for (std::int32_t k = 0; k < dim; ++k) x[std::size_t(t) * std::size_t(dim) + std::size_t(k)] *= 0.5f * sizes[t % 7];
        if (n_rows > 6) x[std::size_t(dim) * 6] = 32768.0f;
        INFO(name(form) << ", " << n_rows << " rows of " << dim);
        CHECK(first_difference(form, convert(gpu, form, x, n_rows, dim), half_rows(form, x, n_rows, dim), n_rows, dim) == -1);
      }
    }
  }
}

TEST_CASE("CUDA rows of halves: a factor only above 2^15, the least that will do", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::vector<float> const values{32767.0f, 32768.0f, 32768.004f, 65536.0f, 65536.01f, 1e6f, 3.4e38f};
  std::vector<std::byte> const y = convert(gpu, DType::act_f16_rows, values, std::int32_t(values.size()), 1);
  for (std::size_t t = 0; t < values.size(); ++t) {
    float factor;
    std::memcpy(&factor, y.data() + act_factors_offset(values.size(), 1) + t * 4, 4);
    INFO(values[t]);
    CHECK(factor == reference::detail::half_row_factor(&values[t], 1));
  }
}

TEST_CASE("CUDA rows of halves: what is not finite spoils its own row, visibly", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const form : {DType::act_f16_rows, DType::act_bf16_rows, DType::act_f16_two}) {
    for (float const bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      SplitMix64 random(7);
      std::int32_t const dim = 300, n_rows = 3;
      std::vector<float> x = random_floats(std::size_t(dim) * n_rows, random);
      x[std::size_t(dim) + 299] = bad;
      CHECK(first_difference(form, convert(gpu, form, x, n_rows, dim), half_rows(form, x, n_rows, dim), n_rows, dim) == -1);
    }
  }
}
