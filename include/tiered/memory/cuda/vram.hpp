/// Memory of a CUDA device.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/core/units.hpp"
#include "tiered/memory/cuda/detail/vram_pages.hpp"
#include "tiered/memory/cuda/device.hpp"
#include "tiered/memory/cuda/ledger.hpp"
#include "tiered/memory/tier.hpp"

namespace tiered {

/// One stretch of addresses on a device, in which blocks are placed first fit. The first block maps physical memory for the whole
/// capacity, so that nothing is allocated later; resize() gives the end of it back or maps more, and no block moves. Every mapped byte
/// stands in the ledger as VramUse::other of `share` until whoever carves the blocks says what for (VramShare::move).
/// A device without virtual memory management gets one cudaMalloc in place of it, which cannot be resized while blocks live.
/// Blocks are never touched here; work on a block must be done before it is given back, and on a range before resize() takes it.
/// Not to be used once moved from.
class VramTier {
 public:
  /// Physical memory comes and goes in pieces of this at most. A block that resize() shall be able to give back exactly begins at a
  /// multiple of it (allocate's alignment).
  static constexpr std::size_t piece_bytes = detail::VramPages::piece_bytes;

  /// `use_virtual_memory` false asks for the one cudaMalloc, to compare.
  VramTier(CudaDevice const& device, std::shared_ptr<VramShare> share, std::size_t capacity_bytes, bool use_virtual_memory = true)
      : state_(std::make_unique<State>(device, std::move(share), capacity_bytes, use_virtual_memory && device.has_virtual_memory)) {}

  Tier tier() const { return Tier::vram; }
  /// Errors  Errc::out_of_memory: the capacity leaves no such stretch, or the device has not the memory for the capacity.
  Block allocate(std::size_t bytes, std::size_t alignment) {
    expects(std::has_single_bit(alignment), "an alignment is a power of two");
    State& s = *state_;
    if (bytes == 0) return {nullptr, 0, Tier::vram};
    if (bytes > s.capacity - s.used) refuse(bytes, "");
    s.map(s.capacity);
    std::size_t const at = first_fit(bytes, alignment);
    if (at == nowhere) refuse(bytes, ", in parts too small");
    s.live.emplace(at, bytes);
    s.used += bytes;
    s.peak = std::max(s.peak.load(), s.used.load());
    return {s.pages.base() + at, bytes, Tier::vram};
  }
  void deallocate(Block block) noexcept {
    if (block.data == nullptr) return;
    state_->live.erase(std::size_t(block.data - state_->pages.base()));
    state_->used -= block.bytes;
  }

  /// Takes or gives back capacity at the end. Where physical memory is mapped already, it follows; else the first block maps it.
  /// Errors  Errc::over_budget where a live block, or the piece of physical memory that it ends in, lies beyond; Errc::out_of_memory
  ///         where the device has no more. The tier is unchanged then.
  void resize(std::size_t capacity_bytes) {
    State& s = *state_;
    std::size_t const end = s.live.empty() ? 0 : std::prev(s.live.end())->first + std::prev(s.live.end())->second;
    std::size_t const least = s.live.empty() ? 0 : s.pages.least_bytes(end);
    bool const whole = s.pages.bytes() != 0 && !s.pages.is_virtual();
    if (capacity_bytes < end || s.pages.rounded(capacity_bytes) < least || (whole && !s.live.empty() && capacity_bytes != s.capacity)) {
      throw Error(Errc::over_budget, concat("vram: the arena cannot be resized to ", format_bytes(capacity_bytes), " (", capacity_bytes,
                                            " bytes) of ", format_bytes(s.capacity), ": blocks live up to ", end, ", ",
                                            whole ? std::string("and this device maps memory only as a whole")
                                                  : concat("the physical memory under them ends at ", least)));
    }
    if (s.pages.bytes() != 0) {
      if (whole && s.live.empty() && capacity_bytes != s.capacity) s.unmap(0);
      s.unmap(capacity_bytes);
      if (!whole) s.map(capacity_bytes);
    }
    s.capacity = capacity_bytes;
  }

  std::size_t capacity_bytes() const { return state_->capacity; }
  std::size_t used_bytes() const { return state_->used; }
  /// The most that was ever used.
  std::size_t peak_bytes() const { return state_->peak; }
  /// Physical memory held now: 0 before the first block, then the capacity, rounded up to the device's granularity.
  std::size_t mapped_bytes() const { return state_->pages.bytes(); }
  /// Whether resize() works while blocks live.
  bool is_virtual() const { return state_->pages.is_virtual(); }
  VramShare& share() { return *state_->share; }

 private:
  static constexpr std::size_t nowhere = ~std::size_t{0};

  /// Does not move, so that the tier can.
  struct State {
    State(CudaDevice const& device, std::shared_ptr<VramShare> of, std::size_t bytes, bool is_virtual)
        : share(std::move(of)), pages(device.ordinal, device.total_bytes, is_virtual), name(device.name), capacity(bytes) {
      expects(share != nullptr, "vram: a tier needs a share of the ledger");
    }
    State(State const&) = delete;
    State& operator=(State const&) = delete;
    ~State() { unmap(0); }
    void map(std::size_t bytes) {
      std::size_t const before = pages.bytes();
      pages.grow(bytes);
      share->add(VramUse::other, pages.bytes() - before);
    }
    void unmap(std::size_t bytes) noexcept {
      std::size_t const before = pages.bytes();
      pages.shrink(bytes);
      share->release(before - pages.bytes());
    }

    std::shared_ptr<VramShare> share;
    detail::VramPages pages;
    std::string name;
    std::atomic<std::size_t> capacity, used{0}, peak{0};
    std::map<std::size_t, std::size_t> live;  // offset -> bytes
  };

  std::size_t first_fit(std::size_t bytes, std::size_t alignment) const {
    auto const base = reinterpret_cast<std::uintptr_t>(state_->pages.base());
    auto const aligned = [&](std::size_t offset) { return offset + (std::size_t(-(base + offset)) & (alignment - 1)); };
    std::size_t at = aligned(0);
    for (auto const& [begin, size] : state_->live) {
      if (at <= begin && bytes <= begin - at) return at;
      at = std::max(at, aligned(begin + size));
    }
    std::size_t const end = state_->capacity;
    return at <= end && bytes <= end - at ? at : nowhere;
  }
  [[noreturn]] void refuse(std::size_t bytes, char const* how) const {
    State const& s = *state_;
    throw Error(Errc::out_of_memory, concat("vram of ", s.name, ": ", format_bytes(bytes), " (", bytes, " bytes) do not fit, ",
                                            format_bytes(s.capacity - s.used), how, ", are left of ", format_bytes(s.capacity)));
  }

  std::unique_ptr<State> state_;
};
static_assert(MemoryTier<VramTier>);

}  // namespace tiered
