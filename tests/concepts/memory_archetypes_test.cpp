/// The least that MemoryTier, CopyEngine and Backend ask: types with nothing more model them, with anything less they do not.
#include <cstddef>
#include <memory>
#include <span>

#include "catch.hpp"
#include "tiered/kernels/backend.hpp"
#include "tiered/memory/any_tier.hpp"
#include "tiered/memory/budgeted.hpp"
#include "tiered/memory/buffer.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/tier.hpp"

using tiered::Block;
using tiered::CopyPiece;
using tiered::KernelTable;
using tiered::Queue;
using tiered::Ticket;
using tiered::Tier;

namespace {

/// Moves, and has the five members: no default constructor, no copy. Has one block and counts it.
class LeastTier {
 public:
  explicit LeastTier(std::byte* bytes) : bytes_(bytes) {}
  LeastTier(LeastTier&&) = default;
  LeastTier& operator=(LeastTier&&) = default;
  Tier tier() const { return Tier::pinned; }
  Block allocate(std::size_t bytes, std::size_t) {
    used_ = bytes;
    return {bytes_, bytes, Tier::pinned};
  }
  void deallocate(Block) noexcept { used_ = 0; }
  std::size_t capacity_bytes() const { return 256; }
  std::size_t used_bytes() const { return used_; }

 private:
  std::byte* bytes_;
  std::size_t used_ = 0;
};
static_assert(tiered::MemoryTier<LeastTier>);

struct CannotMove : LeastTier {
  using LeastTier::LeastTier;
  CannotMove(CannotMove&&) = delete;
};
struct DeallocateThrows : LeastTier {
  using LeastTier::LeastTier;
  void deallocate(Block) {}
};
struct NoTier : LeastTier {
  using LeastTier::LeastTier;
  Tier tier() = delete;
};
struct CountsAsInt : LeastTier {
  using LeastTier::LeastTier;
  int used_bytes() const { return 0; }
};
struct CapacityChangesIt : LeastTier {
  using LeastTier::LeastTier;
  std::size_t capacity_bytes() { return 0; }
};
struct ReturnsPointer : LeastTier {
  using LeastTier::LeastTier;
  std::byte* allocate(std::size_t, std::size_t) { return nullptr; }
};
static_assert(!tiered::MemoryTier<CannotMove>);
static_assert(!tiered::MemoryTier<DeallocateThrows>);
static_assert(!tiered::MemoryTier<NoTier>);
static_assert(!tiered::MemoryTier<CountsAsInt>);
static_assert(!tiered::MemoryTier<CapacityChangesIt>);
static_assert(!tiered::MemoryTier<ReturnsPointer>);
static_assert(!tiered::MemoryTier<int>);

/// Neither moves nor copies.
struct LeastCopyEngine {
  LeastCopyEngine(LeastCopyEngine const&) = delete;
  Ticket submit(std::span<CopyPiece const>, std::span<Ticket const>) { return {}; }
  bool done(Ticket) const { return true; }
  void wait(Ticket) {}
};
static_assert(tiered::CopyEngine<LeastCopyEngine>);

struct NothingToWaitFor : LeastCopyEngine {
  Ticket submit(std::span<CopyPiece const>) { return {}; }
};
struct DoneChangesIt : LeastCopyEngine {
  bool done(Ticket) { return true; }
};
struct SubmitReturnsNothing : LeastCopyEngine {
  void submit(std::span<CopyPiece const>, std::span<Ticket const>) {}
};
static_assert(!tiered::CopyEngine<NothingToWaitFor>);
static_assert(!tiered::CopyEngine<DoneChangesIt>);
static_assert(!tiered::CopyEngine<SubmitReturnsNothing>);

struct LeastBackend {
  using Memory = LeastTier;
  LeastBackend(LeastBackend const&) = delete;
  KernelTable const& kernels() const { return table; }
  Queue queue() const { return {}; }
  Memory& memory() { return tier; }
  void wait_for(Ticket) {}
  Ticket record() { return {}; }
  void synchronize() {}
  KernelTable table;
  LeastTier tier;
};
static_assert(tiered::Backend<LeastBackend>);

struct NoMemoryType {
  KernelTable const& kernels() const;
  Queue queue() const;
  LeastTier& memory();
  void wait_for(Ticket);
  Ticket record();
  void synchronize();
};
struct TableByValue : LeastBackend {
  KernelTable kernels() const { return {}; }
};
struct MemoryByValue : LeastBackend {
  LeastTier memory() { return LeastTier(nullptr); }
};
struct WaitForNeedsMore : LeastBackend {
  void wait_for(Ticket, int) {}
};
static_assert(!tiered::Backend<NoMemoryType>);
static_assert(!tiered::Backend<TableByValue>);
static_assert(!tiered::Backend<MemoryByValue>);
static_assert(!tiered::Backend<WaitForNeedsMore>);

}  // namespace

TEST_CASE("what takes a tier takes the least tier", "[concepts]") {
  alignas(64) std::byte bytes[256];
  LeastTier tier(bytes);
  {
    tiered::Buffer const buffer(tier, 100);
    REQUIRE(buffer.data() == bytes);
    REQUIRE(buffer.tier() == Tier::pinned);
    REQUIRE(tier.used_bytes() == 100);
  }
  {
    tiered::Budgeted<LeastTier> budget(tier, 50);
    static_assert(tiered::MemoryTier<tiered::Budgeted<LeastTier>>);
    tiered::Buffer const buffer(budget, 50);
    REQUIRE(buffer.data() == bytes);
    REQUIRE_THROWS_AS(budget.allocate(1, 1), tiered::Error);
  }
  tiered::AnyTier any{LeastTier(bytes)};
  tiered::Buffer const erased(any, 10);
  REQUIRE(any.used_bytes() == 10);
  REQUIRE(tier.used_bytes() == 0);
}
