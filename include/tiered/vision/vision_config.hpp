/// A vision encoder's numbers as they stand in its projector file ("mmproj"): plain data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tiered/fwd.hpp"
#include "tiered/model/config.hpp"
#include "tiered/vision/media_hash.hpp"

namespace tiered {

enum class VisionNorm : std::uint8_t {
  layer,  ///< less the mean, over the standard deviation, times a weight, plus a bias
  rms,    ///< as RmsNormArgs
};
enum class VisionActivation : std::uint8_t {
  quick_gelu,  ///< x * sigmoid(1.702 x)
  gelu_tanh,
  silu,
};

struct VisionLayerConfig {
  bool full_attention = true;  ///< to every patch of the frame; else to those of the same window
  bool deepstack = false;      ///< what leaves the layer is also merged into a feature of its own
};

/// Sizes are in pixels where they say so, else in elements. Every frame of a video attends to itself only.
struct VisionConfig {
  std::string projector, name;
  std::int32_t n_channels = 3;
  std::int32_t patch_size = 0;     ///< pixels a side
  std::int32_t temporal_size = 2;  ///< frames in a patch; a still image is the same frame twice
  std::int32_t merge_size = 0;     ///< patches a side that become one token of the decoder
  std::int32_t window_size = 0;    ///< pixels a side, 0 where all layers attend to the whole frame
  std::int32_t dim = 0, hidden_dim = 0, n_layers = 0, n_heads = 0, head_dim = 0;
  std::int32_t output_dim = 0;  ///< the decoder's width
  VisionNorm norm = VisionNorm::layer;
  float norm_eps = 0;
  VisionActivation activation = VisionActivation::gelu_tanh;
  bool gated = false;              ///< down(act(gate x) * up x), else down(act(up x)); mergers: down(gelu(up x)), the exact one (erf)
  std::int32_t position_side = 0;  ///< of the square table of learned positions, interpolated to the frame's grid; 0: no table
  float rope_base = 10000;         ///< a quarter of a head's pairs turns by the row of the patch, the next quarter by its column
  std::array<float, 3> image_mean{}, image_std{};  ///< of pixels in [0, 1]: (pixel - image_mean) / image_std
  std::int64_t min_pixels = 0, max_pixels = 0;     ///< of an image once it is resized
  std::vector<VisionLayerConfig> layers;
  MediaHash weights{};  ///< of a few bytes of each tensor, by VisionModel: tells encoders apart that are alike in all else

  std::int32_t n_deepstack() const {
    std::int32_t n = 0;
    for (VisionLayerConfig const& layer : layers) n += layer.deepstack ? 1 : 0;
    return n;
  }
  /// Elements of one frame's share of a patch, [channels, rows, columns]; a patch is [channels, frames, rows, columns].
  std::int32_t frame_elems() const { return n_channels * patch_size * patch_size; }
  std::int32_t patch_elems() const { return frame_elems() * temporal_size; }
  /// Of the merger's input, merge_size * merge_size patches side by side.
  std::int32_t merged_dim() const { return dim * merge_size * merge_size; }
  /// Tokens a side of a window; 0 where there are none.
  std::int32_t window_tokens() const { return window_size / merge_size / patch_size; }
};

/// By which rows of patches and columns (rows 1 and 2 of rotary positions; 0 would be time) turn a head's pairs.
RopeTable vision_rope(VisionConfig const& config);

/// Reads no byte of matrices.
/// Errors  Errc::unsupported (a file that is no projector, or one that nothing here runs: named), bad_file (a number or shape that cannot
///         be), not_found (a key or tensor that the projector needs).
VisionConfig read_vision_config(GgufFile const& file);

}  // namespace tiered
