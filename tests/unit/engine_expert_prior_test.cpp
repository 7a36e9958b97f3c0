// What an engine learns about experts for the next one of its model.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "temp_dir.hpp"
#include "tiered/plan/lru.hpp"
#include "tiered/profile/expert_uses.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// All on the device, experts in a cache of a share of their bytes.
struct CachedExperts {
  double share = 0.5;
  Placements place(PlanRequest const& r) const {
    Placements out{r};
    ExpertLayers const experts(r.shards);
    std::fill(out.state_in_vram.begin(), out.state_in_vram.end(), 1.f);
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      if (r.shards[i].kind != ShardKind::embedding) out.shards[i] = {Tier::vram, 1};
    }
    for (std::uint32_t const id : experts.ids) out.shards[id] = {Tier::pinned, 1, true};
    out.cache_bytes = std::max(experts.min_cache_bytes(), std::size_t(share * double(experts.bytes)) / weight_alignment * weight_alignment);
    return out;
  }
};
struct CachedPolicies : SimPolicies {
  using Placement = CachedExperts;
};
template <class Policy>
struct Evicting : CachedPolicies {
  using Eviction = Policy;
};

EngineOptions options_for(std::string const& folder) {
  EngineOptions options;
  options.vram_bytes = 64 * MiB;
  options.max_context = 256;
  options.n_threads = 1;
  options.profile.folder = folder;
  options.expert_prior = true;
  return options;
}

std::vector<std::int32_t> const prompt = {5, 9, 11, 3};

std::vector<std::int32_t> n_experts_of(Transformer const& model) {
  std::vector<std::int32_t> n;
  for (LayerConfig const& l : model.config().layers) n.push_back(l.experts.n_experts);
  return n;
}
std::uint64_t sum_of(ExpertUses const& uses) {
  std::uint64_t sum = 0;
  for (auto const& layer : uses.by_layer) {
    for (std::uint64_t const n : layer) sum += n;
  }
  return sum;
}
ExpertUses uses_in(std::string const& file, Transformer const& model) {
  std::ifstream in(file, std::ios::binary);
  ExpertUsesText const text = parse_expert_uses(std::string(std::istreambuf_iterator<char>(in), {}));
  KnownExpertUses const known = read_expert_uses(file, text.key, n_experts_of(model));
  CHECK(known.note.empty());
  return known.uses;
}

}  // namespace

TEST_CASE("an engine keeps which experts it used, and the next begins with them in its cache", "[engine][expert_prior]") {
  TempDir const folder;
  auto const model = open_golden("qwen3moe.mixed.gguf");
  std::vector<std::int32_t> text;
  std::string file;
  std::uint64_t first_misses = 0;
  {
    Engine<CachedPolicies> engine(model, options_for(folder / "cache"));
    file = engine.expert_prior().file;
    CHECK(engine.expert_prior().note.empty());
    CHECK(engine.expert_prior().filled_bytes == 0);
    CHECK_FALSE(std::filesystem::exists(file));
    text = greedy(engine, prompt, 24);
    first_misses = engine.stats().experts.misses;
    CHECK_FALSE(std::filesystem::exists(file));
  }
  ExpertUses const once = uses_in(file, *model);
  CHECK(once.by_layer.size() == model->config().layers.size());
  {
    Engine<CachedPolicies> engine(model, options_for(folder / "cache"));
    CHECK(engine.expert_prior().file == file);
    CHECK(engine.expert_prior().note.empty());
    CHECK(engine.expert_prior().filled_bytes > 0);
    CHECK(greedy(engine, prompt, 24) == text);
    CHECK(engine.stats().experts.misses < first_misses);
  }
  CHECK(sum_of(uses_in(file, *model)) == 2 * sum_of(once));
}

TEST_CASE("a model has a file of its own; one that is damaged is said, not used, and replaced", "[engine][expert_prior]") {
  TempDir const folder;
  auto const model = open_golden("qwen3moe.mixed.gguf");
  std::string file;
  {
    Engine<CachedPolicies> engine(model, options_for(folder / "."));
    file = engine.expert_prior().file;
    greedy(engine, prompt, 4);
    CHECK(Engine<CachedPolicies>(open_golden("qwen3moe_k.mixed.gguf"), options_for(folder / ".")).expert_prior().file != file);
  }
  std::ofstream(file, std::ios::binary) << "tiered expert uses 1\nkey";
  {
    Engine<CachedPolicies> engine(model, options_for(folder / "."));
    CHECK(engine.expert_prior().note.find("damaged") != std::string::npos);
    CHECK(engine.expert_prior().filled_bytes == 0);
    greedy(engine, prompt, 4);
  }
  CHECK(sum_of(uses_in(file, *model)) > 0);
}

TEST_CASE("nothing is learned where nobody asked, where text must not depend on it, and where there is no cache",
          "[engine][expert_prior]") {
  TempDir const folder;
  auto const model = open_golden("qwen3moe.mixed.gguf");
  auto const learns = [&](EngineOptions const& options, auto policies) {
    Engine<decltype(policies)> engine(model, options);
    greedy(engine, prompt, 3);
    return !engine.expert_prior().file.empty();
  };
  EngineOptions options = options_for(folder / ".");
  CHECK(learns(options, CachedPolicies{}));
  CHECK_FALSE(learns(options, Evicting<Lru>{}));
  options.expert_prior.reset();  // a simulated device: nobody measures it
  CHECK_FALSE(learns(options, CachedPolicies{}));
  options.expert_prior = true;
  options.deterministic = true;
  CHECK_FALSE(learns(options, CachedPolicies{}));
  options.deterministic = false;
  options.profile.use_files = false;
  CHECK_FALSE(learns(options, CachedPolicies{}));
}

TEST_CASE("where the file cannot be written, text is made all the same", "[engine][expert_prior]") {
  TempDir const folder;
  std::ofstream(folder / "file") << "x";
  Engine<CachedPolicies> engine(open_golden("qwen3moe.mixed.gguf"), options_for(folder / "file"));
  CHECK(greedy(engine, prompt, 3).size() == 3);
}

TEST_CASE("prompts of many rows and texts behind them are the CPU's, whatever was brought ahead", "[engine][expert_prior]") {
  TempDir const folder;
  auto const model = open_golden("qwen3moe_k.mixed.gguf");
  std::vector<std::int32_t> many;
  for (std::int32_t i = 0; i < 80; ++i) many.push_back(3 + i * 7 % 60);
  EngineOptions on_host = options_for(folder / ".");
  on_host.vram_bytes = 0;
  Engine<CpuPolicies> cpu(model, on_host);
  std::vector<std::int32_t> const expected = greedy(cpu, many, 12), short_expected = greedy(cpu, prompt, 12);
  for (double const share : {0.0, 0.3, 0.7, 1.0}) {
    INFO("share " << share);
    for (int run = 0; run < 3; ++run) {
      Engine<CachedPolicies> engine(model, options_for(folder / "."), {.placement = {share}});
      CHECK(greedy(engine, many, 12) == expected);
      CHECK(greedy(engine, prompt, 12) == short_expected);
    }
  }
}
