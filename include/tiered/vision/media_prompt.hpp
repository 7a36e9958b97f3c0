/// A prompt with images and videos: its tokens, where their vectors go, and the rotary positions of all. Link tiered::cpu, or include
/// tiered/cpu.hpp in one source file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/vision/media.hpp"
#include "tiered/vision/media_span.hpp"
#include "tiered/vision/positions.hpp"

namespace tiered {

/// What stands for media in the text of the Qwen-VL models, and is a token each.
struct MediaMarks {
  std::string_view image = "<|image_pad|>", video = "<|video_pad|>", begin = "<|vision_start|>", end = "<|vision_end|>";
};
/// Ids of the first two; -1: the vocabulary has none.
struct MediaTokens {
  std::int32_t image = -1, video = -1;
};

/// Where a MediaSpan comes from.
struct MediaPlace {
  std::int32_t medium = -1;  ///< of MediaPrompt::media; -1: its vectors must be in a sequence already, nothing else is known of it
  std::int32_t step = 0;
  friend bool operator==(MediaPlace const&, MediaPlace const&) = default;
};

struct MediaPrompt {
  std::vector<std::int32_t> tokens;
  std::vector<MediaSpan> spans;    ///< ascending, apart
  std::vector<MediaPlace> places;  ///< of each span
  std::vector<Media> media;
  /// [3, n]: time, height and width of the last n tokens; those before must be where a sequence has them. Empty without spans: all is text.
  std::vector<std::int32_t> positions;

  std::int32_t n_tokens() const { return std::int32_t(tokens.size()); }
  std::int32_t n_positions() const { return std::int32_t(positions.size() / 3); }
};

/// The text with what the processor writes into it before it is tokenised: where MropeConfig::frames_apart, a video's begin, mark and end
/// are written for each step, behind its time in words ("<1.2 seconds>"), as transformers did up to 4.57 and vLLM does (5.24 leaves
/// another begin and end around all of them, which the models were not trained with).
/// Errors  precondition for another number of marks than of videos, with both.
std::string with_frame_times(std::string_view text, std::span<Media const> media, MropeConfig const& config);

/// `tokens`: of with_frame_times(), with one token where each image and each video stands (frames apart: each step); it becomes as many
/// as the medium has. Images and videos are each taken in their order. `start`: the rotary position of the first token.
/// Errors  precondition for another number of such tokens than of media, with both; those of mrope_positions().
MediaPrompt media_prompt(std::span<std::int32_t const> tokens, std::vector<Media> media, MediaTokens const& ids, MropeConfig const& config,
                         std::int32_t start = 0);

/// `prompt` behind what a sequence holds; it was made with `start` where that goes on.
MediaPrompt behind(std::span<std::int32_t const> tokens, std::span<MediaSpan const> spans, MediaPrompt prompt);

}  // namespace tiered
