// A copy engine held to a rate: when transfers end, by a clock of the test's own.
#include "tiered/memory/throttled.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/sim/sim_copy_engine.hpp"
#include "tiered/sim/sim_tier.hpp"

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

TEST_CASE("bytes that cross a held link stand in one line for each way, whoever sends them", "[memory][throttled]") {
  HeldLink<ManualClock> link(1000);
  CHECK(link.bytes_per_s() == 1000);
  CHECK(link.reserve(LinkWay::to_device, 500) == 0.5);
  CHECK(link.reserve(LinkWay::to_device, 250) == 0.75);
  CHECK(link.reserve(LinkWay::to_host, 100) == 0.1);
  CHECK(link.reserve(LinkWay::none, 1000) == 0);
  link.clock().now_s = 2;
  CHECK(link.reserve(LinkWay::to_host, 100) == 2.1);
  CHECK(link.reserve(LinkWay::none, 1000) == 2);
  CHECK(tiered_test::error_of([] { HeldLink<ManualClock> wrong(0); }).code == Errc::precondition);
}

TEST_CASE("two engines of one link are no faster together than one, but for what goes the other way", "[memory][throttled]") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    auto const lanes = LaneSet::seeded(seed);
    auto const link = Throttled::make_link(1000);
    SimTier device(1000);
    Throttled one(lanes, link, SimCopyOptions{.device = &device}), other(lanes, link, SimCopyOptions{.device = &device});
    Buffer there(device, 400, 64);
    Bytes bytes;
    auto const submit = [&](Throttled& engine, bool to_device, std::size_t at) {
      std::byte *const near = bytes.to.data(), *const far = there.data() + at;
      CopyPiece const piece{to_device ? far : near, to_device ? near : far, 100};
      return engine.submit({&piece, 1}, {});
    };
    std::vector<Ticket> const to_device = {submit(one, true, 0), submit(other, true, 100), submit(one, true, 200),
                                           submit(other, true, 300)};
    for (Ticket const t : to_device) one.wait(t);
    CHECK(link->clock().now_s == Approx(0.4));  // whichever was ready first, nobody passed another
    CHECK(std::ranges::max(link->clock().waited_for) == Approx(0.4));
    CHECK(link->clock().waited_for.size() == 4);
    Ticket const back = submit(other, false, 0);
    other.wait(back);
    CHECK(link->clock().now_s == Approx(0.5));  // it was ready at 0.4, where nobody went that way
    CopyPiece const here{bytes.to.data(), bytes.from.data(), 100};
    one.wait(one.submit({&here, 1}, {}));
    CHECK(link->clock().now_s == Approx(0.5));  // crosses nothing
    CHECK(bytes.to == bytes.from);
  }
}

TEST_CASE("a small transfer of another engine waits for a part of a large one, not for all of it", "[memory][throttled]") {
  constexpr std::size_t part = Throttled::part_bytes, n_parts = 8;
  constexpr double part_s = 1;
  bool passed = false;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    INFO("seed " << seed);
    auto const lanes = LaneSet::seeded(seed);
    auto const link = Throttled::make_link(double(part) / part_s);
    Throttled one(lanes, link), other(lanes, link);
    std::vector<std::byte> from(n_parts * part, std::byte{3}), to(from.size());
    Bytes bytes;
    CopyPiece const large{to.data(), from.data(), from.size()}, small = bytes.piece(100);
    Ticket const a = one.submit({&large, 1}, {}), b = other.submit({&small, 1}, {});
    other.wait(b);
    passed |= !one.done(a) && link->clock().now_s < (double(n_parts) - 1) * part_s;
    one.wait(a);
    CHECK(link->clock().now_s == Approx(double(n_parts) * part_s + 100 * part_s / double(part)).epsilon(1e-9));
    CHECK((bytes.to == bytes.from && to == from));
  }
  CHECK(passed);
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
