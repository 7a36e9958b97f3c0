// Fused ops, experts without waiting for ids, and captured steps: a device of reference kernels that has them against fixtures, and
// against itself without them.
#include <algorithm>
#include <cmath>
#include <map>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/fused_rig.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

std::vector<std::string> concat_lists(std::vector<std::vector<std::string>> const& lists) {
  std::vector<std::string> out;
  for (auto const& l : lists) out.insert(out.end(), l.begin(), l.end());
  return out;
}
std::vector<std::string> repeated(std::vector<std::string> const& layer, std::int32_t n) {
  return concat_lists(std::vector<std::vector<std::string>>(std::size_t(n), layer));
}

std::vector<std::pair<std::int32_t, std::int32_t>> row(std::int32_t token) { return {{0, token}}; }

std::vector<std::string> const attention_launches{"norm+store3", "decode_attention", "add1"};
std::vector<std::string> const dense_launches = concat_lists({attention_launches, {"norm+gate2", "add1"}});
std::vector<std::string> const moe_launches = concat_lists({attention_launches, {"norm+store1", "norm+routed_experts"}});
std::vector<std::string> const post_norm_launches{"norm+store3", "decode_attention", "store1", "norm", "add",
                                                  "norm+gate2",  "store1",           "norm",   "add"};
std::vector<std::string> const output_launches{"gather", "norm+store1"};

}  // namespace

TEST_CASE("a decode step of residents is a few launches a layer", "[golden][fused]") {
  std::map<std::string, std::vector<std::string>> const expected{
      {"llama.f32.gguf", dense_launches}, {"llama.mixed.gguf", dense_launches},  {"qwen2.mixed.gguf", dense_launches},
      {"qwen3.f16.gguf", dense_launches}, {"qwen3moe.mixed.gguf", moe_launches}, {"gemma3.mixed.gguf", post_norm_launches}};
  for (auto const& [file, layer] : expected) {
    INFO(file);
    auto const model = open_golden(file);
    Rig rig(model, {});
    rig.all({5, 6, 7, 4}, {3, 1});
    std::vector<std::string> const steps = concat_lists({repeated(layer, model->config().n_layers), output_launches});
    CHECK(rig.launches_of(row(8)) == steps);
    CHECK(rig.host.launches == std::vector<std::string>{"embed"});
    CHECK(rig.device.n_waits == 2);  // for the rows' numbers, and the embedding; the host waits for the logits
    Rig embeds(model, {.device_embeds = true});
    embeds.all({5, 6, 7, 4}, {3, 1});
    CHECK(embeds.launches_of(row(8)) == concat_lists({{"embed"}, steps}));
    CHECK(embeds.host.launches.empty());
    CHECK(embeds.device.n_waits == 1);
  }
}

TEST_CASE("more rows than fused ops take go one op after another, but for experts", "[golden][fused]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  Rig rig(model, {});
  std::vector<std::pair<std::int32_t, std::int32_t>> rows;
  for (std::int32_t i = 0; i < 17; ++i) rows.push_back({0, 3 + i});
  // Logits of one row: the head is a product of few rows then.
  rig.device.launches.clear();
  rig.step(rows, true);
  std::vector<std::string> const layer{"norm",   "matmul", "matmul", "matmul", "attention_input", "attention",
                                       "matmul", "add",    "norm",   "matmul", "route",           "routed_experts"};
  CHECK(rig.device.launches == concat_lists({repeated(layer, model->config().n_layers), output_launches}));
}

TEST_CASE("rows longer than fused ops take go one op after another", "[golden][fused]") {
  auto const model = open_golden("llama.f32.gguf");
  std::int32_t const hidden_dim = model->config().layers[0].hidden_dim;
  REQUIRE(hidden_dim < model->config().dim);
  KernelTable limited = reference::kernels_fused();
  limited.fused_dim[std::size_t(DType::f32)] = hidden_dim;
  Rig rig(model, {.device = &limited}), unlimited(model, {});
  std::vector<std::int32_t> const tokens{5, 6, 7, 4};
  CHECK(worst_difference(rig.all(tokens, {3, 1}), unlimited.all(tokens, {3, 1}), 1) < tolerance);
  std::vector<std::string> const layer{"norm",   "matmul", "matmul", "matmul", "decode_attention", "matmul", "add", "norm",
                                       "matmul", "matmul", "gated",  "add1"};
  CHECK(rig.launches_of(row(8)) == concat_lists({repeated(layer, model->config().n_layers), {"gather", "norm", "matmul"}}));
}

TEST_CASE("a device without fused ops launches what it always did", "[golden][fused]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  Rig rig(model, {.device = &reference::kernels()});
  rig.all({5, 6, 7}, {3});
  std::vector<std::string> const layer{"norm",      "matmul", "matmul", "matmul", "norm",   "norm",  "rope",    "rope",    "kv_write",
                                       "attention", "matmul", "add",    "norm",   "matmul", "route", "experts", "combine", "add"};
  CHECK(rig.launches_of(row(8)) == concat_lists({repeated(layer, model->config().n_layers), {"gather", "norm", "matmul"}}));
}

TEST_CASE("fused: logits equal the fixtures', and those of the same ops one by one", "[golden][fused]") {
  for (GoldenCase const& c : golden_cases()) {
    INFO(c.gguf);
    auto const model = open_golden(c.gguf);
    GoldenFixture const f = read_golden(golden_path(c.fixture));
    Rig plain(model, {.device = &reference::kernels()});
    std::vector<float> const expected = plain.all(f.tokens, {f.prompt_size, 1});
    for (std::vector<std::size_t> const& steps : {std::vector<std::size_t>{f.prompt_size, 1}, {16, 5, 17, 1, 3}}) {
      for (bool embeds : {false, true}) {
        Rig rig(model, {.device_embeds = embeds, .seed = 7 + steps.size()});
        std::vector<float> const got = rig.all(f.tokens, steps);
        CHECK(compare(got, f).worst < 1e-4);
        CHECK(worst_difference(got, expected, f.logit_range) < tolerance);
      }
    }
  }
}

TEST_CASE("conversions that begin one op earlier, and products that add: fewer launches, the same bits", "[golden][fused]") {
  auto const layers_of = [](Rig& rig) {
    std::vector<std::string> const launches = rig.launches_of({{0, 8}, {0, 9}, {0, 10}});
    return std::vector<std::string>(launches.begin(), std::ranges::find(launches, "gather"));
  };
  std::vector<std::string> const layer{"norm+convert", "matmul",   "matmul",    "matmul",        "rope",
                                       "rope",         "kv_write", "attention", "convert",       "matmul",
                                       "norm+convert", "matmul",   "matmul",    "gated+convert", "matmul"};
  for (char const* name : {"llama.f16", "llama_k.mixed", "qwen2.mixed", "qwen3moe.mixed", "gemma3.f16"}) {
    auto const model = open_golden(std::string(name) + ".gguf");
    std::vector<std::int32_t> const tokens{5, 6, 7, 4, 3, 2, 9, 8, 5, 6, 1, 4, 3, 2, 9, 8, 7, 7, 5};
    for (std::string const policy : {"all_vram", "stream_all", "attention_first"}) {
      for (std::size_t const budget : {16 * MiB, all_bytes(*model) / 2 + 256 * KiB}) {
        INFO(name << ", " << policy << ", " << budget);
        RigOptions options{.policy = policy, .vram_bytes = budget, .device = &reference::kernels_bf16()};
        Rig one_by_one(model, options);
        options.device = &reference::kernels_converting();
        options.seed = 5;
        Rig rig(model, options);
        CHECK(rig.all(tokens, {17, 1}) == one_by_one.all(tokens, {17, 1}));
        if (budget < 16 * MiB || policy != "all_vram" || std::string(name) != "llama.f16") continue;
        CHECK(layers_of(rig) == repeated(layer, model->config().n_layers));
      }
    }
  }
}

TEST_CASE("fused: every split of a model between host and device", "[golden][fused]") {
  for (char const* name : {"llama_tied", "qwen2", "qwen3moe", "gemma3"}) {
    auto const model = open_golden(std::string(name) + ".mixed.gguf");
    GoldenFixture const f = read_golden(golden_path(std::string(name) + ".mixed.golden"));
    std::vector<std::int32_t> const tokens(f.tokens.begin(), f.tokens.begin() + 30);
    Rig plain(model, {.vram_bytes = 0});
    std::vector<float> const expected = plain.all(tokens, {20, 1});
    std::size_t n_mixed = 0, most_host = 0;
    for (std::string const policy : {"all_vram", "attention_first", "seconds_per_byte", "stream_all"}) {
      for (std::size_t i = 0; i < 24; ++i) {
        std::size_t const budget = 16 * KiB + (3 * all_bytes(*model) + 3 * MiB) * i * i / (23 * 23);  // closer where models begin to fit
        for (bool embeds : {false, true}) {
          INFO(name << " " << policy << " " << budget << (embeds ? " embeds" : ""));
          Rig rig(model, {.policy = policy, .vram_bytes = budget, .device_embeds = embeds, .capture = embeds, .seed = i});
          CHECK(worst_difference(rig.all(tokens, {20, 1}), expected, f.logit_range) < tolerance);
          n_mixed += !rig.device.launches.empty() && rig.host.launches.size() > 30 ? 1 : 0;
          if (!rig.device.launches.empty()) most_host = std::max(most_host, rig.host.launches.size());
        }
      }
    }
    INFO(name << ": at most " << most_host << " launches of the host beside the device's");
    CHECK(n_mixed > 0);
  }
}

TEST_CASE("fused: blocks of several chunks, experts by as many rows as their workspace is for", "[golden][fused]") {
  for (char const* name : {"qwen3moe.f32.gguf", "llama.f32.gguf"}) {
    INFO(name);
    auto const model = open_golden(name);
    GoldenFixture const f = read_golden(golden_path(std::string(name) == "llama.f32.gguf" ? "llama.golden" : "qwen3moe.golden"));
    Rig rig(model, {.chunk = 7});
    CHECK(compare(rig.all(f.tokens, {f.prompt_size, 1}), f).worst < 1e-4);
    if (std::string(name) == "llama.f32.gguf") continue;
    std::vector<std::pair<std::int32_t, std::int32_t>> rows;
    for (std::int32_t i = 0; i < 17; ++i) rows.push_back({0, 3 + i});
    auto const n_layers = model->config().n_layers;
    auto const check_launches = [&](Rig& of, std::int32_t n_routed, std::int32_t n_windows, std::int32_t n_combined) {
      std::vector<std::string> const launches = of.launches_of(rows);
      CHECK(std::ranges::count(launches, "routed_experts") == n_routed * n_layers);
      CHECK(std::ranges::count(launches, "norm+routed_experts") == 0);
      CHECK(std::ranges::count(launches, "group_slots") == n_windows * n_layers);
      CHECK(std::ranges::count(launches, "expert_window") == n_windows * n_layers);
      CHECK(std::ranges::count(launches, "combine") == n_combined * n_layers);
    };
    check_launches(rig, 0, 1, 1);  // slots of all rows, in pieces
    Rig sums(model, {.chunk = 7, .in_windows = true});
    CHECK(compare(sums.all(f.tokens, {f.prompt_size, 1}), f).worst < 1e-4);
    check_launches(sums, 3, 0, 0);  // no room for outputs of all slots: some rows after the others
    KernelTable no_windows = reference::kernels_fused();
    no_windows.expert_window = nullptr;
    no_windows.group_slots = nullptr;
    Rig plain(model, {.chunk = 7, .device = &no_windows});
    CHECK(plain.all(f.tokens, {f.prompt_size, 1}) == Rig(model, {.chunk = 7, .in_windows = true}).all(f.tokens, {f.prompt_size, 1}));
    check_launches(plain, 3, 0, 0);
  }
}

TEST_CASE("fused: experts that are not in VRAM are fetched, computed by the host, or both", "[golden][fused]") {
  // In `mixed`, gate and up are of different types: not for tables that the device looks experts up in.
  for (bool mixed : {false, true}) {
    auto const model = open_golden(mixed ? "qwen3moe.mixed.gguf" : "qwen3moe.f32.gguf");
    GoldenFixture const f = read_golden(golden_path(mixed ? "qwen3moe.mixed.golden" : "qwen3moe.golden"));
    std::vector<std::int32_t> const tokens(f.tokens.begin(), f.tokens.begin() + 30);
    std::vector<float> const expected = Rig(model, {.vram_bytes = 0}).all(tokens, {20, 1});
    std::int64_t const n_layers = model->config().n_layers;
    for (bool maps : {false, true}) {
      for (float share : {0.f, 0.4f, 0.5f, 1.f}) {
        for (std::vector<std::size_t> const& steps : {std::vector<std::size_t>{20, 1}, {1, 3, 2}, {5}}) {
          INFO((mixed ? "mixed, " : "") << (maps ? "maps the host's memory, " : "") << share << " fetched, steps of " << steps.back());
          RigOptions const o{.policy = "stream_all",
                             .vram_bytes = all_bytes(*model),
                             .maps_host = maps,
                             .fetched_misses = share,
                             .cache_share = 0.4,
                             .seed = 11 + steps.size()};
          Rig rig(model, o);
          REQUIRE(rig.image_for(1).plan.cache_bytes > 0);
          CHECK(worst_difference(rig.all(tokens, steps), expected, f.logit_range) < tolerance);
          ExpertCache::Counters const before = rig.cache.counters();
          std::vector<std::string> const launches = rig.launches_of(row(8));
          std::int64_t const n_transfers = std::ranges::count(launches, "transfer");
          std::int64_t n_published = 0;  // what a router chose, to the host
          for (std::size_t i = 1; i < launches.size(); ++i) n_published += launches[i - 1] == "route" && launches[i] == "transfer" ? 1 : 0;
          CHECK(n_published == (maps && !mixed ? n_layers : 0));
          if (!maps) CHECK(n_transfers == 0);
          std::int64_t const on_host = std::ranges::count(rig.host.launches, "experts");
          if (share == 0) CHECK((rig.cache.size() == 0 && on_host == n_layers));
          // The cache may be in pieces too small for one more expert: then the host computes it.
          if (share == 1) CHECK(on_host <= (maps ? 1 : 0));
          CHECK(rig.cache.counters().hits + rig.cache.counters().misses > before.hits + before.misses);
        }
      }
    }
  }
}

TEST_CASE("fused: the device's tables of experts follow a cache that prompts and single tokens change by turns", "[golden][fused]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  std::vector<float> const expected = Rig(model, {.vram_bytes = 0}).all(f.tokens, {20, 1});
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    RigOptions const o{.policy = "stream_all",
                       .vram_bytes = all_bytes(*model),
                       .maps_host = true,
                       .fetched_misses = 0.5f,
                       .cache_share = seed % 2 == 0 ? 0.25 : 0.6,
                       .seed = seed};
    Rig rig(model, o);
    CHECK(worst_difference(rig.all(f.tokens, {1, 1, 17, 1, 2, 1, 1, 1}), expected, f.logit_range) < tolerance);
    CHECK(rig.cache.counters().hits > 0);
    CHECK(rig.cache.counters().evictions > 0);
  }
}

TEST_CASE("fused: a deterministic plan gives the same bits whatever is cached", "[golden][fused]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  std::vector<std::int32_t> const tokens(f.tokens.begin(), f.tokens.begin() + 24);
  auto const run = [&](double cache_share, bool warm, bool deterministic) {
    Rig rig(model, {.policy = "stream_all",
                    .vram_bytes = all_bytes(*model),
                    .maps_host = true,
                    .fetched_misses = 0.5f,
                    .deterministic = deterministic,
                    .cache_share = cache_share,
                    .n_sequences = 2});
    for (std::size_t i = 0; warm && i < f.tokens.size(); ++i) rig.step({{1, f.tokens[f.tokens.size() - 1 - i]}});
    std::vector<float> out = rig.all(tokens, {1});
    if (deterministic) CHECK(std::ranges::count(rig.host.launches, "experts") == 0);
    CHECK(worst_difference(out, Rig(model, {.vram_bytes = 0}).all(tokens, {1}), f.logit_range) < tolerance);
    return out;
  };
  std::vector<float> const cold = run(0.25, false, true);
  CHECK(run(0.25, true, true) == cold);
  CHECK(run(0.6, true, true) == cold);
  CHECK(run(0.9, false, true) == cold);
  CHECK(run(0.6, true, false) != run(0.25, false, false));  // or this test could not fail
}

TEST_CASE("captured: replayed steps give the bits of steps that are not", "[golden][fused]") {
  for (char const* name : {"llama", "qwen2", "qwen3moe", "gemma3"}) {
    INFO(name);
    auto const model = open_golden(std::string(name) + ".f32.gguf");
    GoldenFixture const f = read_golden(golden_path(std::string(name) + ".golden"));
    Rig direct(model, {.device_embeds = true}), captured(model, {.device_embeds = true, .capture = true});
    std::vector<float> const expected = direct.all(f.tokens, {f.prompt_size, 1}), got = captured.all(f.tokens, {f.prompt_size, 1});
    CHECK(got == expected);
    CHECK(compare(got, f).worst < 1e-4);
    CHECK(direct.device.n_graph_launches == 0);
    CHECK(captured.device.n_graphs == 1);
    CHECK(captured.device.n_graph_launches == f.steps);
    // One more costs no launch of its own, and one wait: for the rows' numbers. The host waits for the logits.
    CHECK(captured.launches_of(row(8)).empty());
    CHECK(captured.device.n_waits == 1);
  }
}

TEST_CASE("captured: steps whose positions are in VRAM, where others are not", "[golden][fused]") {
  for (char const* name : {"llama", "gemma3"}) {
    INFO(name);
    auto const model = open_golden(std::string(name) + ".f32.gguf");
    GoldenFixture const f = read_golden(golden_path(std::string(name) + ".golden"));
    RigOptions o{.device_embeds = true, .capture = false, .capture_rows = 1, .kv_share = 1.f / 16, .page_tokens = 16};
    Rig direct(model, o);
    o.capture = true;
    Rig captured(model, o);
    REQUIRE(captured.kv.all_in_vram(16));
    REQUIRE_FALSE(captured.kv.all_in_vram(17));
    REQUIRE(f.tokens.size() > 20);
    std::vector<float> const got = captured.all(f.tokens, {1});
    CHECK(compare(got, f).worst < 1e-4);
    CHECK(got == direct.all(f.tokens, {1}));
    CHECK(captured.device.n_graphs == 1);
    CHECK(captured.device.n_graph_launches == 16);
    CHECK(captured.executor.is_capturable(1, 1));
  }
}

TEST_CASE("captured: several sequences, several rows, plans that take turns, after errors", "[golden][fused]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3moe.golden"));
  RigOptions const o{.device_embeds = true, .n_sequences = 3};
  RigOptions with = o;
  with.capture = true;
  Rig direct(model, o), captured(model, with);
  SplitMix64 random(20);
  INFO("seed 20");
  for (int step = 0; step < 40; ++step) {
    std::vector<std::pair<std::int32_t, std::int32_t>> rows;
    std::size_t const n = step % 9 == 8 ? 18 : 1 + random.below(3);
    for (std::size_t i = 0; i < n; ++i) rows.push_back({std::int32_t(n == 18 ? 2 : random.below(3)), 3 + std::int32_t(random.below(90))});
    std::ranges::stable_sort(rows, {}, [](auto const& r) { return r.first; });
    CHECK(captured.step(rows) == direct.step(rows));
    if (step == 20) captured.executor.recover();
  }
  CHECK(captured.device.n_graphs == 3);
  CHECK(captured.device.n_graph_launches == 36);
}

TEST_CASE("captured ahead: the first step launches one graph", "[golden][fused]") {
  auto const model = open_golden("llama.mixed.gguf");
  Rig rig(model, {.device_embeds = true, .capture = true});
  rig.executor.activate(rig.image_for(1));
  CHECK(rig.executor.is_capturable(1, 1));
  CHECK_FALSE(rig.executor.is_capturable(1, 0));
  CHECK(rig.executor.capture(1));
  CHECK(rig.executor.capture(1));
  CHECK_FALSE(rig.executor.capture(2));  // a block of this plan has one row
  rig.executor.activate(rig.image_for(3));
  CHECK(rig.executor.capture(3));
  CHECK(rig.device.n_graphs == 2);
  CHECK(rig.device.n_graph_launches == 0);
  rig.device.launches.clear();
  std::vector<float> const got = rig.all({9, 10, 11}, {1});
  CHECK(rig.device.launches.empty());
  Rig direct(model, {.device_embeds = true});
  CHECK(direct.all({9, 10, 11}, {1}) == got);
}

TEST_CASE("captured: a launch that fails ends the capture, and the next step begins one", "[golden][fused]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  Rig rig(model, {.device_embeds = true, .capture = true}), direct(model, {.device_embeds = true});
  rig.all({9, 10, 11, 12}, {4});
  direct.all({9, 10, 11, 12}, {4});
  for (std::size_t at : {0, 5, 11}) {
    rig.device.launches.clear();
    rig.device.fail_at = at;
    CHECK(error_of([&] { rig.step(row(13)); }).code == Errc::device);
    CHECK_FALSE(rig.device.capturing());
    rig.executor.recover();
    rig.lengths[0] = 4;
  }
  rig.device.fail_at = ~std::size_t{0};
  CHECK(rig.step(row(13)) == direct.step(row(13)));
  CHECK(rig.device.n_graphs == 2);  // of the four rows, and of one
}

TEST_CASE("not captured: what another device, a copy or the host's look takes part in", "[golden][fused]") {
  auto const capturable = [](std::string const& file, RigOptions o) {
    o.capture = true;
    Rig rig(open_golden(file), o);
    rig.executor.activate(rig.image_for(1));
    return rig.executor.is_capturable(1, 1);
  };
  CHECK(capturable("qwen3moe.mixed.gguf", {.device_embeds = true}));
  CHECK_FALSE(capturable("qwen3moe.mixed.gguf", {}));  // the host looks the embedding up
  CHECK_FALSE(capturable("qwen3moe.mixed.gguf", {.device_embeds = true, .device = &reference::kernels()}));
  CHECK_FALSE(capturable("qwen3moe.mixed.gguf", {.device_embeds = true, .capture_rows = 0}));
  CHECK_FALSE(capturable("qwen3moe.mixed.gguf", {.vram_bytes = 0, .device_embeds = true}));
  CHECK_FALSE(capturable("qwen3moe.mixed.gguf", {.policy = "stream_all", .vram_bytes = MiB, .device_embeds = true}));
}
