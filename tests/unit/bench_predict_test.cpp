// What a plan is predicted with behind a context of another length than it was made for.
#include "../bench/model/predict.hpp"
#include "catch.hpp"
#include "fake_model.hpp"

using namespace tiered;

TEST_CASE("an expert cache is predicted with what keys and values do not use of their room", "[bench][predict]") {
  fake::Model const model{fake::small_moe()};
  ShardTable const table = model.table();
  std::int32_t const max_context = 4096;
  std::size_t kv_bytes = 0;
  for (LayerState const& s : table.states) kv_bytes += VramAccount::round_up(s.bytes_per_token * std::size_t(max_context));
  REQUIRE(kv_bytes > 0);
  ShardPlan plan;
  plan.state_in_vram.assign(table.states.size(), 1.f);
  plan.shared_bytes = kv_bytes / 4;
  plan.cache_bytes = 1'000'000 + plan.shared_bytes;
  auto const cache_behind = [&](std::int32_t context) {
    ShardPlan const p = bench::with_unused_states(plan, table, {1, context, 1}, max_context, double(context) / max_context);
    CHECK(p.cache_bytes - p.shared_bytes == 1'000'000);
    return double(p.cache_bytes);
  };
  CHECK(cache_behind(4096) == 1'000'000);
  CHECK(cache_behind(3072) == Approx(1e6 + 0.25 * double(kv_bytes)).epsilon(1e-3));
  CHECK(cache_behind(1024) == Approx(1e6 + 0.75 * double(kv_bytes)).epsilon(1e-3));
  for (float& share : plan.state_in_vram) share = 0.5f;
  CHECK(cache_behind(3072) == 1'000'000);
  CHECK(cache_behind(1024) == Approx(1e6 + 0.25 * double(kv_bytes)).epsilon(1e-3));
  plan.cache_bytes = plan.shared_bytes = 0;  // no cache
  CHECK(bench::with_unused_states(plan, table, {1, 1024, 1}, max_context, 0.25).cache_bytes == 0);
}
