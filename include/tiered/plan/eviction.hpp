/// Which expert leaves the cache: the concept and the built-in policies.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

#include "tiered/core/ids.hpp"

namespace tiered {

/// | expression         | result            | meaning                                                                       |
/// |--------------------|-------------------|-------------------------------------------------------------------------------|
/// | `t.touch(s, step)` | void              | s is used in step number `step`, cached or not                                |
/// | `t.admit(s)`       | bool              | may s, about to be fetched, take the place of another and stay                |
/// | `t.insert(s)`      | void              | s is in the cache now                                                         |
/// | `t.erase(s)`       | void              | s is out                                                                      |
/// | `t.victim()`       | optional<ShardId> | one that was inserted and not erased; none if there is none; does not erase it |
/// Deterministic; amortised O(log n) a call; one thread. One that can learn from earlier runs has these, too:
/// | `t.begin_with(uses_per_step)` | void      | of earlier runs, a span<double const> by shard; counts from 0 again        |
/// | `t.uses()`                    | span<std::uint64_t const> | by shard: how often it was touched since; what is beyond was not |
template <class P>
concept EvictionPolicy = requires(P& p, ShardId s, std::uint64_t step) {
  { p.touch(s, step) } -> std::same_as<void>;
  { p.admit(s) } -> std::same_as<bool>;
  { p.insert(s) } -> std::same_as<void>;
  { p.erase(s) } -> std::same_as<void>;
  { p.victim() } -> std::same_as<std::optional<ShardId>>;
};

}  // namespace tiered
