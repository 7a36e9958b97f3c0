#include "tiered/plan/hardware.hpp"

#include <cmath>

#include "catch.hpp"

using namespace tiered;

TEST_CASE("a rate curve interpolates time and never gets faster with size", "[plan][hardware]") {
  RateCurve const curve{{{10, 10}, {20, 40}, {40, 40}}};  // 1 s, 0.5 s (noise: taken as 1 s), 1 s
  REQUIRE(curve.seconds(0) == 0);
  REQUIRE(curve.seconds(5) == Approx(0.5));
  REQUIRE(curve.seconds(10) == Approx(1));
  REQUIRE(curve.seconds(15) == Approx(1));
  REQUIRE(curve.seconds(40) == Approx(1));
  REQUIRE(curve.seconds(80) == Approx(2));
  REQUIRE(curve.peak_per_s() == 40);
  double before = 0;
  for (double size = 1; size < 100; size += 0.5) {
    REQUIRE(curve.seconds(size) >= before);
    before = curve.seconds(size);
  }
  REQUIRE(std::isinf(RateCurve{}.seconds(1)));
}

TEST_CASE("weights are classed by their bits", "[plan][hardware]") {
  REQUIRE(weight_class(4.5) == WeightClass::low_bits);
  REQUIRE(weight_class(6.56) == WeightClass::low_bits);
  REQUIRE(weight_class(8.5) == WeightClass::eight_bits);
  REQUIRE(weight_class(16) == WeightClass::half);
  REQUIRE(weight_class(32) == WeightClass::single);
}

TEST_CASE("profiles and capabilities are values", "[plan][hardware]") {
  HardwareProfile a = HardwareProfile::simulated();
  REQUIRE(a == HardwareProfile::simulated());
  a.gpu.launch_s *= 2;
  REQUIRE_FALSE(a == HardwareProfile::simulated());
  Capabilities c;
  c.gpu_matmul = 0;
  REQUIRE_FALSE(c == Capabilities{});
}
