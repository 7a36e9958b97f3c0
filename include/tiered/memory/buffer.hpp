/// Memory with an owner.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>

#include "tiered/memory/tier.hpp"

namespace tiered {

/// Owns one block of a tier and gives it back. The type of the tier is erased: a pointer to it and one function.
///
/// The tier must outlive the buffer and must not be moved meanwhile. Whether the bytes may be touched by the host follows
/// from tier(). Whatever still works on the bytes (a lane, a stream) must be done before the buffer goes.
class Buffer {
 public:
  static constexpr std::size_t default_alignment = 64;  // a cache line, and the widest vector register

  Buffer() = default;
  /// Contents undefined. Throws what the tier throws: Errc::out_of_memory with the numbers.
  template <class T>
    requires(!std::same_as<T, Buffer>) && MemoryTier<T>
  Buffer(T& tier, std::size_t bytes, std::size_t alignment = default_alignment)
      : block_(tier.allocate(bytes, alignment)),
        owner_(&tier),
        deallocate_([](void* owner, Block block) noexcept { static_cast<T*>(owner)->deallocate(block); }) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (deallocate_ != nullptr) deallocate_(owner_, block_);
  }

  std::byte* data() { return block_.data; }
  std::byte const* data() const { return block_.data; }
  std::size_t bytes() const { return block_.bytes; }
  bool empty() const { return block_.bytes == 0; }
  Tier tier() const { return block_.tier; }
  std::span<std::byte> span() { return {block_.data, block_.bytes}; }
  std::span<std::byte const> span() const { return {block_.data, block_.bytes}; }

  void swap(Buffer& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(owner_, other.owner_);
    std::swap(deallocate_, other.deallocate_);
  }

 private:
  Block block_;
  void* owner_ = nullptr;
  void (*deallocate_)(void*, Block) noexcept = nullptr;
};

}  // namespace tiered
