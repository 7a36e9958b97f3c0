// From pixels to text on a GPU: conversations with pictures, against the greedy text and the logits of transformers.
#include <string>

#include "cuda/gpu.hpp"
#include "cuda/limited_gpu.hpp"
#include "golden/media_dialog.hpp"
#include "golden/vision_encoding.hpp"

using namespace tiered;
using namespace tiered::test;

TEST_CASE("cuda: conversations with pictures: text and logits equal transformers'", "[cuda][golden][vision]") {
  if (!tiered_test::has_gpu()) return;
  for (std::string const& model : vlm_models()) {
    for (std::string const placement : {"all_vram", "stream_all", "seconds_per_byte"}) {
      INFO(model << ' ' << placement);
      EngineOptions options = exact_options();
      options.vram_bytes = 2 * GiB;
      options.hardware = HardwareProfile::simulated();
      Engine<LimitedPolicies> engine = make_limited(open_decoder(model + ".f32"), options, placement, 8 * MiB);
      VisionEncoder<LimitedPolicies> encoder(engine, open_projector(model + ".mmproj.f32"), {.max_patches = 1024, .least_speedup = 0},
                                             {.placement = make_placement(placement)});
      check_dialog(engine, encoder, model, false);
    }
  }
}
