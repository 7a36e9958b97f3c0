/// Where bytes live: a block of memory and the concept of a tier that hands them out.
#pragma once

#include <concepts>
#include <cstddef>

#include "tiered/core/ids.hpp"

namespace tiered {

struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  Tier tier = Tier::pageable;
};

/// | expression                     | result | meaning, errors, threads                                                            |
/// |--------------------------------|--------|-------------------------------------------------------------------------------------|
/// | `c.tier()`                     | Tier   | accessibility follows from it                                                       |
/// | `t.allocate(bytes, alignment)` | Block  | alignment a power of two; Errc::out_of_memory with the numbers, state unchanged      |
/// | `t.deallocate(block)`          | void   | a block of this tier, once; noexcept                                                |
/// | `c.capacity_bytes()`           | size_t | never passed by used_bytes()                                                        |
/// | `c.used_bytes()`               | size_t | bytes of live blocks                                                                |
/// Live blocks do not overlap. One thread at a time, but for the two counters.
template <class T>
concept MemoryTier = std::movable<T> && requires(T& t, T const& c, Block b, std::size_t n) {
  { c.tier() } -> std::same_as<Tier>;
  { t.allocate(n, n) } -> std::same_as<Block>;
  { t.deallocate(b) } noexcept -> std::same_as<void>;
  { c.capacity_bytes() } -> std::same_as<std::size_t>;
  { c.used_bytes() } -> std::same_as<std::size_t>;
};

}  // namespace tiered
