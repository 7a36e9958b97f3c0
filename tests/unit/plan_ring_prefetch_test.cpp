#include "tiered/plan/ring_prefetch.hpp"

#include <algorithm>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/core/error.hpp"
#include "tiered/plan/detail/ring_space.hpp"
#include "tiered/plan/verify_schedule.hpp"

using namespace tiered;

namespace {

/// Every step's shard streamed, or every `nth`.
ShardPlan streaming_plan(ShardTable const& table, std::size_t ring_bytes, std::size_t nth = 1) {
  ShardPlan plan;
  plan.shards.resize(table.shards.size());
  plan.state_in_vram.assign(table.states.size(), 0.f);
  plan.ring_bytes = VramAccount::round_up(ring_bytes);
  plan.chunk_tokens = plan.block_tokens = 1;
  for (std::size_t i = 0; i < table.steps.size(); ++i) {
    Shard const& s = table.shard(table.steps[i].shard);
    if (s.kind != ShardKind::embedding && i % nth == 0) plan.shards[std::size_t(s.id)] = {Tier::pageable, 1, false};
  }
  return plan;
}

std::size_t largest_step(ShardTable const& table) {
  std::size_t largest = 0;
  for (Step const& step : table.steps) {
    if (table.shard(step.shard).kind != ShardKind::embedding) largest = std::max(largest, table.shard(step.shard).bytes);
  }
  return VramAccount::round_up(largest);
}

}  // namespace

TEST_CASE("with a large ring every copy stands before the first run", "[plan][ring_prefetch]") {
  fake::Model const model{fake::small_dense()};
  ShardTable const table = model.table();
  ShardPlan const plan = streaming_plan(table, 2 * model.bytes());
  Schedule const schedule = RingPrefetch{}.schedule(plan, table);
  REQUIRE(verify(schedule, plan, table) == "");
  std::size_t const n_copies = table.steps.size() - 1;
  for (std::size_t i = 0; i < n_copies; ++i) REQUIRE(schedule[i].kind == ActionKind::copy);
  REQUIRE(schedule[n_copies].kind == ActionKind::run);
}

TEST_CASE("most_ahead limits the pieces in the ring", "[plan][ring_prefetch]") {
  fake::Model const model{fake::small_dense()};
  ShardTable const table = model.table();
  ShardPlan const plan = streaming_plan(table, 2 * model.bytes());
  for (std::size_t const most : {1, 2, 3}) {
    RingPrefetch policy;
    policy.most_ahead = most;
    Schedule const schedule = policy.schedule(plan, table);
    REQUIRE(verify(schedule, plan, table) == "");
    std::size_t live = 0, peak = 0;
    for (Action const& a : schedule) {
      live += a.kind == ActionKind::copy;
      live -= a.kind == ActionKind::release;
      peak = std::max(peak, live);
    }
    REQUIRE(peak == most);
  }
}

TEST_CASE("a copy waits for nothing but room in the ring", "[plan][ring_prefetch]") {
  fake::Model const model{fake::small_dense()};
  ShardTable const table = model.table();
  ShardPlan const plan = streaming_plan(table, 2 * largest_step(table) + 4096);
  Schedule const schedule = RingPrefetch{}.schedule(plan, table);
  REQUIRE(verify(schedule, plan, table) == "");
  for (std::size_t i = 1; i < schedule.size(); ++i) {  // room comes from a release, so a copy follows one, or another copy
    if (schedule[i].kind != ActionKind::copy) continue;
    INFO("action " << i);
    bool const earliest = schedule[i - 1].kind == ActionKind::copy || schedule[i - 1].kind == ActionKind::release;
    REQUIRE(earliest);
  }
}

TEST_CASE("a shard larger than half the ring goes by rows, copied one range ahead", "[plan][ring_prefetch]") {
  fake::Model const model{fake::small_dense()};
  ShardTable const table = model.table();
  ShardPlan const plan = streaming_plan(table, largest_step(table) / 3);
  Schedule const schedule = RingPrefetch{}.schedule(plan, table);
  REQUIRE(verify(schedule, plan, table) == "");
  ShardId const output = table.shards.back().id;
  std::vector<Action> of_output;
  for (Action const& a : schedule) {
    if (a.shard == output && a.kind != ActionKind::hop) of_output.push_back(a);
  }
  auto const n_runs = std::count_if(of_output.begin(), of_output.end(), [](Action const& a) { return a.kind == ActionKind::run; });
  REQUIRE(n_runs > 5);
  // When the second range runs, the third has been submitted: copy and run overlap.
  std::ptrdiff_t copies = 0, runs = 0;
  for (Action const& a : of_output) {
    copies += a.kind == ActionKind::copy;
    if (a.kind != ActionKind::run) continue;
    ++runs;
    INFO("run " << runs << " of " << n_runs);
    REQUIRE(copies >= std::min(runs + 1, n_runs));
    REQUIRE(table.row_offset(table.shard(output), a.rows.end) - table.row_offset(table.shard(output), a.rows.begin) <= plan.ring_bytes / 2);
  }
}

TEST_CASE("row ranges begin at multiples of 64 rows of a weight, unless fewer fit", "[plan][ring_prefetch]") {
  fake::Model const model{fake::small_dense()};
  ShardTable const table = model.table();
  ShardId const output = table.steps.back().shard;
  Shard const& s = table.shard(output);
  std::size_t const row_bytes = table.weights[std::size_t(s.weights.end) - 1].row_bytes();
  for (std::size_t const rows_in_ring : {20, 400, 777, 1000}) {
    ShardPlan const plan = streaming_plan(table, std::max(largest_step(table) / 8, rows_in_ring * row_bytes));
    Schedule const schedule = RingPrefetch{}.schedule(plan, table);
    REQUIRE(verify(schedule, plan, table) == "");
    std::size_t const most_rows = std::size_t(RingPrefetch{}.piece * double(plan.ring_bytes)) / row_bytes;
    int n_inner = 0;
    for (Action const& a : schedule) {
      if (a.kind != ActionKind::copy || a.shard != output || a.rows == Range{}) continue;
      for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
        Weight const& w = table.weights[std::size_t(i)];
        if (a.rows.begin <= w.first_row || a.rows.begin >= w.first_row + w.rows) continue;
        ++n_inner;
        if (most_rows >= 64) CHECK((a.rows.begin - w.first_row) % 64 == 0);
      }
    }
    CHECK((n_inner > 0 || most_rows >= std::size_t(s.n_rows)));
  }
}

TEST_CASE("with several chunks a shard that fits the ring goes whole", "[plan][ring_prefetch]") {
  fake::Model const model{fake::small_dense()};
  ShardTable const table = model.table();
  ShardPlan plan = streaming_plan(table, largest_step(table));
  plan.chunk_tokens = 16;
  plan.block_tokens = 64;
  Schedule const schedule = RingPrefetch{}.schedule(plan, table);
  REQUIRE(verify(schedule, plan, table) == "");
  REQUIRE(std::all_of(schedule.begin(), schedule.end(), [](Action const& a) { return a.rows == Range{}; }));
}

TEST_CASE("a ring too small for one row is over_budget, with the numbers", "[plan][ring_prefetch]") {
  fake::Model const model{fake::small_dense()};
  ShardTable const table = model.table();
  ShardPlan const plan = streaming_plan(table, 256);
  try {
    (void)RingPrefetch{}.schedule(plan, table);
    FAIL("no Error");
  } catch (Error const& error) {
    REQUIRE(error.code() == Errc::over_budget);
    REQUIRE(std::string(error.what()).find("ring of 256 bytes") != std::string::npos);
  }
}

TEST_CASE("a piece never wraps: it skips the end of the ring", "[plan][ring_prefetch]") {
  detail::RingSpace ring{1024};
  detail::RingPiece a{ShardId{1}, {}, 512, 0}, b{ShardId{2}, {}, 256, 0}, c{ShardId{3}, {}, 512, 0}, d{ShardId{4}, {}, 256, 0};
  REQUIRE(ring.try_acquire(a));
  REQUIRE(ring.try_acquire(b));
  REQUIRE_FALSE(ring.try_acquire(c));  // 256 at the end, nothing at the begin
  REQUIRE(ring.try_acquire(d));
  REQUIRE(d.offset == 768);
  ring.release_oldest();
  REQUIRE(ring.try_acquire(c));
  REQUIRE(c.offset == 0);
  detail::RingPiece e{ShardId{5}, {}, 1, 0};
  REQUIRE_FALSE(ring.try_acquire(e));  // full
}

TEST_CASE("schedules verify for random models, rings and shares of streamed shards", "[plan][ring_prefetch]") {
  std::size_t n_by_rows = 0, n_refused = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SplitMix64 random{seed};
    fake::Model const model{fake::random_spec(random)};
    ShardTable const table = model.table();
    ShardPlan plan = streaming_plan(table, 1024 + std::size_t(random.below(3 * largest_step(table))), 1 + random.below(3));
    if (random.below(4) == 0) plan.block_tokens = 4;
    INFO("seed " << seed);
    RingPrefetch policy;
    policy.most_ahead = 1 + random.below(8);
    Schedule schedule;
    try {
      schedule = policy.schedule(plan, table);
    } catch (Error const& error) {
      REQUIRE(error.code() == Errc::over_budget);
      ++n_refused;
      continue;
    }
    bool const by_rows = std::any_of(schedule.begin(), schedule.end(), [](Action const& a) { return a.rows != Range{}; });
    n_by_rows += by_rows;
    if (by_rows && plan.chunk_tokens != plan.block_tokens) continue;  // the planner tries another ring
    REQUIRE(verify(schedule, plan, table) == "");
  }
  CHECK(n_by_rows > 500);
  CHECK(n_refused < 1500);
}
