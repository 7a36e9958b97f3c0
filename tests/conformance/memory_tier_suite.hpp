/// The rules of MemoryTier, for any model of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/tier.hpp"
#include "tiered/core/split_mix.hpp"

namespace tiered_test {

/// Allocates and frees at random; every live block is aligned, apart from the others, and counted. A tier that `fragments` may refuse
/// what its free bytes would hold.
template <tiered::MemoryTier T>
void random_blocks(T& tier, std::uint64_t seed, bool fragments) {
  INFO("seed " << seed);
  tiered::SplitMix64 random(seed);
  std::vector<tiered::Block> live;
  std::size_t used = 0;
  for (int i = 0; i < 300; ++i) {
    if (!live.empty() && random.below(3) == 0) {
      std::size_t const at = random.below(live.size());
      tier.deallocate(live[at]);
      used -= live[at].bytes;
      live.erase(live.begin() + std::ptrdiff_t(at));
    } else {
      std::size_t const bytes = 1 + random.below(tier.capacity_bytes() / 4), alignment = std::size_t{1} << random.below(13);
      if (bytes > tier.capacity_bytes() - used) {
        REQUIRE(error_of([&] { tier.allocate(bytes, alignment); }).code == tiered::Errc::out_of_memory);
      } else {
        tiered::Block block;
        Thrown const thrown = error_of([&] { block = tier.allocate(bytes, alignment); });
        if (fragments && thrown.code == tiered::Errc::out_of_memory) {
          REQUIRE(tier.used_bytes() == used);
          continue;
        }
        REQUIRE(thrown.message == "");
        REQUIRE(block.bytes == bytes);
        REQUIRE(block.tier == tier.tier());
        std::uintptr_t const begin = reinterpret_cast<std::uintptr_t>(block.data);
        REQUIRE(begin != 0);
        REQUIRE(begin % alignment == 0);
        for (tiered::Block const& other : live) {
          std::uintptr_t const other_begin = reinterpret_cast<std::uintptr_t>(other.data);
          REQUIRE((begin + bytes <= other_begin || other_begin + other.bytes <= begin));
        }
        live.push_back(block);
        used += bytes;
      }
    }
    REQUIRE(tier.used_bytes() == used);
    REQUIRE(used <= tier.capacity_bytes());
  }
  for (tiered::Block const& block : live) tier.deallocate(block);
  REQUIRE(tier.used_bytes() == 0);
}

/// `Model model(capacity)` makes a tier of that capacity; `model.tier()` is it. `fragments`: blocks share one stretch of addresses.
template <class Model>
void memory_tier_suite(bool fragments = false) {
  using tiered::Errc;
  SECTION("an empty tier") {
    Model model(1000);
    REQUIRE(model.tier().capacity_bytes() == 1000);
    REQUIRE(model.tier().used_bytes() == 0);
  }
  SECTION("live blocks are aligned, apart and counted") {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      Model model(1 << 16);
      random_blocks(model.tier(), seed, fragments);
    }
  }
  SECTION("the capacity can be used to the last byte, and no further; a refusal changes nothing") {
    Model model(1000);
    auto& tier = model.tier();
    tiered::Block const all = tier.allocate(1000, 64);
    REQUIRE(tier.used_bytes() == 1000);
    REQUIRE(error_of([&] { tier.allocate(1, 1); }).code == Errc::out_of_memory);
    REQUIRE(tier.used_bytes() == 1000);
    tier.deallocate(all);
    tier.deallocate(tier.allocate(1000, 64));
    REQUIRE(error_of([&] { tier.allocate(1001, 64); }).code == Errc::out_of_memory);
    REQUIRE(error_of([&] { tier.allocate(std::numeric_limits<std::size_t>::max(), 64); }).code == Errc::out_of_memory);
    REQUIRE(tier.used_bytes() == 0);
  }
  SECTION("an alignment that is no power of two is refused") {
    Model model(1000);
    REQUIRE(error_of([&] { model.tier().allocate(1, 0); }).code == Errc::precondition);
    REQUIRE(error_of([&] { model.tier().allocate(1, 24); }).code == Errc::precondition);
    REQUIRE(model.tier().used_bytes() == 0);
  }
  SECTION("a block of no bytes can be had and given back, also from a full tier") {
    Model model(1000);
    tiered::Block const all = model.tier().allocate(1000, 1), none = model.tier().allocate(0, 64);
    REQUIRE(none.bytes == 0);
    model.tier().deallocate(none);
    model.tier().deallocate(all);
    REQUIRE(model.tier().used_bytes() == 0);
  }
  SECTION("buffers of it") {
    Model model(1000);
    {
      tiered::Buffer const a(model.tier(), 600);
      REQUIRE(a.tier() == model.tier().tier());
      REQUIRE(error_of([&] { tiered::Buffer(model.tier(), 600); }).code == Errc::out_of_memory);
    }
    REQUIRE(model.tier().used_bytes() == 0);
  }
  SECTION("a tier that moves takes its blocks along") {
    Model model(1000);
    tiered::Block const block = model.tier().allocate(400, 64);
    auto moved = std::move(model.tier());
    REQUIRE(moved.used_bytes() == 400);
    REQUIRE(error_of([&] { moved.allocate(601, 64); }).code == Errc::out_of_memory);
    moved.deallocate(block);
    REQUIRE(moved.used_bytes() == 0);
  }
}

}  // namespace tiered_test
