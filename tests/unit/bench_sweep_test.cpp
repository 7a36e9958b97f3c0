// A sweep on the simulated device: every cell is answered, once, and what fails costs its own cells only.
#include <fstream>
#include <string>
#include <vector>

#include "../bench/model/sweep.hpp"
#include "../bench/model/synthetic.hpp"
#include "catch.hpp"
#include "temp_dir.hpp"

using bench::Cell;
using bench::Results;
using bench::Sweep;
using bench::SweepOptions;

namespace {

std::string text_of(std::string const& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

SweepOptions small_sweep(tiered_test::TempDir const& dir) {
  SweepOptions o;
  o.models = {dir / "model.gguf"};
  o.budgets = {2 * tiered::MiB, 64 * tiered::MiB};
  o.prompts = {16, 40};
  o.n_decode = 3;
  o.n_threads = 1;
  o.simulated = true;
  o.json_file = dir / "out.json";
  bench::make_synthetic(bench::synthetic_model("tiny-moe"), o.models[0], bench::Routing::topics, 1);
  return o;
}

}  // namespace

TEST_CASE("all cells have figures, bounds and predictions, within their budgets; nothing is measured twice") {
  tiered_test::TempDir const dir;
  SweepOptions o = small_sweep(dir);
  CHECK(Sweep(o).run() == 0);
  std::string const text = text_of(o.json_file);
  Results const results = Results::read(o.json_file);
  REQUIRE(results.cells().size() == 4);
  for (Cell const& c : results.cells()) {
    INFO(to_json(c).dump());
    CHECK(c.routing == "topics");
    for (double const figure : {c.load_s, c.ready_s, c.ttft_first_s, c.ttft_s, c.first_token_s, c.decode_per_s, c.decode_physical_s,
                                c.decode_practical_s, c.ttft_bound_s, c.ttft_predicted_s, c.decode_predicted_s, c.rates.cpu})
      CHECK(figure > 0);
    CHECK(c.over_budget_bytes() <= 0);
    CHECK(c.vram_peak_bytes > 0);
    CHECK(c.counted);
    // Rows cross the link in any case; weights do, or are read by the host, where they do not fit.
    CHECK((c.host_bytes_per_token + c.streamed_bytes_per_token > 100e3) == (c.vram_bytes == 2 * tiered::MiB));
  }
  CHECK(Sweep(o).run() == 0);
  CHECK(text_of(o.json_file) == text);
  o.budgets.push_back(4 * tiered::MiB);
  o.engine_per_prompt = true;
  CHECK(Sweep(o).run() == 0);
  CHECK(text_of(o.json_file).substr(0, text.size()) == text);
  CHECK(Results::read(o.json_file).cells().size() == 6);
}

TEST_CASE("a model that is not there and a peer that fails are reported, and the sweep goes on") {
  tiered_test::TempDir const dir;
  SweepOptions o = small_sweep(dir);
  o.models.insert(o.models.begin(), dir / "none.gguf");
  o.prompts = {16};
  o.peers = {"/bin/false"};
  Sweep sweep(o);
  CHECK(sweep.run() == 3);
  REQUIRE(sweep.results().cells().size() == 4);
  CHECK(sweep.results().cells()[0].error.find("none.gguf") != std::string::npos);
  CHECK(sweep.results().cells()[2].error.empty());
  REQUIRE(sweep.results().peers().size() == 1);
  CHECK(sweep.results().peers()[0].error.find("code 1") != std::string::npos);
}

TEST_CASE("a prompt that an engine refuses costs its cell, and the next one gets an engine") {
  tiered_test::TempDir const dir;
  SweepOptions o = small_sweep(dir);
  o.prompts = {16, 0, 40};  // there is no empty prompt
  Sweep sweep(o);
  CHECK(sweep.run() == 2);
  std::size_t n_answered = 0;
  for (Cell const& c : sweep.results().cells()) {
    n_answered += c.error.empty();
    CHECK(c.error.empty() == (c.prompt != 0));
  }
  CHECK(n_answered == 4);
}

TEST_CASE("a model without experts, and one whose routing is uniform, are asked with ids of the whole vocabulary") {
  tiered_test::TempDir const dir;
  SweepOptions o = small_sweep(dir);
  o.models = {dir / "dense.gguf", dir / "uniform.gguf"};
  bench::make_synthetic(bench::synthetic_model("tiny-dense"), o.models[0], bench::Routing::uniform, 1);
  bench::make_synthetic(bench::synthetic_model("tiny-moe"), o.models[1], bench::Routing::uniform, 1);
  o.prompts = {16};
  for (char const* const ids : {"", "uniform"}) {  // the same question
    o.ids = ids;
    Sweep sweep(o);
    CHECK(sweep.run() == 0);
    REQUIRE(sweep.results().cells().size() == 4);
  }
  Results const results = Results::read(o.json_file);
  for (Cell const& c : results.cells()) {
    INFO(to_json(c).dump());
    CHECK(c.error.empty());
    CHECK(c.routing == "uniform");
    CHECK((c.ttft_s > 0 && c.decode_per_s > 0 && c.decode_practical_s > 0 && c.decode_predicted_s > 0));
    if (c.model == "dense.gguf") CHECK(c.expert_hits == -1);
  }
}

TEST_CASE("a budget that cannot be met costs its cells, which say why; the others are answered, and a later sweep asks again") {
  tiered_test::TempDir const dir;
  SweepOptions o = small_sweep(dir);
  o.budgets = {std::uint64_t{1} << 60, 64 * tiered::MiB};
  for (int round = 0; round < 2; ++round) {
    Sweep sweep(o);
    CHECK(sweep.run() == 2);
    std::size_t n_answered = 0;
    for (Cell const& c : sweep.results().cells()) {
      INFO(to_json(c).dump());
      bool const can_be_met = c.vram_bytes == o.budgets[1];
      CHECK(c.error.empty() == can_be_met);
      if (!can_be_met) CHECK(c.error.find(tiered::format_bytes(o.budgets[0])) != std::string::npos);
      n_answered += can_be_met;
    }
    CHECK(n_answered == 2);
  }
}
