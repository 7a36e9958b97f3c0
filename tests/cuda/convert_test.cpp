/// Rows of f32 to halves: bit for bit what the host makes by the definition.
#include <cstdint>
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

}  // namespace

TEST_CASE("CUDA rows of halves have the bits of the definition") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const form : {DType::act_f16_rows, DType::act_bf16_rows}) {
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

TEST_CASE("CUDA rows of halves: a factor only above 2^15, the least that will do") {
  if (!has_gpu()) return;
  Gpu gpu;
  std::vector<float> const values{32767.0f, 32768.0f, 32768.004f, 65536.0f, 65536.01f, 1e6f, 3.4e38f};
  std::vector<std::byte> const y = convert(gpu, DType::act_f16_rows, values, std::int32_t(values.size()), 1);
  for (std::size_t t = 0; t < values.size(); ++t) {
    float factor;
    std::memcpy(&factor, y.data() + act_factors_offset(values.size(), 1) + t * 4, 4);
    INFO(values[t]);
    CHECK(factor == half_row_factor(&values[t], 1));
  }
}

TEST_CASE("CUDA rows of halves: what is not finite spoils its own row, visibly") {
  if (!has_gpu()) return;
  Gpu gpu;
  for (DType const form : {DType::act_f16_rows, DType::act_bf16_rows}) {
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
