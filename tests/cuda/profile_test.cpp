// A GPU as it is measured: figures that any GPU has, and a budget that measuring keeps.
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/gpu.hpp"
#include "golden/engine_helpers.hpp"
#include "temp_dir.hpp"
#include "tiered/cuda.hpp"
#include "tiered/engine/profiling.hpp"
#include "tiered/plan/plan_io.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

EngineOptions options_in(std::string const& folder) {
  EngineOptions options;
  options.vram_bytes = 2 * GiB, options.n_threads = 2, options.max_context = 256;
  options.profile.folder = folder;
  options.profile.seconds = 1;
  return options;
}

}  // namespace

TEST_CASE("a GPU is measured on a model's own weights", "[profile]") {
  if (!has_gpu()) return;
  TempDir const folder;
  for (char const* const file : {"llama_k.mixed.gguf", "qwen3moe.mixed.gguf"}) {
    auto const model = open_golden(file);
    EngineOptions const options = options_in(folder / "p");
    auto machine = CudaPolicies::make_machine({.vram_bytes = options.vram_bytes, .n_threads = 2});
    std::size_t const used = machine.device->memory().used_bytes();
    ProfileResult const result = profile_machine(machine, *model, model->table().weights, options);
    INFO(file << ": " << name(result.source) << " in " << result.seconds << " s\n" << to_text(result.hardware) << result.note);
    for (char const* const amiss : {"another machine", "damaged", "cannot be written"}) {  // not: other speeds, as a busy machine has
      CHECK(result.note.find(amiss) == std::string::npos);
    }
    CHECK(machine.device->memory().used_bytes() == used);
    DeviceRates const& gpu = result.hardware.gpu;
    std::vector<FormatRates> const formats = formats_of(model->table());
    CHECK(gpu.formats.size() == formats.size());
    for (FormatRates const& f : gpu.formats) {
      INFO(name(f.dtype) << (f.experts ? " experts" : "") << " [" << f.rows << ", " << f.cols << "]");
      CHECK((f.rates.bytes_per_s > 0 && f.rates.bytes_per_s < 100e12));
      CHECK(f.rates.flops_by_rows.points.size() >= 3);
    }
    CHECK((gpu.launch_s > 1e-7 && gpu.launch_s < 1e-3));
    CHECK((gpu.attention_bytes_per_s > 1e6 && std::isfinite(gpu.attention_bytes_per_s)));
    CHECK((result.hardware.h2d.peak_per_s() > 1e8 && result.hardware.h2d.peak_per_s() < 1e12));
    CHECK((result.hardware.d2h.peak_per_s() > 1e8 && result.hardware.d2h.peak_per_s() < 1e12));
    CHECK((result.hardware.hop_latency_s > 0 && result.hardware.hop_latency_s < 0.01));
    CHECK((result.hardware.event_latency_s > 0 && result.hardware.event_latency_s < 0.01));
  }
}

TEST_CASE("an engine on a GPU measures first, stays within its budget, and finds the figures again", "[profile]") {
  if (!has_gpu()) return;
  TempDir const folder;
  auto const model = open_golden("llama.mixed.gguf");
  EngineOptions options = options_in(folder / "p");
  std::vector<std::int32_t> text;
  std::string file;
  {
    Engine<CudaPolicies> engine(model, options);
    INFO(engine.profile().note);
    CHECK(engine.profile().source == ProfileSource::measured);
    CHECK(engine.stats().vram_peak_bytes <= options.vram_bytes);
    text = greedy(engine, {1, 2, 3}, 8);
    file = engine.profile().file;
  }
  CHECK(file.starts_with(folder / "p"));
  {
    Engine<CudaPolicies> engine(model, options);
    CHECK((engine.profile().source == ProfileSource::file || !engine.profile().note.empty()));  // or the machine was busy
    CHECK(greedy(engine, {1, 2, 3}, 8) == text);
  }
  options.hardware = HardwareProfile::simulated();
  Engine<CudaPolicies> engine(model, options);
  CHECK(engine.profile().source == ProfileSource::given);
}
