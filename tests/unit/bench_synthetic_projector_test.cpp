// Synthetic projectors: files that the library reads as encoders, with the bytes of those that they stand for.
#include <cmath>
#include <string>
#include <vector>

#include "../bench/model/synthetic_projector.hpp"
#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/vision/reference_encoder.hpp"

namespace {

double gigabytes(char const* name) {
  double bytes = 0;
  for (bench::SyntheticTensor const& t : bench::tensors_of(*bench::find_synthetic_projector(name)))
    bytes += double(bench::detail::tensor_bytes(t));
  return bytes / 1e9;
}

}  // namespace

TEST_CASE("tiny projectors are read, and what their encoders make is neither nothing nor without bounds") {
  tiered_test::TempDir const dir;
  for (char const* name : {"tiny-mmproj", "tiny-qwen2-mmproj", "tiny-qwen3-mmproj"}) {
    INFO(name);
    std::string const path = dir / name;
    std::uint64_t const bytes = bench::make_synthetic(*bench::find_synthetic_projector(name), path, 2);
    tiered::GgufFile const file = tiered::GgufFile::open(path);
    CHECK(file.total_bytes() == bytes);
    tiered::VisionConfig const config = tiered::read_vision_config(file);
    CHECK((config.dim == 64 && config.output_dim == 256 && config.hidden_dim == 96));
    tiered::VisionWeights const weights = tiered::read_vision_weights(file, config);
    tiered::PatchGrid const grid{1, 4, 10};
    tiered::SplitMix64 random(3);
    std::vector<float> patches(std::size_t(grid.n_patches() * config.patch_elems()));
    for (float& p : patches) p = random.between(-1.7f, 1.7f);
    double squares = 0;
    std::vector<float> const tokens = tiered::ReferenceVisionEncoder(config, weights).encode(patches, {&grid, 1}).tokens;
    for (float t : tokens) squares += double(t) * t;
    double const deviation = std::sqrt(squares / double(tokens.size()));
    CHECK(deviation > 0.1);
    CHECK(deviation < 3);
  }
}

TEST_CASE("large projectors have the bytes of the files that they stand for") {
  CHECK(gigabytes("cosmos-reason1-7b-mmproj-f16") == Approx(1.354).epsilon(0.005));
  CHECK(gigabytes("qwen2-vl-7b-mmproj-f16") == Approx(1.352).epsilon(0.005));
  CHECK(gigabytes("qwen3-vl-8b-mmproj-f16") == Approx(1.16).epsilon(0.01));
  CHECK(bench::find_synthetic_projector("no-such") == nullptr);
  CHECK(
      tiered_test::error_of([] { bench::synthetic_model("no-such", bench::synthetic_projector_names()); }).says("tiny-mmproj", "tiny-moe"));
}
