/// A checksum that finds damage; it is no protection against forgery.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>

namespace tiered::detail {

static_assert(std::endian::native == std::endian::little, "sums are of little-endian words, as files have them");

/// Of bytes in any pieces. A word at a time, each step reversible: any change within one word is seen for certain, all
/// others but once in 2^64. Faster than memory.
class Checksum {
 public:
  void add(std::span<std::byte const> bytes) {
    if (bytes.empty()) return;  // of no bytes the address may be null
    n_bytes_ += bytes.size();
    if (n_pending_ > 0) {
      std::size_t const n = std::min(bytes.size(), sizeof pending_ - n_pending_);
      std::memcpy(pending_ + n_pending_, bytes.data(), n);
      n_pending_ += n;
      bytes = bytes.subspan(n);
      if (n_pending_ < sizeof pending_) return;
      mix(pending_);
      n_pending_ = 0;
    }
    for (; bytes.size() >= sizeof pending_; bytes = bytes.subspan(sizeof pending_)) mix(bytes.data());
    if (!bytes.empty()) std::memcpy(pending_, bytes.data(), n_pending_ = bytes.size());
  }
  template <class T>
  requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) void add(T value) { add(std::as_bytes(std::span(&value, 1))); }
  /// With its length, so that two texts one after another are not another two.
  void add(std::string_view text) {
    add(std::uint64_t(text.size()));
    add(std::as_bytes(std::span(text)));
  }
  std::uint64_t value() const {
    Checksum rest = *this;
    std::memset(rest.pending_ + rest.n_pending_, 0, sizeof rest.pending_ - rest.n_pending_);
    rest.mix(rest.pending_);
    std::uint64_t const z = (rest.state_ ^ n_bytes_) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 31);
  }

 private:
  void mix(std::byte const* at) {
    std::uint64_t word;
    std::memcpy(&word, at, sizeof word);
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 29;
  }

  std::uint64_t state_ = 0x243f6a8885a308d3u, n_bytes_ = 0;
  std::byte pending_[8]{};
  std::size_t n_pending_ = 0;
};

}  // namespace tiered::detail
