/// Defines what positions.hpp declares: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/detail/vision_families.hpp"
#include "tiered/vision/positions.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered {
namespace detail {

/// Takes the placeholders of a prompt one grid after another.
class PlaceholderReader {
 public:
  PlaceholderReader(std::span<std::int32_t const> tokens, std::int32_t image_token, std::int32_t video_token)
      : tokens_(tokens), image_token_(image_token), video_token_(video_token) {}

  bool at_end() const { return at_ == tokens_.size(); }
  PromptKind kind() const {
    return tokens_[at_] == image_token_ ? PromptKind::image : tokens_[at_] == video_token_ ? PromptKind::video : PromptKind::text;
  }
  /// At most n of the kind that comes now.
  std::int64_t take(std::int64_t n) {
    PromptKind const first = kind();
    std::int64_t taken = 0;
    for (; taken < n && !at_end() && kind() == first; ++taken) ++at_;
    return taken;
  }
  std::size_t at() const { return at_; }

 private:
  std::span<std::int32_t const> tokens_;
  std::int32_t image_token_, video_token_;
  std::size_t at_ = 0;
};

/// The next of `grids` for the placeholders that come now.
inline PromptPart take_grid(PlaceholderReader& reader, std::span<VideoGrid const> grids, std::size_t& n_used, int merge_size) {
  PromptKind const kind = reader.kind();
  char const* const what = kind == PromptKind::image ? "images" : "videos or frames of them";
  if (n_used == grids.size()) {
    throw Error(Errc::precondition, concat("token ", reader.at(), " of the prompt stands for more than the ", grids.size(), " ", what));
  }
  PromptPart part{kind, grids[n_used].grid.n_tokens(merge_size), grids[n_used].grid, grids[n_used].seconds_per_patch};
  std::size_t const begin = reader.at();
  std::int64_t const taken = reader.take(part.n_tokens);
  ++n_used;
  if (taken != part.n_tokens || taken == 0) {
    throw Error(Errc::precondition, concat("the prompt has ", taken, " tokens from token ", begin, " on for number ", n_used, " of ",
                                           grids.size(), " ", what, ", which has ", part.n_tokens));
  }
  return part;
}

constexpr std::int64_t max_position = 0x7fffffff;

/// Errors  precondition for a part that is not as PromptPart says, or has more tokens than there are positions.
inline void check_part(PromptPart const& part, int merge_size) {
  expects(part.n_tokens >= 0 && part.n_tokens <= max_position, "a part of a prompt has 0 to 2^31-1 tokens");
  if (part.kind == PromptKind::text) return;
  PatchGrid const& g = part.grid;
  check_grid(g, merge_size);
  if (g.n_tokens(merge_size) == part.n_tokens) return;
  throw Error(Errc::precondition, concat("a grid of ", g.t, " x ", g.h, " x ", g.w, " patches, merged by ", merge_size, ", is not of ",
                                         part.n_tokens, " tokens"));
}

}  // namespace detail

MropeConfig mrope_config(VisionConfig const& config) {
  detail::VisionFamily const& family = detail::vision_family(config.projector, "");
  MropeConfig out;
  out.merge_size = config.merge_size;
  out.tokens_per_second = family.tokens_per_second;
  out.frames_apart = family.frames_apart;
  return out;
}

std::vector<PromptPart> split_prompt(std::span<std::int32_t const> tokens, std::int32_t image_token, std::int32_t video_token,
                                     std::span<PatchGrid const> images, std::span<VideoGrid const> videos, MropeConfig const& config) {
  expects(config.merge_size > 0, "merge_size is positive");
  std::vector<VideoGrid> image_grids, video_grids;
  for (PatchGrid const& grid : images) {
    check_grid(grid, config.merge_size);
    image_grids.push_back({grid, 1});
  }
  for (VideoGrid const& video : videos) {
    check_grid(video.grid, config.merge_size);
    if (!config.frames_apart) {
      video_grids.push_back(video);
      continue;
    }
    for (std::int64_t t = 0; t < video.grid.t; ++t) video_grids.push_back({{1, video.grid.h, video.grid.w}, video.seconds_per_patch});
  }
  std::vector<PromptPart> parts;
  detail::PlaceholderReader reader(tokens, image_token, video_token);
  std::size_t n_images = 0, n_videos = 0;
  while (!reader.at_end()) {
    switch (reader.kind()) {
      case PromptKind::text: parts.push_back({PromptKind::text, reader.take(std::int64_t(tokens.size()))}); break;
      case PromptKind::image: parts.push_back(detail::take_grid(reader, image_grids, n_images, config.merge_size)); break;
      case PromptKind::video: parts.push_back(detail::take_grid(reader, video_grids, n_videos, config.merge_size)); break;
    }
  }
  if (n_images < image_grids.size() || n_videos < video_grids.size()) {
    throw Error(Errc::precondition, concat("the prompt has placeholders for ", n_images, " of ", image_grids.size(), " images and ",
                                           n_videos, " of ", video_grids.size(), " videos or frames of them"));
  }
  return parts;
}

MropePositions mrope_positions(std::span<PromptPart const> parts, MropeConfig const& config, std::int32_t start) {
  expects(config.merge_size > 0 && start >= 0, "merge_size is positive, and the first position not negative");
  MropePositions out;
  std::int64_t n_tokens = 0;
  for (PromptPart const& part : parts) {
    detail::check_part(part, config.merge_size);
    n_tokens += part.n_tokens;
    expects(n_tokens <= detail::max_position, "a prompt has fewer than 2^31 tokens");
  }
  for (auto* const axis : {&out.time, &out.height, &out.width}) axis->reserve(std::size_t(n_tokens));
  std::int64_t at = start, next = start;
  auto const add = [&](std::int64_t t, std::int64_t h, std::int64_t w) {
    std::int64_t const largest = std::max({t, h, w});
    expects(largest < detail::max_position, "positions have 31 bits");
    next = std::max(next, largest + 1);
    out.time.push_back(std::int32_t(t));
    out.height.push_back(std::int32_t(h));
    out.width.push_back(std::int32_t(w));
  };
  for (PromptPart const& part : parts) {
    if (part.kind == PromptKind::text) {
      for (std::int64_t i = 0; i < part.n_tokens; ++i) add(at + i, at + i, at + i);
      at += part.n_tokens;
      continue;
    }
    // In f32, as tensors of transformers are.
    bool const timed = part.kind == PromptKind::video && config.tokens_per_second > 0 && !config.frames_apart;
    float const interval = timed ? float(config.tokens_per_second) * float(part.seconds_per_patch) : 1.0f;
    expects(interval >= 0 && interval < 1e6f, "frames of a video are 0 to a million positions apart");
    std::int64_t const n_h = part.grid.h / config.merge_size, n_w = part.grid.w / config.merge_size;
    for (std::int64_t t = 0; t < part.grid.t; ++t) {
      auto const time = at + std::int64_t(float(t) * interval);
      for (std::int64_t h = 0; h < n_h; ++h) {
        for (std::int64_t w = 0; w < n_w; ++w) add(time, at + h, at + w);
      }
    }
    at = config.text_after_time ? next : at + std::max(n_h, n_w);
  }
  out.next = std::int32_t(next);
  return out;
}

std::vector<double> frame_seconds(std::span<std::int64_t const> frames, double frames_per_second, int temporal_patch_size) {
  expects(!frames.empty() && frames_per_second > 0 && temporal_patch_size > 0, "a video has frames, and a positive rate of them");
  std::vector<double> seconds;
  auto const per_patch = std::size_t(temporal_patch_size);
  auto const at = [&](std::size_t i) { return double(frames[std::min(i, frames.size() - 1)]) / frames_per_second; };
  for (std::size_t i = 0; i < frames.size(); i += per_patch) seconds.push_back((at(i) + at(i + per_patch - 1)) / 2);
  return seconds;
}

std::string frame_time_text(double seconds) {
  char text[400];
  int const n = std::snprintf(text, sizeof text, "<%.1f seconds>", seconds);
  return std::string(text, std::size_t(std::clamp(n, 0, int(sizeof text) - 1)));
}

}  // namespace tiered
