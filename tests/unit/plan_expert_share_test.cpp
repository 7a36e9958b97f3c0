// Which experts of a layer the host takes while the link brings the others: balance, ties, empties; and what a plan makes of it.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "catch.hpp"
#include "fake_model.hpp"
#include "fake_profile.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/plan/expert_share.hpp"
#include "tiered/plan/planner.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;

namespace {

/// About what an H200 on PCIe 5 and 16 cores take for an expert of 2.65 MB.
ExpertShare server() { return {54e-6, 30e-6, 0, 1.45e-6, 0.15e-6, 0.16e-6, 50e-6, 0.3e-6, 1.2e-6}; }

double end_s(LayerShare const& s) { return std::max(s.link_s, s.host_s); }

/// Of 128 experts, 8 for each row.
LayerShare expected(ExpertShare const& share, std::int32_t n_rows, std::int32_t n_missing) {
  return expected_share(share, expected_rows(n_rows, 8, 128), n_rows, n_missing);
}

/// Where the first n_host are the host's.
LayerShare with(ExpertShare const& share, std::vector<std::int32_t> const& rows, std::size_t n_host, std::int32_t n_rows,
                double under_way_s) {
  LayerShare s{n_host, 0, 0, under_way_s + double(rows.size() - n_host) * share.copy_s, 0};
  for (std::size_t i = 0; i < n_host; ++i) {
    s.host_rows += rows[i];
    s.products_s += share.products(rows[i]);
  }
  if (s.host_rows == 0) return s;
  s.link_s += n_rows * share.back_row_s;
  s.host_s = n_rows * (share.there_row_s + share.back_row_s) + s.products_s;
  return s;
}

}  // namespace

TEST_CASE("the host takes as many experts of few rows as make both ends meet", "[plan][expert_share]") {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random(seed);
    ExpertShare share = server();
    share.device_row_s = 0;
    share.product_row_s *= double(random.below(8));
    share.product_s = double(random.below(3)) * 8e-6;
    std::int32_t const n_rows = 1 + std::int32_t(random.below(4000));
    std::vector<std::int32_t> rows(random.below(130));
    for (std::int32_t& n : rows) n = std::int32_t(random.below(random.below(2) == 0 ? 8 : std::uint64_t(n_rows)));
    std::sort(rows.begin(), rows.end());
    double const under_way_s = double(random.below(3)) * 1e-3;
    LayerShare const got = share_experts(share, rows, n_rows, under_way_s);
    LayerShare const expected = with(share, rows, got.n_host, n_rows, under_way_s);
    CHECK(got.host_rows == expected.host_rows);
    CHECK(got.products_s == Approx(expected.products_s));
    CHECK(got.link_s == Approx(expected.link_s));
    CHECK(got.host_s == Approx(expected.host_s).margin(1e-12));
    for (std::size_t n = std::size_t(std::ranges::count(rows, 0)); n <= rows.size(); ++n) {
      double const other = end_s(with(share, rows, n, n_rows, under_way_s));
      CHECK(end_s(got) <= other * (1 + 1e-9));
    }
  }
}

TEST_CASE("of equal times the host takes the fewest experts", "[plan][expert_share]") {
  ExpertShare share;
  share.copy_s = share.read_s = 1;
  CHECK(share_experts(share, std::vector<std::int32_t>(4, 5), 10).n_host == 2);
  CHECK(share_experts(share, std::vector<std::int32_t>(5, 5), 10).n_host == 2);  // 3 and 2 or 2 and 3
  CHECK(share_experts(share, std::vector<std::int32_t>(1, 5), 10).n_host == 0);
  share.device_row_s = 1;  // the device is busy for longer, whoever has the experts
  CHECK(share_experts(share, std::vector<std::int32_t>(4, 5), 10).n_host == 0);
}

TEST_CASE("nothing to share is shared as nothing; experts that nobody uses neither cross nor compute", "[plan][expert_share]") {
  ExpertShare const share = server();
  CHECK(share_experts(share, {}, 1000).n_host == 0);
  LayerShare const unused = share_experts(share, std::vector<std::int32_t>(7, 0), 1000);
  CHECK(unused.n_host == 7);
  CHECK(end_s(unused) == 0);
  LayerShare const one = share_experts(share, std::vector<std::int32_t>{0, 0, 0, 900}, 1000);
  CHECK(one.n_host == 3);
  CHECK(one.host_rows == 0);
  CHECK(one.host_s == 0);
  CHECK(one.link_s == Approx(share.copy_s));
  CHECK(expected({}, 1000, 128).n_host == 0);
  CHECK(expected(share, 1000, 0).n_host == 0);
  CHECK(expected_share(share, {}, 1000, 5).n_host == 0);
}

TEST_CASE("what the link still brings goes to the host's account", "[plan][expert_share]") {
  ExpertShare const share = server();
  std::vector<std::int32_t> const rows(100, 40);
  CHECK(share_experts(share, rows, 1024, 1e-3).n_host > share_experts(share, rows, 1024).n_host);
}

TEST_CASE("expected rows are those of a skewed choice, all of them", "[plan][expert_share]") {
  for (std::int32_t const n_rows : {1, 200, 1024, 8192}) {
    std::vector<std::int32_t> const rows = expected_rows(n_rows, 8, 128);
    REQUIRE(rows.size() == 128);
    CHECK(std::ranges::is_sorted(rows));
    CHECK(rows.back() <= n_rows);
    double const sum = std::accumulate(rows.begin(), rows.end(), 0.0);
    CHECK(sum == 8.0 * n_rows);
    double const least = std::accumulate(rows.begin(), rows.begin() + 43, 0.0);
    if (n_rows > 100) CHECK(least < 0.25 * sum);
  }
  CHECK(expected_rows(10, 4, 4) == std::vector<std::int32_t>(4, 10));
}

TEST_CASE("a share pays for prompts whose experts have few rows each, and not for long ones", "[plan][expert_share]") {
  ExpertShare const share = server();
  LayerShare const s = expected(share, 1024, 128);
  CHECK(s.n_host > 30);
  CHECK(s.n_host < 90);
  CHECK(end_s(s) < 0.75 * 128 * share.copy_s);
  CHECK(expected(share, 2048, 128).n_host < s.n_host);
  CHECK(expected(share, 8192, 128).n_host == 0);
  CHECK(expected(share, 1024, 10).n_host <= 10);
}

TEST_CASE("rates of a share are those of a machine where host and link are busy at once", "[plan][expert_share]") {
  HardwareProfile const h = fake::h200();
  ExpertShareCosts const costs{25e-6, 40e-6, 100e-6, 0.3e-6, 1e-6, 2654208, 8192};
  ExpertShare const s = make_expert_share(h, costs);
  CHECK(s.copy_s == Approx(2654208 / 55e9 / 0.9).epsilon(0.02));
  CHECK(s.read_s == Approx(25e-6 / 0.78));
  double const memory_row_s = 8192 / (118e9 * 0.78);  // an output is written, read and added to
  CHECK(s.product_row_s == Approx(60e-6 / 48 + 3 * memory_row_s));
  CHECK(s.products(16) == Approx(40e-6 + 48 * memory_row_s));
  CHECK(s.products(64) == Approx(100e-6 + 192 * memory_row_s));
  CHECK(s.products(1) == s.read_s);
  CHECK(s.products(0) == 0);
  CHECK(s.there_row_s == Approx(8192 / 55e9 + memory_row_s));
  CHECK(s.lead_s >= 2 * h.hop_latency_s);
  CHECK(s.lead_row_s > 0.3e-6);
  ExpertShareCosts none = costs;
  none.many_s = HUGE_VAL;  // the host has no kernel
  CHECK_FALSE(make_expert_share(h, none));
}

TEST_CASE("a plan shares layers that come in windows, predicts what that saves, and says so", "[plan][expert_share]") {
  fake::Model const model{fake::moe_30b()};
  ShardTable const table = model.table();
  AnalyticCost cost;
  cost.hardware = fake::h200();
  for (auto& rates : cost.hardware.host.matmul) rates.flops_by_rows = {{{1, 450e9}, {16, 4e12}, {64, 6.5e12}, {2048, 7e12}}};  // AMX
  auto const plan = [&](std::int32_t n, bool shares, bool deterministic) {
    PlannerInput input{{2 * GiB, 0, 0}, {n, 4096, 1}, model};
    input.shares_windows = shares;
    input.deterministic = deterministic;
    return plan_tier(make_placement("seconds_per_byte"), RingPrefetch{}, cost, cost.hardware, table, input);
  };
  TierPlan const without = plan(1024, false, false), shared = plan(1024, true, false);
  REQUIRE(without.plan.cache_bytes > 0);
  CHECK_FALSE(without.plan.share);
  REQUIRE(shared.plan.share);
  CHECK(shared.estimate.seconds < 0.85 * without.estimate.seconds);
  CHECK(shared.estimate.seconds >= shared.estimate.bound_s);
  CHECK(shared.estimate.copied_bytes < without.estimate.copied_bytes);
  CHECK(shared.estimate.host_s > 0);
  CHECK(shared.estimate.host_bytes > 0);
  CHECK(shared.plan.vram_bytes == without.plan.vram_bytes);  // it takes none
  CHECK_FALSE(plan(1024, true, true).plan.share);
  CHECK(plan(1024, true, true).plan.deterministic);
  INFO("without " << without.estimate.seconds << " shared " << shared.estimate.seconds << " bound " << shared.estimate.bound_s);
  CHECK(shared.estimate.seconds > 0.4 * without.estimate.seconds);
}
