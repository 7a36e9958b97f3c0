/// Defines what media_prompt.hpp declares: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/media_prompt.hpp"

namespace tiered {

namespace detail {

inline std::int64_t count_media(std::span<Media const> media, PromptKind kind) {
  return std::count_if(media.begin(), media.end(), [&](Media const& m) { return m.info().kind == kind; });
}

[[noreturn]] inline void fail_by_number(std::int64_t n_places, std::int64_t n_media, char const* what) {
  throw Error(Errc::precondition, concat("the prompt has ", n_places, n_places == 1 ? " place for " : " places for ", what, ", of which ",
                                         n_media, n_media == 1 ? " was given" : " were given"));
}

/// Lays media between the text of a prompt.
class MediaLayout {
 public:
  MediaLayout(std::vector<Media> media, MediaTokens const& ids, MropeConfig const& config) : ids_(ids), config_(config) {
    out_.media = std::move(media);
  }

  MediaPrompt lay(std::span<std::int32_t const> tokens, std::int32_t start) {
    bool const has_image = ids_.image >= 0, has_video = ids_.video >= 0;
    for (std::int32_t const token : tokens) {
      if (has_image && token == ids_.image)
        add_image();
      else if (has_video && token == ids_.video)
        add_video();
      else
        add_text(token);
    }
    check_number(n_image_places_, PromptKind::image, "images");
    check_number(n_video_places_, PromptKind::video, config_.frames_apart ? "steps of videos" : "videos");
    MropePositions const at = mrope_positions(parts_, config_, start);
    for (MediaSpan& span : out_.spans) span.time = at.time[std::size_t(span.begin)];
    for (auto const* axis : {&at.time, &at.height, &at.width}) out_.positions.insert(out_.positions.end(), axis->begin(), axis->end());
    return std::move(out_);
  }

 private:
  void add_text(std::int32_t token) {
    if (parts_.empty() || parts_.back().kind != PromptKind::text) parts_.push_back({PromptKind::text, 0});
    ++parts_.back().n_tokens;
    out_.tokens.push_back(token);
  }
  void add_image() {
    ++n_image_places_;
    std::size_t const medium = next(PromptKind::image, n_images_);
    if (medium == out_.media.size()) return;
    ++n_images_;
    add_steps(medium, {0, 1}, ids_.image);
  }
  /// A step of the video that comes now, or all of it.
  void add_video() {
    ++n_video_places_;
    std::size_t const medium = next(PromptKind::video, n_videos_);
    if (medium == out_.media.size()) return;
    auto const n_steps = std::int32_t(out_.media[medium].info().grid.t);
    Range const steps = config_.frames_apart ? Range{step_, step_ + 1} : Range{0, n_steps};
    step_ = steps.end == n_steps ? 0 : steps.end;
    n_videos_ += steps.end == n_steps ? 1 : 0;
    add_steps(medium, steps, ids_.video);
  }
  /// The n-th of a kind; media.size() where there are fewer.
  std::size_t next(PromptKind kind, std::int64_t n) const {
    std::size_t i = 0;
    while (i < out_.media.size() && (out_.media[i].info().kind != kind || n-- > 0)) ++i;
    return i;
  }
  void add_steps(std::size_t medium, Range steps, std::int32_t token) {
    MediaInfo const& info = out_.media[medium].info();
    std::int64_t const n = out_.media[medium].step_tokens(config_.merge_size);
    PromptPart part{info.kind, n * steps.size(), {steps.size(), info.grid.h, info.grid.w}, info.seconds_per_patch};
    if (std::int64_t(out_.tokens.size()) + part.n_tokens > 0x7fffffff)
      throw Error(Errc::over_budget, concat("a prompt of ", std::int64_t(out_.tokens.size()) + part.n_tokens, " tokens"));
    for (std::int32_t step = steps.begin; step < steps.end; ++step) {
      out_.spans.push_back({std::int32_t(out_.tokens.size()), std::int32_t(n), 0, 0, info.hashes[std::size_t(step)]});
      out_.places.push_back({std::int32_t(medium), step});
      out_.tokens.insert(out_.tokens.end(), std::size_t(n), token);
    }
    parts_.push_back(part);
  }
  void check_number(std::int64_t n_places, PromptKind kind, char const* what) const {
    std::int64_t n = 0;
    for (Media const& m : out_.media) {
      if (m.info().kind == kind) n += kind == PromptKind::video && config_.frames_apart ? m.info().grid.t : 1;
    }
    if (n != n_places) fail_by_number(n_places, n, what);
  }

  MediaTokens ids_;
  MropeConfig config_;
  MediaPrompt out_;
  std::vector<PromptPart> parts_;
  std::int64_t n_image_places_ = 0, n_video_places_ = 0, n_images_ = 0, n_videos_ = 0;
  std::int32_t step_ = 0;
};

}  // namespace detail

std::string with_frame_times(std::string_view text, std::span<Media const> media, MropeConfig const& config) {
  if (!config.frames_apart) return std::string(text);
  constexpr MediaMarks marks;
  std::string out;
  std::int64_t n_places = 0;
  auto video = media.begin();
  for (;;) {
    std::size_t const at = text.find(marks.video);
    if (at == text.npos) break;
    ++n_places;
    video = std::find_if(video, media.end(), [](Media const& m) { return m.info().kind == PromptKind::video; });
    std::string_view before = text.substr(0, at);
    text.remove_prefix(at + marks.video.size());
    if (video == media.end()) continue;  // counted, then told
    if (before.ends_with(marks.begin) && text.starts_with(marks.end)) {
      before.remove_suffix(marks.begin.size());
      text.remove_prefix(marks.end.size());
    }
    out += before;
    for (double const seconds : video->info().seconds) out += concat(frame_time_text(seconds), marks.begin, marks.video, marks.end);
    ++video;
  }
  std::int64_t const n_videos = detail::count_media(media, PromptKind::video);
  if (n_places != n_videos) detail::fail_by_number(n_places, n_videos, "videos");
  return out += text;
}

MediaPrompt media_prompt(std::span<std::int32_t const> tokens, std::vector<Media> media, MediaTokens const& ids, MropeConfig const& config,
                         std::int32_t start) {
  expects(config.merge_size > 0, "merge_size is positive");
  return detail::MediaLayout(std::move(media), ids, config).lay(tokens, start);
}

MediaPrompt behind(std::span<std::int32_t const> tokens, std::span<MediaSpan const> spans, MediaPrompt prompt) {
  for (MediaSpan& span : prompt.spans) span.begin += std::int32_t(tokens.size());
  prompt.tokens.insert(prompt.tokens.begin(), tokens.begin(), tokens.end());
  prompt.spans.insert(prompt.spans.begin(), spans.begin(), spans.end());
  prompt.places.insert(prompt.places.begin(), spans.size(), MediaPlace{});
  return prompt;
}

}  // namespace tiered
