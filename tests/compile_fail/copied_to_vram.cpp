// expect-error: (constraint|no matching|not satisfied)
#include "tiered/io/host_weights.hpp"
#include "tiered/memory/pageable.hpp"

struct NoTier {
  void* take(std::size_t bytes);
};
#ifdef FIXED
using Home = tiered::CopiedTo<tiered::PageableTier>;
#else
using Home = tiered::CopiedTo<NoTier>;
#endif
static_assert(tiered::HostWeights<Home>);
