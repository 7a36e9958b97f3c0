#include <algorithm>
#include <cmath>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/planner.hpp"

using namespace tiered;

namespace {

TierPlan plan_with(AnyPlacement const& placement, fake::Model const& model, std::size_t vram_bytes, Rows rows,
                   AnalyticCost const& cost = {}) {
  return plan_tier(placement, RingPrefetch{}, cost, cost.hardware, model.table(), {{vram_bytes, 0, 0}, rows, model, {}, 0});
}

std::size_t count(TierPlan const& plan, ShardTable const& table, ShardKind kind, bool (*is)(Placement const&)) {
  std::size_t n = 0;
  for (Shard const& s : table.shards) n += s.kind == kind && is(plan.plan.shards[std::size_t(s.id)]);
  return n;
}
bool resident(Placement const& p) { return p.resident(); }
bool streamed(Placement const& p) { return p.streamed(); }
bool cached(Placement const& p) { return p.cached; }
bool on_host(Placement const& p) { return p.gpu_rows == 0; }

}  // namespace

TEST_CASE("where everything fits, every policy but stream_all keeps everything in VRAM", "[plan][placements]") {
  for (fake::Spec const& spec : {fake::small_dense(), fake::small_moe()}) {
    fake::Model const model{spec};
    ShardTable const table = model.table();
    for (std::string_view const name : {"all_vram", "attention_first", "seconds_per_byte"}) {
      INFO(name);
      TierPlan const plan = plan_with(make_placement(name), model, GiB, {1, 512, 1});
      for (Shard const& s : table.shards) REQUIRE(plan.plan.shards[std::size_t(s.id)].resident() == (s.kind != ShardKind::embedding));
      REQUIRE(std::all_of(plan.plan.state_in_vram.begin(), plan.plan.state_in_vram.end(), [](float share) { return share == 1; }));
      REQUIRE(plan.plan.ring_bytes == 0);
      REQUIRE(plan.plan.cache_bytes == 0);
    }
  }
}

TEST_CASE("stream_all keeps no weight in VRAM, and fetches experts", "[plan][placements]") {
  for (fake::Spec const& spec : {fake::small_dense(), fake::small_moe()}) {
    fake::Model const model{spec};
    ShardTable const table = model.table();
    for (std::size_t const vram : {model.bytes() / 4, 2 * model.bytes()}) {
      TierPlan const plan = plan_with(StreamAll{}, model, vram, {1, 64, 1});
      REQUIRE(plan.plan.resident_bytes == 0);
      REQUIRE(count(plan, table, ShardKind::attention, streamed) == 4);
      REQUIRE(count(plan, table, ShardKind::output, streamed) == 1);
      REQUIRE(count(plan, table, ShardKind::expert, cached) == ExpertLayers{table.shards}.ids.size());
      REQUIRE(plan.plan.cache_bytes == ExpertLayers{table.shards}.min_cache_bytes());
    }
  }
}

TEST_CASE("attention_first fills VRAM in its order", "[plan][placements]") {
  fake::Model const model{fake::small_moe()};
  ShardTable const table = model.table();
  std::size_t attention = 0;
  for (Shard const& s : table.shards) attention += s.kind == ShardKind::attention ? VramAccount::round_up(s.bytes) : 0;
  TierPlan const plan = plan_with(AttentionFirst{}, model,
                                  attention + 4 * 64 * table.states[0].bytes_per_token + model.scratch_bytes(1, 1) + 4096, {1, 64, 1});
  REQUIRE(count(plan, table, ShardKind::attention, resident) == 4);
  REQUIRE(count(plan, table, ShardKind::output, resident) == 0);
  REQUIRE(count(plan, table, ShardKind::expert, resident) == 0);
  REQUIRE(std::all_of(plan.plan.state_in_vram.begin(), plan.plan.state_in_vram.end(), [](float share) { return share == 1; }));
}

TEST_CASE("seconds_per_byte: what every token reads comes before experts, by arithmetic", "[plan][placements]") {
  fake::Model const model{fake::moe_30b()};
  ShardTable const table = model.table();
  TierPlan const plan = plan_with(SecondsPerByte{}, model, 2 * GiB, {1, 4096, 1});
  REQUIRE(count(plan, table, ShardKind::attention, resident) == 48);
  REQUIRE(count(plan, table, ShardKind::router, resident) == 48);
  REQUIRE(count(plan, table, ShardKind::output, resident) == 1);
  // Any expert may be in the cache; of those that are not, link and host each take a share.
  REQUIRE(count(plan, table, ShardKind::expert, cached) == 48 * 128);
  REQUIRE(plan.plan.fetched_misses > 0.1f);
  REQUIRE(plan.plan.fetched_misses < 0.9f);
}

TEST_CASE("seconds_per_byte: where nothing fits, link and host share a decode step", "[plan][placements]") {
  fake::Model const model{fake::dense_8b()};
  AnalyticCost cost;
  cost.hardware.dram_bytes_per_s = 200e9;  // enough for both at once
  ShardTable const table = model.table();
  TierPlan const plan = plan_with(SecondsPerByte{}, model, 2 * GiB, {1, 1024, 1}, cost);
  std::size_t const n_streamed = count(plan, table, ShardKind::ffn, streamed), n_host = count(plan, table, ShardKind::ffn, on_host);
  REQUIRE(n_streamed > 4);  // and most of attention
  REQUIRE(n_host > 10);
  TierPlan const still = plan_with(AllVram{}, model, 2 * GiB, {1, 1024, 1}, cost),
                 nothing = plan_with(AllVram{}, model, 0, {1, 1024, 1}, cost);
  REQUIRE(nothing.plan.vram_bytes == 0);
  REQUIRE(plan.estimate.seconds < 0.9 * still.estimate.seconds);
  REQUIRE(plan.estimate.seconds < 0.8 * nothing.estimate.seconds);
}

TEST_CASE("seconds_per_byte: a prompt's weights are streamed, its KV is in VRAM", "[plan][placements]") {
  fake::Model const model{fake::dense_8b()};
  ShardTable const table = model.table();
  TierPlan const plan = plan_with(SecondsPerByte{}, model, GiB, {512, 4096, 1});
  REQUIRE(count(plan, table, ShardKind::ffn, streamed) == 40);
  REQUIRE(std::all_of(plan.plan.state_in_vram.begin(), plan.plan.state_in_vram.end(), [](float share) { return share == 1; }));
  REQUIRE(plan.estimate.seconds < 1.15 * plan.estimate.bound_s);
}

TEST_CASE("seconds_per_byte is never predicted slower than the other policies, at any budget", "[plan][placements]") {
  struct Machine {
    char const* name;
    double link, dram, host_scale;
  };
  for (Machine const& m :
       {Machine{"simulated", 16e9, 40e9, 1}, {"slow link", 3e9, 40e9, 1}, {"few cores", 25e9, 20e9, 0.3}, {"server", 54e9, 140e9, 3}}) {
    AnalyticCost cost;
    cost.hardware.h2d = cost.hardware.d2h = {{{64e3, m.link / 3}, {1e6, m.link * 0.9}, {64e6, m.link}}};
    cost.hardware.dram_bytes_per_s = m.dram;
    for (MatmulRates& rates : cost.hardware.host.matmul) {
      rates.bytes_per_s *= m.host_scale;
      for (RatePoint& point : rates.flops_by_rows.points) point.per_s *= m.host_scale;
    }
    for (fake::Spec spec : {fake::dense_8b(), fake::moe_30b()}) {
      spec.n_layers = 12;
      fake::Model const model{spec};
      for (std::int32_t const n : {1, 8, 64, 350, 800}) {
        for (double const share : {0.0, 0.02, 0.1, 0.3, 0.6, 1.3}) {
          std::size_t const vram = std::size_t(share * double(model.bytes()));
          double const ours = plan_with(SecondsPerByte{}, model, vram, {n, 2048, 1}, cost).estimate.seconds;
          for (std::string_view const name : {"all_vram", "attention_first", "stream_all"}) {
            double const theirs = plan_with(make_placement(name), model, vram, {n, 2048, 1}, cost).estimate.seconds;
            INFO(m.name << ", experts " << spec.n_experts << ", rows " << n << ", share " << share << ", against " << name);
            CHECK(ours <= 1.05 * theirs);
          }
        }
      }
    }
  }
}

TEST_CASE("a device that lacks a kernel gets none of those shards", "[plan][placements]") {
  fake::Model const model{fake::small_dense()};
  ShardTable const table = model.table();
  AnalyticCost cost;
  cost.capabilities.gpu_matmul &= ~dtype_bit(DType::q6_k);
  for (std::string_view const name : placement_names) {
    TierPlan const plan = plan_with(make_placement(name), model, GiB, {1, 64, 1}, cost);
    for (Shard const& s : table.shards) {
      if ((s.dtypes & dtype_bit(DType::q6_k)) != 0) REQUIRE(plan.plan.shards[std::size_t(s.id)].gpu_rows == 0);
    }
    REQUIRE(std::isfinite(plan.estimate.seconds));
    REQUIRE(count(plan, table, ShardKind::ffn, on_host) == 0);
  }
}

TEST_CASE("seconds_per_byte: what crosses while the host computes experts that the device cannot is streamed", "[plan][placements]") {
  fake::Spec spec = fake::small_moe();
  spec.n_layers = 2;
  fake::Model const model{spec};
  ShardTable const table = model.table();
  std::vector<PassCost> costs(table.shards.size());
  Shard const* last = nullptr;
  for (Shard const& s : table.shards) {
    if (s.kind == ShardKind::expert) costs[std::size_t(s.id)] = {1, HUGE_VAL, 1};
    if (s.kind == ShardKind::attention) costs[std::size_t(s.id)] = {5, 0.1, 12}, last = &s;
    if (s.kind == ShardKind::router) costs[std::size_t(s.id)] = {0.1, HUGE_VAL, 1};
  }
  std::vector<PassCost> const state_costs(table.states.size());
  PlanRequest r;
  r.shards = table.shards, r.costs = costs, r.states = table.states, r.state_costs = state_costs;
  r.rows = {1, 64, 1};
  for (Shard const& s : table.shards) r.ring_bytes = std::max(r.ring_bytes, 2 * VramAccount::round_up(s.bytes));
  r.budget.vram_bytes = r.ring_bytes + r.state_bytes(0) + r.state_bytes(1);  // no weight is resident
  // It is there 12 s after the first step; the experts of the layer before take the host more than that.
  Placements const p = SecondsPerByte{}.place(r);
  CHECK(p.shards[std::size_t(last->id)].streamed());
}

TEST_CASE("a name that is no placement is an Error that names the choices", "[plan][any_policy]") {
  try {
    (void)make_placement("fastest");
    FAIL("no Error");
  } catch (Error const& error) {
    REQUIRE(error.code() == Errc::precondition);
    for (std::string_view const name : placement_names) REQUIRE(std::string(error.what()).find(name) != std::string::npos);
  }
}
