// The arena lent between steps: whoever had it wrote over everything but keys and values, and the text is the same.
#include <cstring>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "golden/fused_rig.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

constexpr int poison = 0xff;  // not a number, and no index

/// As another would, in the simulated device's memory.
template <class E>
void overwrite_lent(E& engine, void const* borrower) {
  engine.core().lend(borrower);
  for (VramRange const& r : engine.core().lendable()) std::memset(engine.core().parts().vram.data() + r.begin, poison, r.bytes());
}

template <class E>
std::vector<float> logits_with_loans(E& engine, std::vector<std::int32_t> const& tokens, std::vector<std::size_t> const& steps) {
  Sequence const sequence = engine.new_sequence();
  std::vector<float> out;
  for (std::size_t begin = 0, step = 0; begin < tokens.size(); ++step) {
    std::size_t const end = std::min(tokens.size(), begin + steps[std::min(step, steps.size() - 1)]);
    if (step % 3 != 1) overwrite_lent(engine, &out);
    std::vector<Row> const rows = rows_of(sequence.id(), tokens, begin, end);
    Logits const logits = engine.step({rows});
    for (std::int32_t i = 0; i < logits.n_rows(); ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
    begin = end;
  }
  return out;
}

/// All weights but experts in VRAM, all of these in the cache.
struct AllCached {
  Placements place(PlanRequest const& r) const {
    Placements out(r);
    out.declined = r.ring_bytes > 0;
    VramAccount vram(r);
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      Shard const& s = r.shards[i];
      if (s.kind == ShardKind::expert) {
        out.shards[i] = {.gpu_rows = 1, .cached = true};
        out.cache_bytes += VramAccount::round_up(s.bytes);
      } else if (s.kind != ShardKind::embedding && vram.try_resident(i)) {
        out.shards[i] = {.home = Tier::vram, .gpu_rows = 1};
      }
    }
    for (std::size_t l = 0; l < r.states.size(); ++l) {
      if (vram.try_state(l)) out.state_in_vram[l] = 1;
    }
    return out;
  }
};
struct AllCachedPolicies : SimPolicies {
  using Placement = AllCached;
};

EngineOptions options_for(std::size_t vram_bytes) { return {.vram_bytes = vram_bytes, .max_context = 256, .n_threads = 1}; }

}  // namespace

TEST_CASE("lent: between any steps, whatever the plan, the logits stay what they are", "[golden][lend]") {
  std::size_t n_two_parts = 0, n_cached = 0;
  for (char const* file : {"qwen3moe.mixed.gguf", "gemma3.mixed.gguf", "llama_k.mixed.gguf"}) {
    auto const model = open_golden(file);
    GoldenFixture const f = read_golden(golden_path(std::string(file).substr(0, std::string(file).find_first_of("_.")) + ".golden"));
    std::vector<std::size_t> const steps{std::size_t(f.prompt_size), 1, 1, 3, 1, 7, 1};
    Engine<CpuPolicies> cpu(model, options_for(0));
    std::vector<float> const expected = all_logits(cpu, f.tokens, steps);
    for (std::string const policy : {"all_vram", "attention_first", "seconds_per_byte", "stream_all"}) {
      for (std::size_t const budget : {300 * KiB, 700 * KiB, 2 * MiB, 8 * MiB}) {
        INFO(file << ' ' << policy << " in " << budget);
        Engine<SweepPolicies> engine(model, options_for(budget), {.placement = make_placement(policy)});
        n_two_parts += engine.core().lendable().size() == 2;
        for (PlanImage const& image : engine.plans().images) n_cached += image.vram.cache_bytes > 0;
        CHECK(logits_with_loans(engine, f.tokens, steps) == expected);
        CHECK(all_logits(engine, f.tokens, steps) == expected);
      }
    }
  }
  CHECK(n_two_parts > 0);
  CHECK(n_cached > 0);
}

TEST_CASE("lent: what one borrower left is as it was until somebody else has the arena", "[golden][lend]") {
  Engine<SimPolicies> engine(open_golden("llama.mixed.gguf"), options_for(8 * MiB));
  int first = 0, second = 0;
  CHECK_FALSE(engine.core().lend(&first));
  CHECK(engine.core().lend(&first));
  CHECK_FALSE(engine.core().lend(&second));
  CHECK_FALSE(engine.core().lend(&first));
  all_logits(engine, {3, 1, 4}, {3});
  CHECK_FALSE(engine.core().lend(&first));
  CHECK(engine.core().lend(&first));
}

TEST_CASE("lent: the room of keys and values is not, and nothing where there is no arena", "[golden][lend]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  CHECK(Engine<SimPolicies>(model, options_for(0)).core().lendable().empty());
  for (std::size_t const budget : {300 * KiB, 2 * MiB, 8 * MiB}) {
    Engine<SimPolicies> engine(model, options_for(budget));
    std::size_t lent = 0, end = 0;
    for (VramRange const& r : engine.core().lendable()) {
      CHECK(r.begin >= end);
      CHECK(r.end <= engine.plans().vram_bytes);
      for (PlanImage const& image : engine.plans().images) {
        std::size_t const begin = image.vram.state_offset;
        CHECK((r.end <= begin || r.begin >= begin + image.plan.state_bytes));
      }
      lent += r.bytes();
      end = r.end;
    }
    CHECK(lent > 0);
  }
}

TEST_CASE("lent: captured steps, and those in which the device asks, are launched again afterwards", "[golden][lend]") {
  auto const leave = [](Rig& rig) {
    rig.executor.leave_vram();
    PlanImage const& image = rig.plans.images.front();
    std::size_t const begin = image.vram.state_offset, end = begin + VramAccount::round_up(image.plan.state_bytes);
    std::memset(rig.vram.data(), poison, begin);
    std::memset(rig.vram.data() + end, poison, rig.vram.bytes() - end);
  };
  for (bool const helps : {false, true}) {
    INFO((helps ? "helped" : "captured"));
    char const* const name = helps ? "qwen3moe" : "llama";
    auto const model = open_golden(std::string(name) + ".f32.gguf");
    GoldenFixture const f = read_golden(golden_path(std::string(name) + ".golden"));
    RigOptions o{
        .device_embeds = true, .capture = true, .maps_host = helps, .cache_share = helps ? 0.4 : 0, .capture_rows = 1, .helps = helps};
    Rig host(model, {.vram_bytes = 0}), rig(model, o);
    std::vector<float> const expected = host.all(f.tokens, {1});
    std::vector<float> got;
    for (std::size_t i = 0; i < f.tokens.size(); ++i) {
      std::vector<float> const logits = rig.step({{0, f.tokens[i]}});
      got.insert(got.end(), logits.begin(), logits.end());
      if (i % 3 == 1) leave(rig);
    }
    CHECK(worst_difference(got, expected, f.logit_range) < tolerance);
    CHECK(rig.device.n_graphs == 1);
    CHECK(rig.device.n_graph_launches == f.tokens.size());
  }
}

TEST_CASE("lent: experts that were cached are there again for the next token, as far as prompts would leave them", "[golden][lend]") {
  auto const model = open_golden("qwen3moe.mixed.gguf");
  Engine<AllCachedPolicies> engine(model, options_for(16 * MiB));
  REQUIRE(engine.plans().images.front().vram.cache_bytes > 0);
  std::vector<std::int32_t> const tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
  std::vector<float> const expected = all_logits(engine, tokens, {1});
  std::uint64_t const missed = engine.stats().experts.misses;
  REQUIRE(missed > 0);
  CHECK(all_logits(engine, tokens, {1}) == expected);
  CHECK(engine.stats().experts.misses == missed);
  int borrower = 0;
  overwrite_lent(engine, &borrower);
  CHECK(all_logits(engine, tokens, {1}) == expected);
  CHECK(engine.stats().experts.misses - missed < missed);
}
