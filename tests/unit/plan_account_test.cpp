#include "tiered/plan/account.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/planner.hpp"
#include "tiered/plan/verify_schedule.hpp"

using namespace tiered;

TEST_CASE("a cache gets what states have no use for, and a plan is as large as it is when they use everything", "[plan]") {
  int n_shared = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    std::vector<Shard> shards(3);
    for (std::size_t s = 0; s < 3; ++s) {
      shards[s].id = ShardId(s);
      shards[s].kind = s == 0 ? ShardKind::attention : ShardKind::expert;
      shards[s].bytes = 1 + random.below(9000);
    }
    std::vector<LayerState> states(1 + random.below(4));
    std::int32_t const n_pages = 1 + std::int32_t(random.below(20)), page_tokens = 16;
    PlanRequest r;
    r.shards = shards;
    for (LayerState& s : states) s.bytes_per_token = 16 * random.below(5);
    r.states = states;
    r.budget.vram_bytes = MiB;
    r.rows.context = n_pages * page_tokens;
    r.state_pages = n_pages;
    std::int32_t const used_tokens = 1 + std::int32_t(random.below(std::uint64_t(r.rows.context)));
    r.states_used = double(used_tokens) / r.rows.context;
    r.scratch_bytes = random.below(4000);
    Placements p{r};
    std::size_t states_bytes = 0, unused = 0;
    for (std::size_t l = 0; l < states.size(); ++l) {
      std::int32_t const pages = std::int32_t(random.below(std::uint64_t(n_pages) + 1)),
                         used = (used_tokens + page_tokens - 1) / page_tokens;
      p.state_in_vram[l] = float(double(pages) / n_pages);
      std::size_t const page = states[l].bytes_per_token * std::size_t(page_tokens);
      states_bytes += VramAccount::round_up(page * std::size_t(pages));
      if (pages > used) unused += VramAccount::round_up(page * std::size_t(pages)) - VramAccount::round_up(page * std::size_t(used));
    }
    bool const caches = random.below(4) != 0;
    p.shards[0] = {Tier::vram, 1};
    p.shards[1] = {Tier::pinned, 1, caches};
    p.shards[2] = {Tier::vram, 1};
    p.cache_bytes = random.below(9000);
    if (!caches) p.shards[1] = {};
    std::size_t const own = caches ? VramAccount::round_up(p.cache_bytes) : 0;
    ShardPlan const plan = make_plan(r, p);
    CHECK(plan.state_bytes == states_bytes);
    CHECK(plan.shared_bytes == (caches ? unused : 0));
    CHECK(plan.cache_bytes == own + plan.shared_bytes);
    CHECK(plan.vram_bytes == plan.resident_bytes + states_bytes + own + VramAccount::round_up(r.scratch_bytes));
    n_shared += plan.shared_bytes > 0;
  }
  CHECK(n_shared > 50);
}

TEST_CASE("room for long contexts takes no experts from short ones, and no plan passes the budget when all of it is used", "[plan]") {
  fake::Spec spec = fake::moe_30b();
  spec.n_layers = 12;  // a quarter of them
  fake::Model const model{spec};
  ShardTable const table = model.table();
  ExpertLayers const experts{table.shards};
  AnalyticCost const cost;
  int const bounds[] = {1, 512, 2048};
  int n_shared = 0;
  for (std::string_view const name : placement_names) {
    AnyPlacement const placement = make_placement(name);
    for (std::size_t const budget : {512 * MiB, 800 * MiB, 1024 * MiB, 3584 * MiB}) {
      std::size_t before = 0;
      for (std::int32_t const context : {4096, 16384, 32768}) {
        INFO(name << ' ' << budget << " bytes, room for " << context);
        PlannerInput input{{budget, 0, 0}, {1, context, 1}, model, {}, 4096};
        input.state_pages = context / 256;
        std::vector<TierPlan> const plans = plan_tiers(placement, RingPrefetch{}, cost, cost.hardware, table, input, bounds);
        for (TierPlan const& t : plans) {
          ShardPlan const& p = t.plan;
          INFO("tier of " << t.rows.n);
          CHECK(verify(p, table) == "");
          CHECK(p.vram_bytes <= budget);
          CHECK(p.resident_bytes + p.state_bytes + (p.cache_bytes - p.shared_bytes) + p.ring_bytes + p.scratch_bytes == p.vram_bytes);
          CHECK(p.shared_bytes <= std::min(p.cache_bytes, p.state_bytes));
          if (p.shared_bytes == 0) continue;
          ++n_shared;
          bool const streams_all = name == "stream_all";  // whose cache is the least there can be
          bool const whole = !streams_all && uses_whole_layer(table.shards[experts.ids[0]], t.rows.n);
          CHECK(p.cache_bytes - p.shared_bytes >= experts.min_left_bytes(whole));
        }
        std::size_t const cache = plans[0].plan.cache_bytes;
        if (name == "seconds_per_byte") CHECK(cache + 16 * MiB >= before);
        before = cache;
      }
    }
  }
  CHECK(n_shared > 20);
}

TEST_CASE("a plan says what of states in host memory one row's device reads, where its step is one launch", "[plan]") {
  fake::Model const model{fake::small_moe()};
  ShardTable const table = model.table();
  std::vector<PassCost> const state_costs(table.states.size(), {30, 1, 10});
  PlanRequest r;
  r.shards = table.shards, r.states = table.states, r.state_costs = state_costs;
  r.budget.vram_bytes = GiB;
  r.rows = {1, 4096, 1};
  r.states_used = 0.25;
  r.hop_s = 0.5;
  r.mutual_attention = {0.75, 1};
  r.launches_attention = true;
  Placements p{r};
  for (Shard const& s : table.shards) {
    if (s.kind != ShardKind::embedding) p.shards[std::size_t(s.id)] = {Tier::vram, 1};
    if (s.kind == ShardKind::expert) p.shards[std::size_t(s.id)] = {Tier::pageable, 1, true};
  }
  p.state_in_vram.assign(table.states.size(), 0.5f);
  ShardPlan const plan = make_plan(r, p);
  CHECK(plan.state_read_share == Approx(40.0 / 50));
  CHECK(plan.state_read_tokens == 25);  // of 1024 that take the host 40 s beside the link, in the second of two hops
  auto const reads = [&](auto const& change) {
    PlanRequest request = r;
    Placements placements = p;
    change(request, placements);
    return make_plan(request, placements).state_read_share > 0;
  };
  CHECK(reads([](auto&, auto&) {}));
  CHECK_FALSE(reads([](PlanRequest& q, auto&) { q.launches_attention = false; }));
  CHECK_FALSE(reads([](PlanRequest& q, auto&) { q.deterministic = true; }));
  CHECK_FALSE(reads([](PlanRequest& q, auto&) { q.rows.n = 2; }));
  CHECK_FALSE(reads([](auto&, Placements& q) { std::ranges::fill(q.state_in_vram, 1.f); }));
  CHECK_FALSE(reads([](auto&, Placements& q) { q.shards[1] = {Tier::pageable, 1}; }));  // attention, streamed
  CHECK_FALSE(reads([](auto&, Placements& q) { q.shards[1] = {}; }));
  CHECK_FALSE(reads([](auto&, Placements& q) { q.shards[3] = {}; }));  // an expert of the host's
}
