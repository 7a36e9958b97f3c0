/// Defines what media.hpp declares: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/detail/cancelled.hpp"
#include "tiered/vision/detail/vision_families.hpp"
#include "tiered/vision/media.hpp"

namespace tiered {

namespace detail {

/// Calls make(); what goes wrong there names the medium.
template <class Make>
auto naming(std::string const& name, Make const& make) {
  try {
    return make();
  } catch (std::bad_alloc const&) {
    throw Error(Errc::out_of_memory, concat(name, ": no memory for its pixels"));
  } catch (Error const& e) {
    if (std::string_view(e.what()).starts_with(name)) throw;
    throw Error(e.code(), concat(name, ": ", e.what()));
  }
}

/// Of an image: resized, in memory.
class StillPixels final : public MediaPixels {
 public:
  explicit StillPixels(Patches patches) : patches_(std::move(patches)) {}
  Patches patches(Range) override { return patches_; }

 private:
  Patches patches_;
};

/// The frames of a video that a model sees, steps of them decoded anew for each call.
class SampledVideo final : public MediaPixels {
 public:
  SampledVideo(std::shared_ptr<VideoSource> source, std::vector<std::int64_t> frames, ImageSize size, PatchConfig const& config,
               MediaOptions const& options)
      : source_(std::move(source)),
        frames_(std::move(frames)),
        size_(size),
        config_(config),
        team_(options.team),
        cancelled_(options.cancelled) {}

  /// Of a step: their numbers.
  std::span<std::int64_t const> step(Range steps) const {
    auto const per_step = std::size_t(config_.temporal_patch_size), begin = std::size_t(steps.begin) * per_step;
    return std::span(frames_).subspan(begin, std::min(std::size_t(steps.size()) * per_step, frames_.size() - begin));
  }
  Patches patches(Range steps) override {
    std::vector<Image> images;
    for (std::int64_t const i : step(steps)) {
      check_cancelled(cancelled_);
      images.push_back(resize_bicubic(source_->frame(i), size_, team_));
    }
    return Patches(std::move(images), size_, config_, team_);
  }

 private:
  std::shared_ptr<VideoSource> source_;
  std::vector<std::int64_t> frames_;
  ImageSize size_;
  PatchConfig config_;
  Team* team_;
  std::atomic<bool> const* cancelled_;
};

/// `n_frames`: that a limit is of together.
inline PatchConfig with_limits(PatchConfig config, MediaOptions const& options, std::int64_t n_frames) {
  std::int64_t const token = std::int64_t{config.factor()} * config.factor() * n_frames;
  if (options.min_tokens > 0) config.min_pixels = options.min_tokens * token;
  if (options.max_tokens > 0) config.max_pixels = options.max_tokens * token;
  if (options.min_tokens > 0) config.max_pixels = std::max(config.max_pixels, config.min_pixels);
  config.min_pixels = std::min(config.min_pixels, config.max_pixels);
  return config;
}

/// A bound of what smart_resize() makes, in tokens. It rounds sides up to reach the least number of pixels, and down to keep below the
/// most, but to one token at least; one side is at most 200 times the other.
inline std::int64_t most_tokens(PatchConfig const& config) {
  double const token = double(config.factor()) * config.factor(), least = double(config.min_pixels) / token,
               most = double(config.max_pixels) / token, aspect = 200;
  double const rounded_up = std::sqrt(least * aspect) + std::sqrt(least / aspect) + least + 1, thin = std::sqrt(most * aspect);
  return std::int64_t(std::ceil(std::max({most, rounded_up, thin})));
}

/// The size of at most so many tokens that is nearest to the shape of `size`: sides are rounded down, and a strip of one token is as long
/// as there are tokens.
inline ImageSize within(ImageSize size, std::int64_t n_tokens, std::int64_t factor) {
  double const shrink = std::sqrt(double(n_tokens) / (double(size.width) * double(size.height)));
  std::int64_t const w = std::int64_t(double(size.width) * shrink), h = std::int64_t(double(size.height) * shrink);
  return {std::clamp(w, std::int64_t{1}, n_tokens) * factor, std::clamp(h, std::int64_t{1}, n_tokens) * factor};
}

}  // namespace detail

Media::Media(std::string name, MediaInfo info, std::unique_ptr<MediaPixels> pixels)
    : shared_(std::make_shared<Shared const>(Shared{std::move(name), std::move(info), std::move(pixels)})) {
  MediaInfo const& i = this->info();
  expects(shared_->pixels != nullptr && i.kind != PromptKind::text && i.grid.t > 0 && i.hashes.size() == std::size_t(i.grid.t) &&
              (i.kind == PromptKind::image ? i.grid.t == 1 : i.seconds.size() == std::size_t(i.grid.t)),
          "a medium is an image or a video, with one hash a step, and of a video one time a step");
}

Patches Media::patches(Range steps) const {
  expects(steps.begin >= 0 && steps.begin < steps.end && steps.end <= info().grid.t, "Media::patches: steps are in [0, grid.t)");
  return detail::naming(name(), [&] { return shared_->pixels->patches(steps); });
}

MediaReader::MediaReader(VisionConfig const& config, MediaOptions options) : config_(config), options_(std::move(options)) {
  expects(options_.min_tokens >= 0 && options_.max_tokens >= 0 && options_.min_tokens <= 1 << 24 && options_.max_tokens <= 1 << 24 &&
              (options_.max_tokens == 0 || options_.min_tokens <= options_.max_tokens),
          "tokens of an image are 0 to 2^24, the least no more than the most");
}

std::int64_t max_patches(VisionConfig const& config, MediaOptions const& options) {
  std::int64_t const per_token = std::int64_t{config.merge_size} * config.merge_size;
  if (options.max_tokens > 0) return options.max_tokens * per_token;
  std::int64_t n = detail::most_tokens(detail::with_limits(patch_config(config), options, 1));
  for (detail::VisionFamily const& family : detail::vision_families) {
    if (family.projector != config.projector) continue;
    // Where limits are of all frames, the fewest are the largest: those of one step.
    PatchConfig video = detail::with_limits(video_patch_config(config), options, family.frames_apart ? config.temporal_size : 1);
    if (family.frames_apart) video.min_pixels /= config.temporal_size, video.max_pixels /= config.temporal_size;
    n = std::max(n, detail::most_tokens(video));
  }
  return n * per_token;
}

/// As the models' processor has it, but never beyond the tokens that were asked for. `n_frames`: that a limit is of together; 0: it is of
/// each frame, or of an image.
ImageSize MediaReader::resized(ImageSize size, std::int64_t n_frames, PatchConfig config) const {
  config = detail::with_limits(config, options_, std::max(n_frames, std::int64_t{1}));
  ImageSize const out = n_frames > 0 ? smart_resize_video(size, n_frames, config) : smart_resize(size, config);
  std::int64_t const factor = config.factor();
  if (options_.max_tokens == 0 || out.n_pixels() <= options_.max_tokens * factor * factor) return out;
  return detail::within(size, options_.max_tokens, factor);
}

/// What an encoding depends on besides the pixels.
MediaHasher MediaReader::hasher(PatchConfig const& config, ImageSize size) const {
  MediaHasher h;
  h.add(std::string_view(config_.projector));
  h.add(std::int64_t(config_.name.size()));
  h.add(std::string_view(config_.name));
  h.add(std::as_bytes(std::span(config_.weights.bytes)));
  for (std::int64_t const n :
       {std::int64_t{config.patch_size}, std::int64_t{config.merge_size}, std::int64_t{config.temporal_patch_size},
        std::int64_t{config_.dim}, std::int64_t{config_.n_layers}, std::int64_t{config_.output_dim}, size.width, size.height}) {
    h.add(n);
  }
  for (float const x : config.mean) h.add(std::int64_t{std::bit_cast<std::uint32_t>(x)});
  for (float const x : config.std_dev) h.add(std::int64_t{std::bit_cast<std::uint32_t>(x)});
  return h;
}

Media MediaReader::image(std::string const& path) const {
  MediaHasher content;
  Image image = load_image(path, options_.limits, &content);
  return this->image(std::move(image), path, &content);
}

Media MediaReader::image(Image image, std::string name, MediaHasher const* content) const {
  PatchConfig const config = patch_config(config_);
  Patches patches = detail::naming(name, [&] {
    expects(!image.empty(), "patches are of an image that has pixels");
    ImageSize const size = resized(image.size(), 0, config);
    std::vector<Image> still;
    still.push_back(std::move(image));
    return Patches(std::move(still), size, config, options_.team);
  });
  MediaHasher h = hasher(config, patches.size());
  MediaHash const of_file = content != nullptr ? content->value() : MediaHash{};
  h.add(content != nullptr ? std::as_bytes(std::span(of_file.bytes)) : std::as_bytes(patches.frames().front().rgb()));
  MediaInfo info{PromptKind::image, patches.grid(), 1, {}, {h.value()}};
  return Media(std::move(name), std::move(info), std::make_unique<detail::StillPixels>(std::move(patches)));
}

Media MediaReader::video(std::shared_ptr<VideoSource> source, VideoSampling const& sampling) const {
  expects(source != nullptr, "MediaReader::video: there is a video");
  std::string name(source->name());
  return detail::naming(name, [&] {
    VideoInfo const& v = source->info();
    std::vector<std::int64_t> frames = sample_frames(v, sampling, config_);
    std::int64_t const n_frames = std::int64_t(frames.size()), per_step = config_.temporal_size;
    bool const together = mrope_config(config_).frames_apart;
    PatchConfig const config = video_patch_config(config_);
    ImageSize const size = resized(v.size, together ? n_frames : 0, config);
    MediaInfo info;
    info.kind = PromptKind::video;
    info.grid = {(n_frames + per_step - 1) / per_step, size.height / config.patch_size, size.width / config.patch_size};
    info.seconds_per_patch = double(per_step) / (double(n_frames) / double(v.n_frames) * v.frames_per_second);
    info.seconds = frame_seconds(frames, v.frames_per_second, int(per_step));
    auto sampled = std::make_unique<detail::SampledVideo>(source, std::move(frames), size, config, options_);
    for (std::int32_t t = 0; t < std::int32_t(info.grid.t); ++t) {
      detail::check_cancelled(options_.cancelled);
      MediaHasher h = hasher(config, size);
      source->add_content(h, sampled->step({t, t + 1}));
      info.hashes.push_back(h.value());
    }
    return Media(name, std::move(info), std::move(sampled));
  });
}

}  // namespace tiered
