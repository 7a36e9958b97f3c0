/// Pace: what is left of the thing that is going on.
#include "tiered/pipeline/pace.hpp"

#include "catch.hpp"

using tiered::Pace;

TEST_CASE("what is left is what those before took, less what has passed, and never negative", "[pipeline][pace]") {
  Pace pace;
  CHECK(pace.each_s() == 0);
  CHECK(pace.left_s(5) == 0);
  pace.begin(10);
  pace.end(12);  // the first one is all that is known
  CHECK(pace.each_s() == Approx(2.0));
  CHECK(pace.left_s(12.5) == Approx(1.5));
  CHECK(pace.left_s(20) == 0);
  pace.begin(100);  // after a pause, which counts for nothing
  CHECK(pace.each_s() == Approx(2.0));
  CHECK(pace.left_s(100) == Approx(2.0));
}

TEST_CASE("a pace follows what it sees, and several at once count each", "[pipeline][pace]") {
  Pace pace;
  pace.begin(0);
  pace.end(1);
  double now = 1;
  for (int i = 0; i < 200; ++i) pace.end(now += 3);
  CHECK(pace.each_s() == Approx(3.0).epsilon(0.01));
  double const before = pace.each_s();
  pace.end(now += 12, 4);
  CHECK(pace.each_s() == Approx(before).epsilon(0.01));
}
