/// The ops of image encoders by the CUDA table against the reference: layer_norm and add_taps.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "cuda/fresh_seed.hpp"
#include "cuda/gpu.hpp"
#include "numerics/encoder_op_cases.hpp"

using namespace tiered_test;

namespace {

/// Elements at an address that is no multiple of 16.
std::vector<float> shifted(std::vector<float> values) {
  values.insert(values.begin(), poison);
  return values;
}

std::vector<float> without_first(std::vector<float> const& values) { return {values.begin() + 1, values.end()}; }

void check(std::vector<float> const& got, std::vector<float> const& expected, std::vector<double> const& tolerance) {
  Worst const worst = compare_all(got, expected, tolerance);
  INFO(worst.text());
  CHECK(worst.factor <= 1);
}

void check_layer_norm(Gpu& gpu, LayerNormCase const& c, SplitMix64& random) {
  INFO("TIERED_SEED=" << fresh_seed() << ": " << c.shape.n_rows << " rows of " << c.shape.dim << " at " << c.offset << " in steps of "
                      << c.spread);
  LayerNormCase::Data const d = c.data(random);
  DeviceArray<float> const x(d.x), weight(d.weight), bias(d.bias), odd_weight(shifted(d.weight));
  DeviceArray<float> out(c.shape.n()), in_place(d.x), odd(shifted(d.x));
  gpu.run(gpu.table().layer_norm, c.args_of(x.data(), weight.data(), bias.data(), out.data()));
  gpu.run(gpu.table().layer_norm, c.args_of(in_place.data(), weight.data(), bias.data(), in_place.data()));
  gpu.run(gpu.table().layer_norm, c.args_of(odd.data() + 1, odd_weight.data() + 1, bias.data(), odd.data() + 1));
  std::vector<float> const y = out.download(), unaligned = odd.download();
  CHECK(same_bits(in_place.download(), y));
  CHECK(unaligned[0] == poison);
  check(y, d.expected, d.tolerance);
  check(without_first(unaligned), d.expected, d.tolerance);
}

void check_add_taps(Gpu& gpu, TapsCase const& c, SplitMix64& random) {
  INFO("TIERED_SEED=" << fresh_seed() << ": " << c.shape.n_rows << " rows of " << c.shape.dim);
  TapsCase::Data const d = c.data(random);
  DeviceArray<float> const table(d.table), share(d.share), odd_table(shifted(d.table));
  DeviceArray<std::int32_t> const index(d.index);
  DeviceArray<float> y(d.y), odd(shifted(d.y));
  gpu.run(gpu.table().add_taps, c.args_of(table.data(), index.data(), share.data(), y.data()));
  gpu.run(gpu.table().add_taps, c.args_of(odd_table.data() + 1, index.data(), share.data(), odd.data() + 1));
  std::vector<float> const got = y.download(), unaligned = odd.download();
  check(got, d.expected, d.tolerance);
  CHECK(unaligned[0] == poison);
  CHECK(same_bits(without_first(unaligned), got));
}

}  // namespace

TEST_CASE("CUDA layer_norm") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (LayerNormCase const& c : layer_norm_cases()) check_layer_norm(gpu, c, random);
  DeviceArray<float> with_nan(std::vector<float>{1, std::numeric_limits<float>::quiet_NaN(), 2, 3, 4});
  gpu.run(gpu.table().layer_norm, LayerNormArgs{with_nan.data(), nullptr, nullptr, with_nan.data(), 1, 5, 1e-5f});
  for (float const v : with_nan.download()) CHECK(std::isnan(v));
}

TEST_CASE("CUDA add_taps") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (TapsCase const& c : taps_cases()) check_add_taps(gpu, c, random);
}

TEST_CASE("CUDA layer_norm and add_taps of a few rows: a warp's and a block's", "[sanitize]") {
  if (!has_gpu()) return;
  Gpu gpu;
  SplitMix64 random(fresh_seed());
  for (EncoderShape const& shape : {EncoderShape{9, 512}, {9, 1280}, {3, 1601}}) {
    check_layer_norm(gpu, {shape, 3, 0.25f, true, true}, random);
    check_add_taps(gpu, {shape, 48}, random);
  }
}
