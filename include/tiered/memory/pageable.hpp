/// Ordinary host memory, which the system may page out.
#pragma once

#include <cstddef>
#include <vector>

#include "tiered/core/system.hpp"
#include "tiered/memory/detail/byte_count.hpp"
#include "tiered/memory/detail/host_allocation.hpp"
#include "tiered/memory/host_memory.hpp"
#include "tiered/memory/tier.hpp"

namespace tiered {

/// Host memory up to a capacity that is enforced; by default as much as the system gives. Blocks of 2 MiB and more are in huge pages
/// where the system has them, and spread over the NUMA nodes of the CPUs that the maker of the tier may run on.
class PageableTier {
 public:
  static constexpr std::size_t unlimited = detail::ByteCount::unlimited;

  explicit PageableTier(std::size_t capacity_bytes = unlimited) : count_(capacity_bytes), nodes_(numa_nodes(allowed_cpus())) {}

  Tier tier() const { return Tier::pageable; }
  Block allocate(std::size_t bytes, std::size_t alignment) {
    count_.check("pageable memory", bytes, alignment);
    Block const block{detail::host_allocate(bytes, alignment), bytes, Tier::pageable};
    count_.add(bytes);
    if (nodes_.size() > 1 && bytes >= detail::huge_page_bytes) interleave_pages({block.data, bytes}, nodes_);
    return block;
  }
  void deallocate(Block block) noexcept {
    detail::host_deallocate(block.data);
    count_.subtract(block.bytes);
  }
  std::size_t capacity_bytes() const { return count_.capacity_bytes(); }
  std::size_t used_bytes() const { return count_.used_bytes(); }
  std::size_t peak_bytes() const { return count_.peak_bytes(); }

 private:
  detail::ByteCount count_;
  std::vector<int> nodes_;
};
static_assert(MemoryTier<PageableTier>);

}  // namespace tiered
