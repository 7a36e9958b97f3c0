/// SimClock: virtual time per lane, tied by tickets.
#include "tiered/sim/sim_clock.hpp"

#include <cstdint>

#include "catch.hpp"

using tiered::SimClock;
using tiered::SimSpan;
using tiered::Ticket;

TEST_CASE("a lane's work adds up, and lanes run side by side", "[sim][clock]") {
  SimClock clock;
  REQUIRE(clock.charge(1, 2.0) == SimSpan{0.0, 2.0});
  REQUIRE(clock.charge(1, 0.5) == SimSpan{2.0, 2.5});
  REQUIRE(clock.charge(2, 1.0) == SimSpan{0.0, 1.0});
  REQUIRE(clock.lane_seconds(1) == 2.5);
  REQUIRE(clock.lane_seconds(2) == 1.0);
  REQUIRE(clock.lane_seconds(9) == 0.0);
  REQUIRE(clock.seconds() == 2.5);
}

TEST_CASE("a lane that waits for a ticket goes on no earlier", "[sim][clock]") {
  SimClock clock;
  clock.charge(1, 3.0);
  clock.stamp({1, 1});
  clock.charge(1, 4.0);
  clock.stamp({1, 2});
  clock.charge(2, 1.0);
  clock.wait_for(2, {1, 1});
  REQUIRE(clock.charge(2, 1.0) == SimSpan{3.0, 4.0});
  clock.wait_for(2, {1, 1});  // long past
  REQUIRE(clock.charge(2, 1.0) == SimSpan{4.0, 5.0});
  clock.wait_for(2, {1, 2});
  REQUIRE(clock.charge(2, 1.0) == SimSpan{7.0, 8.0});
}

TEST_CASE("two lanes that hand work to and fro take the sum, side work the maximum", "[sim][clock]") {
  SimClock clock;  // copies of 1 s into two slots, kernels of 3 s: the link waits for the kernels
  Ticket slot_free[2] = {};
  for (std::uint64_t i = 0; i < 10; ++i) {
    clock.wait_for(1, slot_free[i % 2]);
    clock.charge(1, 1.0);
    clock.stamp({1, i + 1});
    clock.wait_for(2, {1, i + 1});
    clock.charge(2, 3.0);
    clock.stamp({2, i + 1});
    slot_free[i % 2] = {2, i + 1};
  }
  REQUIRE(clock.seconds() == 1.0 + 10 * 3.0);
}

TEST_CASE("tickets without a stamp", "[sim][clock]") {
  SimClock clock;
  REQUIRE(clock.seconds(Ticket{}) == 0.0);
  REQUIRE(clock.seconds(Ticket{5, 3}) == 0.0);
  clock.charge(1, 1.0);
  clock.stamp({1, 10});
  clock.charge(1, 1.0);
  REQUIRE(clock.seconds(Ticket{1, 7}) == 1.0);   // like the next stamp
  REQUIRE(clock.seconds(Ticket{1, 11}) == 2.0);  // like the lane
  clock.charge(1, 1.0);
  clock.stamp({1, 10});  // again: counts anew
  REQUIRE(clock.seconds(Ticket{1, 10}) == 3.0);
}

TEST_CASE("after very many stamps the recent ones are exact", "[sim][clock]") {
  SimClock clock;
  for (std::uint64_t i = 1; i <= 100000; ++i) {
    clock.charge(1, 1.0);
    clock.stamp({1, i});
  }
  REQUIRE(clock.seconds(Ticket{1, 100000}) == 100000.0);
  REQUIRE(clock.seconds(Ticket{1, 99000}) == 99000.0);
  REQUIRE(clock.seconds(Ticket{1, 1}) < 100000.0);
}
