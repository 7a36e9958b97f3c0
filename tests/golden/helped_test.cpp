// Mixtures of which experts are missing, in steps of one launch: the device asks the host (HelpArgs). A device of reference kernels on a
// thread of its own, against a model whose experts are all where its rows are.
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "error_of.hpp"
#include "golden/fused_rig.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

RigOptions options(double cache_share, float fetched, std::int32_t n_sequences = 1) {
  return {.device_embeds = true,
          .capture = true,
          .maps_host = true,
          .fetched_misses = fetched,
          .cache_share = cache_share,
          .n_sequences = n_sequences,
          .capture_rows = 1,
          .helps = true};
}

}  // namespace

TEST_CASE("helped: any share of experts cached, fetched or left to the host, prompts and single tokens by turns", "[golden][helped]") {
  for (char const* name : {"qwen3moe.f32.gguf", "qwen3moe.f16.gguf"}) {
    auto const model = open_golden(name);
    GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
    for (std::vector<std::size_t> const& sizes : {std::vector<std::size_t>{1}, {f.prompt_size, 1}, {1, 1, 9, 1, 2, 1, 2, 1, 5, 1}}) {
      std::vector<float> const expected = Rig(model, {.vram_bytes = 0}).all(f.tokens, sizes);
      for (double const cache_share : {0.15, 0.4, 0.8}) {
        for (float const fetched : {0.0f, 0.4f, 1.0f}) {
          INFO(name << ", cache " << cache_share << ", fetched " << fetched << ", first " << sizes.front());
          Rig rig(model, options(cache_share, fetched));
          std::vector<float> const got = rig.all(f.tokens, sizes);
          CHECK(worst_difference(got, expected, f.logit_range) < tolerance);
          HelpCounters const help = rig.executor.help_counters();
          CHECK(help.n_steps == rig.device.n_graph_launches);
          CHECK(help.n_steps > 0);
          if (cache_share < 0.5) CHECK(help.n_requests > 0);
          if (fetched > 0) CHECK(rig.cache.size() > 0);
        }
      }
    }
  }
}

TEST_CASE("helped: once all experts are cached nobody asks", "[golden][helped]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  Rig rig(model, options(1.5, 1));
  rig.all(f.tokens, {1});
  HelpCounters const before = rig.executor.help_counters();
  rig.lengths[0] = 0;
  std::vector<float> const got = rig.all(f.tokens, {1});
  CHECK(worst_difference(got, Rig(model, {.vram_bytes = 0}).all(f.tokens, {1}), f.logit_range) < tolerance);
  CHECK(rig.executor.help_counters().n_requests == before.n_requests);
  CHECK(rig.executor.help_counters().n_steps == before.n_steps + f.tokens.size());
}

TEST_CASE("helped: the cache changes its size between steps", "[golden][helped]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  std::vector<float> const expected = Rig(model, {.vram_bytes = 0}).all(f.tokens, {1});
  std::size_t const vocab = std::size_t(model->config().vocab_size);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    Rig rig(model, options(0.8, 0.5f));
    std::size_t const bytes = rig.cache.bytes();
    std::vector<float> got;
    for (std::int32_t const token : f.tokens) {
      PlanImage& image = rig.plans.images.front();
      image.vram.cache_bytes = VramAccount::round_up(bytes * (2 + random.below(7)) / 8);  // share_room() at the next activate()
      std::vector<float> const logits = rig.step({{0, token}});
      got.insert(got.end(), logits.begin(), logits.end());
    }
    REQUIRE(got.size() == f.tokens.size() * vocab);
    CHECK(worst_difference(got, expected, f.logit_range) < tolerance);
  }
}

TEST_CASE("helped: a request that loading left behind is nobody's", "[golden][helped]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  Rig rig(model, options(0.4, 1));
  std::vector<float> logits(std::size_t(model->config().vocab_size));
  rig.kv.reserve(0, 1);
  rig.executor.activate(rig.image_for(1));
  rig.executor.load_helped(logits.data());
  CHECK(rig.executor.capture(1));
  std::vector<float> const got = rig.all(f.tokens, {1});
  CHECK(worst_difference(got, Rig(model, {.vram_bytes = 0}).all(f.tokens, {1}), f.logit_range) < tolerance);
}

TEST_CASE("helped: where the device loses patience a step is done again", "[golden][helped]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  std::vector<float> const expected = Rig(model, {.vram_bytes = 0}).all(f.tokens, {1});
  for (std::uint64_t const patience_ns : {1, 5'000, 20'000, 100'000}) {  // the longer ones: now and then, anywhere
    INFO(patience_ns << " ns");
    RigOptions o = options(0.4, 0.5f);
    o.help_patience_ns = patience_ns;
    Rig rig(model, o);
    CHECK(worst_difference(rig.all(f.tokens, {1}), expected, f.logit_range) < tolerance);
    HelpCounters const help = rig.executor.help_counters();
    CHECK(help.n_steps + help.n_timed_out == f.tokens.size());
    if (patience_ns == 1) CHECK(help.n_timed_out > 0);
  }
}

TEST_CASE("helped: an error of the host, or a cancelled step, lets the device go, and the next step is right", "[golden][helped]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  Rig rig(model, options(0.4, 0.0f));
  rig.all({f.tokens.begin(), f.tokens.begin() + 4}, {1});
  rig.host.launches.clear();
  rig.host.fail_at = 0;  // the experts that the host computes for the next request
  CHECK(error_of([&] { rig.step({{0, f.tokens[4]}}); }).code == Errc::device);
  rig.host.fail_at = ~std::size_t{0};
  rig.executor.recover();
  rig.lengths[0] = 0;
  std::vector<float> const got = rig.all(f.tokens, {1});
  CHECK(worst_difference(got, Rig(model, {.vram_bytes = 0}).all(f.tokens, {1}), f.logit_range) < tolerance);
}

TEST_CASE("helped: kernels read no weight that they may not: those are the host's, and the copy engine's", "[golden][helped]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  std::vector<float> const expected = Rig(model, {.vram_bytes = 0}).all(f.tokens, {1});
  ShardTable const table = model->table();
  Shard const& embedding = table.shard(table.steps.front().shard);
  void const* const embedded = table.weights[std::size_t(embedding.weights.begin)].data;
  auto const is_weight = [&](void const* from) {
    return std::ranges::any_of(table.weights, [&](Weight const& w) { return from >= w.data && from < w.data + w.bytes(); });
  };
  std::vector<void const*> downs;  // of every second expert
  for (Shard const& s : table.shards) {
    if (s.kind == ShardKind::expert && s.expert % 2 == 0) downs.push_back(table.weights[std::size_t(s.weights.end - 1)].data);
  }
  for (LookAhead const look_ahead : {LookAhead::never, LookAhead::always}) {
    // All but a part of every second expert; none; at first none and later all, as where memory is page-locked in the background.
    for (char const* const which : {"some", "none", "later"}) {
      INFO(which << (look_ahead == LookAhead::never ? "" : ", looks ahead"));
      std::string const kind = which;
      std::atomic<std::size_t> n_asked{0}, n_read{0}, n_forbidden{0};
      auto const may_read = [&](void const* data) {  // of a whole matrix
        if (data == embedded) return true;
        if (kind == "later") return n_asked > 40;
        return kind == "some" && std::ranges::find(downs, data) == downs.end();
      };
      ReadableParts const readable{[&](void const* data, std::size_t) { return ++n_asked, may_read(data); }};
      RigOptions o = options(0.4, 1.0f);
      o.readable = &readable;
      o.look_ahead = look_ahead;
      Rig rig(model, o);
      rig.device.after_help = [&](HelpArgs const& args) {
        for (std::int32_t i = 0; i < args.mail->n_parts; ++i) {
          void const* const from = args.mail->parts[i].from;
          if (!is_weight(from)) continue;
          ++n_read;
          n_forbidden += may_read(from) ? 0 : 1;
        }
      };
      std::vector<float> const got = rig.all(f.tokens, {1});
      CHECK(worst_difference(got, expected, f.logit_range) < tolerance);
      HelpCounters const help = rig.executor.help_counters();
      CHECK(help.n_requests > 0);
      CHECK(help.n_on_host > 0);
      CHECK(n_forbidden == 0);
      CHECK((n_read > 0) == (kind != "none"));
      CHECK((help.n_fetched > 0) == (kind != "none"));
      CHECK(rig.cache.size() > 0);  // by the copy engine, if by nobody else
    }
  }
}
