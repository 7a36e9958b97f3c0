/// One buffer, handed out in pieces.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/buffer.hpp"

namespace tiered {

/// Hands out pieces of one buffer from front to back; they come back all at once, or down to a mark.
/// Never touches the bytes, which may lie where the host cannot. One thread at a time.
class Arena {
 public:
  using Mark = std::size_t;

  Arena() = default;
  explicit Arena(Buffer buffer) : buffer_(std::move(buffer)) {}

  /// A piece at an address that is a multiple of `alignment`. Errc::out_of_memory with the numbers, the arena unchanged.
  std::span<std::byte> carve(std::size_t bytes, std::size_t alignment = Buffer::default_alignment) {
    expects(std::has_single_bit(alignment), "an alignment is a power of two");
    std::size_t const gap = std::size_t(-(reinterpret_cast<std::uintptr_t>(buffer_.data()) + used_)) & (alignment - 1);
    std::size_t const left = capacity_bytes() - std::min(used_, capacity_bytes());  // an arena moved from has no capacity
    if (gap > left || bytes > left - gap) {
      throw Error(Errc::out_of_memory, concat("an arena in ", name(tier()), " memory: ", format_bytes(bytes), " (", bytes,
                                              " bytes) do not fit, ", left, " bytes are left of ", format_bytes(capacity_bytes())));
    }
    std::byte* const data = buffer_.data() + used_ + gap;
    used_ += gap + bytes;
    peak_ = std::max(peak_, used_);
    return {data, bytes};
  }

  /// Where the arena stands now; reset(mark) gives back what was carved since.
  Mark mark() const { return used_; }
  void reset(Mark mark = 0) {
    expects(mark <= used_, "an arena is reset to a mark that still lies in its past");
    used_ = mark;
  }

  std::size_t capacity_bytes() const { return buffer_.bytes(); }
  std::size_t used_bytes() const { return used_; }
  std::size_t peak_bytes() const { return peak_; }
  Tier tier() const { return buffer_.tier(); }

 private:
  Buffer buffer_;
  std::size_t used_ = 0, peak_ = 0;
};

/// Equal pieces of one stretch of memory, taken and given back in any order: KV pages, experts of one size.
/// The lowest free slot comes first, so that what is in use stays together. Never touches the bytes. One thread at a time.
class SlotPool {
 public:
  SlotPool() = default;
  /// Carves `n_slots` slots of `slot_bytes`, each aligned, out of `arena`, which must outlive the pool.
  SlotPool(Arena& arena, std::size_t n_slots, std::size_t slot_bytes, std::size_t alignment = Buffer::default_alignment)
      : slot_bytes_(slot_bytes), stride_(rounded(slot_bytes, alignment)), taken_(n_slots, false) {
    std::size_t bytes = 0;
    if (__builtin_mul_overflow(stride_, n_slots, &bytes)) {
      throw Error(Errc::out_of_memory, concat(n_slots, " slots of ", slot_bytes, " bytes are more than an address can name"));
    }
    first_ = arena.carve(bytes, alignment).data();
  }

  /// A slot's bytes; an empty span where none is free.
  std::span<std::byte> acquire() {
    while (lowest_free_ < taken_.size() && taken_[lowest_free_]) ++lowest_free_;
    if (lowest_free_ == taken_.size()) return {};
    taken_[lowest_free_] = true;
    ++n_taken_;
    return {first_ + lowest_free_ * stride_, slot_bytes_};
  }
  void release(std::byte const* slot) {
    std::uintptr_t const offset = reinterpret_cast<std::uintptr_t>(slot) - reinterpret_cast<std::uintptr_t>(first_);
    std::size_t const index = stride_ == 0 ? 0 : offset / stride_;
    expects(index < taken_.size() && offset % stride_ == 0 && taken_[index], "a slot is released once, to its own pool");
    taken_[index] = false;
    --n_taken_;
    lowest_free_ = std::min(lowest_free_, index);
  }

  std::size_t size() const { return taken_.size(); }
  std::size_t n_taken() const { return n_taken_; }
  std::size_t slot_bytes() const { return slot_bytes_; }

 private:
  static std::size_t rounded(std::size_t bytes, std::size_t alignment) {
    expects(bytes > 0 && std::has_single_bit(alignment), "a slot has bytes and an alignment that is a power of two");
    std::size_t const up = (bytes + alignment - 1) & ~(alignment - 1);
    if (up < bytes) throw Error(Errc::out_of_memory, concat("slots of ", bytes, " bytes are more than an address can name"));
    return up;
  }

  std::size_t slot_bytes_ = 0, stride_ = 0;
  std::byte* first_ = nullptr;
  std::vector<bool> taken_;
  std::size_t lowest_free_ = 0, n_taken_ = 0;
};

}  // namespace tiered
