// A tier whose deallocate may throw: destructors call it.
// expect-error: static.?assert
// expect-error: deallocate
#include "tiered/memory/tier.hpp"

struct MyTier {
  tiered::Tier tier() const { return tiered::Tier::pageable; }
  tiered::Block allocate(std::size_t, std::size_t) { return {}; }
#ifdef FIXED
  void deallocate(tiered::Block) noexcept {}
#else
  void deallocate(tiered::Block) {}
#endif
  std::size_t capacity_bytes() const { return 0; }
  std::size_t used_bytes() const { return 0; }
};
static_assert(tiered::MemoryTier<MyTier>);
