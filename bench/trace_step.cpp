/// One token as it really ran on the simulated device, in Chrome's trace format, for bench/draw_timeline.py or ui.perfetto.dev:
///   trace_step MODEL.gguf [BUDGET] [PLACEMENT] > trace.json
#include <algorithm>
#include <cstdio>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/engine/trace_json.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"

struct TracedPolicies : tiered::SimPolicies {
  using Placement = tiered::AnyPlacement;
  using Trace = tiered::RecordingTrace;
};

void print(std::vector<tiered::TraceEvent> const& events, tiered::ShardTable const& table) {
  tiered::write_trace_json([](std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }, events, table);
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
