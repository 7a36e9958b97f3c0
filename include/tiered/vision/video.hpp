/// Videos: frames one at a time, out of a folder of images or a video file, and which of them a model sees. Link tiered::cpu, or include
/// tiered/cpu.hpp in one source file (then with TIERED_HAS_FFMPEG set to 1 where its headers are there).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/fwd.hpp"
#include "tiered/vision/image.hpp"
#include "tiered/vision/image_file.hpp"
#include "tiered/vision/media_hash.hpp"

namespace tiered {

struct VideoInfo {
  std::int64_t n_frames = 0;
  double frames_per_second = 0;
  ImageSize size{};  ///< of each frame
};

/// Decodes frames when they are asked for, and keeps none but the last. One thread at a time. Long work of those that are opened here
/// (going through a file, hashing it, decoding up to a frame) ends with Errc::cancelled once the flag is set that was given for it, which
/// must outlive the video; afterwards it can be used as before.
class VideoSource {
 public:
  virtual ~VideoSource() = default;
  virtual VideoInfo const& info() const = 0;
  /// Of messages: its path.
  virtual std::string_view name() const = 0;
  /// Adds what tells these frames from other pixels, without decoding any.
  virtual void add_content(MediaHasher& hasher, std::span<std::int64_t const> frames) const = 0;
  /// `index` in [0, n_frames). Indices that ascend go through a file once; others begin it anew.
  /// Errors  as load_image(); bad_file also for a frame of another size, or one that is not there.
  virtual Image frame(std::int64_t index) = 0;
};

/// The images of a folder in the order of their names, numbers by their value (2.png before 10.png); those whose names begin with a dot,
/// and other files than images, are left out. `frames_per_second`: at which they were taken.
/// Errors  not_found for no folder, or none with images; io; precondition for a rate that is not positive; of the first frame's
///         load_image().
std::unique_ptr<VideoSource> open_frames(std::string const& folder, double frames_per_second, ImageLimits const& limits = {},
                                         std::atomic<bool> const* cancelled = nullptr);
/// The same of files in that order.
std::unique_ptr<VideoSource> open_frames(std::vector<std::string> files, double frames_per_second, ImageLimits const& limits = {},
                                         std::atomic<bool> const* cancelled = nullptr);

/// Whether video files are read: FFmpeg is optional, when this is built and when it runs.
bool can_decode_video();
/// The first video of a file, upright. Frames are those that a decoder gives, counted by going through the file once, and decoding it where
/// packets do not tell (MPEG-4, interlaced); `limits` hold for each. Only the file itself is read, whatever it refers to.
/// Errors  unsupported where this build cannot, or for a kind of file or codec that it cannot; bad_file for no video in it, or one without
///         frames or a rate of them; over_budget for more pixels than the limit; not_found; io.
std::unique_ptr<VideoSource> open_video(std::string const& path, ImageLimits const& limits = {},
                                        std::atomic<bool> const* cancelled = nullptr);

/// How many frames of a video are taken, over its whole length.
struct VideoSampling {
  double frames_per_second = 2;            ///< or so many for each second, 4 to 768 in all
  std::optional<std::int64_t> n_frames{};  ///< so many instead
};

/// Numbers of the frames that the models' processors take, as sample_frames() of transformers 5 has it; ascending, may repeat.
/// Errors  unsupported for fewer frames than the model takes at a time, or more asked for than there are, with both numbers;
///         precondition for a rate or a number that is not positive.
std::vector<std::int64_t> sample_frames(VideoInfo const& info, VideoSampling const& sampling, VisionConfig const& config);

}  // namespace tiered
