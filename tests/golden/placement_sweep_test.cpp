// The release test: budgets from "nothing fits" to "all fits", every built-in policy, the same bits everywhere.
#include "catch.hpp"
#include "golden/engine_helpers.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

std::size_t all_bytes(Transformer const& model) {
  std::size_t sum = 0;
  for (Shard const& s : model.table().shards) sum += s.bytes;
  return sum;
}

struct TracedSweep : SweepPolicies {
  using Trace = RecordingTrace;
};

EngineOptions options_for(std::size_t vram_bytes) {
  EngineOptions options;
  options.vram_bytes = vram_bytes;
  options.max_context = 256;
  options.n_threads = 1;
  return options;
}

}  // namespace

TEST_CASE("placement changes speed, never text", "[golden][sweep]") {
  for (GoldenCase const& c : golden_cases()) {
    if (c.exact && std::string(c.gguf).find(".f16") == std::string::npos) continue;  // each architecture in floats and in mixed types
    auto const model = open_golden(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    Engine<CpuPolicies> cpu(model, options_for(0));
    std::vector<std::size_t> const steps{std::size_t(f.prompt_size), 1};
    std::vector<float> const expected = all_logits(cpu, f.tokens, steps);
    std::size_t const most = 4 * all_bytes(*model) + 4 * MiB;  // with scratch, KV and a ring
    for (std::string const policy : {"all_vram", "attention_first", "seconds_per_byte", "stream_all"}) {
      std::size_t used_somewhere = 0;
      for (int i = 0; i < 10; ++i) {
        std::size_t const budget = i == 0 ? 0 : most >> (9 - i);
        INFO(c.gguf << " " << policy << " " << budget);
        PolicyValues<SweepPolicies> values{.placement = make_placement(policy)};
        Engine<SweepPolicies> engine(model, options_for(budget), values);
        CHECK(all_logits(engine, f.tokens, steps) == expected);
        CHECK(engine.stats().vram_peak_bytes <= budget);
        used_somewhere = std::max(used_somewhere, engine.stats().vram_peak_bytes);
      }
      CHECK(used_somewhere > 0);
    }
  }
}

TEST_CASE("placement changes no text with keys and values in eight bits either", "[golden][sweep]") {
  for (GoldenCase const& c : golden_cases()) {
    if (c.exact) continue;
    auto const model = open_golden(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    EngineOptions options = options_for(0);
    options.kv_type = DType::q8_0;
    std::vector<std::size_t> const steps{std::size_t(f.prompt_size), 1};
    Engine<CpuPolicies> cpu(model, options);
    std::vector<float> const expected = all_logits(cpu, f.tokens, steps);
    Engine<CpuPolicies> one_by_one(model, options);
    CHECK(all_logits(one_by_one, f.tokens, {1}) == expected);
    Engine<CpuPolicies> in_halves(model, options_for(0));
    CHECK(all_logits(in_halves, f.tokens, steps) != expected);  // it is used at all
    std::size_t used_somewhere = 0;
    for (std::string const policy : {"all_vram", "attention_first", "stream_all"}) {
      for (int i = 0; i < 4; ++i) {
        options.vram_bytes = (4 * all_bytes(*model) + 4 * MiB) >> (2 * i);
        INFO(c.gguf << " " << policy << " " << options.vram_bytes);
        PolicyValues<SweepPolicies> values{.placement = make_placement(policy)};
        Engine<SweepPolicies> engine(model, options, values);
        CHECK(all_logits(engine, f.tokens, steps) == expected);
        CHECK(engine.stats().vram_peak_bytes <= options.vram_bytes);
        used_somewhere = std::max(used_somewhere, engine.stats().vram_peak_bytes);
      }
    }
    CHECK(used_somewhere > 0);
  }
}

TEST_CASE("copies run behind compute", "[golden][sweep]") {
  // Events stand in the order in which they were enqueued, and a copy waits for nothing but the last use of the bytes that it
  // overwrites: one that stands before the run of another shard travels while that one computes.
  auto const model = open_golden("llama_k.mixed.gguf");
  GoldenFixture const f = read_golden(golden_path("llama_k.mixed.golden"));
  PolicyValues<TracedSweep> values{.placement = make_placement("stream_all")};
  Engine<TracedSweep> engine(model, options_for(3 * all_bytes(*model) + 4 * MiB), values);
  all_logits(engine, f.tokens, {std::size_t(f.prompt_size), 1});
  std::vector<TraceEvent> const& events = engine.trace().events;
  std::size_t n_copies = 0, n_ahead = 0;
  for (std::size_t c = 0; c < events.size(); ++c) {
    CHECK(events[c].begin_s <= events[c].end_s);
    if (events[c].action.kind != ActionKind::copy) continue;
    ++n_copies;
    std::size_t run = c + 1;
    while (run < events.size() && events[run].action.kind != ActionKind::run) ++run;
    n_ahead += run < events.size() && events[run].action.shard != events[c].action.shard ? 1 : 0;
  }
  REQUIRE(n_copies > 0);
  CHECK(n_ahead * 2 > n_copies);
}

TEST_CASE("decode fetches the routed experts and no others", "[golden][sweep]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  std::int32_t const n_used = model->config().layers[0].experts.n_experts_used;
  PolicyValues<TracedSweep> values{.placement = make_placement("stream_all")};
  Engine<TracedSweep> engine(model, options_for(all_bytes(*model) / 2 + 2 * MiB), values);
  Sequence const sequence = engine.new_sequence();
  engine.prefill(sequence, std::vector<std::int32_t>{1, 2, 3});
  std::size_t n_fetched = 0;
  for (std::int32_t token = 4; token < 24; ++token) {
    engine.trace().events.clear();
    engine.decode(sequence, token);
    std::vector<std::int32_t> fetched(model->config().layers.size(), 0);
    for (TraceEvent const& e : engine.trace().events) {
      Shard const s = model->table().shard(e.action.shard);
      if (e.action.kind == ActionKind::copy && s.kind == ShardKind::expert) ++fetched[std::size_t(s.layer)];
    }
    for (std::int32_t n : fetched) {
      CHECK(n <= n_used);
      n_fetched += std::size_t(n);
    }
  }
  CHECK(n_fetched > 0);
}

TEST_CASE("a weight crosses the link once per prompt", "[golden][sweep]") {
  for (char const* file : {"llama_k.mixed.gguf", "qwen3moe_k.mixed.gguf", "gemma3.f16.gguf"}) {
    auto const model = open_golden(file);
    for (std::size_t budget : {all_bytes(*model) / 2 + 2 * MiB, all_bytes(*model) + 2 * MiB}) {
      INFO(file << " " << budget);
      PolicyValues<TracedSweep> values{.placement = make_placement("stream_all")};
      Engine<TracedSweep> engine(model, options_for(budget), values);
      Sequence const sequence = engine.new_sequence();
      std::vector<std::int32_t> prompt;
      for (std::int32_t i = 0; i < 40; ++i) prompt.push_back(3 + i % 60);
      engine.prefill(sequence, prompt);
      std::vector<std::size_t> copied(model->table().shards.size(), 0);
      for (TraceEvent const& e : engine.trace().events) {
        if (e.action.kind == ActionKind::copy) copied[std::size_t(e.action.shard)] += e.action.bytes;
      }
      std::size_t n_copied = 0;
      for (Shard const& s : model->table().shards) {
        CHECK(copied[std::size_t(s.id)] <= s.bytes);
        n_copied += copied[std::size_t(s.id)] > 0 ? 1 : 0;
      }
      CHECK(n_copied > 0);
    }
  }
}
