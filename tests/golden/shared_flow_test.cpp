// Prompts of mixtures whose experts come in windows while the host computes some of them: a device of reference kernels behind lanes,
// against a model that is the host's altogether.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "error_of.hpp"
#include "golden/fused_rig.hpp"
#include "tiered/plan/expert_flow.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

constexpr std::int32_t many = 64;  // rows, that use all experts of a layer

/// The host takes an expert in `host_s`, `lead_s` passes between two layers; the link takes 1.
ExpertShare share_of(double host_s, double lead_s = 0) {
  ExpertShare s;
  s.copy_s = 1;
  s.read_s = host_s;
  s.lead_s = lead_s;
  return s;
}

RigOptions options(ExpertShare const& share, double cache_share, std::uint64_t seed = 1) {
  RigOptions o;
  o.device_embeds = o.maps_host = o.cached_experts = true;
  o.share = share;
  o.cache_share = cache_share;
  o.seed = seed;
  return o;
}

std::vector<std::pair<std::int32_t, std::int32_t>> prompt_of(std::int32_t n, std::int32_t salt = 0) {
  std::vector<std::pair<std::int32_t, std::int32_t>> rows;
  for (std::int32_t i = 0; i < n; ++i) rows.push_back({0, 3 + (i * 7 + salt * 13) % 60});
  return rows;
}

std::vector<float> prefill(Rig& rig, std::int32_t n, std::int32_t salt = 0) {
  rig.lengths[0] = 0;
  return rig.step(prompt_of(n, salt), true);
}

float range_of(std::vector<float> const& logits) {
  auto const [least, most] = std::ranges::minmax(logits);
  return most - least;
}

std::int32_t n_layers_of_experts(Transformer const& model) {
  return std::int32_t(
      std::ranges::count_if(model.config().layers, [](LayerConfig const& l) { return l.feed_forward == FeedForwardKind::experts; }));
}

}  // namespace

TEST_CASE("shared: any share on the host, any cache, prompts of all lengths by turns", "[golden][shared]") {
  for (char const* name : {"qwen3moe.f32.gguf", "qwen3moe.f16.gguf"}) {
    auto const model = open_golden(name);
    Rig whole(model, {.vram_bytes = 0});
    for (double const cache_share : {0.15, 0.4, 1.5}) {
      for (double const host_s : {0.05, 0.7, 1.2}) {
        for (double const lead_s : {0.0, 1.5}) {
          INFO(name << ", cache " << cache_share << ", host " << host_s << ", lead " << lead_s);
          Rig rig(model, options(share_of(host_s, lead_s), cache_share));
          for (std::int32_t const n : {many, many + 37, 3, 1, many}) {
            std::vector<float> const expected = prefill(whole, n, n);
            CHECK(worst_difference(prefill(rig, n, n), expected, range_of(expected)) < tolerance);
          }
          SharedFlowCounters const& c = rig.executor.shared_counters();
          CHECK(c.n_layers > 0);
          CHECK(c.n_host_experts < c.n_experts);
          CHECK(c.n_host_rows < c.n_rows);
          CHECK((c.n_host_rows > 0) == (c.n_host_experts > 0));
          if (cache_share < 1) CHECK(c.n_host_experts > 0);
        }
      }
    }
  }
}

// With a lane of their own rows wait for no weights: nothing but tickets orders the two.
TEST_CASE("shared: rows and sums in another lane than weights", "[golden][shared]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  Rig whole(model, {.vram_bytes = 0});
  for (double const cache_share : {0.15, 0.4, 1.5}) {
    for (double const host_s : {0.05, 0.7, 1.2}) {
      for (std::uint64_t seed = 1; seed <= 6; ++seed) {
        INFO("cache " << cache_share << ", host " << host_s << ", seed " << seed);
        RigOptions o = options(share_of(host_s, seed % 2 == 0 ? 1.5 : 0), cache_share, seed);
        o.own_kv_copy = true;
        o.threads = seed % 3 == 0;
        Rig rig(model, o);
        for (std::int32_t const n : {many, many + 37, 3, 1, many}) {
          std::uint64_t const n_before = rig.kv_copy->n_submitted;
          std::uint64_t const n_layers = rig.executor.shared_counters().n_layers;
          std::vector<float> const expected = prefill(whole, n, n);
          CHECK(worst_difference(prefill(rig, n, n), expected, range_of(expected)) < tolerance);
          CHECK(rig.kv_copy->n_submitted >= n_before + rig.executor.shared_counters().n_layers - n_layers);
        }
        SharedFlowCounters const& c = rig.executor.shared_counters();
        CHECK(c.n_layers > 0);
        CHECK((c.n_host_rows > 0) == (c.n_host_experts > 0));
        if (cache_share < 1) CHECK(c.n_host_experts > 0);
      }
    }
  }
}

TEST_CASE("shared: chunks, and room for the outputs of some rows only", "[golden][shared]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  Rig whole(model, {.vram_bytes = 0, .max_context = 768});
  std::vector<float> const expected = prefill(whole, 700), of_less = prefill(whole, 300);
  for (bool const in_windows : {false, true}) {
    for (std::int32_t const chunk : {64, 300}) {
      INFO("chunk " << chunk << (in_windows ? " in windows" : ""));
      RigOptions o = options(share_of(0.7, 1), 0.3);
      o.max_context = 768;
      o.chunk = chunk;
      o.in_windows = in_windows;
      Rig rig(model, o);
      if (in_windows) REQUIRE(rig.image_for(700).activations.expert_rows < 700);
      CHECK(worst_difference(prefill(rig, 700), expected, range_of(expected)) < tolerance);
      CHECK(worst_difference(prefill(rig, 300), of_less, range_of(of_less)) < tolerance);
      CHECK(rig.executor.shared_counters().n_host_experts > 0);
    }
  }
}

TEST_CASE("shared: who computes what does not depend on time", "[golden][shared]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  std::vector<std::vector<float>> first;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    INFO("seed " << seed);
    RigOptions o = options(share_of(0.7, 1.5), 0.3, seed);
    o.threads = seed % 3 == 0;
    o.own_kv_copy = seed % 2 == 0;
    Rig rig(model, o);
    std::vector<std::vector<float>> got;
    for (std::int32_t const n : {many, many + 20, many}) got.push_back(prefill(rig, n, n));
    if (first.empty()) first = got;
    CHECK(got == first);
  }
}

TEST_CASE("shared: a deterministic plan has everything fetched, bit by bit as without a share", "[golden][shared]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  RigOptions plain = options({}, 0.3), shared = options(share_of(0.2), 0.3);
  plain.deterministic = shared.deterministic = true;
  Rig a(model, plain), b(model, shared);
  for (PlanImage& image : b.plans.images) image.plan.share = share_of(0.2);  // as a plan that was changed by hand
  for (std::int32_t const n : {many, 3, many + 5}) CHECK(prefill(a, n) == prefill(b, n));
  CHECK(b.executor.shared_counters().n_layers == 0);
  CHECK(b.host.launches == a.host.launches);
}

TEST_CASE("shared: what the host computes does not come into the cache, and all uses are counted", "[golden][shared]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  std::size_t const n_experts =
      std::size_t(std::ranges::count_if(model->table().shards, [](Shard const& s) { return s.kind == ShardKind::expert; }));
  Rig rig(model, options(share_of(0.3), 1.5));  // there is room for all
  prefill(rig, many);
  SharedFlowCounters const c = rig.executor.shared_counters();
  CHECK(c.n_layers == std::uint64_t(n_layers_of_experts(*model)));
  CHECK(c.n_rows == std::uint64_t(many) * c.n_layers * std::uint64_t(model->config().layers.back().experts.n_experts_used));
  REQUIRE(c.n_host_experts > 0);
  CHECK(rig.cache.size() + c.n_host_experts <= n_experts);
  CHECK(rig.cache.counters().hits + rig.cache.counters().misses == n_experts);
}

TEST_CASE("shared: what the host computes does not cross the link", "[golden][shared]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  for (double const lead_s : {0.0, 2.0}) {
    Rig shared(model, options(share_of(0.7, lead_s), 0.15)), alone(model, options({}, 0.15));
    for (int i = 0; i < 3; ++i) {
      prefill(shared, many, i);
      prefill(alone, many, i);
    }
    SharedFlowCounters const& c = shared.executor.shared_counters();
    CHECK(shared.cache.counters().misses - c.n_host_experts < alone.cache.counters().misses);
    CHECK(alone.executor.shared_counters() == SharedFlowCounters{});
  }
}

TEST_CASE("shared: the trace has what the host computed of each layer, and each expert that crossed once", "[golden][shared]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  ShardTable const& table = model->table();
  TraceLog log;
  RigOptions o = options(share_of(0.7, 1), 0.15);
  o.trace = &log;
  Rig rig(model, o);
  prefill(rig, many);
  log.clear();
  SharedFlowCounters const before = rig.executor.shared_counters();
  prefill(rig, many, 1);
  SharedFlowCounters const c = rig.executor.shared_counters() - before;
  std::vector<int> crossed(table.shards.size(), 0);
  std::uint64_t n_layers = 0, host_bytes = 0;
  for (TraceEntry const& e : log) {
    Shard const& s = table.shard(e.action.shard);
    if (e.action.kind == ActionKind::copy && s.kind == ShardKind::expert) ++crossed[std::size_t(s.id)];
    if (e.action.kind != ActionKind::fetch_routed || e.lane != TraceLane::host) continue;
    ++n_layers;
    host_bytes += e.action.bytes;
    CHECK(e.action.tokens == Range{0, many});
  }
  CHECK(std::ranges::max(crossed) == 1);
  CHECK(n_layers == c.n_layers);
  std::size_t const expert_bytes = std::ranges::find(table.shards, ShardKind::expert, &Shard::kind)->bytes;
  CHECK(host_bytes == c.n_host_experts * expert_bytes);
  CHECK(std::uint64_t(std::ranges::count(crossed, 1)) + c.n_host_experts <=
        std::uint64_t(std::ranges::count(table.shards, ShardKind::expert, &Shard::kind)));
}

TEST_CASE("shared: launches and copies that fail at any place leave an executor that goes on", "[golden][shared]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  std::vector<float> const expected = prefill(*std::make_unique<Rig>(model, RigOptions{.vram_bytes = 0}), many);
  int n_failed = 0;
  auto const check = [&](Rig& rig, auto const& fail, auto const& mend) {
    rig.device.launches.clear();
    rig.host.launches.clear();
    fail();
    Thrown const thrown = error_of([&] { prefill(rig, many); });
    CHECK(thrown.code.value_or(Errc::device) == Errc::device);
    n_failed += thrown.code.has_value();
    mend();
    rig.executor.recover();
    CHECK(worst_difference(prefill(rig, many), expected, range_of(expected)) < tolerance);
  };
  for (bool const own_kv_copy : {false, true}) {
    auto const faults = std::make_shared<Faults>();
    RigOptions o = options(share_of(0.7, 1), 0.3, 5);
    o.faults = faults;
    o.own_kv_copy = own_kv_copy;
    Rig rig(model, o);
    prefill(rig, many);
    n_failed = 0;
    std::size_t const n_device = rig.device.launches.size(), n_host = rig.host.launches.size();
    REQUIRE(n_host > 0);
    for (std::size_t at = 0; at < n_device; at += 3)
      check(
          rig, [&] { rig.device.fail_at = at; }, [&] { rig.device.fail_at = ~std::size_t{0}; });
    for (std::size_t at = 0; at < n_host; ++at)
      check(
          rig, [&] { rig.host.fail_at = at; }, [&] { rig.host.fail_at = ~std::size_t{0}; });
    for (std::uint64_t nth = 1; nth < 60; nth += 2) {
      INFO("fault at copy " << nth << (own_kv_copy ? " of two lanes" : ""));
      check(
          rig, [&] { faults->fail_at(FaultKind::copy, nth); }, [&] { faults->fail_at(FaultKind::copy, 0); });
    }
    CHECK(n_failed > 20);
  }
}
