// A victim must be able to be none.
// expect-error: static.?assert
// expect-error: victim
#include "tiered/plan/eviction.hpp"

struct MyEviction {
  void touch(tiered::ShardId, std::uint64_t) {}
  bool admit(tiered::ShardId) { return true; }
  void insert(tiered::ShardId) {}
  void erase(tiered::ShardId) {}
#ifdef FIXED
  std::optional<tiered::ShardId> victim() { return std::nullopt; }
#else
  tiered::ShardId victim() { return {}; }
#endif
};
static_assert(tiered::EvictionPolicy<MyEviction>);
