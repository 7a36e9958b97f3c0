// The figure of a sweep: well-formed, with everything in it that was measured, whatever that is.
#include <string>
#include <vector>

#include "../bench/model/figure.hpp"
#include "catch.hpp"
#include "well_formed.hpp"

using bench::Cell;
using bench::LogAxis;
using bench::PeerCell;
using bench::Results;
using tiered_test::count;
using tiered_test::is_well_formed;

namespace {

Cell cell(std::uint64_t gib, int prompt, double ttft_s, double per_s) {
  Cell c;
  c.model = "a<b>&\"c\".gguf";
  c.machine = "a GPU & 16 threads";
  c.routing = "topics";
  c.kv_type = "f16";
  c.vram_bytes = gib << 30;
  c.prompt = prompt;
  c.ttft_s = ttft_s, c.decode_per_s = per_s;
  c.ttft_bound_s = ttft_s / 1.2, c.decode_practical_s = 0.9 / per_s;
  return c;
}
PeerCell peer(std::uint64_t bytes, int prompt) {
  PeerCell p;
  p.model = cell(1, 1, 1, 1).model;
  p.kv_type = "f16";
  p.command = "/opt/llama-bench --n-cpu-moe 30";
  p.vram_peak_bytes = bytes;
  p.prompt = prompt;
  p.prefill_per_s = 900, p.decode_per_s = 37;
  return p;
}
Results results_of(std::vector<Cell> const& cells, std::vector<PeerCell> const& peers) {
  Results results;
  for (Cell const& c : cells) results.add(to_json(c));
  for (PeerCell const& p : peers) results.add(to_json(p));
  return results;
}

}  // namespace

TEST_CASE("a figure is well-formed and holds all points, axes with units, and the machine's name") {
  Results const results = results_of({cell(2, 1024, 0.3, 100), cell(4, 1024, 0.25, 150), cell(2, 4096, 0.4, 90)},
                                     {peer(std::uint64_t{3} << 30, 1024), peer(0, 4096)});
  std::string const svg = bench::draw(results);
  CHECK(is_well_formed(svg));
  CHECK(count(svg, "r=\"3.5\"") == 2 * 3 + 2);  // cells in two panels, and the legend
  CHECK(count(svg, "translate(") == 2 * 2 + 1);
  for (char const* const part : {"decode, tokens/s", "time to first token, s", "GiB", "a GPU &amp; 16 threads", "prompt of 1K",
                                 "prompt of 4K", "llama-bench --n-cpu-moe 30", "bound", "a&lt;b&gt;&amp;"})
    CHECK(svg.find(part) != svg.npos);
}

TEST_CASE("figures without results, with one, and with failures only") {
  CHECK(is_well_formed(bench::draw(Results())));
  CHECK(is_well_formed(bench::draw(results_of({cell(2, 512, 0.1, 10)}, {}))));
  Cell failed = cell(2, 512, 0, 1);
  failed.error = "no memory";
  CHECK(count(bench::draw(results_of({failed}, {})), "polyline") == 0);
}

TEST_CASE("the check finds what is not well-formed") {
  CHECK(is_well_formed("<a><b x=\"1\"/>text &amp;</a>"));
  CHECK_FALSE(is_well_formed("<a><b></a></b>"));
  CHECK_FALSE(is_well_formed("<a>"));
  CHECK_FALSE(is_well_formed("<a>x & y</a>"));
}

TEST_CASE("logarithmic axes: ends where they belong, factors the same everywhere, round ticks") {
  LogAxis const axis{1, 100, 0, 200};
  CHECK(axis.at(1) == Approx(0));
  CHECK(axis.at(10) == Approx(100));
  CHECK(axis.at(100) == Approx(200));
  CHECK(axis.ticks() == std::vector<double>{1, 3, 10, 30, 100});
  CHECK(LogAxis{1.5, 17, 0, 1}.powers_of_two() == std::vector<double>{2, 4, 8, 16});
  LogAxis const narrow = LogAxis::around({5}, 0, 1);
  CHECK(narrow.low < 5);
  CHECK(narrow.high / narrow.low == Approx(2).epsilon(0.01));
  CHECK(LogAxis::around({}, 0, 1).ticks().size() > 1);
}
