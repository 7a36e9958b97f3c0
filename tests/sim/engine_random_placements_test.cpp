// Random legal placements, budgets, interleavings, batch shapes and sequences: always the bits of the CPU.
#include <array>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// Small bounds, so that few rows make several chunks and blocks.
struct SmallTiers {
  std::array<int, 3> all{1, 5, 40};
  std::span<int const> bounds() const { return all; }
  std::size_t select(int n) const { return n <= all[0] ? 0 : n <= all[1] ? 1 : 2; }
};

/// Every shard resident, streamed, cached or on the host, every layer's KV here or there, by seed.
struct RandomPlacement {
  std::uint64_t seed = 0;

  Placements place(PlanRequest const& r) const {
    SplitMix64 random(seed * 7919 + std::uint64_t(r.rows.n));
    Placements out{r};
    VramAccount vram{r};
    std::size_t const cache_bytes = ExpertLayers(r.shards).min_cache_bytes() * (1 + random.below(2));
    bool const caches = cache_bytes > 0 && random.below(2) == 0 && vram.try_bytes(cache_bytes);
    if (vram.used_bytes() > r.budget.vram_bytes) return Placements{r};
    for (std::size_t l = 0; l < r.states.size(); ++l) {
      if (random.below(2) == 0 && vram.try_state(l)) out.state_in_vram[l] = 1;
    }
    bool any_cached = false;
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      std::uint64_t const choice = random.below(3);
      ShardKind const kind = r.shards[i].kind;
      if (kind == ShardKind::embedding) continue;
      if (kind == ShardKind::expert && caches && choice < 2) {
        out.shards[i] = {Tier::pinned, 1, true};
        any_cached = true;
      } else if (choice == 0 && vram.try_resident(i)) {
        out.shards[i] = {Tier::vram, 1};
      } else if (choice == 1 && kind != ShardKind::expert && r.ring_bytes > 0) {
        out.shards[i] = {Tier::pinned, 1};
      }
    }
    out.cache_bytes = any_cached ? cache_bytes : 0;
    return out;
  }
};
struct RandomPolicies : SimPolicies {
  using TokenTiers = SmallTiers;
  using Placement = RandomPlacement;
};
struct HostPolicies : CpuPolicies {
  using TokenTiers = SmallTiers;
};

/// Two sequences in uneven batches, some rows wanting logits, one sequence cut back on the way.
template <class E>
std::vector<float> conversation(E& engine) {
  Sequence a = engine.new_sequence(), b = engine.new_sequence();
  std::vector<float> out;
  std::int32_t at_a = 0, at_b = 0;
  for (std::int32_t n : {37, 1, 3, 39, 2, 17, 1}) {
    std::vector<Row> rows;
    for (std::int32_t i = 0; i < n; ++i) {
      if (i % 3 != 1) {
        rows.push_back({a.id(), at_a, 3 + at_a * 7 % 60, i % 2 == 0});
        ++at_a;
      } else {
        rows.push_back({b.id(), at_b, 3 + at_b * 11 % 60, i % 5 == 1});
        ++at_b;
      }
    }
    Logits const logits = engine.step({rows});
    for (std::int32_t i = 0; i < logits.n_rows(); ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
    if (n == 39) a.truncate(at_a -= 5);
  }
  return out;
}

}  // namespace

TEST_CASE("random placements give the bits of the CPU", "[seeds]") {
  int n_multi_chunk = 0, n_mixed_caches = 0, n_by_rows = 0;
  for (char const* file : {"qwen3moe.mixed.gguf", "qwen3moe_k.mixed.gguf", "gemma3.mixed.gguf", "llama_k.mixed.gguf"}) {
    auto const model = open_golden(file);
    EngineOptions options;
    options.max_context = 256;
    options.n_threads = 1;
    options.n_sequences = 2;
    Engine<HostPolicies> cpu(model, options);
    std::vector<float> const expected = conversation(cpu);
    for (std::uint64_t seed = 0; seed < 42; ++seed) {
      INFO(file << " seed " << seed);
      options.vram_bytes = (60 * KiB) << (seed % 7);
      PolicyValues<RandomPolicies> values;
      values.placement.seed = seed;
      Engine<RandomPolicies> engine(model, options, std::move(values),
                                    SimPolicies::make_machine({options.vram_bytes, 1, false, false}, LaneSet::seeded(seed), nullptr));
      int n_caches = 0;
      for (PlanImage const& image : engine.plans().images) {
        CHECK(image.vram.total_bytes <= options.vram_bytes);
        n_multi_chunk += image.uses_device && image.limits.chunk < image.limits.block ? 1 : 0;
        n_by_rows += image.output_by_rows ? 1 : 0;
        n_caches += image.vram.cache_bytes > 0 ? 1 : 0;
      }
      n_mixed_caches += n_caches > 0 && n_caches < 3 ? 1 : 0;
      CHECK(conversation(engine) == expected);
      CHECK(engine.stats().vram_peak_bytes <= options.vram_bytes);
    }
  }
  CHECK(n_multi_chunk > 0);
  CHECK(n_mixed_caches > 0);
  CHECK(n_by_rows > 0);
}
