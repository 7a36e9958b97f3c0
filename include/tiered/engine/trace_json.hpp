/// Traces in Chrome's format, for ui.perfetto.dev, chrome://tracing and bench/draw_timeline.py. The only header of engine/ that needs
/// nlohmann/json; no umbrella includes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tiered/core/function_ref.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/trace.hpp"
#include "tiered/engine/trace_idle.hpp"
#include "tiered/model/shard.hpp"

namespace tiered {

enum class TraceStepKind : std::uint8_t { media, prompt, token };
/// A name for the events from `first_event` to where the next step begins.
struct TraceStep {
  std::string name;
  std::size_t first_event = 0;
  TraceStepKind kind = TraceStepKind::prompt;
};

/// Keeps the first events and counts what comes behind, so that a long text does not take all memory.
class BoundedTrace {
 public:
  /// An event takes about 70 bytes here, and 200 in a file.
  explicit BoundedTrace(std::size_t most_events = std::size_t{1} << 18) : most_events_(most_events) {}

  void record(Action const& action, double begin_s, double end_s) { add({action, begin_s, end_s}); }
  void record_encoder(Action const& action, double begin_s, double end_s) { add({action, begin_s, end_s, true}); }
  /// What is recorded from now on belongs to a step of this name.
  void begin_step(std::string name, TraceStepKind kind = TraceStepKind::prompt) {
    if (n_cut_ == 0) steps_.push_back({std::move(name), events_.size(), kind});
  }

  std::span<TraceEvent const> events() const { return events_; }
  std::span<TraceStep const> steps() const { return steps_; }
  /// Events that came when there was no room any more.
  std::uint64_t n_cut() const { return n_cut_; }

 private:
  void add(TraceEvent const& event) {
    if (events_.size() < most_events_)
      events_.push_back(event);
    else
      ++n_cut_;
  }

  std::size_t most_events_;
  std::vector<TraceEvent> events_;
  std::vector<TraceStep> steps_;
  std::uint64_t n_cut_ = 0;
};
static_assert(TracePolicy<BoundedTrace>);

namespace detail {

/// Rows of the picture, from top to bottom; the number is the "tid".
inline constexpr std::string_view trace_rows[] = {"steps", "link", "device", "cpu"};

inline int trace_row(TraceEvent const& e) { return e.is_copy() ? 1 : e.action.device == host_device ? 3 : 2; }

/// Times are in microseconds.
inline nlohmann::json complete_event(std::string name, std::string_view category, int row, double begin_s, double end_s) {
  return {{"name", std::move(name)},       {"cat", category}, {"ph", "X"}, {"pid", 1}, {"tid", row}, {"ts", begin_s * 1e6},
          {"dur", (end_s - begin_s) * 1e6}};
}

/// "run attention"; of an encoder "encoder layer 3: run attention".
inline std::string trace_event_name(TraceEvent const& e, Shard const* shard) {
  std::string what;
  if (e.of_encoder) what = shard != nullptr && shard->layer >= 0 ? concat("encoder layer ", shard->layer, ": ") : "encoder: ";
  what += name(e.action.kind);
  what += ' ';
  what += shard == nullptr ? "rows" : e.of_encoder && shard->layer < 0 ? "patches" : name(shard->kind);
  return what;
}

inline nlohmann::json trace_event_json(TraceEvent const& e, TraceTables const& tables, double origin_s) {
  bool const of_shard = e.action.kind != ActionKind::hop;
  Shard const* const shard = of_shard ? &tables.shard_of(e) : nullptr;
  std::string what = trace_event_name(e, shard);
  nlohmann::json out = complete_event(std::move(what), name(e.action.kind), trace_row(e), e.begin_s - origin_s, e.end_s - origin_s);
  out["args"] = {{"layer", of_shard ? shard->layer : -1}, {"bytes", e.action.bytes}, {"rows", e.action.tokens.end - e.action.tokens.begin}};
  if (of_shard && shard->expert >= 0) out["args"]["expert"] = shard->expert;
  return out;
}

/// A point of the counter track; it keeps its value until the next one.
inline nlohmann::json idle_json(double at_s, double idle_s) {
  return {{"name", "device idle in layer"}, {"ph", "C"}, {"pid", 1}, {"ts", at_s * 1e6}, {"args", {{"us", idle_s * 1e6}}}};
}

/// Calls use(index, events) for the events before the first step, of index -1, and for those of each.
template <class Use>
void each_step(std::span<TraceEvent const> events, std::span<TraceStep const> steps, Use&& use) {
  use(-1, events.first(steps.empty() ? events.size() : steps.front().first_event));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    std::size_t const begin = steps[i].first_event, end = i + 1 < steps.size() ? steps[i + 1].first_event : events.size();
    use(int(i), events.subspan(begin, end - begin));
  }
}

/// From the first begin to the last end of what belongs to the step, but for what ran during the step before, which ended at `before_s`;
/// nothing where that is nothing.
inline nlohmann::json trace_step_json(TraceStep const& step, std::span<TraceEvent const> events, double origin_s, double& before_s) {
  if (events.empty()) return nullptr;
  double begin_s = events.front().begin_s, end_s = events.front().end_s;
  for (TraceEvent const& e : events) begin_s = std::min(begin_s, e.begin_s), end_s = std::max(end_s, e.end_s);
  begin_s = std::max(begin_s, std::exchange(before_s, std::max(before_s, end_s)));
  return begin_s < end_s ? complete_event(step.name, "step", 0, begin_s - origin_s, end_s - origin_s) : nlohmann::json();
}

}  // namespace detail

/// What the device was idle within layers, in steps of a kind.
inline IdleSum steps_idle(std::span<TraceEvent const> events, TraceTables const& tables, std::span<TraceStep const> steps,
                          TraceStepKind kind) {
  IdleSum sum;
  detail::each_step(events, steps, [&](int step, std::span<TraceEvent const> of_step) {
    if (step >= 0 && steps[std::size_t(step)].kind == kind) sum.add(device_idle(of_step, tables));
  });
  return sum;
}

/// Writes {"traceEvents": [...]} with an event for each action, on a row each for link, device and CPU, one for each step above
/// them, and a counter of what the device is idle within each layer. Times count from the first event.
/// `sink`   gets the text in pieces; what it throws comes out here.
/// `steps`  in order of their first events; may be empty.  `n_cut`: events that are known to be missing, which the file then says.
inline void write_trace_json(FunctionRef<void(std::string_view)> sink, std::span<TraceEvent const> events, TraceTables const& tables,
                             std::span<TraceStep const> steps = {}, std::uint64_t n_cut = 0) {
  double origin_s = events.empty() ? 0 : events.front().begin_s;
  for (TraceEvent const& e : events) origin_s = std::min(origin_s, e.begin_s);
  sink("{\"displayTimeUnit\": \"ms\", \"otherData\": ");
  sink(nlohmann::json{{"events_cut", n_cut}}.dump());
  sink(", \"traceEvents\": [");
  std::string_view separator = "\n";
  auto const put = [&](nlohmann::json const& event) {
    if (event.is_null()) return;
    sink(separator);
    sink(event.dump());
    separator = ",\n";
  };
  for (int row = 0; row < int(std::size(detail::trace_rows)); ++row) {
    if (row == 0 && steps.empty()) continue;
    put({{"name", "thread_name"}, {"ph", "M"}, {"pid", 1}, {"tid", row}, {"args", {{"name", detail::trace_rows[row]}}}});
    put({{"name", "thread_sort_index"}, {"ph", "M"}, {"pid", 1}, {"tid", row}, {"args", {{"sort_index", row}}}});
  }
  double before_s = origin_s;
  detail::each_step(events, steps, [&](int step, std::span<TraceEvent const> of_step) {
    if (step >= 0) put(detail::trace_step_json(steps[std::size_t(step)], of_step, origin_s, before_s));
    for (LayerIdle const& l : device_idle(of_step, tables)) {
      put(detail::idle_json(l.begin_s - origin_s, l.idle_s));
      put(detail::idle_json(l.end_s - origin_s, 0));
    }
  });
  for (TraceEvent const& e : events) put(detail::trace_event_json(e, tables, origin_s));
  sink("\n]}\n");
}

}  // namespace tiered
