/// The ops of image encoders by the CPU tables: layer_norm and add_taps.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "catch.hpp"
#include "encoder_op_cases.hpp"

using namespace tiered_test;

namespace {

/// Runs `op(cpu)` with several thread counts and compares the bits.
template <class Op>
std::vector<float> same_for_all_threads(Isa isa, Op op) {
  std::vector<float> first;
  for (int const n_threads : {1, 2, 3, 7}) {
    Cpu cpu(isa, false, n_threads);
    std::vector<float> const result = op(cpu);
    if (n_threads == 1) first = result;
    CHECK(same_bits(result, first));
  }
  return first;
}

std::string describe(Isa isa, EncoderShape const& shape) { return concat(name(isa), ' ', shape.n_rows, " rows of ", shape.dim); }

}  // namespace

TEST_CASE("CPU layer_norm") {
  for (Isa const isa : available_isas()) {
    for (LayerNormCase const& c : layer_norm_cases()) {
      INFO(describe(isa, c.shape) << " at " << c.offset << " in steps of " << c.spread);
      SplitMix64 random(1);
      LayerNormCase::Data const d = c.data(random);
      std::vector<float> const apart = same_for_all_threads(isa, [&](Cpu& cpu) {
        std::vector<float> out = poisoned(c.shape.n());
        cpu.run(cpu.table().layer_norm, c.args_of(d.x.data(), d.weight.data(), d.bias.data(), out.data()));
        return out;
      });
      std::vector<float> in_place = d.x;
      Cpu cpu(isa);
      cpu.run(cpu.table().layer_norm, c.args_of(in_place.data(), d.weight.data(), d.bias.data(), in_place.data()));
      CHECK(same_bits(in_place, apart));
      Worst const worst = compare_all(apart, d.expected, d.tolerance);
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
    float const nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> x = {1, nan, 2, 3, 4};
    Cpu cpu(isa);
    cpu.run(cpu.table().layer_norm, LayerNormArgs{x.data(), nullptr, nullptr, x.data(), 1, 5, 1e-5f});
    for (float const v : x) CHECK(std::isnan(v));
  }
}

TEST_CASE("CPU add_taps") {
  for (Isa const isa : available_isas()) {
    for (TapsCase const& c : taps_cases()) {
      INFO(describe(isa, c.shape));
      SplitMix64 random(2);
      TapsCase::Data const d = c.data(random);
      std::vector<float> const y = same_for_all_threads(isa, [&](Cpu& cpu) {
        std::vector<float> out = d.y;
        cpu.run(cpu.table().add_taps, c.args_of(d.table.data(), d.index.data(), d.share.data(), out.data()));
        return out;
      });
      Worst const worst = compare_all(y, d.expected, d.tolerance);
      INFO(worst.text());
      CHECK(worst.factor <= 1);
    }
  }
}
