// A copy engine that cannot be told what to wait for.
// expect-error: static.?assert
// expect-error: submit
#include "tiered/memory/copy.hpp"

struct MyEngine {
#ifdef FIXED
  tiered::Ticket submit(std::span<tiered::CopyPiece const>, std::span<tiered::Ticket const>) { return {}; }
#else
  tiered::Ticket submit(std::span<tiered::CopyPiece const>) { return {}; }
#endif
  bool done(tiered::Ticket) const { return true; }
  void wait(tiered::Ticket) {}
};
static_assert(tiered::CopyEngine<MyEngine>);
