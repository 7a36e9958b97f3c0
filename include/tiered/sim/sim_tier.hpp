/// A simulated card's memory, really capped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tiered/memory/detail/byte_count.hpp"
#include "tiered/memory/detail/host_allocation.hpp"
#include "tiered/memory/tier.hpp"
#include "tiered/sim/faults.hpp"

namespace tiered {

/// VRAM of a simulated device: host memory that only the simulated device and its copy engine should touch. Its capacity is
/// enforced. Bytes that were never copied there, and bytes given back, read as 0xff: not a number in every float type and
/// block scale, -1 as an index, so that a kernel that runs before its copy is seen in the result.
/// Only allocate() and deallocate() are bound to one thread.
class SimTier {
 public:
  static constexpr unsigned char poison = 0xff;

  explicit SimTier(std::size_t capacity_bytes, std::shared_ptr<Faults> faults = nullptr)
      : count_(capacity_bytes), faults_(std::move(faults)), live_(std::make_unique<Live>()) {}

  Tier tier() const { return Tier::vram; }
  Block allocate(std::size_t bytes, std::size_t alignment) {
    if (faults_) faults_->visit(FaultKind::allocation);
    count_.check("simulated vram", bytes, alignment);
    Block const block{detail::host_allocate(bytes, alignment), bytes, Tier::vram};
    if (bytes != 0) {
      fill(block);
      try {
        std::lock_guard lock(live_->mutex);
        live_->blocks.emplace(address_of(block.data), bytes);
      } catch (...) {
        detail::host_deallocate(block.data);
        throw;
      }
    }
    count_.add(bytes);
    return block;
  }
  void deallocate(Block block) noexcept {
    if (block.bytes != 0) {
      std::lock_guard lock(live_->mutex);
      live_->blocks.erase(address_of(block.data));
      fill(block);
    }
    detail::host_deallocate(block.data);
    count_.subtract(block.bytes);
  }
  std::size_t capacity_bytes() const { return count_.capacity_bytes(); }
  std::size_t used_bytes() const { return count_.used_bytes(); }
  /// The most that was ever used.
  std::size_t peak_bytes() const { return count_.peak_bytes(); }

  /// Whether `address` lies in a live block.
  bool owns(void const* address) const {
    std::uintptr_t const byte = address_of(address);
    std::lock_guard lock(live_->mutex);
    auto const after = live_->blocks.upper_bound(byte);
    if (after == live_->blocks.begin()) return false;
    auto const& [begin, bytes] = *std::prev(after);
    return byte < begin + bytes;
  }

 private:
  static std::uintptr_t address_of(void const* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }
  struct Live {
    std::mutex mutex;
    std::map<std::uintptr_t, std::size_t> blocks;
  };
  static void fill(Block block) {
    std::memset(block.data, poison, block.bytes);
    asm volatile("" : : "r"(block.data) : "memory");  // or the compiler drops it before the memory is freed
  }

  detail::ByteCount count_;
  std::shared_ptr<Faults> faults_;
  std::unique_ptr<Live> live_;
};
static_assert(MemoryTier<SimTier>);

}  // namespace tiered
