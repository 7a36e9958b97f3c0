/// The least type that models each concept of plan/, what does not, and the templates instantiated with nothing more than that.
#include <concepts>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/plan/any_eviction.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/planner.hpp"
#include "tiered/plan/token_tiers.hpp"

using namespace tiered;

namespace {

struct LeastCost {
  LeastCost() = delete;
  explicit LeastCost(int) {}
  LeastCost(LeastCost const&) = delete;
  PassCost cost(Shard const&, Rows) const { return {3, 1, 1}; }
  PassCost cost(LayerState const&, Rows) const { return {3, 1, 1}; }
};
static_assert(CostModel<LeastCost>);
struct NoStateCost {
  PassCost cost(Shard const&, Rows) const { return {}; }
};
static_assert(!CostModel<NoStateCost>);

struct LeastPlacement {
  LeastPlacement() = delete;
  explicit LeastPlacement(int) {}
  LeastPlacement(LeastPlacement const&) = delete;
  Placements place(PlanRequest const& r) const { return Placements{r}; }
};
static_assert(PlacementPolicy<LeastPlacement>);
struct PlacesByChangingItself {
  Placements place(PlanRequest const& r) { return Placements{r}; }
};
static_assert(!PlacementPolicy<PlacesByChangingItself>);
struct PlacesNothing {
  void place(PlanRequest const&) const {}
};
static_assert(!PlacementPolicy<PlacesNothing>);

struct LeastPrefetch {
  LeastPrefetch() = delete;
  explicit LeastPrefetch(int) {}
  LeastPrefetch(LeastPrefetch const&) = delete;
  Schedule schedule(ShardPlan const& plan, ShardTable const& table) const { return RingPrefetch{}.schedule(plan, table); }
};
static_assert(PrefetchPolicy<LeastPrefetch>);
struct PrefetchWithoutPlan {
  Schedule schedule(ShardTable const&) const { return {}; }
};
static_assert(!PrefetchPolicy<PrefetchWithoutPlan>);

struct LeastTokenTiers {
  LeastTokenTiers() = delete;
  LeastTokenTiers(LeastTokenTiers const&) = delete;
  std::vector<int> const& bounds() const;
  std::size_t select(int) const;
};
static_assert(TokenTierPolicy<LeastTokenTiers>);
struct SelectsInt {
  std::span<int const> bounds() const;
  int select(int) const;
};
static_assert(!TokenTierPolicy<SelectsInt>);

struct LeastEviction {
  void touch(ShardId, std::uint64_t) {}
  bool admit(ShardId) { return true; }
  void insert(ShardId s) { last_ = s; }
  void erase(ShardId) { last_.reset(); }
  std::optional<ShardId> victim() { return last_; }

 private:
  std::optional<ShardId> last_;
};
static_assert(EvictionPolicy<LeastEviction>);
struct VictimOrNothing : LeastEviction {
  ShardId victim() { return {}; }
};
static_assert(!EvictionPolicy<VictimOrNothing>);

static_assert(PlacementPolicy<AnyPlacement> && std::copyable<AnyPlacement> && std::default_initializable<AnyPlacement>);
static_assert(PrefetchPolicy<AnyPrefetch> && std::copyable<AnyPrefetch> && std::default_initializable<AnyPrefetch>);
static_assert(!std::constructible_from<AnyPlacement, PlacesNothing>);
static_assert(!std::constructible_from<AnyPrefetch, PrefetchWithoutPlan>);

}  // namespace

TEST_CASE("plan_tier needs no more of its policies than their concepts say", "[plan][concepts]") {
  fake::Model const model{fake::small_moe()};
  HardwareProfile const hardware = HardwareProfile::simulated();
  auto const scratch = [](std::int32_t, std::int32_t) { return std::size_t{256}; };
  static_assert(!std::constructible_from<ScratchBytes, std::remove_const_t<decltype(scratch)>>);  // it would dangle
  TierPlan const plan =
      plan_tier(LeastPlacement{0}, LeastPrefetch{0}, LeastCost{0}, hardware, model.table(), {{1 << 20, 0, 0}, {1, 64, 1}, scratch, {}, 0});
  REQUIRE(plan.plan.vram_bytes == 0);
  REQUIRE(plan.estimate.seconds > 0);
}

TEST_CASE("copies of an erased policy answer alike", "[plan][concepts]") {
  struct Counted {
    std::size_t cache_bytes = 0;
    Placements place(PlanRequest const& r) const {
      Placements out{r};
      out.cache_bytes = cache_bytes;
      return out;
    }
  };
  AnyPlacement a = Counted{7}, b = a;
  a = Counted{8};
  REQUIRE(a.place({}).cache_bytes == 8);
  REQUIRE(b.place({}).cache_bytes == 7);
}
