/// How long planning takes: all token tiers of a model together, one JSON line per policy and budget.
#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "../tests/fake_model.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/plan_io.hpp"
#include "tiered/plan/planner.hpp"
#include "tiered/plan/token_tiers.hpp"

namespace {

void measure(char const* name, fake::Spec const& spec, bool verbose, std::string_view only) {
  fake::Model const model{spec};
  tiered::ShardTable const table = model.table();
  tiered::AnalyticCost const cost;
  tiered::DecodePrefillTiers const tiers;
  for (std::string_view const policy : tiered::placement_names) {
    if (!only.empty() && only != policy) continue;
    tiered::AnyPlacement const placement = tiered::make_placement(policy);
    for (std::size_t const gib : {1, 2, 4, 8, 16}) {
      std::clock_t const cpu = std::clock();
      auto const begin = std::chrono::steady_clock::now();
      std::vector<tiered::TierPlan> const plans = plan_tiers(placement, tiered::RingPrefetch{}, cost, cost.hardware, table,
                                                             {{gib * tiered::GiB, 0, 0}, {1, 4096, 1}, model}, tiers.bounds());
      double const ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
      double const cpu_ms = 1e3 * double(std::clock() - cpu) / CLOCKS_PER_SEC;
      std::printf(
          "{\"bench\":\"plan\",\"model\":\"%s\",\"policy\":\"%s\",\"vram_gib\":%zu,\"wall_ms\":%.1f,\"cpu_ms\":%.1f,\"decode_s\":%.4f,"
          "\"prompt_512_s\":%.4f}\n",
          name, std::string(policy).c_str(), gib, ms, cpu_ms, plans[0].estimate.seconds, plans[3].estimate.seconds);
      for (tiered::TierPlan const& plan : plans) {
        if (verbose) std::fputs(to_text(plan, table).c_str(), stdout);
      }
    }
  }
}

}  // namespace

/// bench_plan [-v] [policy]: -v prints the plans.
int main(int argc, char** argv) {
  bool verbose = false;
  std::string_view only;
  for (int i = 1; i < argc; ++i) (std::string_view(argv[i]) == "-v" ? (void)(verbose = true) : (void)(only = argv[i]));
  measure("dense-8b f16", fake::dense_8b(), verbose, only);
  measure("moe-30b q4_0", fake::moe_30b(), verbose, only);
  measure("moe-235b q2_k", fake::moe_235b(), verbose, only);
}
