#include "tiered/engine/trace_idle.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/engine/trace_json.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// An output, and two shards of each of layers 0 to 2.
std::vector<Shard> some_shards() {
  std::vector<Shard> shards(7);
  shards[0].layer = 3;  // the number behind that of the last layer
  shards[0].kind = ShardKind::output;
  for (std::size_t i = 1; i < shards.size(); ++i) {
    shards[i].layer = std::int32_t(i - 1) / 2;
    shards[i].kind = ShardKind::ffn;
  }
  return shards;
}
std::vector<Shard> const shards = some_shards();
ShardTable const shard_table{shards, {}, {}, {}};

TraceEvent event(ActionKind kind, DeviceId device, std::uint32_t shard, double begin_s, double end_s) {
  return {{kind, device, ShardId{shard}, {}, {}, 0, 0}, begin_s, end_s};
}
TraceEvent on_device(std::uint32_t shard, double begin_s, double end_s) { return event(ActionKind::run, first_gpu, shard, begin_s, end_s); }

struct TracedSim : SimPolicies {
  using Placement = AnyPlacement;
  using Trace = BoundedTrace;
};

}  // namespace

TEST_CASE("a layer is idle where none of its own ran, between the first and the last that did", "[trace]") {
  std::vector<TraceEvent> const events{
      on_device(1, 10, 11),
      event(ActionKind::run, host_device, 2, 11, 13),   // another device
      event(ActionKind::copy, first_gpu, 2, 11, 12.5),  // the link
      on_device(2, 12.5, 14),                           // 1.5 s after the one before
      on_device(3, 20, 24),                             // layer 1: what is between layers is neither's
      on_device(4, 22, 23),                             // within the other
      on_device(4, 24.25, 25),
      on_device(0, 25, 26),
      on_device(5, 27, 28),  // alone
  };
  std::vector<LayerIdle> const idle = device_idle(events, shard_table);
  REQUIRE(idle.size() == 3);
  CHECK(idle[0].layer == 0);
  CHECK(idle[0].begin_s == 10);
  CHECK(idle[0].end_s == 14);
  CHECK(idle[0].idle_s == 1.5);
  CHECK(idle[1].layer == 1);
  CHECK(idle[1].idle_s == 0.25);
  CHECK(idle[2].idle_s == 0);
  IdleSum sum;
  CHECK(sum.mean_s() == 0);
  sum.add(idle);
  CHECK(sum.n_layers == 3);
  CHECK(sum.mean_s() == Approx(1.75 / 3));
}

TEST_CASE("a layer that comes again is counted again, whatever order events were told in", "[trace]") {
  std::vector<TraceEvent> const events{on_device(4, 3, 4), on_device(1, 0, 1), on_device(1, 5, 6), on_device(2, 7, 8), on_device(2, 1, 2)};
  std::vector<LayerIdle> const idle = device_idle(events, shard_table);
  REQUIRE(idle.size() == 3);
  CHECK(idle[0].idle_s == 0);
  CHECK(idle[1].layer == 1);
  CHECK(idle[2].layer == 0);
  CHECK(idle[2].idle_s == 1);
  CHECK(device_idle({}, shard_table).empty());
}

TEST_CASE("a file has a counter that a layer sets and its end takes back; a mean is of what is behind the prompt", "[trace_json]") {
  BoundedTrace trace;
  auto const record = [&](TraceEvent const& e) { trace.record(e.action, e.begin_s, e.end_s); };
  trace.begin_step("prompt");
  record(on_device(1, 1, 2));
  record(on_device(2, 12, 13));
  trace.begin_step("token 1", TraceStepKind::token);
  record(on_device(2, 14, 15));  // the same layer, but of another step
  record(on_device(1, 15.5, 16));
  std::string text;
  write_trace_json([&](std::string_view piece) { text += piece; }, trace.events(), shard_table, trace.steps());
  std::vector<std::pair<double, double>> points;
  nlohmann::json const file = nlohmann::json::parse(text);
  for (nlohmann::json const& e : file["traceEvents"]) {
    if (e["ph"] == "C") points.emplace_back(double(e["ts"]), double(e["args"]["us"]));
  }
  CHECK(points == std::vector<std::pair<double, double>>{{0, 10e6}, {12e6, 0}, {13e6, 0.5e6}, {15e6, 0}});
  IdleSum const sum = steps_idle(trace.events(), shard_table, trace.steps(), TraceStepKind::token);
  CHECK(sum.n_layers == 1);
  CHECK(sum.mean_s() == 0.5);
  CHECK(steps_idle(trace.events(), shard_table, trace.steps(), TraceStepKind::prompt).mean_s() == 10);
  CHECK(steps_idle(trace.events(), shard_table, trace.steps(), TraceStepKind::media).n_layers == 0);
  CHECK(steps_idle(trace.events(), shard_table, {}, TraceStepKind::prompt).n_layers == 0);
}

TEST_CASE("each layer that a simulated device runs in a step is there once, and idle for less than it lasts", "[trace][sim]") {
  auto const model = open_golden("llama.f32.gguf");
  EngineOptions options;
  options.vram_bytes = 64 * MiB;
  options.max_context = 64;
  options.n_threads = 1;
  Engine<TracedSim> engine(model, options, {.placement = make_placement("all_vram")});
  Sequence const sequence = engine.new_sequence();
  engine.trace().begin_step("prompt");
  auto logits = engine.prefill(sequence, std::vector<std::int32_t>{3, 4, 5});
  for (int i = 0; i < 3; ++i) {
    engine.trace().begin_step("token");
    logits = engine.decode(sequence, argmax(logits));
  }
  std::map<std::int32_t, int> seen;
  IdleSum sum;
  detail::each_step(engine.trace().events(), engine.trace().steps(), [&](int, std::span<TraceEvent const> events) {
    std::vector<LayerIdle> const layers = device_idle(events, model->table());
    for (LayerIdle const& l : layers) {
      ++seen[l.layer];
      CHECK(l.idle_s >= 0);
      CHECK(l.idle_s < l.end_s - l.begin_s);
    }
    sum.add(layers);
  });
  CHECK(seen.size() == std::size_t(model->config().n_layers));
  for (auto const& [layer, n] : seen) CHECK(n == 4);
  CHECK(sum.n_layers == 4 * std::size_t(model->config().n_layers));
}
