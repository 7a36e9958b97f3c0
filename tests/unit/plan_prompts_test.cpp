// Long prompts of dense models in a few GiB: what their plans take, beside what no plan can do without.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "fake_model.hpp"
#include "fake_profile.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/planner.hpp"
#include "tiered/plan/token_tiers.hpp"

using namespace tiered;

namespace {

fake::Spec dense_7b_q8() { return {28, 3584, 18944, 128, 28, 4, 152064, 0, 0, 0, DType::q8_0}; }
fake::Spec dense_32b_q4() { return {64, 5120, 25600, 128, 64, 8, 151936, 0, 0, 0, DType::q4_0}; }

struct Machine {
  AnalyticCost cost{fake::h200(), {}};

  std::vector<TierPlan> plans(fake::Model const& model, std::size_t vram_bytes, std::int32_t context) const {
    constexpr std::int32_t page_tokens = 256, typical_context = 4096;
    PlannerInput input{{vram_bytes, 0, 0}, {1, context, 1}, model};
    input.cost_context = std::min(context, typical_context);
    input.state_pages = context / page_tokens;
    input.streams_states = input.launches_attention = true;
    DecodePrefillTiers const tiers;
    return plan_tiers(SecondsPerByte{}, RingPrefetch{}, cost, cost.hardware, model.table(), input, tiers.bounds());
  }
  /// No order of anything takes less: weights that VRAM cannot hold cross once, and every row is multiplied at the best rate there is.
  double bound_s(fake::Model const& model, std::size_t vram_bytes, Rows rows) const {
    double bytes = 0, products_s = 0, attention_s = 0;
    ShardTable const table = model.table();
    for (Shard const& s : table.shards) {
      if (s.kind == ShardKind::embedding) continue;
      bytes += double(s.bytes);
      if (s.kind == ShardKind::output) continue;
      double const bits = 8 * double(s.bytes) / s.macs_per_token;
      products_s += 2 * s.macs_per_token * rows.n / cost.hardware.gpu.rates_for(s.dtypes, bits, false).flops_by_rows.peak_per_s();
    }
    for (LayerState const& s : table.states) attention_s += cost.cost(s, rows).gpu_s;
    double const link_s = std::max(0.0, bytes - double(vram_bytes)) / cost.hardware.h2d.peak_per_s();
    return std::max(link_s, products_s + attention_s);
  }
};

}  // namespace

TEST_CASE("a long prompt of a dense model that is streamed takes at most twice as long as link or arithmetic alone", "[plan][planner]") {
  Machine const machine;
  std::pair<char const*, fake::Spec> const models[] = {
      {"8b f16", fake::dense_8b()}, {"7b q8_0", dense_7b_q8()}, {"32b q4_0", dense_32b_q4()}};
  for (auto const& [name, spec] : models) {
    fake::Model const model{spec};
    for (std::size_t const vram : {1290 * MiB, 3340 * MiB, 7400 * MiB}) {
      for (std::int32_t const context : {4352, 10752, 16640, 65792}) {
        std::vector<TierPlan> const plans = machine.plans(model, vram, context);
        TierPlan const& prompt = plans.back();
        REQUIRE(prompt.rows.n == 8192);
        double const bound_s = machine.bound_s(model, vram, {8192, std::min(context, 8192), 1});
        INFO(name << ", " << vram / MiB << " MiB, context " << context << ": " << prompt.estimate.seconds << " s, bound " << bound_s
                  << " s; chunk " << prompt.plan.chunk_tokens << " block " << prompt.plan.block_tokens << " ring "
                  << prompt.plan.ring_bytes / MiB << " scratch " << prompt.plan.scratch_bytes / MiB << " kv "
                  << prompt.plan.state_bytes / MiB);
        CHECK(prompt.estimate.seconds <= 2 * bound_s);
      }
    }
  }
}

TEST_CASE("states in host memory cross for each chunk of a block, and weights once", "[plan][planner]") {
  Machine const machine;
  fake::Model const model{dense_7b_q8()};
  auto const shard_cost = [&](Shard const& s, Rows rows) { return machine.cost.cost(s, rows); };
  auto const state_cost = [&](LayerState const& s, Rows rows) { return machine.cost.cost(s, rows); };
  Rows const rows{8192, 16384, 1};
  PassCosts const whole = pass_costs(model.table(), rows, 8192, 8192, shard_cost, state_cost),
                  cut = pass_costs(model.table(), rows, 1024, 8192, shard_cost, state_cost),
                  last = pass_costs(model.table(), {1500, 16384, 1}, 1024, 8192, shard_cost, state_cost);
  REQUIRE(whole.states[3].copy_s > 0);
  CHECK(cut.states[3].copy_s == Approx(8 * whole.states[3].copy_s));
  CHECK(cut.states[3].gpu_s == Approx(whole.states[3].gpu_s));
  CHECK(last.states[3].copy_s == Approx(2 * whole.states[3].copy_s));
  CHECK(cut.shards[1].copy_s == whole.shards[1].copy_s);
}

TEST_CASE("what goes in chunks has a ring of its own, whatever was best for what goes by rows", "[plan][planner]") {
  Machine const machine;
  fake::Model const model{fake::dense_8b()};
  std::vector<TierPlan> const plans = machine.plans(model, 1290 * MiB, 65792);
  ShardPlan const& prompt = plans.back().plan;
  std::size_t largest = 0;
  for (Shard const& s : model.table().shards) {
    if (s.kind == ShardKind::ffn) largest = std::max(largest, s.bytes);
  }
  INFO("chunk " << prompt.chunk_tokens << " block " << prompt.block_tokens << " ring " << prompt.ring_bytes);
  CHECK(prompt.block_tokens > prompt.chunk_tokens);  // smaller blocks would need all weights for each
  CHECK(prompt.ring_bytes >= largest);
}
