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

namespace detail {

/// Blocks of a tier by the span of the mapping that they replace: each is filled once.
template <MemoryTier Memory>
class BlocksBySpan {
 public:
  /// Each block begins at a multiple of `alignment`, a power of two.
  BlocksBySpan(Memory memory, std::size_t alignment) : memory_(std::move(memory)), alignment_(alignment) {
    expects(host_accessible(memory_.tier()), "weights: the CPU cannot write to this tier");
  }
  BlocksBySpan(BlocksBySpan&& other) noexcept
      : memory_(std::move(other.memory_)), alignment_(other.alignment_), blocks_(std::exchange(other.blocks_, {})) {}
  BlocksBySpan& operator=(BlocksBySpan&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(alignment_, other.alignment_);
    std::swap(blocks_, other.blocks_);
    return *this;
  }
  ~BlocksBySpan() {
    for (Entry const& entry : blocks_) memory_.deallocate(entry.block);
  }

  /// fill(span<std::byte>) is called where there is no block for `mapped` yet; what it throws leaves none.
  template <class Fill>
  std::span<std::byte const> get(std::span<std::byte const> mapped, Fill const& fill) {
    if (mapped.empty()) return {};
    auto const before = [](Entry const& entry, std::span<std::byte const> key) {
      auto const a = reinterpret_cast<std::uintptr_t>(entry.source.data()), b = reinterpret_cast<std::uintptr_t>(key.data());
      return a != b ? a < b : entry.source.size() < key.size();
    };
    auto at = std::lower_bound(blocks_.begin(), blocks_.end(), mapped, before);
    if (at == blocks_.end() || at->source.data() != mapped.data() || at->source.size() != mapped.size()) {
      at = blocks_.insert(at, Entry{mapped, {}});  // before the allocation, so that a throw of either leaks nothing
      try {
        at->block = memory_.allocate(mapped.size(), alignment_);
        fill(std::span(at->block.data, mapped.size()));
      } catch (...) {
        if (at->block.data != nullptr) memory_.deallocate(at->block);
        blocks_.erase(at);
        throw;
      }
    }
    return {at->block.data, mapped.size()};
  }
  Memory const& memory() const { return memory_; }

 private:
  struct Entry {
    std::span<std::byte const> source;
    Block block;
  };
  Memory memory_;
  std::size_t alignment_;
  std::vector<Entry> blocks_;  // by source
};

}  // namespace detail

/// Weights are copied into memory of a tier of yours (huge pages, one NUMA node, page-locked) once, when they are brought.
/// A span that was brought before is not copied again: tied embeddings lie in memory once. See ReadInto for files.
template <MemoryTier Memory>
class CopiedTo {
 public:
  CopiedTo() requires std::default_initializable<Memory> : CopiedTo(Memory{}) {}
  /// Each tensor begins at a multiple of `alignment`, a power of two.
  explicit CopiedTo(Memory memory, std::size_t alignment = 64) : blocks_(std::move(memory), alignment) {}

  /// Errors  Errc::out_of_memory from the tier; what was brought before stays.
  std::span<std::byte const> bring(std::span<std::byte const> mapped) {
    return blocks_.get(mapped, [&](std::span<std::byte> to) { std::copy(mapped.begin(), mapped.end(), to.begin()); });
  }
  Tier tier() const { return memory().tier(); }
  Memory const& memory() const { return blocks_.memory(); }

 private:
  detail::BlocksBySpan<Memory> blocks_;
};

}  // namespace tiered
