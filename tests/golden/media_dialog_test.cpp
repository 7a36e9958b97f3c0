// From pixels to text: conversations with pictures, against the greedy text and the logits of transformers.
#include <string>

#include "golden/media_dialog.hpp"
#include "tiered/engine/vision_encoder.hpp"

using namespace tiered;
using namespace tiered::test;

TEST_CASE("conversations with pictures: text and logits equal transformers'", "[golden][vision][media]") {
  for (std::string const& model : vlm_models()) {
    INFO(model);
    Engine<CpuPolicies> engine(make_model(GgufFile::open(vlm_path(model + ".f32.gguf"))), exact_options());
    CountingEncoder reference(model);
    check_dialog(engine, reference, model);
    CHECK((reference.n_calls == 2 && reference.n_steps == 3));  // two pictures, then one
    VisionEncoder encoder(engine, make_vision_model(GgufFile::open(vlm_path(model + ".mmproj.f32.gguf"))));
    check_dialog(engine, encoder, model);
  }
}
