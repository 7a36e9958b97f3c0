/// Buffer: one owner, one deallocation, to the tier it came from.
#include "tiered/memory/buffer.hpp"

#include <cstdint>
#include <type_traits>
#include <utility>

#include "catch.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/pageable.hpp"

using tiered::Buffer;
using tiered::PageableTier;
using tiered::Tier;

static_assert(!std::is_copy_constructible_v<Buffer> && !std::is_copy_assignable_v<Buffer>);
static_assert(std::is_nothrow_move_constructible_v<Buffer> && std::is_nothrow_move_assignable_v<Buffer>);
static_assert(!std::is_constructible_v<Buffer, int&, std::size_t>, "no tier");
static_assert(!std::is_constructible_v<Buffer, PageableTier&&, std::size_t>, "a temporary tier would not outlive it");

TEST_CASE("a buffer holds its bytes until it goes", "[memory][buffer]") {
  PageableTier tier;
  {
    Buffer buffer(tier, 100, 4096);
    REQUIRE(tier.used_bytes() == 100);
    REQUIRE(buffer.bytes() == 100);
    REQUIRE(buffer.tier() == Tier::pageable);
    REQUIRE(reinterpret_cast<std::uintptr_t>(buffer.data()) % 4096 == 0);
    REQUIRE(buffer.span().size() == 100);
    REQUIRE(buffer.span().data() == buffer.data());
    buffer.span()[99] = std::byte{7};
    REQUIRE(std::as_const(buffer).span()[99] == std::byte{7});
  }
  REQUIRE(tier.used_bytes() == 0);
}

TEST_CASE("a buffer moves its bytes, and leaves nothing behind", "[memory][buffer]") {
  PageableTier first_tier, second_tier;
  Buffer a(first_tier, 10);
  std::byte* const data = a.data();
  Buffer b(std::move(a));
  REQUIRE(b.data() == data);
  REQUIRE(a.empty());
  REQUIRE(a.data() == nullptr);

  Buffer c(second_tier, 20);
  c = std::move(b);
  REQUIRE(c.data() == data);
  REQUIRE(second_tier.used_bytes() == 0);
  REQUIRE(first_tier.used_bytes() == 10);

  Buffer& same = c;
  c = std::move(same);
  REQUIRE(c.data() == data);
  c = Buffer();
  REQUIRE(first_tier.used_bytes() == 0);
}

TEST_CASE("an empty buffer is allowed", "[memory][buffer]") {
  PageableTier tier(0);
  Buffer none, zero(tier, 0);
  REQUIRE(none.empty());
  REQUIRE(zero.empty());
  REQUIRE(zero.span().empty());
  REQUIRE_THROWS_AS(Buffer(tier, 1), tiered::Error);
}

TEST_CASE("buffers are 64-byte aligned where nothing else is asked", "[memory][buffer]") {
  PageableTier tier;
  for (std::size_t bytes : {1u, 3u, 65u, 1000u}) {
    Buffer buffer(tier, bytes);
    REQUIRE(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
  }
}
