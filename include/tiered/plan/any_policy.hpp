/// Placement and prefetch policies chosen at run time, such as on a command line.
#pragma once

#include <concepts>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tiered/plan/placements/all_vram.hpp"
#include "tiered/plan/placements/attention_first.hpp"
#include "tiered/plan/placements/seconds_per_byte.hpp"
#include "tiered/plan/placements/stream_all.hpp"
#include "tiered/plan/ring_prefetch.hpp"

namespace tiered {

/// Any PlacementPolicy; copies share the policy, which is const.
class AnyPlacement {
 public:
  AnyPlacement() : AnyPlacement(SecondsPerByte{}) {}
  template <class P>
  requires(!std::same_as<std::remove_cvref_t<P>, AnyPlacement>) && PlacementPolicy<std::remove_cvref_t<P>> AnyPlacement(P&& policy)
      : policy_(std::make_shared<std::remove_cvref_t<P>>(std::forward<P>(policy))),
  place_([](void const* p, PlanRequest const& r) { return static_cast<std::remove_cvref_t<P> const*>(p)->place(r); }) {}
  Placements place(PlanRequest const& r) const { return place_(policy_.get(), r); }

 private:
  std::shared_ptr<void const> policy_;
  Placements (*place_)(void const*, PlanRequest const&);
};
static_assert(PlacementPolicy<AnyPlacement>);

/// Any PrefetchPolicy; copies share the policy, which is const.
class AnyPrefetch {
 public:
  AnyPrefetch() : AnyPrefetch(RingPrefetch{}) {}
  template <class P>
  requires(!std::same_as<std::remove_cvref_t<P>, AnyPrefetch>) && PrefetchPolicy<std::remove_cvref_t<P>> AnyPrefetch(P&& policy)
      : policy_(std::make_shared<std::remove_cvref_t<P>>(std::forward<P>(policy))),
  schedule_([](void const* p, ShardPlan const& plan, ShardTable const& table) {
    return static_cast<std::remove_cvref_t<P> const*>(p)->schedule(plan, table);
  }) {}
  Schedule schedule(ShardPlan const& plan, ShardTable const& table) const { return schedule_(policy_.get(), plan, table); }

 private:
  std::shared_ptr<void const> policy_;
  Schedule (*schedule_)(void const*, ShardPlan const&, ShardTable const&);
};
static_assert(PrefetchPolicy<AnyPrefetch>);

inline constexpr std::string_view placement_names[] = {"all_vram", "attention_first", "seconds_per_byte", "stream_all"};

/// Errors  precondition for a name that is none of placement_names.
AnyPlacement make_placement(std::string_view name);

}  // namespace tiered
