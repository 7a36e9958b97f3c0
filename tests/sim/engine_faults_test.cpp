// A fault at every N: a typed error, nothing lost, the engine usable again.
#include "catch.hpp"
#include "golden/engine_helpers.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct Case {
  char const* model;
  char const* policy;
  std::size_t vram_bytes;
};

std::vector<std::int32_t> const prompt{3, 1, 4, 1, 5};

template <class E>
std::vector<float> run(E& engine) {
  return all_logits(engine, prompt, {3, 1});
}

EngineOptions options_for(Case const& c) {
  EngineOptions options;
  options.vram_bytes = c.vram_bytes;
  options.max_context = 256;
  options.n_threads = 1;
  return options;
}

}  // namespace

TEST_CASE("an engine survives a fault of any kind at any time", "[faults]") {
  for (Case const& c : {Case{"llama.mixed.gguf", "stream_all", 2 * MiB}, Case{"qwen3moe.mixed.gguf", "stream_all", 2 * MiB},
                        Case{"gemma3.mixed.gguf", "attention_first", 2 * MiB}}) {
    auto const model = open_golden(c.model);
    Engine<CpuPolicies> cpu(model, [&] {
      auto o = options_for(c);
      o.vram_bytes = 0;
      return o;
    }());
    std::vector<float> const expected = run(cpu);
    for (FaultKind kind : {FaultKind::allocation, FaultKind::copy, FaultKind::launch}) {
      std::uint64_t n_struck = 0;
      for (std::uint64_t n = 1;; n += kind == FaultKind::launch && n > 40 ? 7 : 1) {
        INFO(c.model << " fault " << int(kind) << " at " << n);
        auto faults = std::make_shared<Faults>();
        faults->fail_at(kind, n);
        PolicyValues<SweepPolicies> values{.placement = make_placement(c.policy)};
        std::unique_ptr<Engine<SweepPolicies>> engine;
        std::vector<float> got;
        bool struck = false;
        try {
          engine = std::make_unique<Engine<SweepPolicies>>(
              model, options_for(c), values, SimPolicies::make_machine({c.vram_bytes, 1, false, false}, LaneSet::threads(), faults));
          got = run(*engine);
        } catch (Error const& e) {
          struck = true;
          CHECK((e.code() == Errc::out_of_memory || e.code() == Errc::device));
        }
        if (!struck) {
          CHECK(got == expected);
          break;
        }
        ++n_struck;
        if (engine) CHECK(run(*engine) == expected);  // the same engine, once the fault is over
      }
      CHECK(n_struck > 0);
    }
  }
}

TEST_CASE("a cancelled step leaves the engine usable and the sequence as long as what was done", "[faults]") {
  auto const model = open_golden("qwen3.mixed.gguf");
  EngineOptions options;
  options.vram_bytes = 2 * MiB;
  options.max_context = 256;
  Engine<SimPolicies> engine(model, options);
  std::vector<float> const expected = run(engine);
  Sequence const sequence = engine.new_sequence();
  engine.prefill(sequence, prompt);
  CHECK_FALSE(engine.cancel_token().is_cancelled());
  engine.cancel_token().cancel();
  try {
    engine.decode(sequence, 2);
    FAIL("not cancelled");
  } catch (Error const& e) {
    CHECK(e.code() == Errc::cancelled);
  }
  CHECK(sequence.length() == std::int32_t(prompt.size()));
  CHECK(engine.cancel_token().is_cancelled());  // stays set
  engine.cancel_token().reset();
  CHECK_FALSE(engine.cancel_token().is_cancelled());
  engine.decode(sequence, 2);
  CHECK(sequence.length() == std::int32_t(prompt.size()) + 1);
}
