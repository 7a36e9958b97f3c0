/// Images made of numbers, tiny projectors, and an encoder that counts: what tests of media share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/vision/image.hpp"
#include "tiered/vision/media.hpp"
#include "tiered/vision/media_hash.hpp"
#include "tiered/vision/reference_encoder.hpp"
#include "tiered/vision/video.hpp"
#include "tiered/vision/vision_config.hpp"
#include "tiered/vision/vision_weights.hpp"
#include "vlm_fixture.hpp"

namespace tiered_test {

/// Of each pixel and channel (a x + b y + c) mod 256 with numbers of `kind`: make_dialogs.py makes the same.
inline tiered::Image numbered_image(tiered::ImageSize size, int kind) {
  tiered::Image image(size);
  for (std::int64_t y = 0; y < size.height; ++y) {
    for (std::int64_t x = 0; x < size.width; ++x) {
      for (int c = 0; c < 3; ++c) image.row(y)[3 * x + c] = std::uint8_t((x * (3 + kind) + y * (5 + 2 * c) + 40 * c + 17 * kind) % 256);
    }
  }
  return image;
}

/// A video of numbered images.
class NumberedFilm final : public tiered::VideoSource {
 public:
  NumberedFilm(std::int64_t n_frames, double frames_per_second, tiered::ImageSize size) : info_{n_frames, frames_per_second, size} {}
  tiered::VideoInfo const& info() const override { return info_; }
  std::string_view name() const override { return "film"; }
  void add_content(tiered::MediaHasher& hasher, std::span<std::int64_t const> frames) const override {
    for (std::int64_t const i : frames) hasher.add(i);
  }
  tiered::Image frame(std::int64_t index) override { return numbered_image(info_.size, int(index % 41)); }

 private:
  tiered::VideoInfo info_;
};

/// Real models' numbers, for what reads no weights.
inline tiered::VisionConfig family_config(std::string const& projector) {
  bool const three = projector == "qwen3vl_merger";
  tiered::VisionConfig c;
  c.projector = projector;
  c.name = projector;
  c.patch_size = three ? 16 : 14;
  c.merge_size = 2;
  c.dim = 1280;
  c.output_dim = 2048;
  c.image_mean = {0.48145466f, 0.4578275f, 0.40821073f};
  c.image_std = {0.26862954f, 0.26130258f, 0.27577711f};
  c.min_pixels = three ? 65536 : 3136;
  c.max_pixels = three ? 16777216 : 12845056;
  return c;
}
inline std::vector<std::string> const& projector_families() {
  static std::vector<std::string> const names = {"qwen2vl_merger", "qwen2.5vl_merger", "qwen3vl_merger"};
  return names;
}

/// The reference encoder of a tiny projector; counts what it does.
class CountingEncoder {
 public:
  explicit CountingEncoder(std::string const& model)
      : file_(tiered::GgufFile::open(vlm_path(model + ".mmproj.f32.gguf"))),
        config_(tiered::read_vision_config(file_)),
        weights_(tiered::read_vision_weights(file_, config_)) {}

  tiered::VisionConfig const& config() const { return config_; }
  tiered::VisionEncoding encode(tiered::Patches const& patches) { return encode(std::span<tiered::Patches const>(&patches, 1), false); }
  tiered::VisionEncoding encode(std::span<tiered::Patches const> all, bool) {
    ++n_calls;
    std::vector<float> values;
    std::vector<tiered::PatchGrid> grids;
    for (tiered::Patches const& patches : all) {
      n_steps += patches.grid().t;
      grids.push_back(patches.grid());
      std::size_t const n_before = values.size();
      values.resize(n_before + std::size_t(patches.grid().n_patches() * patches.patch_elems()));
      patches.write(0, patches.grid().n_patches(), std::span(values).subspan(n_before));
    }
    return tiered::ReferenceVisionEncoder(config_, weights_).encode(values, grids);
  }

  int n_calls = 0;
  std::int64_t n_steps = 0;

 private:
  tiered::GgufFile file_;
  tiered::VisionConfig config_;
  tiered::VisionWeights weights_;
};

/// Few tokens an image, so that the reference is quick.
inline tiered::MediaOptions few_tokens(std::int64_t least = 4, std::int64_t most = 16) {
  tiered::MediaOptions options;
  options.min_tokens = least;
  options.max_tokens = most;
  return options;
}

}  // namespace tiered_test
