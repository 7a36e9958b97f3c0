/// What happened when: the concept that an engine reports to, and two models of it.
#pragma once

#include <concepts>
#include <vector>

#include "tiered/model/shard.hpp"
#include "tiered/pipeline/trace_log.hpp"
#include "tiered/plan/schedule.hpp"

namespace tiered {

/// | expression                       | result | meaning                                                                            |
/// |----------------------------------|--------|------------------------------------------------------------------------------------|
/// | `t.record(action, begin, end)`   | void   | the action ran from `begin` to `end`, in seconds of one clock; called after each block |
/// Copies carry device first_gpu and kind copy or hop; runs the device that computed. One thread.
/// And if it has this one, what a VisionEncoder does, whose shards are those of its own model:
/// | `t.record_encoder(action, begin, end)` | void | likewise; called after each of its blocks                                    |
template <class T>
concept TracePolicy = requires(T& t, Action const& a, double begin_s, double end_s) {
  { t.record(a, begin_s, end_s) } -> std::same_as<void>;
};

/// Costs nothing: the engine keeps no times for it.
struct NullTrace {
  void record(Action const&, double, double) {}
};
static_assert(TracePolicy<NullTrace>);

struct TraceEvent {
  Action action;
  double begin_s = 0, end_s = 0;
  bool of_encoder = false;
  bool is_copy() const { return action.kind == ActionKind::copy || action.kind == ActionKind::hop; }
};

/// Whose shards the actions of events are.
struct TraceTables {
  TraceTables(ShardTable of_model, ShardTable of_encoder = {}) : model(of_model), encoder(of_encoder) {}
  Shard const& shard_of(TraceEvent const& e) const { return (e.of_encoder ? encoder : model).shard(e.action.shard); }
  ShardTable model, encoder;
};

/// Keeps all events, in the order in which they were enqueued.
struct RecordingTrace {
  std::vector<TraceEvent> events;
  void record(Action const& a, double begin_s, double end_s) { events.push_back({a, begin_s, end_s}); }
  void record_encoder(Action const& a, double begin_s, double end_s) { events.push_back({a, begin_s, end_s, true}); }
};
static_assert(TracePolicy<RecordingTrace>);

}  // namespace tiered
