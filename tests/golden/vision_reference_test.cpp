// The reference vision encoder against transformers: Qwen2-VL, Qwen2.5-VL and Qwen3-VL, images and a video.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/vision/reference_encoder.hpp"
#include "vlm_fixture.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

/// Largest difference over the largest value.
double difference(std::vector<float> const& got, std::vector<float> const& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    largest = (std::max)(largest, std::fabs(double(expected[i])));
    worst = (std::max)(worst, std::fabs(double(got[i]) - double(expected[i])));
  }
  return worst / largest;
}

struct Encoder {
  GgufFile file;
  VisionConfig config;
  VisionWeights weights;
  explicit Encoder(std::string const& name)
      : file(GgufFile::open(vlm_path(name))), config(read_vision_config(file)), weights(read_vision_weights(file, config)) {}
  VisionEncoding encode(VlmCase const& c) const { return ReferenceVisionEncoder(config, weights).encode(vlm_patches(c, config), c.grids); }
};

VlmCase const& find_case(VlmFixture const& f, std::string const& name) {
  return *std::find_if(f.cases.begin(), f.cases.end(), [&](VlmCase const& c) { return c.name == name; });
}

/// A patch's first frame takes the weights of its second, and the reverse.
void swap_frames(VisionConfig& config, VisionWeights& w) {
  Weight& patch = w.weights[std::size_t(w.patch)];
  std::size_t const frame = patch.row_bytes() / std::size_t(config.n_channels) / 2;
  auto swapped = std::make_unique<float[]>(patch.bytes() / sizeof(float));
  for (std::size_t i = 0; i < patch.bytes() / frame; ++i)
    std::memcpy(reinterpret_cast<std::byte*>(swapped.get()) + (i ^ 1) * frame, patch.data + i * frame, frame);
  patch.data = reinterpret_cast<std::byte const*>(swapped.get());
  w.owned.push_back(std::move(swapped));
}

}  // namespace

TEST_CASE("tokens and deepstack features equal transformers' to 1e-4, in F32 and in F16 files", "[golden][vision]") {
  for (std::string const& model : vlm_models()) {
    VlmFixture const fixture = read_vlm_fixture(model);
    REQUIRE(fixture.cases.size() == 8);
    for (char const* variant : {".mmproj.f32.gguf", ".mmproj.f16.gguf"}) {
      Encoder const encoder(model + variant);
      for (VlmCase const& c : fixture.cases) {
        INFO(model << variant << ' ' << c.name);
        VisionEncoding const got = encoder.encode(c);
        CHECK(got.n_tokens * encoder.config.output_dim == std::int64_t(c.embeddings.size()));
        CHECK(difference(got.tokens, c.embeddings) < 1e-4);
        REQUIRE(got.deepstack.size() == c.deepstack.size());
        for (std::size_t i = 0; i < c.deepstack.size(); ++i) CHECK(difference(got.deepstack[i], c.deepstack[i]) < 1e-4);
      }
    }
  }
}

TEST_CASE("places and windows of patches are those of transformers", "[golden][vision]") {
  for (std::string const& model : vlm_models()) {
    VisionConfig const config = read_vision_config(GgufFile::open(vlm_path(model + ".mmproj.f16.gguf")));
    for (VlmCase const& c : read_vlm_fixture(model).cases) {
      INFO(model << ' ' << c.name);
      std::vector<std::int32_t> places;
      for (PatchGrid const& g : c.grids) {
        for (std::int64_t i = 0; i < g.n_patches(); ++i) {
          PatchPlace const at = patch_place(g, config.merge_size, i % g.frame_patches());
          places.insert(places.end(), {at.row, at.col});
        }
      }
      CHECK(places == c.patch_positions);
      CHECK(c.window_index.empty() == (config.window_size == 0));
      if (c.window_index.empty()) continue;
      WindowOrder const order = window_order(c.grids, config.merge_size, config.window_tokens());
      CHECK(order.tokens == c.window_index);
      CHECK(order.begins == c.window_begins);
    }
  }
}

TEST_CASE("two images, and the frames of a video, do not see each other", "[golden][vision]") {
  for (std::string const& model : vlm_models()) {
    INFO(model);
    Encoder const encoder(model + ".mmproj.f16.gguf");
    ReferenceVisionEncoder const reference(encoder.config, encoder.weights);
    VlmFixture const fixture = read_vlm_fixture(model);
    for (char const* name : {"two", "video"}) {
      VlmCase const& c = find_case(fixture, name);
      std::vector<float> const patches = vlm_patches(c, encoder.config);
      std::vector<float> parts;
      std::size_t first = 0;
      for (PatchGrid const& g : c.grids) {
        for (std::int64_t frame = 0; frame < g.t; ++frame) {
          PatchGrid const alone{1, g.h, g.w};
          std::size_t const n = std::size_t(alone.n_patches() * encoder.config.patch_elems());
          std::vector<float> const tokens = reference.encode({patches.data() + first, n}, {&alone, 1}).tokens;
          parts.insert(parts.end(), tokens.begin(), tokens.end());
          first += n;
        }
      }
      CHECK(parts == reference.encode(patches, c.grids).tokens);
    }
  }
}

TEST_CASE("the fixtures notice each of these mistakes", "[golden][vision]") {
  struct Mistake {
    char const* model;
    char const* name;
    void (*make)(VisionConfig&, VisionWeights&);
  };
  Mistake const mistakes[] = {
      {"qwen2vl", "tanh GELU", [](VisionConfig& c, VisionWeights&) { c.activation = VisionActivation::gelu_tanh; }},
      {"qwen2vl", "RMS norms", [](VisionConfig& c, VisionWeights&) { c.norm = VisionNorm::rms; }},
      {"qwen2vl", "rope base", [](VisionConfig& c, VisionWeights&) { c.rope_base = 100; }},
      {"qwen2vl", "frames swapped", swap_frames},
      {"qwen25vl", "no windows", [](VisionConfig& c, VisionWeights&) { c.layers.assign(c.layers.size(), {}); }},
      {"qwen25vl", "windows everywhere", [](VisionConfig& c, VisionWeights&) { c.layers[1].full_attention = false; }},
      {"qwen25vl", "small windows", [](VisionConfig& c, VisionWeights&) { c.window_size = 56; }},
      {"qwen25vl", "gate and up swapped", [](VisionConfig&, VisionWeights& w) { std::swap(w.layers[0].gate, w.layers[0].up); }},
      {"qwen25vl", "layer norms", [](VisionConfig& c, VisionWeights&) { c.norm = VisionNorm::layer; }},
      {"qwen3vl", "no positions", [](VisionConfig&, VisionWeights& w) { w.positions = no_weight; }},
      {"qwen3vl", "no patch bias", [](VisionConfig&, VisionWeights& w) { w.patch_bias = no_weight; }},
      {"qwen3vl", "k and v swapped", [](VisionConfig&, VisionWeights& w) { std::swap(w.layers[2].k, w.layers[2].v); }},
      {"qwen3vl", "quick GELU", [](VisionConfig& c, VisionWeights&) { c.activation = VisionActivation::quick_gelu; }},
  };
  for (Mistake const& m : mistakes) {
    Encoder encoder(std::string(m.model) + ".mmproj.f16.gguf");
    VlmFixture const fixture = read_vlm_fixture(m.model);
    m.make(encoder.config, encoder.weights);
    double most = 0;
    for (VlmCase const& c : fixture.cases) most = (std::max)(most, difference(encoder.encode(c).tokens, c.embeddings));
    INFO(m.model << ": " << m.name << " moves tokens by " << most);
    CHECK(most > 3e-3);
  }
  Encoder encoder("qwen3vl.mmproj.f16.gguf");
  VlmFixture const fixture = read_vlm_fixture("qwen3vl");
  for (VisionMergerWeights& w : encoder.weights.deepstack) w.norm_bias = no_weight;
  VlmCase const& odd = find_case(fixture, "odd");
  CHECK(difference(encoder.encode(odd).deepstack[1], odd.deepstack[1]) > 3e-3);
}

TEST_CASE("patches that do not fit the grid are refused", "[golden][vision]") {
  Encoder const encoder("qwen2vl.mmproj.f16.gguf");
  ReferenceVisionEncoder const reference(encoder.config, encoder.weights);
  std::vector<float> const patches(std::size_t(4 * encoder.config.patch_elems()));
  for (PatchGrid const& g : {PatchGrid{1, 2, 3}, PatchGrid{1, 3, 2}, PatchGrid{0, 2, 2}, PatchGrid{1, 0, 2}, PatchGrid{1, 2, 4}}) {
    CHECK(error_of([&] { reference.encode(patches, {&g, 1}); }).code == Errc::precondition);
  }
}
