/// The bytes that a tier has handed out, against its capacity.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <limits>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"

namespace tiered::detail {

/// One thread adds and subtracts, any thread reads. Movable, as tiers are; what was moved from counts nothing.
class ByteCount {
 public:
  explicit ByteCount(std::size_t capacity_bytes) : capacity_(capacity_bytes) {}
  ByteCount(ByteCount&& other) noexcept : capacity_(other.capacity_), used_(other.used_.exchange(0)), peak_(other.peak_.exchange(0)) {}
  ByteCount& operator=(ByteCount&& other) noexcept {
    capacity_ = other.capacity_;
    used_ = other.used_.exchange(0);
    peak_ = other.peak_.exchange(0);
    return *this;
  }

  /// Throws where `bytes` more do not fit, or `alignment` is no power of two.
  void check(char const* what, std::size_t bytes, std::size_t alignment) const {
    expects(std::has_single_bit(alignment), "an alignment is a power of two");
    std::size_t const used = used_bytes();
    if (bytes <= capacity_ - used && bytes <= largest) return;
    throw Error(Errc::out_of_memory, concat(what, ": ", format_bytes(bytes), " (", bytes, " bytes) do not fit, ", format_bytes(used),
                                            " are used and ", format_bytes(capacity_ - used), " left of ", capacity_text()));
  }
  void add(std::size_t bytes) {
    std::size_t const used = used_.fetch_add(bytes) + bytes;
    if (used > peak_.load()) peak_.store(used);
  }
  void subtract(std::size_t bytes) noexcept { used_.fetch_sub(bytes); }

  std::size_t capacity_bytes() const { return capacity_; }
  std::size_t used_bytes() const { return used_.load(); }
  std::size_t peak_bytes() const { return peak_.load(); }

  static constexpr std::size_t unlimited = std::numeric_limits<std::size_t>::max();

 private:
  static constexpr std::size_t largest = unlimited / 2;  // an object is no larger than PTRDIFF_MAX
  std::string capacity_text() const { return capacity_ == unlimited ? std::string("an unlimited tier") : format_bytes(capacity_); }

  std::size_t capacity_;
  std::atomic<std::size_t> used_{0}, peak_{0};
};

}  // namespace tiered::detail
