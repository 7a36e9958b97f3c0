// Whole vision-language models on the CPU: pixels through the encoder, its vectors and positions through the decoder, against transformers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/vision/reference_encoder.hpp"
#include "vlm_fixture.hpp"

using namespace tiered;
using namespace tiered::test;

TEST_CASE("prompts with images, or with a video: logits equal transformers' to 1e-4 of their range", "[golden][vision]") {
  constexpr std::int32_t first_picture_token = 98;
  for (std::string const& name : vlm_models()) {
    for (char const* const variant : {"f32", "f16"}) {
      GgufFile const projector = GgufFile::open(vlm_path(concat(name, ".mmproj.", variant, ".gguf")));
      VisionConfig const config = read_vision_config(projector);
      VisionWeights const weights = read_vision_weights(projector, config);
      EngineOptions options;
      options.max_context = 512;
      options.n_threads = 2;
      options.f32_activations = true;
      options.kv_type = DType::f32;
      Engine<CpuPolicies> engine(make_model(GgufFile::open(vlm_path(concat(name, '.', variant, ".gguf")))), options);
      for (VlmCase const& c : read_vlm_fixture(name).cases) {
        INFO(name << '.' << variant << ' ' << c.name);
        VisionEncoding const seen = ReferenceVisionEncoder(config, weights).encode(vlm_patches(c, config), c.grids);
        std::vector<float> vectors = seen.tokens;
        for (std::vector<float> const& features : seen.deepstack) vectors.insert(vectors.end(), features.begin(), features.end());
        Sequence const sequence = engine.new_sequence();
        std::vector<Row> rows;
        std::int32_t next = 0;
        for (std::size_t i = 0; i < c.tokens.size(); ++i) {
          bool const is_picture = c.tokens[i] >= first_picture_token, wanted = i + std::size_t(c.n_logit_rows) >= c.tokens.size();
          rows.push_back({sequence.id(), std::int32_t(i), is_picture ? 0 : c.tokens[i], wanted, is_picture ? next++ : -1});
        }
        REQUIRE(next == seen.n_tokens);
        Logits const logits = engine.step({rows, vectors, c.positions});
        REQUIRE(logits.n_rows() == c.n_logit_rows);
        auto const [low, high] = std::minmax_element(c.logits.begin(), c.logits.end());
        double worst = 0;
        for (std::int32_t r = 0; r < logits.n_rows(); ++r) {
          for (std::size_t v = 0; v < logits.row(r).size(); ++v) {
            double const d = std::fabs(double(logits.row(r)[v]) - double(c.logits[std::size_t(r) * logits.row(r).size() + v]));
            if (!(d <= worst)) worst = d;  // also where it is not a number
          }
        }
        CHECK(worst / double(*high - *low) < 1e-4);
      }
    }
  }
}
