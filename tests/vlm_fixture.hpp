/// Reads the fixtures of tests/data/vision_golden (format: the README.md beside them).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "golden_data.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/vision/patch_grid.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered_test {

inline std::string vlm_path(std::string const& name) { return std::string(TIERED_TEST_DATA "/vision_golden/") + name; }

/// NAME.f32.gguf, NAME.mmproj.f32.gguf (both also f16) and NAME.golden.gguf.
inline std::vector<std::string> vlm_models() { return {"qwen2vl", "qwen25vl", "qwen3vl"}; }

/// What transformers computed for one prompt with images, or with a video.
struct VlmCase {
  std::string name;
  std::uint64_t seed = 0;
  bool is_video = false;
  std::vector<tiered::PatchGrid> grids;
  std::vector<std::int32_t> patch_positions;              ///< [patches, 2]: row and column
  std::vector<std::int32_t> window_index, window_begins;  ///< as tiered::WindowOrder; empty without windows
  std::vector<float> embeddings;                          ///< [vision tokens, dim]
  std::vector<std::vector<float>> deepstack;              ///< likewise, one for each layer that has a feature
  std::vector<std::int32_t> tokens;                       ///< the prompt
  std::vector<std::int32_t> positions;                    ///< [3, tokens]: time, height, width
  std::vector<float> logits;                              ///< [n_logit_rows, vocab]: behind the last tokens of the prompt
  std::int64_t n_logit_rows = 0;
};

struct VlmFixture {
  std::vector<VlmCase> cases;
};

inline VlmFixture read_vlm_fixture(std::string const& model) {
  tiered::GgufFile const file = tiered::GgufFile::open(vlm_path(model + ".golden.gguf"));
  auto const numbers = [&](std::string const& key) {
    return file.find(key) == nullptr ? std::vector<std::int32_t>() : file.require<std::vector<std::int32_t>>(key);
  };
  auto const floats = [&](tiered::GgufTensor const& t) {
    std::vector<float> out(t.bytes / sizeof(float));
    std::memcpy(out.data(), t.data.data(), t.bytes);
    return out;
  };
  VlmFixture fixture;
  for (std::string const& name : file.require<std::vector<std::string>>("cases")) {
    VlmCase c;
    c.name = name;
    c.seed = file.require<std::uint64_t>(name + ".seed");
    c.is_video = file.require<bool>(name + ".is_video");
    std::vector<std::int32_t> const thw = numbers(name + ".grid_thw");
    for (std::size_t i = 0; i + 2 < thw.size(); i += 3) c.grids.push_back({thw[i], thw[i + 1], thw[i + 2]});
    c.patch_positions = numbers(name + ".patch_positions");
    c.window_index = numbers(name + ".window_index");
    c.window_begins = numbers(name + ".window_begins");
    c.embeddings = floats(file.require_tensor(name + ".embeddings"));
    for (int i = 0;; ++i) {
      tiered::GgufTensor const* const t = file.find_tensor(name + ".deepstack." + std::to_string(i));
      if (t == nullptr) break;
      c.deepstack.push_back(floats(*t));
    }
    c.tokens = numbers(name + ".tokens");
    c.positions = numbers(name + ".positions");
    c.logits = floats(file.require_tensor(name + ".logits"));
    c.n_logit_rows = file.require_tensor(name + ".logits").shape.rows();
    fixture.cases.push_back(std::move(c));
  }
  return fixture;
}

/// The pixels that the fixtures were computed from: [patches, patch_elems], uniform in [-2, 2), an image's two frames being the same.
inline std::vector<float> vlm_patches(VlmCase const& c, tiered::VisionConfig const& config) {
  tiered::SplitMix64 random(c.seed);
  std::size_t const area = std::size_t(config.patch_size) * std::size_t(config.patch_size);
  std::size_t n = 0;
  for (tiered::PatchGrid const& g : c.grids) n += std::size_t(g.n_patches());
  std::vector<float> out;
  for (std::size_t channel = 0; channel < n * std::size_t(config.n_channels); ++channel) {
    for (int frame = 0; frame < config.temporal_size; ++frame) {
      for (std::size_t i = 0; i < area; ++i) {
        out.push_back(frame == 0 || c.is_video ? float(double(random.next() >> 42) * 0x1p-20 - 2) : out[out.size() - area]);
      }
    }
  }
  return out;
}

}  // namespace tiered_test
