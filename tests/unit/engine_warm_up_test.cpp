// What an engine runs when it is made: every kernel of its plans, little of their weights, and nothing that later steps notice.
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/engine/detail/warm_up.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct AnySimPolicies : SimPolicies {
  using Placement = AnyPlacement;
};

Engine<AnySimPolicies> make_engine(std::shared_ptr<Transformer const> const& model, std::string const& placement, std::size_t vram_bytes) {
  EngineOptions options;
  options.max_context = 96;
  options.n_threads = 1;
  options.vram_bytes = vram_bytes;
  return Engine<AnySimPolicies>(model, options, {.placement = make_placement(placement)});
}

std::size_t all_bytes(Transformer const& model) {
  std::size_t sum = 0;
  for (Shard const& s : model.table().shards) sum += s.bytes;
  return sum;
}

/// What products a device makes in a pass, and how many bytes cross the link; experts where they may run.
using Product = std::tuple<DType, std::int32_t, std::int32_t, ShardKind, bool>;
struct Pass {
  std::set<Product> products;
  std::set<std::int32_t> layers;
  std::size_t copied_bytes = 0;
};
Pass pass_of(PlanImage const& image, ShardTable const& table) {
  Pass pass;
  auto const add = [&](Shard const& s) {
    bool const resident = image.plan.shards[std::size_t(s.id)].resident();
    for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
      Weight const& w = table.weights[std::size_t(i)];
      pass.products.insert({w.dtype, w.rows, w.cols, s.kind, resident});
    }
  };
  for (Action const& a : image.schedule) {
    Shard const& s = table.shard(a.shard);
    pass.copied_bytes += a.kind == ActionKind::copy ? a.bytes : 0;
    if (a.kind == ActionKind::run && a.device != host_device) add(s);
    if (a.kind == ActionKind::run) pass.layers.insert(s.layer);
    if (a.kind != ActionKind::fetch_routed) continue;
    for (Shard const& e : table.shards) {
      Placement const& p = image.plan.shards[std::size_t(e.id)];
      if (e.kind == ShardKind::expert && e.layer == s.layer && (p.resident() || p.cached)) add(e);
    }
  }
  return pass;
}

}  // namespace

TEST_CASE("a sample of a plan has all products that the plan has on the device, and no layer like another") {
  std::size_t n_smaller = 0;
  for (char const* file : {"llama.f32.gguf", "llama_k.mixed.gguf", "qwen3moe.mixed.gguf", "gemma3.mixed.gguf"}) {
    auto const model = open_golden(file);
    for (std::string const placement : {"all_vram", "stream_all", "attention_first", "seconds_per_byte"}) {
      for (int shift = 0; shift < 5; ++shift) {
        std::size_t const bytes = (4 * all_bytes(*model) + 4 * MiB) >> shift;
        INFO(file << " " << placement << " " << bytes);
        Engine<AnySimPolicies> const engine = make_engine(model, placement, bytes);
        for (PlanImage const& image : engine.plans().images) {
          if (!image.uses_device) continue;
          PlanImage const sample = detail::sample_of(image, model->table(), model->config());
          Pass const all = pass_of(image, model->table()), few = pass_of(sample, model->table());
          CHECK(few.products == all.products);
          CHECK(few.copied_bytes <= all.copied_bytes);
          n_smaller += few.copied_bytes < all.copied_bytes ? 1 : 0;
        }
      }
    }
  }
  CHECK(n_smaller > 0);

  auto const alike = open_golden("llama.f32.gguf");
  Engine<AnySimPolicies> const engine = make_engine(alike, "all_vram", 16 * MiB);
  PlanImage const sample = detail::sample_of(engine.plans().images.front(), alike->table(), alike->config());
  CHECK(pass_of(sample, alike->table()).layers == std::set<std::int32_t>{-1, 0, alike->config().n_layers});
}

TEST_CASE("layers that the host computes alone are in no sample") {
  auto const model = open_golden("llama.f32.gguf");
  Engine<AnySimPolicies> const engine = make_engine(model, "all_vram", 16 * MiB);
  PlanImage image = engine.plans().images.front();
  for (Shard const& s : model->table().shards) {
    if (s.layer == 0) image.plan.shards[std::size_t(s.id)] = Placement{};
  }
  image.plan.state_in_vram[0] = 0;
  CHECK(detail::LayerKinds(image, model->table(), model->config()).firsts()[0] == false);
  CHECK(detail::LayerKinds(image, model->table(), model->config()).firsts()[1] == true);
  image.plan.state_in_vram[0] = 1;  // attention there needs the device's kernels
  CHECK(detail::LayerKinds(image, model->table(), model->config()).firsts()[0] == true);
}

TEST_CASE("rows go to the tier that takes them, and to the last where none does") {
  std::vector<TierPlan> tiers(3);
  tiers[0].rows.n = 1, tiers[1].rows.n = 16, tiers[2].rows.n = 512;
  CHECK(detail::tier_of(tiers, 1) == 0);
  CHECK(detail::tier_of(tiers, 2) == 1);
  CHECK(detail::tier_of(tiers, 16) == 1);
  CHECK(detail::tier_of(tiers, 17) == 2);
  CHECK(detail::tier_of(tiers, 513) == 2);
}

TEST_CASE("chunks of more rows than all are tried with are tried, each once, and no more rows than contexts have") {
  std::vector<PlanImage> images(5);
  auto const set = [&](std::size_t i, std::int32_t chunk, std::int32_t block, bool uses_device = true) {
    images[i].limits = {chunk, block};
    images[i].uses_device = uses_device;
  };
  set(0, 1, 1);
  set(1, 2048, 2048);
  set(2, 4096, 16384);
  set(3, 4096, 4096);
  set(4, 8192, 8192);
  using Tried = std::vector<std::pair<std::size_t, std::int32_t>>;
  CHECK(detail::large_chunks(images, detail::warm_up_rows, 100000) == Tried{{2, 4096}, {4, 8192}});
  CHECK(detail::large_chunks(images, detail::warm_up_rows, 6000) == Tried{{2, 4096}, {4, 6000}});
  CHECK(detail::large_chunks(images, detail::warm_up_rows, 2048).empty());
  set(4, 8192, 8192, false);
  CHECK(detail::large_chunks(images, detail::warm_up_rows, 100000) == Tried{{2, 4096}});
  // Up to each power of two, since fewer rows of a chunk take what that takes.
  set(2, 1024, 4096);
  set(3, 5000, 5000);
  CHECK(detail::large_chunks(images, detail::warm_up_rows, 100000) == Tried{{3, 4096}, {3, 5000}});
}

TEST_CASE("an engine that was warmed up computes what others compute, and counts nothing of it") {
  std::vector<std::int32_t> const tokens{5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
  for (char const* file : {"llama.mixed.gguf", "qwen3moe.mixed.gguf"}) {
    auto const model = open_golden(file);
    for (std::string const placement : {"all_vram", "stream_all", "attention_first", "seconds_per_byte"}) {
      for (int shift = 0; shift < 5; shift += 2) {
        std::size_t const bytes = (2 * all_bytes(*model) + 2 * MiB) >> shift;
        INFO(file << " " << placement << " " << bytes);
        Engine<AnySimPolicies> cold = make_engine(model, placement, bytes), warm = make_engine(model, placement, bytes);
        warm.core().prepare();
        CHECK(warm.stats().experts.hits + warm.stats().experts.misses == 0);
        CHECK(all_logits(warm, tokens, {17, 1}) == all_logits(cold, tokens, {17, 1}));
      }
    }
  }
}
