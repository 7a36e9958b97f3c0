/// Positions of a prompt's tokens in multi-section rope: time, height and width. Link tiered::cpu, or include tiered/cpu.hpp in
/// one source file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tiered/fwd.hpp"
#include "tiered/vision/preprocess.hpp"

namespace tiered {

/// What of get_rope_index() in transformers differs between models.
struct MropeConfig {
  int merge_size = 2;
  /// How far apart frames of a video are: positions count seconds times this (tokens_per_second of Qwen2.5-VL's vision_config).
  /// 0: by one each, as in Qwen2-VL.
  double tokens_per_second = 0;
  /// Qwen3-VL: a prompt has the time of each frame pair in words before it, so each is an image of its own to positions.
  bool frames_apart = false;
  /// Where text goes on after a video whose time positions reach beyond its height and width: behind them all, as in Qwen2-VL's
  /// paper and transformers 4, or behind height and width only, as in transformers 5 (false).
  bool text_after_time = false;
};

/// Of a projector's family.  Errors  Errc::unsupported for one that there is not.
MropeConfig mrope_config(VisionConfig const& config);

enum class PromptKind : std::uint8_t { text, image, video };

/// Tokens of a prompt that belong together: text, an image, a video (or, where frames are apart, a frame pair of it).
struct PromptPart {
  PromptKind kind = PromptKind::text;
  std::int64_t n_tokens = 0;     ///< grid.n_tokens() of an image or a video
  PatchGrid grid{};              ///< of an image or a video
  double seconds_per_patch = 1;  ///< of a video: temporal_patch_size / frames a second (second_per_grid_ts)
  friend bool operator==(PromptPart const&, PromptPart const&) = default;
};

/// A video of a prompt.
struct VideoGrid {
  PatchGrid grid{};
  double seconds_per_patch = 1;
};

/// Splits a prompt by its placeholders: each image and video has grid.n_tokens() of its own; with config.frames_apart, each
/// frame pair of a video. Grids in the order of the prompt. Images may follow each other with nothing in between.
/// Errors  precondition where placeholders and grids are not of one number, with the numbers, or for a grid as in check_grid().
std::vector<PromptPart> split_prompt(std::span<std::int32_t const> tokens, std::int32_t image_token, std::int32_t video_token,
                                     std::span<PatchGrid const> images, std::span<VideoGrid const> videos, MropeConfig const& config);

/// Three numbers a token, each array as long as the prompt.
struct MropePositions {
  std::vector<std::int32_t> time, height, width;
  /// Of the next text token: rope_deltas of transformers plus the number of tokens. A later turn starts here.
  std::int32_t next = 0;
};

/// Equal to get_rope_index() of Qwen2-VL, Qwen2.5-VL and Qwen3-VL in transformers 5 for a prompt that starts at position 0.
/// Errors  precondition for tokens that are not grid.n_tokens(), grids that merge_size does not divide, 2^31 tokens or more, or positions
///         beyond 2^31.
MropePositions mrope_positions(std::span<PromptPart const> parts, MropeConfig const& config, std::int32_t start = 0);

/// Seconds of each frame pair of a video: the middle of its first and last frame. `frames` are numbers of the frames taken; the last
/// is repeated where they do not fill a patch.
/// Errors  precondition for no frames, or a rate that is not positive.
std::vector<double> frame_seconds(std::span<std::int64_t const> frames, double frames_per_second, int temporal_patch_size = 2);
/// What Qwen3-VL reads before a frame pair: "<1.2 seconds>".
std::string frame_time_text(double seconds);

}  // namespace tiered
