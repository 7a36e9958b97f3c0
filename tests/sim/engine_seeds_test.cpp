// Lanes interleaved by seed: a schedule whose result depends on luck would give other logits for some seed.
#include "catch.hpp"
#include "golden/engine_helpers.hpp"

using namespace tiered;
using namespace tiered::test;

TEST_CASE("every interleaving of the lanes gives the same bits", "[seeds]") {
  struct Case {
    char const* model;
    char const* policy;
    std::size_t vram_bytes;
  };
  std::vector<std::int32_t> const tokens{9, 8, 7, 1, 2, 3, 30, 31};
  for (Case const& c :
       {Case{"llama.mixed.gguf", "stream_all", 1 * MiB}, Case{"qwen3moe.mixed.gguf", "stream_all", 1 * MiB},
        Case{"qwen3moe_k.mixed.gguf", "seconds_per_byte", 2 * MiB}, Case{"gemma3.mixed.gguf", "attention_first", 1 * MiB}}) {
    auto const model = open_golden(c.model);
    EngineOptions options;
    options.max_context = 256;
    options.n_threads = 1;
    Engine<CpuPolicies> cpu(model, options);
    std::vector<float> const expected = all_logits(cpu, tokens, {5, 1});
    options.vram_bytes = c.vram_bytes;
    std::size_t n_on_device = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      INFO(c.model << " " << c.policy << " seed " << seed);
      PolicyValues<SweepPolicies> values{.placement = make_placement(c.policy)};
      Engine<SweepPolicies> engine(model, options, values,
                                   SimPolicies::make_machine({c.vram_bytes, 1, false, false}, LaneSet::seeded(seed), nullptr));
      CHECK(all_logits(engine, tokens, {5, 1}) == expected);
      n_on_device += engine.stats().vram_peak_bytes > 0 ? 1 : 0;
    }
    CHECK(n_on_device == 60);
  }
}
