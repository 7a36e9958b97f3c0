/// Images and videos of a prompt: what is known of each before a model sees it, and its patches when it does. Link tiered::cpu, or include
/// tiered/cpu.hpp in one source file.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/ids.hpp"
#include "tiered/vision/image_file.hpp"
#include "tiered/vision/media_hash.hpp"
#include "tiered/vision/positions.hpp"
#include "tiered/vision/preprocess.hpp"
#include "tiered/vision/video.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered {

/// Plain data: what a prompt, a conversation and a cache must know. A *step* is what an encoder sees by itself: an image, or
/// temporal_size frames of a video.
struct MediaInfo {
  PromptKind kind = PromptKind::image;
  PatchGrid grid{};                 ///< t: steps
  double seconds_per_patch = 1;     ///< of a video: of a step, as PromptPart's
  std::vector<double> seconds{};    ///< of a video: where each step lies, as frame_seconds() has it
  std::vector<MediaHash> hashes{};  ///< of each step: of its pixels, or of what they are decoded from, and of how they were prepared
};

/// Where a medium's pixels are.
class MediaPixels {
 public:
  virtual ~MediaPixels() = default;
  /// Of steps [begin, end): a grid of so many, h and w as in the whole's.
  virtual Patches patches(Range steps) = 0;
};

/// An image or a video. Copies share one state, and are for one thread at a time.
class Media {
 public:
  /// Errors  precondition for another kind than an image or a video, or not one hash a step.
  Media(std::string name, MediaInfo info, std::unique_ptr<MediaPixels> pixels);

  MediaInfo const& info() const { return shared_->info; }
  /// Of messages: its path.
  std::string const& name() const { return shared_->name; }
  std::int64_t step_tokens(int merge_size) const { return info().grid.frame_patches() / (std::int64_t{merge_size} * merge_size); }
  /// Reads them again, where they are not in memory: a video's frames.
  /// Errors  precondition for no steps or others than there are; those of reading.
  Patches patches(Range steps) const;

 private:
  struct Shared {
    std::string name;
    MediaInfo info;
    std::unique_ptr<MediaPixels> pixels;
  };
  std::shared_ptr<Shared const> shared_;
};

struct MediaOptions {
  ImageLimits limits{};
  /// Tokens of an image, or of a step of a video; 0: as the projector's file, or the model's family, says. The other one follows where
  /// they cross. max_tokens holds always, also where the models' processor, which rounds sides up to reach the least, would pass it.
  std::int64_t min_tokens = 0, max_tokens = 0;
  Team* team = nullptr;  ///< resizes; outlives the reader
  /// Hashing a video's steps and decoding them ends with Errc::cancelled once it is set; outlives what the reader makes.
  std::atomic<bool> const* cancelled = nullptr;
};

/// Patches of the largest image, or step of a video, that a reader with these options makes: an encoder needs room for them
/// (VisionOptions::max_patches).
std::int64_t max_patches(VisionConfig const& config, MediaOptions const& options = {});

/// Prepares media for the encoder of one projector.
class MediaReader {
 public:
  /// Errors  Errc::precondition for limits below 0, or the least above the most.
  explicit MediaReader(VisionConfig const& config, MediaOptions options = {});

  VisionConfig const& config() const { return config_; }
  std::int64_t max_patches() const { return tiered::max_patches(config_, options_); }
  /// Decoded and resized now; kept as 8-bit pixels of the resized size. Known by the file's bytes: of a photo, pixels are twenty times as
  /// many.
  /// Errors  of load_image() and smart_resize().
  Media image(std::string const& path) const;
  /// `name`: of messages. Known by `content`, what it was decoded from; null: by its pixels.
  Media image(Image image, std::string name = "image", MediaHasher const* content = nullptr) const;
  /// Which frames is settled now; they are decoded when they are encoded, some at a time, so that memory does not grow with the length.
  /// Errors  of sample_frames(), smart_resize(), VideoSource::add_content().
  Media video(std::shared_ptr<VideoSource> source, VideoSampling const& sampling = {}) const;

 private:
  ImageSize resized(ImageSize size, std::int64_t n_frames, PatchConfig config) const;
  MediaHasher hasher(PatchConfig const& config, ImageSize size) const;

  VisionConfig config_;
  MediaOptions options_;
};

}  // namespace tiered
