// Results of a sweep: what is written is read back, a file that was cut off goes on, errors of predictions are medians.
#include <fstream>
#include <string>

#include "../bench/model/results.hpp"
#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"

using bench::Cell;
using bench::PeerCell;
using bench::Results;
using tiered_test::error_of;

namespace {

/// No two fields alike.
Cell sample_cell() {
  Cell c;
  double next = 0.1;
  bench::each_field(c, [&]<class T>(char const* key, T& value) {
    next += 1;
    if constexpr (std::is_same_v<T, std::string>)
      value = std::string(key) + " \"text\"";
    else
      value = T(next);
  });
  bench::each_rate(c.rates, [&](char const*, double& value) { value = next += 1e9; });
  c.error.clear();
  return c;
}
PeerCell sample_peer() {
  PeerCell p;
  p.model = "a.gguf";
  p.command = "/x/llama-bench --n-cpu-moe 30";
  p.prompt = 1024;
  p.prefill_per_s = 2048;
  p.decode_per_s = 33.5;
  p.vram_peak_bytes = 12345678901;
  return p;
}

}  // namespace

TEST_CASE("a cell survives the way through a line of JSON, whole") {
  Cell const c = sample_cell();
  nlohmann::json const j = nlohmann::json::parse(to_json(c).dump());
  Cell const back = bench::cell_from_json(j);
  CHECK(to_json(back) == to_json(c));
  CHECK(back.is_same(c));
  CHECK(back.rates.link_beside_cpu == c.rates.link_beside_cpu);
  CHECK(j.at("vram_over_budget_bytes") == c.over_budget_bytes());
}

TEST_CASE("a peer's result survives too") {
  PeerCell const p = sample_peer();
  PeerCell const back = bench::peer_from_json(nlohmann::json::parse(to_json(p).dump()));
  CHECK(to_json(back) == to_json(p));
  CHECK(back.ttft_s() == Approx(0.5));
}

TEST_CASE("budgets are compared in exact bytes, below and above") {
  Cell c;
  c.vram_bytes = std::uint64_t{1} << 34;
  c.vram_peak_bytes = c.vram_bytes - 3;
  CHECK(c.over_budget_bytes() == -3);
  c.vram_peak_bytes = c.vram_bytes + 1;
  CHECK(c.over_budget_bytes() == 1);
}

TEST_CASE("lines are appended, the last answer to a question counts, and failures are no answers") {
  tiered_test::TempDir const dir;
  std::string const path = dir / "out.json";
  Cell c = sample_cell();
  c.error = "it broke";
  bench::append_line(path, to_json(c));
  CHECK(Results::read(path).cells().size() == 1);
  CHECK_FALSE(Results::read(path).answers(c));
  c.error.clear();
  c.ttft_s = 0.25;
  bench::append_line(path, to_json(c));
  bench::append_line(path, to_json(sample_peer()));
  Results const results = Results::read(path);
  REQUIRE(results.cells().size() == 1);
  CHECK(results.cells()[0].ttft_s == 0.25);
  CHECK(results.answers(c));
  CHECK(results.answers(sample_peer()));
  c.vram_bytes += 1;
  CHECK_FALSE(results.answers(c));
}

TEST_CASE("a line that was cut off is left out, and the next one begins on its own") {
  tiered_test::TempDir const dir;
  std::string const path = dir / "out.json";
  bench::append_line(path, to_json(sample_peer()));
  std::ofstream(path, std::ios::app) << to_json(sample_cell()).dump().substr(0, 100);
  CHECK(Results::read(path).cells().empty());
  bench::append_line(path, to_json(sample_cell()));
  Results const results = Results::read(path);
  CHECK(results.cells().size() == 1);
  CHECK(results.peers().size() == 1);
}

TEST_CASE("lines of another version answer nothing, and are said; those without one are of the first") {
  tiered_test::TempDir const dir;
  std::string const path = dir / "out.json";
  nlohmann::json j = to_json(sample_cell());
  CHECK(j.at("version") == bench::results_version);
  j["version"] = bench::results_version + 1;
  bench::append_line(path, j);
  CHECK(Results::read(path).cells().empty());  // and no error, though there is nothing else
  CHECK(Results::read(path).note().find("1 line is of version 2") != std::string::npos);
  nlohmann::json peer = to_json(sample_peer());
  peer.erase("version");
  bench::append_line(path, peer);
  bench::append_line(path, j);
  Results const results = Results::read(path);
  CHECK(results.peers().size() == 1);
  CHECK(results.cells().empty());
  CHECK_FALSE(results.answers(sample_cell()));
  CHECK(results.note().find(path + ": 2 lines are of version 2") == 0);
  std::ofstream(dir / "odd") << "{\"kind\": \"cell\", \"version\": \"new\"}\n";
  CHECK(error_of([&] { Results::read(dir / "odd"); }).code == tiered::Errc::bad_file);
  CHECK(Results::read("").note().empty());
}

TEST_CASE("no file is no result, a file of something else is refused, as is one that cannot be written") {
  tiered_test::TempDir const dir;
  CHECK(Results::read("").cells().empty());
  CHECK(Results::read(dir / "none").cells().empty());
  std::ofstream(dir / "other") << "GGUF\nis not this\n";
  CHECK(error_of([&] { Results::read(dir / "other"); }).code == tiered::Errc::bad_file);
  CHECK(error_of([&] { bench::append_line(dir / "no/such/folder", {{"kind", "x"}}); }).code == tiered::Errc::io);
}

TEST_CASE("errors of predictions are medians of shares of what was measured") {
  auto const cell = [](double measured, double predicted, double per_s, double token_s) {
    Cell c;
    c.ttft_s = measured, c.ttft_predicted_s = predicted, c.decode_per_s = per_s, c.decode_predicted_s = token_s;
    return c;
  };
  // First token: 10 %, 50 %, 20 %; decode: 0 %, 100 %, and none.
  std::vector<Cell> cells{cell(1, 1.1, 10, 0.1), cell(2, 1, 10, 0.2), cell(1, 0.8, 0, 0)};
  Cell failed = cell(1, 100, 1, 100);
  failed.error = "failed";
  cells.push_back(failed);
  bench::PredictionErrors const errors = bench::prediction_errors(cells);
  CHECK(errors.n == 3);
  CHECK(errors.ttft == Approx(0.2));
  CHECK(errors.decode == Approx(0.5));
}
