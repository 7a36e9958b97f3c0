/// From images to the patches that the vision encoders of Qwen2-VL, Qwen2.5-VL and Qwen3-VL take: sizes, pixels and order of
/// their processors in transformers. Link tiered::cpu, or include tiered/cpu.hpp in one source file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tiered/fwd.hpp"
#include "tiered/vision/image.hpp"
#include "tiered/vision/patch_grid.hpp"

namespace tiered {

/// As a model's file has it. Sides in pixels; the defaults are those of Qwen2VLImageProcessor in transformers, where models' own
/// preprocessor_config.json has a larger max_pixels (VisionConfig: from their projector files).
struct PatchConfig {
  int patch_size = 14;
  int merge_size = 2;           ///< so many patches a side become one token
  int temporal_patch_size = 2;  ///< so many frames a patch; an image is repeated
  std::int64_t min_pixels = 56 * 56;
  std::int64_t max_pixels = 28 * 28 * 1280;
  std::array<float, 3> mean = {0.48145466f, 0.4578275f, 0.40821073f};
  std::array<float, 3> std_dev = {0.26862954f, 0.26130258f, 0.27577711f};

  int factor() const { return patch_size * merge_size; }
};

/// Of images, as a projector's file says.
PatchConfig patch_config(VisionConfig const& config);
/// Of videos: with the limits that the model's family has for them, which files do not say.
/// Errors  Errc::unsupported for a family that there is not.
PatchConfig video_patch_config(VisionConfig const& config);

/// The size that an image, or each frame of a video of Qwen2-VL or Qwen2.5-VL, is resized to: sides are multiples of
/// config.factor(), and pixels in [min_pixels, max_pixels] where the sides' rounding allows.
/// Errors  unsupported for one side more than 200 times the other; precondition for a config of numbers below 1.
ImageSize smart_resize(ImageSize size, PatchConfig const& config);
/// The same for Qwen3-VL's videos, whose limits are of all frames together.
/// Errors  also unsupported for fewer frames than a patch has.
ImageSize smart_resize_video(ImageSize size, std::int64_t n_frames, PatchConfig const& config);

/// Antialiased bicubic (a = -0.5): columns, then rows, each rounded to 8 bits, with weights of 16 bits. Equal to the last bit to what
/// torchvision's resize() gives for 8-bit images on the CPU, which is the default of the processors in transformers 5; Pillow's
/// differs by 1 here and there, and rarely by 2.
/// Memory   some rows a thread beside the result. Threads  those of `team`, or the caller's.
Image resize_bicubic(Image const& image, ImageSize size, Team* team = nullptr);

/// The patches of an image, or of frames of one size. Holds 8-bit pixels only, and makes patches where they are asked for: memory
/// is 3 bytes a pixel, whatever is taken at a time. Immutable; copies share the pixels.
class Patches {
 public:
  /// Of a still: resized as smart_resize() says. Not copied where it is moved in and has that size already.
  /// Errors  as smart_resize(); precondition for an empty image.
  explicit Patches(Image image, PatchConfig const& config = {}, Team* team = nullptr);
  /// Of frames, all resized to `size`, a multiple of config.factor(). The last is repeated to fill its patch. A long video
  /// is taken in pieces of temporal_patch_size frames, each a Patches of its own: its patches are a range of the whole's.
  /// Errors  precondition for no frames, frames of different sizes, or another size.
  Patches(std::vector<Image> frames, ImageSize size, PatchConfig const& config, Team* team = nullptr);

  PatchGrid grid() const { return grid_; }
  ImageSize size() const { return frames_->front().size(); }
  /// Resized; of a still one.
  std::span<Image const> frames() const { return *frames_; }
  /// channel * temporal_patch_size * patch_size * patch_size, slowest first.
  std::int64_t patch_elems() const { return std::int64_t{3} * config_.temporal_patch_size * config_.patch_size * config_.patch_size; }

  /// Rows [first, first + n) of pixel_values: (value - 255 mean) / (255 std_dev), in f32, equal to the last bit to the processor's.
  /// Patches go by t, then blocks of merge_size x merge_size from left to right and top to bottom, and within a block the same way:
  /// those of a token are neighbours, and grid().w * merge_size patches are a row of tokens.
  /// Shapes   out [n, patch_elems()] f32
  /// Errors   precondition for a range outside [0, grid().n_patches()), or `out` of another size.
  /// Threads  any, at the same time; works on those of `team`, where there is one.
  void write(std::int64_t first, std::int64_t n, std::span<float> out, Team* team = nullptr) const;

 private:
  void prepare(std::vector<Image> frames, ImageSize size, Team* team);
  void write_one(std::int64_t patch, float* out) const;

  PatchConfig config_;
  PatchGrid grid_{};
  std::shared_ptr<std::vector<Image> const> frames_;
  std::array<std::array<float, 256>, 3> normalised_{};  // by channel and value
};

}  // namespace tiered
