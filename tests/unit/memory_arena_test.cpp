/// Arena and SlotPool: pieces of one buffer that never overlap, and come back.
#include "tiered/memory/arena.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/sim/sim_tier.hpp"
#include "tiered/core/split_mix.hpp"

using tiered::Arena;
using tiered::Buffer;
using tiered::Errc;
using tiered::Error;
using tiered::PageableTier;
using tiered::SlotPool;
using tiered::SplitMix64;
using tiered_test::error_of;

namespace {

std::uintptr_t address(std::span<std::byte> piece) { return reinterpret_cast<std::uintptr_t>(piece.data()); }

}  // namespace

TEST_CASE("carved pieces are aligned, inside, and apart", "[memory][arena]") {
  PageableTier tier;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    Arena arena{Buffer(tier, 1 + random.below(20000))};
    std::uintptr_t end = 0;
    for (;;) {
      std::size_t const bytes = random.below(300), alignment = std::size_t{1} << random.below(9), used = arena.used_bytes();
      std::span<std::byte> piece;
      try {
        piece = arena.carve(bytes, alignment);
      } catch (Error const& error) {
        REQUIRE(error.code() == Errc::out_of_memory);
        REQUIRE(arena.used_bytes() == used);
        REQUIRE(used + bytes + alignment > arena.capacity_bytes());  // there was really no room
        break;
      }
      REQUIRE(piece.size() == bytes);
      REQUIRE(address(piece) % alignment == 0);
      REQUIRE(address(piece) >= end);
      std::fill(piece.begin(), piece.end(), std::byte{1});  // ASan sees it if it lies outside
      end = address(piece) + bytes;
      if (bytes == 0) arena.carve(1, 1);  // or a run of empty pieces never ends
    }
    REQUIRE(arena.used_bytes() <= arena.capacity_bytes());
  }
}

TEST_CASE("a mark gives back what was carved since", "[memory][arena]") {
  PageableTier tier;
  Arena arena{Buffer(tier, 1024)};
  arena.carve(100);
  Arena::Mark const mark = arena.mark();
  auto const first = arena.carve(512);
  REQUIRE(error_of([&] { arena.carve(512); }).code == Errc::out_of_memory);
  arena.reset(mark);
  auto const second = arena.carve(300);
  REQUIRE(first.data() == second.data());
  arena.reset();
  REQUIRE(arena.used_bytes() == 0);
  REQUIRE(arena.peak_bytes() == 128 + 512);
  REQUIRE(error_of([&] { arena.reset(mark); }).code == Errc::precondition);
  REQUIRE(arena.carve(1024).size() == 1024);
}

TEST_CASE("an arena refuses sizes whose sum would wrap, and bad alignments", "[memory][arena]") {
  PageableTier tier;
  Arena arena{Buffer(tier, 1024)};
  arena.carve(10);
  REQUIRE(error_of([&] { arena.carve(std::numeric_limits<std::size_t>::max()); }).code == Errc::out_of_memory);
  REQUIRE(error_of([&] { arena.carve(std::numeric_limits<std::size_t>::max() - 60); }).code == Errc::out_of_memory);
  REQUIRE(error_of([&] { arena.carve(1, 0); }).code == Errc::precondition);
  REQUIRE(error_of([&] { arena.carve(1, 48); }).code == Errc::precondition);
}

TEST_CASE("an arena without a buffer, or moved from, has no room", "[memory][arena]") {
  PageableTier tier;
  Arena none;
  REQUIRE(error_of([&] { none.carve(1); }).code == Errc::out_of_memory);
  Arena from{Buffer(tier, 256)};
  from.carve(200);
  Arena const to = std::move(from);
  REQUIRE(to.used_bytes() == 200);
  REQUIRE(error_of([&] { from.carve(1); }).code == Errc::out_of_memory);
}

TEST_CASE("an arena does not touch its bytes", "[memory][arena]") {
  tiered::SimTier vram(4096);
  Arena arena{Buffer(vram, 4096)};
  SlotPool pool(arena, 4, 100);
  auto const slot = pool.acquire();
  pool.release(slot.data());
  auto const piece = arena.carve(1000);
  REQUIRE(std::all_of(slot.begin(), slot.end(), [](std::byte b) { return b == std::byte{tiered::SimTier::poison}; }));
  REQUIRE(std::all_of(piece.begin(), piece.end(), [](std::byte b) { return b == std::byte{tiered::SimTier::poison}; }));
}

TEST_CASE("slots are aligned, apart, and found again lowest first", "[memory][arena]") {
  PageableTier tier;
  Arena arena{Buffer(tier, 10 * 128)};
  SlotPool pool(arena, 10, 100, 64);
  std::vector<std::span<std::byte>> slots;
  for (auto slot = pool.acquire(); !slot.empty(); slot = pool.acquire()) slots.push_back(slot);
  REQUIRE(slots.size() == 10);
  REQUIRE(pool.n_taken() == 10);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    REQUIRE(slots[i].size() == 100);
    REQUIRE(address(slots[i]) % 64 == 0);
    if (i > 0) REQUIRE(slots[i].data() >= slots[i - 1].data() + 100);
    std::fill(slots[i].begin(), slots[i].end(), std::byte{2});
  }
  pool.release(slots[7].data());
  pool.release(slots[3].data());
  REQUIRE(pool.acquire().data() == slots[3].data());
  REQUIRE(pool.acquire().data() == slots[7].data());
  REQUIRE(pool.acquire().empty());
}

TEST_CASE("a slot comes back once, to its own pool", "[memory][arena]") {
  PageableTier tier;
  Arena arena{Buffer(tier, 4096)};
  SlotPool pool(arena, 4, 64), other(arena, 4, 64);
  auto const slot = pool.acquire();
  auto const foreign = other.acquire();
  REQUIRE(error_of([&] { pool.release(slot.data() + 1); }).code == Errc::precondition);
  REQUIRE(error_of([&] { pool.release(foreign.data()); }).code == Errc::precondition);
  pool.release(slot.data());
  REQUIRE(error_of([&] { pool.release(slot.data()); }).code == Errc::precondition);
  REQUIRE(error_of([&] { SlotPool().release(slot.data()); }).code == Errc::precondition);
  REQUIRE(pool.n_taken() == 0);
}

TEST_CASE("slots that no memory can hold are refused", "[memory][arena]") {
  PageableTier tier;
  Arena arena{Buffer(tier, 4096)};
  constexpr std::size_t huge = std::numeric_limits<std::size_t>::max();
  REQUIRE(error_of([&] { SlotPool(arena, 3, 2000); }).code == Errc::out_of_memory);
  REQUIRE(error_of([&] { SlotPool(arena, huge, 64); }).code == Errc::out_of_memory);
  REQUIRE(error_of([&] { SlotPool(arena, 2, huge); }).code == Errc::out_of_memory);
  REQUIRE(error_of([&] { SlotPool(arena, 2, 0); }).code == Errc::precondition);
  REQUIRE(arena.used_bytes() == 0);
}
