// What a bench of images says of given results: bounds worked out by hand, rows and summary, the way through JSON, the figure.
#include <string>
#include <vector>

#include "../bench/model/picture.hpp"
#include "../bench/model/synthetic_projector.hpp"
#include "../bench/model/vision_bounds.hpp"
#include "../bench/model/vision_figure.hpp"
#include "../bench/model/vision_plan.hpp"
#include "../bench/model/vision_report.hpp"
#include "catch.hpp"
#include "temp_dir.hpp"
#include "well_formed.hpp"

using bench::PlanBytes;
using bench::Results;
using bench::VisionCell;
using tiered_test::count;

namespace {

/// Round numbers of a link of 50 GB/s, and prompts at 200 TFLOP/s.
bench::MachineRates round_rates() {
  bench::MachineRates r;
  r.cpu = r.cpu_beside_link = 100e9;
  r.link = r.link_beside_cpu = 50e9;
  r.device = 4000e9;
  r.flops = 200e12;
  r.context_bytes = 0.4e9;
  return r;
}

/// Answered in a second; the first token's bound is three quarters of that.
VisionCell cell(std::uint64_t gib, char const* image, std::int64_t width, std::int64_t height) {
  VisionCell c;
  c.model = "a<b>.gguf", c.projector = "mm.gguf", c.image = image, c.kv_type = "f16", c.machine = "a GPU & 16 threads";
  c.vram_bytes = gib << 30, c.width = width, c.height = height;
  c.text_tokens = 32, c.decoded = 100, c.vision_tokens = 2691;
  c.read_s = 0.02, c.preprocess_s = 0.03, c.encode_s = 0.45, c.prefill_s = 0.5;
  c.ttft_s = 1, c.ttft_first_s = 1.25, c.ttft_bound_s = 0.75, c.end_to_end_s = 5;
  c.decode_per_s = 25, c.decode_practical_s = 0.032;
  c.vram_peak_bytes = (gib << 30) - 4096, c.vram_encode_bytes = c.vram_peak_bytes - 1000;
  c.streamed_encode_bytes = 1.354e9, c.streamed_prefill_bytes = 6.5e9;
  c.encoder_plan = "streamed, chunks of 4096, lent", c.decoder_plan = "12% resident, 88% streamed, chunks of 512";
  c.bound_bytes = 8e9, c.bound_flops = 50e12;
  c.rates = round_rates();
  return c;
}
VisionCell resident(char const* image, std::int64_t width, std::int64_t height, double ttft_s) {
  VisionCell c = cell(24, image, width, height);
  c.all_resident = true, c.ttft_s = ttft_s, c.encoder_plan = c.decoder_plan = "resident";
  return c;
}

/// No two fields alike.
VisionCell sample() {
  VisionCell c;
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

}  // namespace

TEST_CASE("operations of an encoder: matrices for each patch, mergers for each token, attention by windows and frames") {
  tiered_test::TempDir const dir;
  bench::make_synthetic(*bench::find_synthetic_projector("tiny-mmproj"), dir / "mmproj", 1);
  tiered::VisionModel const model(tiered::GgufFile::open(dir / "mmproj"));
  tiered::PatchGrid const grid{1, 4, 10};
  bench::AttentionPairs const pairs = bench::attention_pairs(model.vision(), grid);
  CHECK(pairs.full == 40 * 40);
  CHECK(pairs.windows == 32 * 32 + 8 * 8);  // windows are 8 patches a side
  // dim 64, hidden 96, 2 layers, of which the second sees the frame; 4 patches a token.
  double const of_patch = 64.0 * 1176 + 2 * (4 * 64.0 * 64 + 3 * 64.0 * 96) + (256.0 * 256 + 256 * 256) / 4;
  CHECK(bench::encoder_flops(model, grid) == Approx(2 * (40 * of_patch + 2 * 64.0 * (1600 + 1088))));
  bench::AttentionPairs const two = bench::attention_pairs(model.vision(), {2, 4, 10});
  CHECK(two.full == 2 * pairs.full);
  CHECK(two.windows == 2 * pairs.windows);
  CHECK(bench::encoder_bytes(model) > 2 * 64 * 1176);
}

TEST_CASE("operations of mergers of features are of tokens, too") {
  tiered_test::TempDir const dir;
  bench::make_synthetic(*bench::find_synthetic_projector("tiny-qwen3-mmproj"), dir / "mmproj", 1);
  tiered::VisionModel const model(tiered::GgufFile::open(dir / "mmproj"));
  tiered::PatchGrid const grid{1, 2, 4};
  // Patches of 16 pixels; four entries of the table of positions; up and down; two mergers.
  double const of_patch = 64.0 * 1536 + 4 * 64 + 2 * (4 * 64.0 * 64 + 2 * 64.0 * 96) + 2 * (256.0 * 256 + 256 * 256) / 4;
  CHECK(bench::encoder_flops(model, grid) == Approx(2 * (8 * of_patch + 2 * 2 * 64.0 * 64)));
}

TEST_CASE("bound of an image: what VRAM cannot hold of both over the link, or the arithmetic of both") {
  bench::ModelBytes decoder;
  decoder.dense = 8e9;
  bench::MachineRates const rates = round_rates();
  // 0.4 GB of context and 0.6 of scratch leave 1 GB.
  bench::ImageBound const small = bench::image_bound(decoder, 1.5e9, 20e12, 2e9, rates);
  CHECK(small.bytes == Approx(8.5e9));
  CHECK(small.link_s == Approx(0.17));
  CHECK(small.arithmetic_s == Approx(0.1));
  CHECK(small.seconds() == Approx(0.17));
  CHECK(bench::image_bound(decoder, 1.5e9, 60e12, 2e9, rates).seconds() == Approx(0.3));
  bench::ImageBound const all = bench::image_bound(decoder, 1.5e9, 20e12, 24e9, rates);
  CHECK(all.bytes == 0);
  CHECK(all.seconds() == Approx(0.1));
  CHECK(bench::image_bound(decoder, 1.5e9, 20e12, 0, rates).bytes == 0);
  CHECK(bench::image_bound(decoder, 1.5e9, 20e12, 0.5e9, rates).bytes == Approx(9.5e9));
  CHECK(bench::bound_text(8.5e9, 20e12, rates) == "max(8.5 GB / 50 GB/s = 0.17 s, 20 TFLOP / 200 TFLOP/s = 0.1 s)");
  bench::MachineRates unknown = rates;
  unknown.flops = 0;
  CHECK(bench::bound_text(8.5e9, 20e12, unknown) == "8.5 GB / 50 GB/s = 0.17 s");
  CHECK(bench::bound_text(0, 20e12, rates) == "max(nothing is streamed, 20 TFLOP / 200 TFLOP/s = 0.1 s)");
}

TEST_CASE("what crosses the link beside weights: pixels; of a block on the host rows for each pass, keys and values for each chunk") {
  tiered_test::TempDir const dir;
  bench::make_synthetic(*bench::find_synthetic_projector("tiny-mmproj"), dir / "mmproj", 1);
  tiered::VisionModel const model(tiered::GgufFile::open(dir / "mmproj"));
  tiered::RowLimits limits;
  limits.chunk = 16, limits.block = 64;
  double const rows = 40 * 64 * 4, pixels = 40 * 1176 * 4;  // bytes
  CHECK(bench::crossing_bytes(model, limits, 40) == pixels);
  CHECK(bench::home_words(limits).empty());
  limits.rows_on_host = true;
  CHECK(bench::crossing_bytes(model, limits, 40) == pixels + (1 + 2 * 3 + 1) * rows);  // patches, two layers of two passes and one, merger
  CHECK(bench::home_words(limits) == ", rows on the host");
  limits.kv_on_host = true;
  CHECK(bench::crossing_bytes(model, limits, 40) == pixels + (8 + 1 + 3) * rows);  // windows once, the frame for each of three chunks
}

TEST_CASE("plans in words") {
  CHECK(bench::plan_words({.resident = 5, .chunk = 128}) == "resident, chunks of 128");
  CHECK(bench::plan_words({.streamed = 5, .chunk = 4096}) == "streamed, chunks of 4096");
  CHECK(bench::plan_words({.host = 5, .chunk = 64}) == "CPU");
  CHECK(bench::plan_words({.resident = 38, .streamed = 50, .host = 12, .chunk = 64}) ==
        "38% resident, 50% streamed, 12% CPU, chunks of 64");
  CHECK(PlanBytes{.resident = 5}.is_all_resident());
  CHECK_FALSE(PlanBytes{.resident = 5, .cached = 1}.is_all_resident());
  CHECK_FALSE(PlanBytes{}.is_all_resident());
}

TEST_CASE("first tokens are compared with the same question's where all weights are in VRAM, of the largest budget") {
  VisionCell const hd = cell(2, "1080p", 1920, 1080), slower = resident("1080p", 1920, 1080, 0.8);
  VisionCell larger = resident("1080p", 1920, 1080, 0.5), other = resident("1080p", 1920, 1080, 0.1), failed = other, streamed = other;
  larger.vram_bytes *= 2;
  other.vram_bytes *= 4, other.decoded = 7;
  failed.vram_bytes *= 8, failed.error = "no memory";
  streamed.vram_bytes *= 16, streamed.all_resident = false;
  std::vector<VisionCell> const cells{hd, slower, larger, other, failed, streamed, resident("4K", 3840, 2160, 0.1)};
  CHECK(bench::times_resident(cells, hd) == Approx(2));
  CHECK(bench::times_resident({hd, slower}, hd) == Approx(1.25));
  CHECK(bench::times_resident(cells, cell(2, "720p", 1280, 720)) == 0);
}

TEST_CASE("a row has the stages, shares of bounds, ratio, exact bytes beyond the budget, and plans") {
  std::string const row = bench::vision_row(cell(2, "1080p", 1920, 1080), 1.375);
  for (char const* const part :
       {"2.00 GiB", "1080p", " 2691 ", " 0.020 ", " 0.030 ", " 0.450 ", " 0.500 ", "(1.250) 1.000", " 0.750 ", " 75% ", " 1.38 ", " 25.00 ",
        " 31.25 ", " 80% ", " 5.00 ", " -4096 ", " 1354.0+6500.0* ", "streamed, chunks of 4096, lent; 12% resident"}) {
    INFO(row << " has no " << part);
    CHECK(row.find(part) != row.npos);
  }
  CHECK(bench::vision_row(cell(2, "1080p", 1920, 1080), 0).find(" - ") != std::string::npos);
  VisionCell failed = cell(2, "4K", 3840, 2160);
  failed.error = "too large";
  CHECK(bench::vision_row(failed, 1).find("failed: too large") != std::string::npos);
  VisionCell const c = cell(2, "1080p", 1920, 1080);
  CHECK(bench::vision_bound_row(c) == "  2.00 GiB, 1080p: max(8 GB / 50 GB/s = 0.16 s, 50 TFLOP / 200 TFLOP/s = 0.25 s)\n");
  std::string const header = bench::vision_header("m", "p", "JPEG", 32, 100);
  std::size_t const line = header.rfind('\n', header.size() - 2) + 1;
  CHECK(header.find("encoder; decoder") - line == row.find("streamed,"));  // columns stand below their names
}

TEST_CASE("the summary counts budgets that were passed and first tokens that are late, from 1080p on") {
  VisionCell late = cell(2, "1080p", 1920, 1080), in_time = cell(4, "1080p", 1920, 1080), over = cell(2, "4K", 3840, 2160);
  VisionCell const small = cell(2, "480p", 854, 480);  // twice as late, and not counted
  late.ttft_s = 0.76, in_time.ttft_s = 0.74, over.ttft_s = 0.7;
  over.vram_peak_bytes = over.vram_bytes + 1;
  std::vector<VisionCell> cells{
      late, in_time, over, small, resident("1080p", 1920, 1080, 0.5), resident("4K", 3840, 2160, 0.5), resident("480p", 854, 480, 0.5)};
  std::string const text = bench::vision_summary(cells, 1);
  INFO(text);
  CHECK(text.find("7 cells, 1 failed now. Above their budget: 1. Decode below 85 % of its bound: 7.") != text.npos);
  CHECK(text.find("From 1080p on, 1 of 3 first tokens are later than 1.5 times") != text.npos);
  CHECK(text.find("by plan") != text.npos);
  CHECK(bench::vision_summary({late}, 0).find("No first token from 1080p on") != std::string::npos);
}

TEST_CASE("a cell of an image survives the way through a line of JSON, whole, beside cells of other kinds") {
  VisionCell const c = sample();
  nlohmann::json const j = nlohmann::json::parse(to_json(c).dump());
  VisionCell const back = bench::vision_from_json(j);
  CHECK(to_json(back) == to_json(c));
  CHECK(back.is_same(c));
  CHECK(back.rates.link_beside_cpu == c.rates.link_beside_cpu);
  CHECK(j.at("vram_over_budget_bytes") == c.over_budget_bytes());

  tiered_test::TempDir const dir;
  std::string const path = dir / "out.json";
  VisionCell failed = c;
  failed.error = "it broke";
  bench::append_line(path, to_json(failed));
  CHECK_FALSE(Results::read(path).answers(c));
  bench::append_line(path, to_json(c));
  bench::append_line(path, to_json(bench::Cell()));
  Results const results = Results::read(path);
  REQUIRE(results.visions().size() == 1);
  CHECK(results.cells().size() == 1);
  CHECK(results.answers(c));
  for (auto const change : {+[](VisionCell& v) { v.vram_bytes += 1; }, +[](VisionCell& v) { v.height += 1; },
                            +[](VisionCell& v) { v.projector_bytes += 1; }, +[](VisionCell& v) { v.decoded += 1; },
                            +[](VisionCell& v) { v.text_tokens += 1; }, +[](VisionCell& v) { v.image_format += "2"; }}) {
    VisionCell other = c;
    change(other);
    CHECK_FALSE(results.answers(other));
  }
  VisionCell named = c;
  named.image = "the same by another name";
  CHECK(results.answers(named));
}

TEST_CASE("the figure has two panels with a point for each image and budget, sizes by name, and flat budgets") {
  Results results;
  for (std::uint64_t const budget : {2u, 8u}) {
    for (auto const& [name, sides] : bench::picture_sizes)
      results.add(to_json(cell(budget, std::string(name).c_str(), sides[0], sides[1])));
  }
  VisionCell failed = cell(4, "4K", 3840, 2160);
  failed.error = "no memory";
  results.add(to_json(failed));
  std::string const svg = bench::draw_vision(results);
  CHECK(tiered_test::is_well_formed(svg));
  CHECK(count(svg, "r=\"3.5\"") == 2 * 12 + 2);
  CHECK(count(svg, "polyline") == 2 * 2 * 2);
  for (char const* const part : {"time to first token, s", "most device memory while encoding", "1080p", "480p", "2.00 GiB", "8.00 GiB",
                                 "a GPU &amp; 16 threads", "a&lt;b&gt;.gguf with mm.gguf"})
    CHECK(svg.find(part) != svg.npos);
  CHECK(svg.find("4.00 GiB") == svg.npos);
  CHECK(tiered_test::is_well_formed(bench::draw_vision(Results())));
}
