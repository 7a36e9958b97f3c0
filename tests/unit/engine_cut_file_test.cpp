// A model file that others cut short while it is open: an error, where touching its pages would end the process.
#include <filesystem>
#include <memory>
#include <string>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "temp_dir.hpp"
#include "tiered/engine/profiling.hpp"
#include "tiered/sim.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

/// A copy of a golden file, opened and then cut to its first page: all matrices are gone.
struct CutModel {
  TempDir folder;
  std::string path = folder / "model.gguf";
  std::shared_ptr<Transformer const> model;

  CutModel() {
    std::filesystem::copy_file(golden_path("llama.f32.gguf"), path);
    model = make_model(GgufFile::open(path));
    std::filesystem::resize_file(path, 4096);
  }
};

}  // namespace

TEST_CASE("an engine of a file that was cut is refused before a page of it is touched", "[engine]") {
  CutModel const cut;
  for (bool const measured : {false, true}) {
    EngineOptions options;
    options.vram_bytes = 4 * MiB;
    options.n_threads = 1;
    options.profile = {.measure = measured, .use_files = false, .seconds = 0.05};
    auto const refused = error_of([&] { Engine<SimPolicies>(cut.model, options); });
    CHECK(refused.code == Errc::io);
    CHECK(refused.says(cut.path, "4096 now"));
    options.vram_bytes = 0;
    CHECK(error_of([&] { Engine<CpuPolicies>(cut.model, options); }).code == Errc::io);
  }
}

TEST_CASE("a machine is not measured with the weights of a file that was cut", "[engine][profile]") {
  CutModel const cut;
  EngineOptions options;
  options.vram_bytes = 4 * MiB;
  options.profile = {.measure = true, .use_files = false, .seconds = 0.05};
  auto machine = SimPolicies::make_machine({.vram_bytes = options.vram_bytes, .n_threads = 1});
  auto const measure = [&] { profile_machine(machine, *cut.model, cut.model->table().weights, options); };
  CHECK(error_of(measure).says(cut.path, "had", "has 4096 now"));
}
