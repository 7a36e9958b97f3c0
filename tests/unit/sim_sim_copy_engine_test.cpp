/// SimCopyEngine: faults, directions, virtual time. The rules of every engine are in conformance/copy_engine_suite.hpp.
#include "tiered/sim/sim_copy_engine.hpp"

#include <memory>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/pageable.hpp"

using tiered::Buffer;
using tiered::CopyPiece;
using tiered::FaultKind;
using tiered::Faults;
using tiered::LaneSet;
using tiered::SimClock;
using tiered::SimCopyEngine;
using tiered::SimSpan;
using tiered::SimTier;
using tiered::Ticket;

TEST_CASE("a failed copy leaves the poison and an error at its ticket", "[sim][copy]") {
  for (bool const seeded : {false, true}) {
    auto const lanes = seeded ? LaneSet::seeded(2) : LaneSet::threads();
    auto const faults = std::make_shared<Faults>();
    SimTier vram(1000);
    SimCopyEngine engine(lanes, {&vram, faults});
    Buffer device(vram, 4);
    std::vector<std::byte> const host(4, std::byte{1});
    CopyPiece const piece{device.data(), host.data(), 4};
    faults->fail_at(FaultKind::copy, 2);
    Ticket const first = engine.submit({}, {}), second = engine.submit({&piece, 1}, {}), third = engine.submit({&piece, 1}, {});
    engine.wait(first);
    for (Ticket ticket : {second, third}) REQUIRE(tiered_test::error_of([&] { engine.wait(ticket); }).code == tiered::Errc::device);
    REQUIRE(device.data()[0] == std::byte{SimTier::poison});
    lanes->clear_errors();
    engine.wait(engine.submit({&piece, 1}, {}));
    REQUIRE(device.data()[3] == std::byte{1});
    REQUIRE(faults->seen(FaultKind::copy) == 4);
  }
}

TEST_CASE("bytes are counted by direction", "[sim][copy]") {
  SimTier vram(1000);
  tiered::PageableTier ram;
  Buffer a(vram, 100), b(vram, 100), host(ram, 100), other(ram, 100);
  SimCopyEngine engine(LaneSet::seeded(0), {&vram});
  CopyPiece const pieces[] = {{a.data(), host.data(), 100}, {b.data() + 10, host.data(), 20}, {host.data(), b.data(), 7},
                              {a.data(), b.data(), 50},     {other.data(), host.data(), 60}};
  engine.submit(pieces, {});
  REQUIRE(engine.bytes_to_device() == 120);
  REQUIRE(engine.bytes_from_device() == 7);
  REQUIRE(engine.n_copies() == 1);
  REQUIRE(engine.record().empty());  // without a clock
}

TEST_CASE("copies take virtual time, after what they wait for", "[sim][copy]") {
  auto const lanes = LaneSet::seeded(0);
  auto const clock = std::make_shared<SimClock>();
  SimCopyEngine engine(lanes, {nullptr, nullptr, clock, 100.0, 0.5});
  LaneSet::Lane const compute = lanes->open("compute");
  std::vector<std::byte> source(200), target(200);
  CopyPiece const pieces[] = {{target.data(), source.data(), 150}, {target.data() + 150, source.data(), 50}};

  Ticket const first = engine.submit(pieces, {});
  lanes->submit(compute, [] {});
  clock->charge(compute, 10.0);
  clock->stamp(lanes->record(compute));
  Ticket const after = lanes->record(compute);
  Ticket const second = engine.submit(pieces, {&after, 1});

  REQUIRE(engine.record().size() == 2);
  REQUIRE(engine.record()[0].ticket == first);
  REQUIRE(engine.record()[0].bytes == 200);
  REQUIRE(engine.record()[0].span == SimSpan{0.0, 2.5});
  REQUIRE(engine.record()[1].span == SimSpan{10.0, 12.5});
  REQUIRE(clock->seconds(second) == 12.5);
  engine.wait(second);  // before the bytes go
  engine.clear_record();
  REQUIRE(engine.record().empty());
}
