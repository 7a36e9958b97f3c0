// A copy engine held to a rate: when transfers end, by a clock of the test's own.
#include "tiered/memory/throttled.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/units.hpp"
#include "tiered/sim/sim_copy_engine.hpp"

using namespace tiered;

namespace {

/// Stands still but for who waits; remembers who waited for what.
struct ManualClock {
  double now_s = 0;
  std::vector<double> waited_for;
  double seconds() const { return now_s; }
  void wait_until(double at_s) {
    waited_for.push_back(at_s);
    now_s = std::max(now_s, at_s);
  }
};
using Throttled = ThrottledCopyEngine<SimCopyEngine, ManualClock>;
static_assert(CopyEngine<Throttled>);

struct Bytes {
  std::vector<std::byte> from = std::vector<std::byte>(100, std::byte{7}), to = std::vector<std::byte>(100);
  CopyPiece piece(std::size_t n) { return {to.data(), from.data(), n}; }
};

}  // namespace

TEST_CASE("transfers of a paced link stand one behind the other, and begin anew after a pause", "[memory][throttled]") {
  LinkPace pace(1000);
  CHECK(pace.end_of(500, 10) == 10.5);
  CHECK(pace.end_of(250, 10) == 10.75);         // ready before the link was free
  CHECK(pace.end_of(250, 10.75 + 1e-4) == 11);  // a hand-over's time later: it stood behind the one before
  CHECK(pace.end_of(250, 20) == 20.25);
  CHECK(pace.end_of(0, 30) == 30);
}

TEST_CASE("a throttled engine copies, and its tickets are done when the link would have brought the bytes", "[memory][throttled]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    auto const lanes = LaneSet::seeded(seed);
    Throttled engine(lanes, 1000);
    CHECK(engine.link_bytes_per_s() == 1000);
    Bytes bytes;
    std::vector<Ticket> tickets;
    for (std::size_t const n : {100u, 50u, 1u}) {
      CopyPiece const pieces[] = {bytes.piece(n), bytes.piece(n)};
      tickets.push_back(engine.submit(pieces, {}));
    }
    engine.wait(tickets[1]);
    CHECK(engine.done(tickets[0]));
    CHECK(engine.clock().now_s >= 0.3);
    engine.wait(tickets[2]);
    CHECK(bytes.to == bytes.from);
    CHECK(engine.clock().waited_for == std::vector<double>{0.2, 0.2 + 0.1, 0.2 + 0.1 + 0.002});
    CHECK(tickets[0].lane == tickets[2].lane);
    CHECK(tickets[0].value < tickets[1].value);
  }
}

TEST_CASE("a throttled transfer begins after what it waits for", "[memory][throttled]") {
  auto const lanes = LaneSet::seeded(3);
  Throttled engine(lanes, 1000);
  LaneSet::Lane const other = lanes->open("other");
  lanes->submit(other, [clock = &engine.clock()] { clock->now_s = 5; });
  Ticket const after = lanes->record(other);
  Bytes bytes;
  CopyPiece const piece = bytes.piece(100);
  engine.wait(engine.submit({&piece, 1}, {&after, 1}));
  CHECK(engine.clock().waited_for == std::vector<double>{5.1});
}

TEST_CASE("an engine that is held to no rate hands its tickets through", "[memory][throttled]") {
  auto const lanes = LaneSet::seeded(1);
  Throttled engine(lanes);
  CHECK(engine.link_bytes_per_s() == 0);
  std::size_t const n_lanes = lanes->size();
  Bytes bytes;
  CopyPiece const piece = bytes.piece(100);
  Ticket const t = engine.submit({&piece, 1}, {});
  CHECK(t.lane == engine.lane());
  engine.wait(t);
  CHECK(bytes.to == bytes.from);
  CHECK(lanes->size() == n_lanes);
  for (double const rate : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()})
    CHECK(tiered_test::error_of([&] { Throttled wrong(lanes, rate); }).code == Errc::precondition);
}

TEST_CASE("whoever waits for a throttled copy gets its error", "[memory][throttled]") {
  auto const lanes = LaneSet::seeded(5);
  auto const faults = std::make_shared<Faults>();
  faults->fail_at(FaultKind::copy, 1);
  Throttled engine(lanes, 1000, SimCopyOptions{.faults = faults});
  Bytes bytes;
  CopyPiece const piece = bytes.piece(100);
  Ticket const t = engine.submit({&piece, 1}, {});
  CHECK(tiered_test::error_of([&] { engine.wait(t); }).code == Errc::device);
  engine.recover();
  engine.wait(engine.submit({&piece, 1}, {}));
  CHECK(bytes.to == bytes.from);
}

TEST_CASE("rates are decimal, as links are sold", "[memory][throttled]") {
  CHECK(parse_rate("12G") == 12e9);
  CHECK(parse_rate("25GB/s") == 25e9);
  CHECK(parse_rate("1.5M") == 1.5e6);
  CHECK(parse_rate("800kB/s") == 8e5);
  CHECK(parse_rate("1.2e10") == 1.2e10);
  for (char const* wrong : {"", "G", "0", "-1G", "12Gi", "12 G", "12GB", "nan", "inf"}) {
    INFO(wrong);
    CHECK_FALSE(parse_rate(wrong).has_value());
  }
}
