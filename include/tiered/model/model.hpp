/// The concept of a model: shards, steps, and how one step runs.
#pragma once

#include <concepts>

#include "tiered/model/config.hpp"
#include "tiered/model/exec_context.hpp"
#include "tiered/model/shard.hpp"

namespace tiered {

/// | expression           | result               | meaning                                                                      |
/// |----------------------|----------------------|------------------------------------------------------------------------------|
/// | `c.config()`         | ModelConfig const&   |                                                                              |
/// | `c.table()`          | ShardTable           | shards (id equals index), steps in order, layer states, weights; never changes |
/// | `c.run(step, ctx)`   | void                 | enqueues one step for the rows of ctx; touches only what ctx hands out        |
/// All const, so that engines can share one model.
template <class M>
concept Model = requires(M const& c, Step s, ExecContext& ctx) {
  { c.config() } -> std::same_as<ModelConfig const&>;
  { c.table() } -> std::convertible_to<ShardTable>;
  { c.run(s, ctx) } -> std::same_as<void>;
};

}  // namespace tiered
