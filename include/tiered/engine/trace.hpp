/// What happened when: the concept that an engine reports to, and two models of it.
#pragma once

#include <concepts>
#include <vector>

#include "tiered/pipeline/trace_log.hpp"
#include "tiered/plan/schedule.hpp"

namespace tiered {

/// | expression                       | result | meaning                                                                            |
/// |----------------------------------|--------|------------------------------------------------------------------------------------|
/// | `t.record(action, begin, end)`   | void   | the action ran from `begin` to `end`, in seconds of one clock; called after each block |
/// Copies carry device first_gpu and kind copy or hop; runs the device that computed. One thread.
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
  bool is_copy() const { return action.kind == ActionKind::copy || action.kind == ActionKind::hop; }
};

/// Keeps all events, in the order in which they were enqueued.
struct RecordingTrace {
  std::vector<TraceEvent> events;
  void record(Action const& a, double begin_s, double end_s) { events.push_back({a, begin_s, end_s}); }
};
static_assert(TracePolicy<RecordingTrace>);

}  // namespace tiered
