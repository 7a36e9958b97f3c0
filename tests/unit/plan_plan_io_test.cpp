#include <algorithm>
#include <string>

#include "catch.hpp"
#include "error_of.hpp"
#include "fake_model.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/plan_io.hpp"
#include "tiered/plan/plan_json.hpp"

using namespace tiered;

namespace {

TierPlan some_plan(std::uint64_t seed, fake::Model const& model) {
  SplitMix64 random{seed};
  AnalyticCost const cost;
  return plan_tier(make_placement(placement_names[seed % 4]), RingPrefetch{}, cost, cost.hardware, model.table(),
                   {{std::size_t(random.unit() * double(model.bytes())), std::size_t(random.below(model.bytes())), 0},
                    {1 << random.below(8), 256, 1},
                    model,
                    {},
                    0});
}

}  // namespace

TEST_CASE("a plan as text or JSON reads back equal, and so does its schedule", "[plan][plan_io]") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    INFO("seed " << seed);
    SplitMix64 random{seed + 1000};
    fake::Model const model{fake::random_spec(random)};
    TierPlan t = some_plan(seed, model);
    REQUIRE(parse_plan(to_text(t.plan)) == t.plan);
    REQUIRE(plan_from_json(nlohmann::json::parse(plan_to_json(t.plan).dump())) == t.plan);
    REQUIRE(schedule_from_json(nlohmann::json::parse(schedule_to_json(t.schedule).dump())) == t.schedule);
    t.plan.shards[0].gpu_rows = 0.1f;  // not exact in decimal
    t.plan.state_in_vram[0] = 1.f / 3;
    t.plan.fetched_misses = 2.f / 3;
    t.plan.deterministic = seed % 2 == 0;
    t.plan.shared_bytes = seed % 3 * 256;
    if (seed % 2 == 1) t.plan.share = {5.4e-5, 3e-5 / double(seed), 8e-6, 1.0 / 3, 1e-7, 2e-7, 5e-5, 3e-7, 1.25e-6};
    t.plan.state_read_share = seed % 4 < 2 ? 0 : 1.f / 3;
    t.plan.state_read_tokens = seed % 4 < 2 ? 0 : std::int32_t(seed);
    REQUIRE(parse_plan(to_text(t.plan)) == t.plan);
    REQUIRE(plan_from_json(nlohmann::json::parse(plan_to_json(t.plan).dump())) == t.plan);
  }
}

TEST_CASE("runs of equal placements are written once", "[plan][plan_io]") {
  ShardPlan plan;
  plan.shards = {{}, {Tier::vram, 1, false}, {Tier::vram, 1, false}, {Tier::pinned, 1, true}};
  plan.state_in_vram = {1, 1, 0};
  plan.chunk_tokens = plan.block_tokens = 1;
  std::string const text = to_text(plan);
  REQUIRE(text.find("shards pageable:0 vram:1*2 pinned:1:cached\nstates 1*2 0\n") != std::string::npos);
}

TEST_CASE("rows whose outputs of experts are kept at once are written where they are fewer than a block's", "[plan][plan_io]") {
  ShardPlan plan;
  plan.chunk_tokens = 2;
  plan.block_tokens = 8;
  REQUIRE(to_text(plan).find("plan chunk 2 block 8\n") == 0);
  plan.expert_tokens = 2;
  REQUIRE(to_text(plan).find("plan chunk 2 block 8 experts 2\n") == 0);
  REQUIRE(parse_plan(to_text(plan)) == plan);
  REQUIRE(plan_from_json(nlohmann::json::parse(plan_to_json(plan).dump())) == plan);
}

TEST_CASE("what host and link share is written where there is a share", "[plan][plan_io]") {
  ShardPlan plan;
  CHECK(to_text(plan).find("share") == std::string::npos);
  plan.share.copy_s = 0.5;
  plan.share.read_s = 0.25;
  std::string const text = to_text(plan);
  REQUIRE(text.find("\nshare copy 0.5 read 0.25 product 0 product_row 0 there_row 0 back_row 0 lead 0 lead_row 0 device_row 0\nshards\n") !=
          std::string::npos);
  REQUIRE(parse_plan(text) == plan);
  for (std::string const& part : {std::string("share"), std::string("read 0.25"), std::string("device_row 0")}) {
    std::string broken = text;
    broken.replace(broken.find(part), part.size(), "rest");
    REQUIRE(tiered_test::error_of([&] { (void)parse_plan(broken); }).code == Errc::bad_file);
  }
}

TEST_CASE("text that is no plan is bad_file with the byte", "[plan][plan_io]") {
  ShardPlan plan;
  plan.shards.resize(3);
  plan.state_in_vram = {1};
  std::string const good = to_text(plan);
  auto refuses = [&](std::string const& from, std::string const& to) {
    std::string text = good;
    text.replace(text.find(from), from.size(), to);
    INFO(text);
    auto const thrown = tiered_test::error_of([&] { (void)parse_plan(text); });
    REQUIRE(thrown.code == Errc::bad_file);
    REQUIRE(thrown.says("plan text, byte "));
  };
  refuses("plan", "plans");
  refuses("chunk 0", "chunk x");
  refuses("chunk 0", "chunk 99999999999");
  refuses("vram", "VRAM");
  refuses("pageable:0", "pageable");
  refuses("pageable:0", "attic:0");
  refuses("pageable:0", "pageable:0:hidden");
  refuses("*3", "*0");
  refuses("*3", "*99999999999");
  refuses("*3", "*-3");
  refuses("states 1", "states one");
  refuses("states 1\n", "states 1\nmore");
  for (std::size_t n = 0; n < good.size() - 10; ++n) {  // cut anywhere
    REQUIRE(tiered_test::error_of([&] { (void)parse_plan(good.substr(0, n)); }).code == Errc::bad_file);
  }
}

TEST_CASE("JSON that is no plan is bad_file", "[plan][plan_io]") {
  ShardPlan plan;
  plan.shards.resize(1);
  nlohmann::json const good = plan_to_json(plan);
  for (auto const& item : good.items()) {
    nlohmann::json less = good, wrong = good;
    less.erase(item.key());
    wrong[item.key()] = "text";
    INFO(item.key());
    REQUIRE(tiered_test::error_of([&] { (void)plan_from_json(less); }).code == Errc::bad_file);
    REQUIRE(tiered_test::error_of([&] { (void)plan_from_json(wrong); }).code == Errc::bad_file);
  }
  REQUIRE(tiered_test::error_of([&] { (void)schedule_from_json(nlohmann::json::parse(R"([{"kind": "teleport"}])")); }).code ==
          Errc::bad_file);
}

TEST_CASE("the map has a letter for each layer", "[plan][plan_io]") {
  fake::Model const model{fake::small_moe()};
  ShardTable const table = model.table();
  ShardPlan plan;
  plan.shards.resize(table.shards.size());
  plan.state_in_vram = {1, 0, 0, 1};
  ExpertLayers const experts{table.shards};
  for (Shard const& s : table.shards) {
    Placement& p = plan.shards[std::size_t(s.id)];
    if (s.kind == ShardKind::attention) p = {s.layer < 2 ? Tier::vram : Tier::pinned, 1, false};
    if (s.kind == ShardKind::router && s.layer < 3) p = {Tier::vram, 1, false};
    if (s.kind != ShardKind::expert) continue;
    if (s.layer == 0 || (s.layer == 1 && s.expert < 3)) p = {Tier::vram, 1, false};
    if (s.layer == 2 || (s.layer == 1 && s.expert == 5)) p = {Tier::pageable, 1, true};
  }
  REQUIRE(layer_map(plan, table) ==
          "  attention RRSS\n"
          "  kv        V..V\n"
          "  ffn       RRR.\n"
          "  experts   RmC.\n"
          "  output    .\n");
}

TEST_CASE("the summary is one line with the bytes of every category that is not empty", "[plan][plan_io]") {
  TierPlan t;
  t.rows = {1, 1024, 1};
  t.plan.shards = {{}, {Tier::vram, 1, false}, {Tier::pinned, 1, false}, {Tier::pinned, 1, true}};
  t.plan.resident_bytes = MiB;
  t.plan.ring_bytes = 2 * MiB;
  t.plan.vram_bytes = 3 * MiB;
  t.plan.chunk_tokens = t.plan.block_tokens = 1;
  t.estimate.seconds = 0.0123;
  t.estimate.bound_s = 0.01;
  REQUIRE(summary(t) ==
          "up to 1 token: vram 3.00 MiB = weights 1.00 MiB ring 2.00 MiB; shards 1 resident 1 streamed 1 cached 1 host; chunk 1 block 1; "
          "predicted 12.3 ms, bound 10.0 ms (copy 0.00 us, gpu 0.00 us, host 0.00 us)\n");
}

TEST_CASE("a schedule and a machine print a line per action and per device", "[plan][plan_io]") {
  Schedule const s{{ActionKind::copy, first_gpu, ShardId{3}, {0, 8}, {}, 256, 512},
                   {ActionKind::hop, first_gpu, ShardId{3}, {}, {}, 0, 0},
                   {ActionKind::run, first_gpu, ShardId{3}, {0, 8}, {}, 0, 0}};
  REQUIRE(to_text(s) == "copy 3 [0, 8) at 256 bytes 512\nhop to device 1\nrun 3 [0, 8) on device 1\n");
  std::string const machine = to_text(HardwareProfile::simulated());
  REQUIRE(machine.find("simulated device: low_bits 340 GB/s") != std::string::npos);
  REQUIRE(std::count(machine.begin(), machine.end(), '\n') == 3);
}
