#include "tiered/plan/estimate.hpp"

#include <algorithm>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/plan/cost.hpp"
#include "tiered/plan/expert_decode.hpp"
#include "tiered/plan/helped_layer.hpp"
#include "tiered/plan/ring_prefetch.hpp"

using namespace tiered;

namespace {

/// A machine of round numbers: 1 GB/s link, no latencies.
HardwareProfile round_machine() {
  HardwareProfile h;
  h.h2d = h.d2h = {{{1, 1e9}}};
  h.dram_bytes_per_s = 1e12;
  return h;
}

struct Case {
  fake::Model model{spec()};
  ShardTable table = model.table();
  HardwareProfile hardware = round_machine();
  ShardPlan plan;
  PassCosts costs;

  explicit Case(std::size_t ring_bytes) {
    plan.shards.resize(table.shards.size());
    plan.state_in_vram.assign(table.states.size(), 1.f);
    plan.ring_bytes = ring_bytes;
    plan.chunk_tokens = plan.block_tokens = 1;
    costs.shards.assign(table.shards.size(), {10, 1, 0});
    costs.states.assign(table.states.size(), {2, 1, 0});
    costs.read_bytes.assign(table.shards.size(), 0);
  }
  /// All weights but the embedding's.
  void make_resident() {
    for (Step const& step : table.steps) {
      if (table.shard(step.shard).kind != ShardKind::embedding) plan.shards[std::size_t(step.shard)] = {Tier::vram, 1, false};
    }
  }
  static fake::Spec spec() {
    fake::Spec s = fake::small_dense();
    s.n_layers = 2;
    return s;
  }
  Estimate run() const { return estimate(RingPrefetch{}.schedule(plan, table), plan, table, costs, hardware, Rows{1, 1, 1}); }
};

/// All weights but the embedding's and experts', and all states, in VRAM; half of the experts fit their cache.
ShardPlan plan_with_cache(ShardTable const& table, ExpertLayers const& experts, std::int32_t n_rows) {
  ShardPlan plan;
  plan.shards.assign(table.shards.size(), {Tier::vram, 1});
  plan.shards.front() = {};
  for (std::uint32_t const id : experts.ids) plan.shards[id] = {Tier::pageable, 1, true};
  plan.state_in_vram.assign(table.states.size(), 1.f);
  plan.chunk_tokens = plan.block_tokens = n_rows;
  plan.cache_bytes = experts.bytes / 2;
  return plan;
}

/// With experts a thousand times as large: of those of a few KiB guesses do not pay.
std::vector<Shard> with_large_experts(ShardTable const& table) {
  std::vector<Shard> shards(table.shards.begin(), table.shards.end());
  for (Shard& s : shards) s.bytes *= s.kind == ShardKind::expert ? 1024 : 1;
  return shards;
}

}  // namespace

TEST_CASE("on the host, time is the sum of its steps, and the state's attention runs where the state is", "[plan][estimate]") {
  Case c{0};
  c.plan.state_in_vram.assign(2, 0.f);
  Estimate const e = c.run();
  REQUIRE(e.seconds == Approx(6 * 10 + 2 * 2));  // embedding, 2 x (attention, ffn), output; 2 states
  REQUIRE(e.host_s == Approx(64));
  REQUIRE(e.gpu_s == 0);
  REQUIRE(e.copy_s == 0);
  REQUIRE(e.bound_s == Approx(64));
  c.plan.state_in_vram.assign(2, 1.f);
  c.hardware.hop_latency_s = 0.25;
  REQUIRE(c.run().seconds == Approx(60 + 2 * (0.25 + 1 + 0.25)));
}

TEST_CASE("where a row's step is one launch, host and link attend to what is in host memory at once", "[plan][estimate]") {
  Case c{0};
  c.hardware.hop_latency_s = 0.25;
  c.hardware.mutual = {0.5, 0.8};
  for (MatmulRates& rates : c.hardware.host.matmul) rates.bytes_per_s = c.hardware.host.attention_bytes_per_s;
  c.plan.state_in_vram.assign(2, 0.5f);
  c.make_resident();
  c.costs.states.assign(2, {20, 1, 32});
  c.plan.state_read_share = 0.5f;
  // Half of it: 20 s each beside the other, and the host begins and ends a quarter of a second off.
  double const read = 20.5 / 40, attention_s = read * 16 / 0.8;
  Estimate const e = c.run();
  CHECK(e.seconds == Approx(10 + 0.25 + 5 + 2 * attention_s).epsilon(1e-5));
  CHECK(e.copy_s == Approx(2 * read * 16).epsilon(1e-5));
  CHECK(e.host_s == Approx(10 + 2 * (1 - read) * 10).epsilon(1e-5));
  c.plan.state_in_vram.assign(2, 1.f);
  CHECK(c.run().seconds == Approx(10 + 0.25 + 5 + 2 * 1).epsilon(1e-5));
  c.plan.state_in_vram.assign(2, 0.f);
  CHECK(c.run().seconds == Approx(10 + 0.25 + 5 + 2 * 40.5 / 80 * 32 / 0.8).epsilon(1e-5));
}

TEST_CASE("both devices attend at once to a state in two places, or one brings the other's part behind its own attention",
          "[plan][estimate]") {
  Case c{0};
  c.hardware.hop_latency_s = 0.25;
  c.plan.state_in_vram.assign(2, 0.5f);
  REQUIRE(c.run().seconds == Approx(60 + 2 * 1).epsilon(1e-5));  // half of 2 s on the host, half of 1 s on the device with two hops
  c.make_resident();
  c.costs.states.assign(2, {20, 1, 3});
  REQUIRE(c.run().seconds == Approx(10 + 0.25 + 5 + 2 * (0.25 + 10 + 0.25)).epsilon(1e-5));
  c.costs.streams_states = true;
  REQUIRE(c.run().seconds == Approx(10 + 0.25 + 5 + 2 * (0.25 + 10 + 0.25)).epsilon(1e-5));  // not for one row
  c.plan.chunk_tokens = c.plan.block_tokens = 32;
  Estimate const brought = estimate(RingPrefetch{}.schedule(c.plan, c.table), c.plan, c.table, c.costs, c.hardware, Rows{32, 1, 1});
  REQUIRE(brought.copy_s == Approx(2 * 1.5).epsilon(1e-5));
  REQUIRE(brought.gpu_s == Approx(5 + 2 * 1).epsilon(1e-5));
}

TEST_CASE("a hop costs its latency and its bytes", "[plan][estimate]") {
  Case c{0};
  c.make_resident();
  REQUIRE(c.run().seconds == Approx(10 + 5 + 2).epsilon(1e-5));
  c.hardware.hop_latency_s = 3;
  REQUIRE(c.run().seconds == Approx(10 + 3 + 5 + 2).epsilon(1e-5));
  c.hardware.d2h = {{{1, 1024}}};  // 256 columns of 4 bytes: one second
  REQUIRE(c.run().seconds == Approx(10 + 3 + 1 + 5 + 2));
}

TEST_CASE("a copy runs behind compute as far as the ring allows", "[plan][estimate]") {
  Case c{8 << 20};
  std::size_t n_streamed_bytes = 0;
  for (Shard const& s : c.table.shards) {
    if (s.kind != ShardKind::ffn) continue;
    c.plan.shards[std::size_t(s.id)] = {Tier::pageable, 1, false};
    n_streamed_bytes = VramAccount::round_up(s.bytes);
  }
  c.plan.state_in_vram.assign(2, 0.f);
  c.hardware.h2d = {{{1, double(n_streamed_bytes) / 30}}};  // 30 s for a feed-forward, about
  // Room for both: host 10 + (10 + 2) = 22, copied at 30, run 31, host 31 + 12 = 43, copied at 60, run 61, host 71.
  Estimate const wide = c.run();
  REQUIRE(wide.seconds == Approx(71).epsilon(0.01));
  REQUIRE(wide.copy_s == Approx(60).epsilon(0.01));
  REQUIRE(wide.copied_bytes == Approx(2.0 * double(n_streamed_bytes)).epsilon(0.01));
  // Room for one: the second copy begins when the first has run, at 31, and is done at 61; run 62, host 72.
  c.plan.ring_bytes = n_streamed_bytes;
  RingPrefetch whole;
  whole.split_above = 1;
  Schedule const schedule = whole.schedule(c.plan, c.table);
  REQUIRE(estimate(schedule, c.plan, c.table, c.costs, c.hardware, Rows{1, 1, 1}).seconds == Approx(72).epsilon(0.01));
}

TEST_CASE("a shard that goes by rows overlaps its own copy and run", "[plan][estimate]") {
  Case c{256 << 10};
  Shard const& output = c.table.shards.back();
  REQUIRE(output.bytes > (256 << 10));
  c.plan.shards.back() = {Tier::pageable, 1, false};
  for (PassCost& cost : c.costs.shards) cost = {0, 0, 0};
  for (PassCost& cost : c.costs.states) cost = {0, 0, 0};
  c.costs.shards.back().gpu_s = 10;
  c.hardware.h2d = {{{1, double(output.bytes) / 10}}};
  Estimate const e = c.run();
  REQUIRE(e.copy_s == Approx(10).epsilon(0.01));
  REQUIRE(e.gpu_s == Approx(10).epsilon(0.01));
  REQUIRE(e.seconds < 14);
  REQUIRE(e.seconds >= 10);
}

TEST_CASE("host and link slow each other as measured, and each is alone when the other is done", "[plan][estimate]") {
  Case c{8 << 20};
  Shard const* last = nullptr;
  for (Shard const& s : c.table.shards) last = s.kind == ShardKind::ffn ? &s : last;
  REQUIRE(last != nullptr);
  c.plan.shards[std::size_t(last->id)] = {Tier::pinned, 1, false};
  c.plan.state_in_vram.assign(2, 0.f);
  c.hardware.h2d = {{{1, double(last->bytes) / 30}}};  // 30 s alone
  c.hardware.mutual = {0.5, 0.75};
  // Host: embedding, attention, feed-forward, attention of 10 s, two states of 2: 44 s alone. Beside it the copy takes 30 / 0.75 = 40 s, in
  // which the host does 20; the other 24 it does alone: 64. Then the device 1, the head 10.
  Estimate const e = c.run();
  CHECK(e.seconds == Approx(64 + 1 + 10).epsilon(1e-5));
  CHECK(e.copy_s == Approx(30).epsilon(1e-5));
  CHECK(e.host_s == Approx(54).epsilon(1e-5));
  CHECK(e.bound_s == Approx(54 + 30 - 40 * 0.25).epsilon(1e-5));
  // A slower copy, 60 s alone: beside the host's 44, which take 88, it does 66, so it is over after 80, with 4 s left to the host.
  c.hardware.h2d = {{{1, double(last->bytes) / 60}}};
  CHECK(c.run().seconds == Approx(80 + 4 + 1 + 10).epsilon(1e-5));
  // 90 s: after 88 it has done 66, and does the other 24 alone.
  c.hardware.h2d = {{{1, double(last->bytes) / 90}}};
  CHECK(c.run().seconds == Approx(88 + 24 + 1 + 10).epsilon(1e-5));
}

TEST_CASE("a context of a known length is attended to where it lies, without what it may grow to", "[plan][estimate]") {
  Case c{0};
  c.plan.state_in_vram.assign(2, 0.375f);
  c.costs.states_used = 0.25;
  double const grown = c.run().seconds;
  c.costs.grown = 0;
  CHECK(c.run().seconds == Approx(60 + 2 * 1).epsilon(1e-5));  // all of it is in VRAM
  // Of a long one the host has 0.625, which take it 1.25 s.
  CHECK(grown == Approx(60 + 2 * (1 + 0.25 / long_contexts)).epsilon(1e-5));
}

TEST_CASE("resident, fetched and host experts of a layer run at the same time", "[plan][estimate]") {
  fake::Spec spec = fake::small_moe();
  spec.n_layers = 1;
  fake::Model const model{spec};
  ShardTable const table = model.table();
  ShardPlan plan;
  plan.shards.resize(table.shards.size());
  plan.state_in_vram.assign(1, 0.f);
  plan.chunk_tokens = plan.block_tokens = 1;
  PassCosts costs;
  costs.shards.assign(table.shards.size(), {0, 0, 0});
  costs.states.assign(1, {0, 0, 0});
  costs.read_bytes.assign(table.shards.size(), 0);
  ExpertLayers const experts{table.shards};
  for (std::size_t i = 0; i < experts.ids.size(); ++i) {
    costs.shards[experts.ids[i]] = {4, 1, 2};
    if (i < 4) plan.shards[experts.ids[i]] = {Tier::vram, 1, false};
    if (i >= 4 && i < 12) plan.shards[experts.ids[i]] = {Tier::pageable, 1, true};
  }
  plan.cache_bytes = experts.bytes / 4;  // half of the 8 that may enter: what misses of 8 x 2 s is fetched
  double const missed = 1 - cache_hits(0.5), used = 16 * 0.25;
  Estimate const e = estimate(RingPrefetch{}.schedule(plan, table), plan, table, costs, round_machine(), Rows{1, 1, 1});
  REQUIRE(e.host_s == Approx(16));
  REQUIRE(e.gpu_s == Approx(12));
  REQUIRE(e.copy_s == Approx(8 * 2 * missed));
  REQUIRE(e.seconds == Approx(16).epsilon(1e-5));
  // Rows that are on the device leave it only where the host has something to do: elsewhere a layer takes the device's 12 s.
  double const waits = layers_with_misses((4 + 8 * missed) * 0.25, used);
  REQUIRE(waits < 1);
  for (Shard const& s : table.shards) {
    if (s.kind == ShardKind::router) plan.shards[std::size_t(s.id)] = {Tier::vram, 1, false};
  }
  Estimate const on_device = estimate(RingPrefetch{}.schedule(plan, table), plan, table, costs, round_machine(), Rows{1, 1, 1});
  REQUIRE(on_device.host_s == Approx(16));
  REQUIRE(on_device.seconds == Approx((1 - waits) * 12 + 16).epsilon(1e-5));
}

TEST_CASE("missing experts of a row come ahead while the link has nothing else to read, and where the step looks ahead",
          "[plan][estimate]") {
  fake::Model const model{fake::small_moe()};
  ShardTable table = model.table();
  std::vector<Shard> const shards = with_large_experts(table);
  table.shards = shards;
  ExpertLayers const experts{table.shards};
  ShardPlan plan = plan_with_cache(table, experts, 1);
  plan.state_read_share = 1;
  PassCosts costs;
  costs.shards.assign(table.shards.size(), {100, 1, 100});
  costs.states.assign(table.states.size(), {HUGE_VAL, 1, 8});
  costs.read_bytes.assign(table.shards.size(), 0);
  for (std::uint32_t const id : experts.ids) costs.shards[id] = {100, 0.01, 16};  // more than the link brings while a layer computes
  auto const run = [&] { return estimate(RingPrefetch{}.schedule(plan, table), plan, table, costs, round_machine(), Rows{1, 1, 1}); };
  double const n_layers = double(table.states.size()), in_vram = run().seconds;
  costs.reads_ahead = true;
  CHECK(run().seconds <= in_vram);
  costs.reads_ahead = false;
  costs.looks_ahead = false;
  double const behind = run().seconds;
  CHECK(in_vram < behind - 0.5 * n_layers);
  // The link reads 8 s for each layer: in these nothing else crosses, so that what comes ahead saves what it did.
  plan.state_in_vram.assign(table.states.size(), 0.f);
  double const read_behind = run().seconds;
  CHECK(read_behind == Approx(behind + 7 * n_layers).epsilon(1e-5));
  costs.looks_ahead = true;
  double const read = run().seconds;
  CHECK(read < read_behind - 0.5 * n_layers);
  CHECK(read >= in_vram + 7 * n_layers);
}

TEST_CASE("a row's layers of experts that the host is asked for take what helped_time() says, and lanes what their parts cost",
          "[plan][estimate]") {
  fake::Model const model{fake::small_moe()};
  ShardTable table = model.table();
  std::vector<Shard> const shards = with_large_experts(table);
  table.shards = shards;
  ExpertLayers const experts{table.shards};
  ShardPlan plan = plan_with_cache(table, experts, 1);
  plan.fetched_misses = 0.75f;
  HardwareProfile hardware = round_machine();
  hardware.mutual = {0.8, 0.5};
  PassCosts costs;
  costs.shards.assign(table.shards.size(), {100, 1, 100});
  costs.shards.front() = {};
  costs.states.assign(table.states.size(), {100, 0, 100});
  costs.read_bytes.assign(table.shards.size(), 0);
  Shard const& expert = table.shards[experts.ids.front()];
  double const used = double(experts.layers.front().size()) * expert.use_probability, n_layers = double(table.states.size());
  for (std::uint32_t const id : experts.ids) {
    costs.shards[id] = {40 * expert.use_probability, 0.01 * expert.use_probability, 16 * expert.use_probability};
    costs.read_bytes[id] = 10 * expert.use_probability;
  }
  HelpedLayer layer;
  layer.expert = helped_expert(helped_machine(hardware), expert, {40, 0.01, 16});
  layer.used = used;
  layer.missing = (1 - cache_hits(0.5)) * used;
  layer.device_s = 2;  // attention, router
  layer.link_share = 0.75;
  HelpedTime const t = helped_time(layer);
  REQUIRE((t.ahead > 0 && t.fetched > 0 && t.on_host > 0));
  Estimate const e = estimate(RingPrefetch{}.schedule(plan, table), plan, table, costs, hardware, Rows{1, 1, 1});
  CHECK(e.seconds == Approx(n_layers * t.seconds + 1).epsilon(1e-6));  // and the head
  CHECK(e.host_s == Approx(n_layers * t.on_host * 40).epsilon(1e-6));
  CHECK(e.copy_s == Approx(n_layers * (t.ahead + t.fetched) * 16).epsilon(1e-6));
  CHECK(e.gpu_s == Approx(n_layers * (2 + (used - t.on_host) * 0.01) + 1).epsilon(1e-6));
  CHECK(e.host_bytes == Approx(n_layers * t.on_host * 10).epsilon(1e-6));
  CHECK(e.copied_bytes == Approx(n_layers * (t.ahead + t.fetched) * 10).epsilon(1e-6));
}

TEST_CASE("experts of blocks that use whole layers cross behind the layers before, but for what the cache keeps", "[plan][estimate]") {
  fake::Model const model{fake::small_moe()};
  ShardTable const table = model.table();
  ExpertLayers const experts{table.shards};
  double const bytes = double(experts.bytes), n_layers = double(experts.layers.size());
  ShardPlan plan = plan_with_cache(table, experts, 64);
  HardwareProfile hardware = round_machine();
  hardware.h2d = {{{1, bytes / 80}}};  // 80 s for all of them
  PassCosts costs;
  costs.shards.assign(table.shards.size(), {});
  costs.states.assign(table.states.size(), {});
  costs.read_bytes.assign(table.shards.size(), 0);
  for (Step const& step : table.steps) costs.shards[std::size_t(step.shard)] = {100, 1, 100};
  for (std::uint32_t const id : experts.ids) costs.shards[id] = {100, 0.01, 80 / double(experts.ids.size())};
  Schedule const schedule = RingPrefetch{}.schedule(plan, table);
  Estimate const many = estimate(schedule, plan, table, costs, hardware, Rows{64, 64, 1});
  CHECK(many.copied_bytes == Approx(bytes * (1 - 0.5 * 0.75)).epsilon(0.01));
  CHECK(many.copy_s == Approx(80 * (1 - 0.5 * 0.75)).epsilon(0.01));
  CHECK(many.host_s == Approx(100));  // the embedding
  // The link is idle for what runs before the first layer's experts and after the last's at most.
  CHECK(many.seconds < 100 + many.copy_s + 4);
  plan.chunk_tokens = plan.block_tokens = 8;
  Estimate const few = estimate(schedule, plan, table, costs, hardware, Rows{8, 8, 1});
  double const hits = cache_hits(0.5, 0.25, 8);
  CHECK(hits > 0.5);
  CHECK(few.copy_s == Approx(80 * (1 - hits)).epsilon(0.01));
  CHECK(few.seconds >= 100 + few.copy_s + 2 * n_layers);  // attention and router of each layer while nothing crosses
}

TEST_CASE("blocks repeat a pass, chunks repeat its products, experts meet the whole block", "[plan][estimate]") {
  fake::Model const model{fake::small_moe()};
  ShardTable const table = model.table();
  AnalyticCost const cost;
  auto shard_cost = [&](Shard const& s, Rows rows) { return cost.cost(s, rows); };
  auto state_cost = [&](LayerState const& s, Rows rows) { return cost.cost(s, rows); };
  Rows const rows{64, 64, 1};
  PassCosts const whole = pass_costs(table, rows, 64, 64, shard_cost, state_cost);
  PassCosts const chunked = pass_costs(table, rows, 16, 64, shard_cost, state_cost);
  PassCosts const blocked = pass_costs(table, rows, 16, 16, shard_cost, state_cost);
  PassCosts const windowed = pass_costs(table, rows, 16, 64, shard_cost, state_cost, 16);
  for (Shard const& s : table.shards) {
    std::size_t const i = std::size_t(s.id);
    if (s.kind == ShardKind::expert) REQUIRE(windowed.shards[i].gpu_s == Approx(4 * blocked.shards[i].gpu_s));
    if (s.kind == ShardKind::output) REQUIRE(whole.shards[i] == cost.cost(s, Rows{most_output_rows, 64, 1}));
    REQUIRE(windowed.shards[i].copy_s == whole.shards[i].copy_s);
    if (s.kind == ShardKind::expert) REQUIRE(chunked.shards[i] == whole.shards[i]);
    if (s.kind == ShardKind::attention) REQUIRE(chunked.shards[i].gpu_s == Approx(4 * cost.cost(s, Rows{16, 64, 1}).gpu_s));
    if (s.kind == ShardKind::attention) REQUIRE(blocked.shards[i].gpu_s == Approx(cost.cost(s, Rows{16, 64, 1}).gpu_s));
    REQUIRE(chunked.shards[i].copy_s == whole.shards[i].copy_s);
  }
  REQUIRE(blocked.states[0].host_s == Approx(whole.states[0].host_s / 4));
  ShardPlan plan;
  plan.shards.resize(table.shards.size());
  plan.state_in_vram.assign(table.states.size(), 0.f);
  plan.chunk_tokens = plan.block_tokens = 16;
  Schedule const schedule = RingPrefetch{}.schedule(plan, table);
  double once = 0;
  for (Step const& step : table.steps) once += blocked.shards[std::size_t(step.shard)].host_s;
  for (Shard const& s : table.shards) once += s.kind == ShardKind::expert ? blocked.shards[std::size_t(s.id)].host_s : 0;
  for (PassCost const& state : blocked.states) once += state.host_s;
  REQUIRE(estimate(schedule, plan, table, blocked, cost.hardware, rows).seconds == Approx(4 * once));
}

TEST_CASE("nothing is predicted faster than its bound", "[plan][estimate]") {
  SplitMix64 random{3};
  AnalyticCost const cost;
  for (int round = 0; round < 200; ++round) {
    fake::Model const model{fake::random_spec(random)};
    ShardTable const table = model.table();
    ShardPlan plan;
    plan.shards.resize(table.shards.size());
    plan.state_in_vram.assign(table.states.size(), 0.f);
    plan.chunk_tokens = plan.block_tokens = 1;
    plan.ring_bytes = 4 * VramAccount::round_up(model.bytes());
    for (Step const& step : table.steps) {
      if (table.shard(step.shard).kind != ShardKind::embedding && random.below(2) == 0) {
        plan.shards[std::size_t(step.shard)] = {random.below(2) == 0 ? Tier::vram : Tier::pinned, 1, false};
      }
    }
    Rows const rows{1, 512, 1};
    PassCosts const costs = pass_costs(
        table, rows, 1, 1, [&](Shard const& s, Rows r) { return cost.cost(s, r); },
        [&](LayerState const& s, Rows r) { return cost.cost(s, r); });
    Schedule const schedule = RingPrefetch{}.schedule(plan, table);
    Estimate const e = estimate(schedule, plan, table, costs, cost.hardware, rows);
    REQUIRE(e.seconds >= e.bound_s);
    REQUIRE(e.bound_s >= std::max({e.copy_s, e.gpu_s, e.host_s}));
    REQUIRE(e.actions.size() == schedule.size());
    double copied = 0;  // the copy lane does one thing at a time
    for (std::size_t i = 0; i < schedule.size(); ++i) {
      REQUIRE(e.actions[i].begin_s <= e.actions[i].end_s);
      if (schedule[i].kind != ActionKind::copy) continue;
      REQUIRE(e.actions[i].begin_s >= copied);
      copied = e.actions[i].end_s;
    }
  }
}
