#include "tiered/engine/trace_json.hpp"

#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "tiered/core/error.hpp"

using namespace tiered;

namespace {

std::vector<Shard> two_shards() {
  std::vector<Shard> shards(2);
  shards[0].layer = 3;
  shards[0].kind = ShardKind::ffn;
  shards[1].layer = 4;
  shards[1].kind = ShardKind::expert;
  shards[1].expert = 7;
  return shards;
}
std::vector<Shard> const shards = two_shards();
ShardTable const table{shards, {}, {}, {}};

Action action(ActionKind kind, DeviceId device, std::uint32_t shard, std::size_t bytes = 0) {
  return {kind, device, ShardId{shard}, {}, {0, 2}, 0, bytes};
}

nlohmann::json written(BoundedTrace const& trace) {
  std::string text;
  write_trace_json([&](std::string_view piece) { text += piece; }, trace.events(), table, trace.steps(), trace.n_cut());
  return nlohmann::json::parse(text);
}

}  // namespace

TEST_CASE("an event has a row, a begin from the first one's on, a length, and what it was about", "[trace_json]") {
  BoundedTrace trace;
  trace.record(action(ActionKind::copy, first_gpu, 1, 4096), 10.5, 10.75);
  trace.record(action(ActionKind::run, host_device, 0), 10.25, 10.5);
  trace.record(action(ActionKind::run, first_gpu, 1), 11, 12);
  trace.record(action(ActionKind::hop, first_gpu, 0, 64), 12, 12.5);
  std::vector<nlohmann::json> spans;
  nlohmann::json const file = written(trace);
  for (nlohmann::json const& e : file["traceEvents"]) {
    if (e["ph"] == "X") spans.push_back(e);
  }
  REQUIRE(spans.size() == 4);
  CHECK(spans[0]["name"] == "copy expert");
  CHECK(spans[0]["ts"] == 0.25e6);
  CHECK(spans[0]["dur"] == 0.25e6);
  CHECK(spans[0]["args"] == nlohmann::json{{"layer", 4}, {"bytes", 4096}, {"rows", 2}, {"expert", 7}});
  CHECK(spans[1]["ts"] == 0);
  CHECK(spans[1]["args"]["layer"] == 3);
  CHECK(spans[3]["name"] == "hop rows");
  CHECK(spans[3]["args"]["layer"] == -1);
  std::vector<int> rows;
  for (auto const& e : spans) rows.push_back(e["tid"]);
  CHECK(rows == std::vector<int>{1, 3, 2, 1});  // link, CPU, device, link
}

TEST_CASE("rows have names; that of the steps only where there are some", "[trace_json]") {
  auto const names = [](nlohmann::json const& trace) {
    std::vector<std::string> out;
    for (nlohmann::json const& e : trace["traceEvents"]) {
      if (e["name"] == "thread_name") out.push_back(e["args"]["name"]);
    }
    return out;
  };
  BoundedTrace trace;
  CHECK(names(written(trace)) == std::vector<std::string>{"link", "device", "cpu"});
  trace.begin_step("prompt");
  CHECK(names(written(trace)) == std::vector<std::string>{"steps", "link", "device", "cpu"});
}

TEST_CASE("a step lasts from the first begin to the last end of its events", "[trace_json]") {
  BoundedTrace trace;
  trace.begin_step("first");
  trace.record(action(ActionKind::run, host_device, 0), 1, 3);
  trace.record(action(ActionKind::copy, first_gpu, 0), 1.5, 2);
  trace.begin_step("nothing");
  trace.begin_step("second");
  trace.record(action(ActionKind::run, host_device, 0), 4, 5);
  std::vector<nlohmann::json> steps;
  nlohmann::json const file = written(trace);
  for (nlohmann::json const& e : file["traceEvents"]) {
    if (e.value("cat", "") == "step") steps.push_back(e);
  }
  REQUIRE(steps.size() == 2);
  CHECK(steps[0]["name"] == "first");
  CHECK(steps[0]["dur"] == 2e6);
  CHECK(steps[1]["name"] == "second");
  CHECK(steps[1]["ts"] == 3e6);
}

TEST_CASE("a full trace counts what it cuts and says so", "[trace_json]") {
  BoundedTrace trace(2);
  trace.begin_step("one");
  for (int i = 0; i < 5; ++i) trace.record(action(ActionKind::run, host_device, 0), i, i + 1);
  trace.begin_step("two");
  CHECK(trace.events().size() == 2);
  CHECK(trace.n_cut() == 3);
  CHECK(trace.steps().size() == 1);
  CHECK(written(trace)["otherData"]["events_cut"] == 3);
}

TEST_CASE("what the sink throws comes out", "[trace_json]") {
  BoundedTrace trace;
  auto const full = [](std::string_view) { throw Error(Errc::io, "no space left"); };
  CHECK_THROWS_AS(write_trace_json(full, trace.events(), table), Error);
}
