/// Where weights lie in host memory: the HostWeights concept, the file mapping itself, and a copy in any memory tier.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/memory/tier.hpp"

namespace tiered {

/// | expression       | result                | meaning, errors, threads                                                         |
/// |------------------|-----------------------|----------------------------------------------------------------------------------|
/// | `h.bring(bytes)` | span<std::byte const> | the mapped bytes of one tensor, or where an equal copy is; same answer every time |
/// | `c.tier()`       | Tier                  | of what bring() returns                                                          |
/// What bring() returned lives as long as the object (and, for the mapping, as the file). One thread.
template <class H>
concept HostWeights = requires(H& h, H const& c, std::span<std::byte const> mapped) {
  { h.bring(mapped) } -> std::same_as<std::span<std::byte const>>;
  { c.tier() } -> std::same_as<Tier>;
};

/// Weights are read from the file mapping: loading copies nothing, the page cache is shared between processes.
class InFile {
 public:
  std::span<std::byte const> bring(std::span<std::byte const> mapped) { return mapped; }
  Tier tier() const { return Tier::pageable; }
};
static_assert(HostWeights<InFile>);

/// Weights are copied into memory of a tier of yours (huge pages, one NUMA node, page-locked) once, when they are brought.
/// A span that was brought before is not copied again: tied embeddings lie in memory once.
template <MemoryTier Memory>
class CopiedTo {
 public:
  CopiedTo() requires std::default_initializable<Memory> : CopiedTo(Memory{}) {}
  /// Each tensor begins at a multiple of `alignment`, a power of two.
  explicit CopiedTo(Memory memory, std::size_t alignment = 64) : memory_(std::move(memory)), alignment_(alignment) {
    expects(host_accessible(memory_.tier()), "CopiedTo: the CPU cannot write to this tier");
  }
  CopiedTo(CopiedTo&& other) noexcept
      : memory_(std::move(other.memory_)), alignment_(other.alignment_), copies_(std::exchange(other.copies_, {})) {}
  CopiedTo& operator=(CopiedTo&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(alignment_, other.alignment_);
    std::swap(copies_, other.copies_);
    return *this;
  }
  ~CopiedTo() {
    for (Copy const& copy : copies_) memory_.deallocate(copy.block);
  }

  /// Errors  Errc::out_of_memory from the tier; what was brought before stays.
  std::span<std::byte const> bring(std::span<std::byte const> mapped) {
    if (mapped.empty()) return {};
    auto const before = [](Copy const& copy, std::span<std::byte const> key) {
      auto const a = reinterpret_cast<std::uintptr_t>(copy.source.data()), b = reinterpret_cast<std::uintptr_t>(key.data());
      return a != b ? a < b : copy.source.size() < key.size();
    };
    auto at = std::lower_bound(copies_.begin(), copies_.end(), mapped, before);
    if (at == copies_.end() || at->source.data() != mapped.data() || at->source.size() != mapped.size()) {
      at = copies_.insert(at, Copy{mapped, {}});  // before the allocation, so that a throw of either leaks nothing
      try {
        at->block = memory_.allocate(mapped.size(), alignment_);
      } catch (...) {
        copies_.erase(at);
        throw;
      }
      std::copy(mapped.begin(), mapped.end(), at->block.data);
    }
    return {at->block.data, mapped.size()};
  }
  Tier tier() const { return memory_.tier(); }
  Memory const& memory() const { return memory_; }

 private:
  struct Copy {
    std::span<std::byte const> source;
    Block block;
  };
  Memory memory_;
  std::size_t alignment_;
  std::vector<Copy> copies_;  // by source
};

}  // namespace tiered
