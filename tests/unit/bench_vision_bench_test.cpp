// A bench of images on the simulated device: every cell is answered, once, inside its budget; what fails costs its own cells only.
#include <fstream>
#include <string>
#include <vector>

#include "../bench/model/synthetic.hpp"
#include "../bench/model/synthetic_projector.hpp"
#include "../bench/model/vision_bench.hpp"
#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"

using bench::Results;
using bench::VisionBench;
using bench::VisionBenchOptions;
using bench::VisionCell;

namespace {

std::string text_of(std::string const& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

VisionBenchOptions small_bench(tiered_test::TempDir const& dir) {
  VisionBenchOptions o;
  o.model = dir / "model.gguf";
  o.projector = dir / "mmproj.gguf";
  bench::make_synthetic(bench::synthetic_model("tiny-vlm"), o.model, bench::Routing::uniform, 1);
  bench::make_synthetic(*bench::find_synthetic_projector("tiny-mmproj"), o.projector, 1);
  o.budgets = {1 * tiered::MiB, 3 * tiered::MiB};
  o.resident_bytes = 192 * tiered::MiB;
  o.images = {bench::picture_size("64x64"), bench::picture_size("224x140")};
  o.n_decode = 3;
  o.n_text = 6;
  o.n_threads = 1;
  o.simulated = true;
  o.flops = 1e9;
  o.json_file = dir / "out.json";
  return o;
}

}  // namespace

TEST_CASE("all images have stages, bounds, plans and peaks within their budgets; nothing is measured twice") {
  tiered_test::TempDir const dir;
  VisionBenchOptions o = small_bench(dir);
  CHECK(VisionBench(o).run() == 0);
  std::string const text = text_of(o.json_file);
  Results const results = Results::read(o.json_file);
  REQUIRE(results.visions().size() == 6);
  CHECK(results.visions().front().vram_bytes == o.resident_bytes);  // first
  for (VisionCell const& c : results.visions()) {
    INFO(to_json(c).dump());
    CHECK(c.error.empty());
    for (double const figure : {c.load_s, c.ready_s, c.read_s, c.preprocess_s, c.encode_s, c.prefill_s, c.ttft_first_s, c.ttft_s,
                                c.decode_per_s, c.end_to_end_s, c.ttft_bound_s, c.decode_practical_s, c.bound_flops, double(c.image_bytes)})
      CHECK(figure > 0);
    CHECK(c.ttft_s == Approx(c.read_s + c.preprocess_s + c.encode_s + c.prefill_s));
    CHECK(c.end_to_end_s > c.ttft_s);
    CHECK(c.vision_tokens == (c.image == "64x64" ? 2 * 2 : 8 * 5));
    CHECK(c.patches == 4 * c.vision_tokens);
    CHECK(c.over_budget_bytes() <= 0);
    CHECK(c.vram_peak_bytes > 0);
    CHECK(c.counted);
    CHECK(c.all_resident == (c.vram_bytes == o.resident_bytes));
    CHECK(bench::times_resident(results.visions(), c) > 0);
    // Rows cross the link in any case; weights do where they do not fit, of both since they take turns.
    if (c.vram_bytes == 3 * tiered::MiB) CHECK(c.streamed_encode_bytes + c.streamed_prefill_bytes > 500e3);
    CHECK((c.bound_bytes > 0) == !c.all_resident);
  }
  CHECK(VisionBench(o).run() == 0);
  CHECK(text_of(o.json_file) == text);
  o.images.push_back(bench::picture_size("84x56"));
  CHECK(VisionBench(o).run() == 0);
  CHECK(text_of(o.json_file).substr(0, text.size()) == text);
  CHECK(Results::read(o.json_file).visions().size() == 9);
}

TEST_CASE("a budget that cannot be met costs its images, and the others are answered") {
  tiered_test::TempDir const dir;
  VisionBenchOptions o = small_bench(dir);
  o.resident_bytes = 0;
  o.budgets = {std::uint64_t{1} << 60, 3 * tiered::MiB};
  VisionBench bench(o);
  CHECK(bench.run() == 2);
  REQUIRE(bench.results().visions().size() == 4);
  for (VisionCell const& c : bench.results().visions()) {
    INFO(to_json(c).dump());
    CHECK(c.error.empty() == (c.vram_bytes == o.budgets[1]));
    if (!c.error.empty()) CHECK(c.error.find(tiered::format_bytes(o.budgets[0])) != std::string::npos);
    CHECK(bench::times_resident(bench.results().visions(), c) == 0);
  }
}

TEST_CASE("a projector that is not the decoder's fails all cells, with the reason; one that is not there is an error") {
  tiered_test::TempDir const dir;
  VisionBenchOptions o = small_bench(dir);
  bench::make_synthetic(*bench::find_synthetic_projector("tiny-qwen3-mmproj"), o.projector, 1);
  VisionBench bench(o);
  CHECK(bench.run() == 6);
  for (VisionCell const& c : bench.results().visions()) CHECK(c.error.find("deepstack") != std::string::npos);
  o.projector = dir / "none.gguf";
  CHECK(tiered_test::error_of([&] { VisionBench(o).run(); }).says("none.gguf"));
}
