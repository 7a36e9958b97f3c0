/// Page-locked host memory, which a device copies from and to at the full rate of its link.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cuda_runtime_api.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/cuda/check.hpp"
#include "tiered/memory/detail/byte_count.hpp"
#include "tiered/memory/tier.hpp"

namespace tiered {

/// Pinned host memory up to a capacity, by default as much as the system gives. Every device can use it, and kernels can by the same
/// address. Slow to allocate (0.54 s a GiB on the reference machine, where registering a mapping takes 0.03 to 0.05 s): for small rings.
/// A CUDA device must have been opened on the calling thread.
class PinnedTier {
 public:
  static constexpr std::size_t unlimited = detail::ByteCount::unlimited;

  explicit PinnedTier(std::size_t capacity_bytes = unlimited) : count_(capacity_bytes) {}

  Tier tier() const { return Tier::pinned; }
  Block allocate(std::size_t bytes, std::size_t alignment) {
    count_.check("pinned memory", bytes, alignment);
    if (bytes == 0) return {nullptr, 0, Tier::pinned};
    std::size_t const extra = alignment > given_alignment ? alignment : 0;
    if (extra != 0) shifted_.reserve(shifted_.size() + 1);
    void* data = nullptr;
    cudaError_t const status = bytes + extra < bytes ? cudaErrorMemoryAllocation
                                                     : cudaHostAlloc(&data, bytes + extra, cudaHostAllocPortable | cudaHostAllocMapped);
    if (status != cudaSuccess) {
      cuda_check(status, "cudaHostAlloc",
                 concat(format_bytes(bytes), " (", bytes, " bytes) of pinned memory, ", format_bytes(used_bytes()), " are used"));
    }
    auto* const first = static_cast<std::byte*>(data);
    std::byte* const aligned = first + (std::size_t(-reinterpret_cast<std::uintptr_t>(first)) & (alignment - 1));
    if (aligned != first) shifted_.push_back({aligned, first});
    count_.add(bytes);
    return {aligned, bytes, Tier::pinned};
  }
  void deallocate(Block block) noexcept {
    if (block.data == nullptr) return;
    std::byte* first = block.data;
    auto const at = std::find_if(shifted_.begin(), shifted_.end(), [&](Shifted const& s) { return s.aligned == block.data; });
    if (at != shifted_.end()) {
      first = at->first;
      *at = shifted_.back();
      shifted_.pop_back();
    }
    if (cudaFreeHost(first) != cudaSuccess) static_cast<void>(cudaGetLastError());  // of a device that is lost
    count_.subtract(block.bytes);
  }
  std::size_t capacity_bytes() const { return count_.capacity_bytes(); }
  std::size_t used_bytes() const { return count_.used_bytes(); }
  std::size_t peak_bytes() const { return count_.peak_bytes(); }

 private:
  static constexpr std::size_t given_alignment = 64;  ///< of what the driver gives: small blocks share pages
  struct Shifted {
    std::byte *aligned, *first;
  };

  detail::ByteCount count_;
  std::vector<Shifted> shifted_;  // blocks that begin behind what the driver gave
};
static_assert(MemoryTier<PinnedTier>);

}  // namespace tiered
