/// A limit on top of another tier.
#pragma once

#include <algorithm>
#include <cstddef>

#include "tiered/memory/detail/byte_count.hpp"
#include "tiered/memory/tier.hpp"

namespace tiered {

/// Refuses above its own limit what `Upstream` would still give; otherwise hands through. The upstream tier must outlive it.
template <MemoryTier Upstream>
class Budgeted {
 public:
  Budgeted(Upstream& upstream, std::size_t limit_bytes) : upstream_(&upstream), count_(limit_bytes) {}

  Tier tier() const { return upstream_->tier(); }
  Block allocate(std::size_t bytes, std::size_t alignment) {
    count_.check("budget", bytes, alignment);
    Block const block = upstream_->allocate(bytes, alignment);
    count_.add(bytes);
    return block;
  }
  void deallocate(Block block) noexcept {
    upstream_->deallocate(block);
    count_.subtract(block.bytes);
  }
  /// The limit, or what the upstream tier can hold where that is less.
  std::size_t capacity_bytes() const { return std::min(count_.capacity_bytes(), upstream_->capacity_bytes()); }
  std::size_t used_bytes() const { return count_.used_bytes(); }
  std::size_t peak_bytes() const { return count_.peak_bytes(); }

  Upstream& upstream() { return *upstream_; }
  Upstream const& upstream() const { return *upstream_; }

 private:
  Upstream* upstream_;
  detail::ByteCount count_;
};

}  // namespace tiered
