/// SimTier: poison, ownership, faults. The rules of every tier are in conformance/memory_tier_suite.hpp.
#include "tiered/sim/sim_tier.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/buffer.hpp"

using tiered::Block;
using tiered::Buffer;
using tiered::FaultKind;
using tiered::Faults;
using tiered::SimTier;

TEST_CASE("bytes that were never copied are not numbers", "[sim][tier]") {
  SimTier vram(4096);
  for (int round = 0; round < 2; ++round) {
    Buffer buffer(vram, 1024);
    REQUIRE(std::all_of(buffer.data(), buffer.data() + 1024, [](std::byte b) { return b == std::byte{SimTier::poison}; }));
    float first = 0;
    std::memcpy(&first, buffer.data(), sizeof first);
    REQUIRE(std::isnan(first));
    std::memset(buffer.data(), 0, 1024);  // the next block at this address is poisoned again
  }
}

TEST_CASE("owns() knows live bytes, from the first to the last", "[sim][tier]") {
  SimTier vram(4096);
  std::byte on_the_host{};
  REQUIRE_FALSE(vram.owns(&on_the_host));
  REQUIRE_FALSE(vram.owns(nullptr));
  Block const a = vram.allocate(100, 64), b = vram.allocate(200, 64);
  for (Block const& block : {a, b}) {
    REQUIRE(vram.owns(block.data));
    REQUIRE(vram.owns(block.data + block.bytes - 1));
    REQUIRE_FALSE(vram.owns(block.data + block.bytes));  // blocks of the C library are not adjacent
    REQUIRE_FALSE(vram.owns(block.data - 1));
  }
  SimTier moved(std::move(vram));
  REQUIRE(moved.owns(b.data));
  moved.deallocate(a);
  REQUIRE_FALSE(moved.owns(a.data));
  REQUIRE(moved.owns(b.data));
  moved.deallocate(b);
}

TEST_CASE("an injected fault is out_of_memory and changes nothing", "[sim][tier]") {
  auto const faults = std::make_shared<Faults>();
  SimTier vram(1000, faults);
  faults->fail_at(FaultKind::allocation, 2);
  Buffer const first(vram, 10);
  REQUIRE(tiered_test::error_of([&] { Buffer(vram, 20); }).code == tiered::Errc::out_of_memory);
  REQUIRE(vram.used_bytes() == 10);
  Buffer const third(vram, 20);
  REQUIRE(vram.used_bytes() == 30);
  REQUIRE(vram.peak_bytes() == 30);
  REQUIRE(faults->seen(FaultKind::allocation) == 3);
}
