/// The built-in prefetch policy: a first-in-first-out ring of bytes, filled as far ahead as it has room.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "tiered/plan/schedule.hpp"

namespace tiered {
namespace detail {
struct RingPiece;
}

/// Copies stand as early as the ring has room. A shard larger than `split_above` of the ring goes by row ranges of about
/// `piece` of it, so that one is copied while the one before runs; where a prompt goes in several chunks (each of which needs
/// the whole shard) only a shard larger than the ring does.
/// Errors  over_budget where one row of a streamed shard is larger than the ring.
struct RingPrefetch {
  double split_above = 0.5;
  double piece = 0.32;  ///< below a third: then the next piece finds room beside the one in use, wherever that lies
  std::size_t most_ahead = std::numeric_limits<std::size_t>::max();  ///< pieces in the ring at any time, at least 1
  bool operator==(RingPrefetch const&) const = default;

  Schedule schedule(ShardPlan const& plan, ShardTable const& table) const;

 private:
  void cut(ShardPlan const& plan, ShardTable const& table, Shard const& shard, std::vector<detail::RingPiece>& pieces) const;
};
static_assert(PrefetchPolicy<RingPrefetch>);

}  // namespace tiered
