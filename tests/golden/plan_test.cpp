/// Plans of a few models and budgets, letter by letter. After a wanted change: TIERED_UPDATE_GOLDEN=1 rewrites the files, and the
/// difference is reviewed like code.
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "catch.hpp"
#include "fake_model.hpp"
#include "tiered/core/units.hpp"
#include "tiered/plan/any_policy.hpp"
#include "tiered/plan/plan_io.hpp"

using namespace tiered;

namespace {

std::string plans_of(fake::Spec const& spec, std::initializer_list<std::size_t> budgets) {
  fake::Model const model{spec};
  ShardTable const table = model.table();
  AnalyticCost const cost;
  std::string out = to_text(cost.hardware);
  for (std::string_view const name : placement_names) {
    for (std::size_t const vram : budgets) {
      for (std::int32_t const n : {1, 512}) {
        TierPlan const t =
            plan_tier(make_placement(name), RingPrefetch{}, cost, cost.hardware, table, {{vram, 4 * GiB, 0}, {n, 4096, 1}, model, {}, 0});
        out += concat('\n', name, ", ", format_bytes(vram), ": ", to_text(t, table), to_text(t.plan));
      }
    }
  }
  return out;
}

void compare(std::string const& name, std::string const& text) {
  std::string const path = "tests/golden/plan_" + name + ".txt";
  if (std::getenv("TIERED_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  std::ifstream file(path);
  REQUIRE(file.good());
  std::string const golden{std::istreambuf_iterator<char>(file), {}};
  std::size_t at = 0;
  while (at < golden.size() && at < text.size() && golden[at] == text[at]) ++at;
  std::size_t const line = golden.rfind('\n', at) + 1;
  INFO("golden: " << golden.substr(line, golden.find('\n', at) - line) << "\nnow:    " << text.substr(line, text.find('\n', at) - line));
  REQUIRE(golden == text);
}

}  // namespace

TEST_CASE("plans of a dense model are as before", "[golden][plan]") {
  compare("dense_8b_f16", plans_of(fake::dense_8b(), {0, GiB, 4 * GiB, 16 * GiB}));
}
TEST_CASE("plans of a mixture of experts are as before", "[golden][plan]") {
  compare("moe_30b_q4_0", plans_of(fake::moe_30b(), {0, 2 * GiB, 8 * GiB, 24 * GiB}));
}
TEST_CASE("the schedule of a small model is as before", "[golden][plan]") {
  fake::Spec spec = fake::small_moe();
  spec.n_layers = 2;
  spec.n_dense_layers = 1;
  fake::Model const model{spec};
  AnalyticCost const cost;
  TierPlan const t =
      plan_tier(StreamAll{}, RingPrefetch{}, cost, cost.hardware, model.table(), {{800 * KiB, 0, 0}, {1, 64, 1}, model, {}, 0});
  compare("small_schedule", to_text(t, model.table()) + to_text(t.schedule));
}
