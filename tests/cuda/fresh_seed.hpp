/// Other numbers in each run, to be replayed.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace tiered_test {

/// One seed for each process: TIERED_SEED, or a new one. Print it: INFO("TIERED_SEED=" << fresh_seed()).
inline std::uint64_t fresh_seed() {
  static std::uint64_t const seed = [] {
    char const* const given = std::getenv("TIERED_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::uint64_t{std::random_device{}()};
  }();
  return seed;
}

}  // namespace tiered_test
