/// A small seeded generator whose numbers are the same with every standard library.
#pragma once

#include <cstdint>

namespace tiered {

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t seed) : state_(seed) {}
  constexpr std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, n); n > 0.
  constexpr std::uint64_t below(std::uint64_t n) { return next() % n; }
  /// Uniform in [0, 1).
  constexpr double unit() { return double(next() >> 11) * 0x1p-53; }
  /// Uniform in [low, high).
  constexpr float between(float low, float high) { return low + (high - low) * float(unit()); }

 private:
  std::uint64_t state_;
};

}  // namespace tiered
