// Rows of tokens and of an encoder's vectors, turned by rotary positions of their own, on the GPU: transformers' logits within the noise of
// rounding, wherever the model is placed, and in captured steps.
#include <cstddef>
#include <string>
#include <vector>

#include "cuda/gpu.hpp"
#include "golden/vision_rows.hpp"
#include "tiered/cuda.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct GpuPolicies : CudaPolicies {
  using Placement = AnyPlacement;
};

EngineOptions options_for(DType kv_type) {
  EngineOptions options;
  options.vram_bytes = 2 * GiB;
  options.max_context = 256;
  options.n_threads = 2;
  options.kv_type = kv_type;
  options.hardware = HardwareProfile::simulated();  // the same plans everywhere
  return options;
}

/// Root mean square over all logits, as a share of their range.
double rms_of(std::vector<float> const& got, VisionFixture const& f) {
  double sum = 0;
  for (std::size_t i = 0; i < f.logits.size(); ++i) sum += std::pow((double(got.at(i)) - double(f.logits[i])) / double(f.logit_range), 2);
  return std::sqrt(sum / double(f.logits.size()));
}

/// As quantised_tolerance() has it for fixtures of text.
double tolerance_of(Transformer const& model, VisionFixture const& f) {
  double sum = 0;
  for (float v : f.logits) sum += double(v) * double(v);
  double const rms = std::sqrt(sum / double(f.logits.size())) / double(f.logit_range);
  return gain * q8_noise * std::sqrt(7.0 * model.config().n_layers + 1) * rms;
}

}  // namespace

TEST_CASE("cuda: tokens, an image, a video give transformers' logits", "[cuda][golden][vision]") {
  if (!tiered_test::has_gpu()) return;
  for (std::string const name_of : vision_models) {
    auto const model = open_golden(name_of + ".f32.gguf");
    VisionFixture const f = open_vision(name_of);
    std::size_t const n = f.tokens.size(), text = n - n_text_at_end;
    for (std::string const placement : {"all_vram", "attention_first", "stream_all"}) {
      for (DType const kv_type : {DType::f16, DType::f32}) {
        Engine<GpuPolicies> engine(model, options_for(kv_type), {.placement = make_placement(placement)});
        REQUIRE(engine.plans().vram_bytes > 0);
        for (auto const& [steps, from] :
             {std::pair{std::vector<std::size_t>{n}, n}, {{20, 11, 1}, text}, {{1}, text}, {{7, 1, 16, 3}, n}}) {
          INFO(name_of << " " << placement << " " << name(kv_type) << ", first steps of " << steps.front());
          std::vector<float> const got = vision_logits(engine, f, steps, from);
          CHECK(rms_of(got, f) < tolerance_of(*model, f));
          CHECK(worst_of(got, f) < 12 * tolerance_of(*model, f));
        }
        // What positions change is more than noise: all by time, or as text from the first vector on.
        double const right = rms_of(vision_logits(engine, f, {20, 11, 1}, text), f);
        VisionFixture by_time = f;
        for (std::size_t i = 0; i < 2 * n; ++i) by_time.positions[n + i] = f.positions[i % n];
        CHECK(rms_of(vision_logits(engine, by_time, {20, 11, 1}, n), f) > 1.5 * right);
        CHECK(rms_of(vision_logits(engine, f, {n}, 6), f) > 4 * right);
      }
    }
  }
}

TEST_CASE("cuda: positions that are said and that agree with those of text give the same bits", "[cuda][golden][vision]") {
  if (!tiered_test::has_gpu()) return;
  auto const model = open_golden("qwen3vl.f32.gguf");
  GoldenFixture const f = read_golden(golden_path("qwen3vl.golden"));
  Engine<GpuPolicies> engine(model, options_for(DType::f16), {.placement = make_placement("all_vram")});
  std::vector<float> const expected = all_logits(engine, f.tokens, {f.prompt_size, 1});
  Sequence const sequence = engine.new_sequence();
  std::vector<float> got;
  for (std::size_t begin = 0, end = f.prompt_size; begin < f.tokens.size(); begin = end, ++end) {
    std::vector<Row> const rows = rows_of(sequence.id(), f.tokens, begin, end);
    std::vector<std::int32_t> positions;
    for (int k = 0; k < 3; ++k) {
      for (Row const& row : rows) positions.push_back(row.position);
    }
    append(got, engine.step({rows, {}, positions}));
  }
  CHECK(got == expected);
}
