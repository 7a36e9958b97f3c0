/// The MemoryTier suite over every tier that needs no device.
#include "conformance/memory_tier_suite.hpp"

#include "tiered/memory/any_tier.hpp"
#include "tiered/memory/budgeted.hpp"
#include "tiered/memory/pageable.hpp"
#include "tiered/sim/sim_tier.hpp"

namespace {

template <class T>
class Plain {
 public:
  explicit Plain(std::size_t capacity_bytes) : tier_(capacity_bytes) {}
  T& tier() { return tier_; }

 private:
  T tier_;
};

class WithinBudget {
 public:
  explicit WithinBudget(std::size_t capacity_bytes) : budgeted_(upstream_, capacity_bytes) {}
  tiered::Budgeted<tiered::PageableTier>& tier() { return budgeted_; }

 private:
  tiered::PageableTier upstream_;
  tiered::Budgeted<tiered::PageableTier> budgeted_;
};

template <class T>
class Erased {
 public:
  explicit Erased(std::size_t capacity_bytes) : tier_(T(capacity_bytes)) {}
  tiered::AnyTier& tier() { return tier_; }

 private:
  tiered::AnyTier tier_;
};

}  // namespace

TEST_CASE("PageableTier is a MemoryTier", "[conformance][memory_tier]") { tiered_test::memory_tier_suite<Plain<tiered::PageableTier>>(); }
TEST_CASE("SimTier is a MemoryTier", "[conformance][memory_tier]") { tiered_test::memory_tier_suite<Plain<tiered::SimTier>>(); }
TEST_CASE("Budgeted is a MemoryTier", "[conformance][memory_tier]") { tiered_test::memory_tier_suite<WithinBudget>(); }
TEST_CASE("AnyTier of a PageableTier is a MemoryTier", "[conformance][memory_tier]") {
  tiered_test::memory_tier_suite<Erased<tiered::PageableTier>>();
}
TEST_CASE("AnyTier of a SimTier is a MemoryTier", "[conformance][memory_tier]") {
  tiered_test::memory_tier_suite<Erased<tiered::SimTier>>();
}
