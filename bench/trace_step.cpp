/// One token as it really ran on the simulated device, in Chrome's trace format, for bench/draw_timeline.py or ui.perfetto.dev:
///   trace_step MODEL.gguf [BUDGET] [PLACEMENT] > trace.json
#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tiered/plan/any_policy.hpp"
#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"

struct TracedPolicies : tiered::SimPolicies {
  using Placement = tiered::AnyPlacement;
  using Trace = tiered::RecordingTrace;
};

char const* lane(tiered::TraceEvent const& e) {
  if (e.is_copy()) return "link";
  return e.action.device == tiered::host_device ? "cpu" : "device";
}

void print(std::vector<tiered::TraceEvent> const& events, tiered::ShardTable const& table) {
  double start = events.empty() ? 0 : events.front().begin_s;
  for (tiered::TraceEvent const& e : events) start = std::min(start, e.begin_s);
  std::printf("{\"traceEvents\": [\n");
  for (std::size_t i = 0; i < events.size(); ++i) {
    tiered::TraceEvent const& e = events[i];
    bool const of_shard = e.action.kind != tiered::ActionKind::hop;
    tiered::Shard const* const shard = of_shard ? &table.shard(e.action.shard) : nullptr;
    std::string const kind(name(e.action.kind)), what(of_shard ? name(shard->kind) : "rows");
    std::printf(
        "{\"name\": \"%s %s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": \"%s\", \"ts\": %.3f, \"dur\": %.3f, \"args\": "
        "{\"layer\": %d, \"bytes\": %zu}}%s\n",
        kind.c_str(), what.c_str(), kind.c_str(), lane(e), (e.begin_s - start) * 1e6, (e.end_s - e.begin_s) * 1e6,
        of_shard ? shard->layer : -1, e.action.bytes, i + 1 < events.size() ? "," : "");
  }
  std::printf("]}\n");
}

int main(int argc, char** argv) try {
  if (argc < 2) return std::fprintf(stderr, "usage: trace_step MODEL.gguf [BUDGET] [PLACEMENT] > trace.json\n"), 2;
  auto const budget = tiered::parse_bytes(argc > 2 ? argv[2] : "48M");
  if (!budget) return std::fprintf(stderr, "trace_step: %s is no size\n", argv[2]), 2;
  tiered::GgufFile const gguf = tiered::GgufFile::open(argv[1]);
  tiered::Tokenizer const tokenizer = tiered::make_tokenizer(gguf);
  tiered::PolicyValues<TracedPolicies> values;
  values.placement = tiered::make_placement(argc > 3 ? argv[3] : "seconds_per_byte");
  tiered::Engine<TracedPolicies> engine(tiered::make_model(gguf), {.vram_bytes = *budget, .max_context = 512}, std::move(values));
  tiered::Sequence const sequence = engine.new_sequence();
  auto logits = engine.prefill(sequence, tokenizer.encode("The quick brown fox jumps over the lazy dog."));
  std::vector<tiered::TraceEvent> best;  // the quickest of many steps: others use this machine, too
  double best_s = 1e9;
  for (int i = 0; i < 400; ++i) {
    engine.trace().events.clear();
    logits = engine.decode(sequence, tiered::argmax(logits));
    auto const& events = engine.trace().events;
    double begin = 1e300, end = 0;
    for (auto const& e : events) begin = std::min(begin, e.begin_s), end = std::max(end, e.end_s);
    if (i > 0 && !events.empty() && end - begin < best_s) best_s = end - begin, best = events;
  }
  print(best, engine.model().table());
} catch (tiered::Error const& e) {
  return std::fprintf(stderr, "trace_step: %s: %s\n", name(e.code()), e.what()), 1;
}
