// Placements that a user could choose by hand, and the plan beside them.
#include "../bench/model/by_hand.hpp"

#include "catch.hpp"
#include "golden/engine_helpers.hpp"

using namespace bench;
using namespace tiered;
using namespace tiered::test;

TEST_CASE("experts stay on the CPU, all else fills the budget, and nothing is streamed", "[bench][by_hand]") {
  auto const model = open_golden("qwen3moe.f32.gguf");
  EngineOptions options;
  options.max_context = 64;
  for (std::size_t const budget : {std::size_t{140} << 10, std::size_t{8} << 20}) {
    INFO(budget);
    options.vram_bytes = budget;
    PolicyValues<SweepPolicies> values{.placement = ExpertsOnCpu{}};
    KernelTable const& kernels = cpu_kernels(best_isa(), false);
    std::size_t n_resident = 0, n_left = 0;
    for (PlanImage const& image : make_plans<SweepPolicies>(*model, options, values, kernels, kernels).images) {
      CHECK(image.plan.ring_bytes == 0);
      CHECK(image.plan.vram_bytes <= budget);
      for (Shard const& s : model->table().shards) {
        Placement const& p = image.plan.shards[std::size_t(s.id)];
        if (s.kind == ShardKind::expert || s.kind == ShardKind::embedding) {
          CHECK(p.home != Tier::vram);
          CHECK(p.gpu_rows == 0);
        } else {
          (p.resident() ? n_resident : n_left) += 1;
        }
      }
    }
    CHECK(n_resident > 0);
    CHECK((n_left == 0) == (budget > MiB));
  }
}

TEST_CASE("each placement gets an engine with the whole budget, and a speed for each prompt", "[bench][by_hand]") {
  for (char const* file : {"llama.f32.gguf", "qwen3moe.f32.gguf"}) {
    INFO(file);
    auto const model = open_golden(file);
    EngineOptions options;
    options.vram_bytes = MiB;
    options.max_context = 64;
    options.n_threads = 1;
    options.link_bytes_per_s = 1e11;
    std::vector<HandResult> const results = compare_by_hand<SweepPolicies>(model, options, {3, 20}, 2, 1, Routing::uniform);
    bool const has_experts = std::string(file) == "qwen3moe.f32.gguf";
    REQUIRE(results.size() == (has_experts ? 6u : 5u));
    CHECK(results.front().name == "planned");
    for (HandResult const& r : results) {
      INFO(r.name << ": " << r.error);
      REQUIRE(r.speeds.size() == 2);
      for (Speed const& s : r.speeds) CHECK((s.prefill > 0 && s.decode > 0));
    }
  }
}

TEST_CASE("the plan is compared with the best by hand of each figure", "[bench][by_hand]") {
  std::vector<HandResult> const results{
      {"planned", {}, {{100, 30}}}, {"one", {}, {{50, 10}}}, {"two", {}, {{25, 20}}}, {"three", "has no room", {}}};
  std::string const text = by_hand_text(results, {200});
  INFO(text);
  CHECK(text.find("2.00x") != std::string::npos);
  CHECK(text.find("1.50x") != std::string::npos);
  CHECK(text.find("4.000 s") != std::string::npos);
  CHECK(text.find("three: has no room") != std::string::npos);
  CHECK(by_hand_text({{"planned", "failed", {}}, results[1]}, {200}).find("over the best") == std::string::npos);
}
