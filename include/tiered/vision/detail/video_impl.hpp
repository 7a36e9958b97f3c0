/// Defines what video.hpp declares, but for video files: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dirent.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/file.hpp"
#include "tiered/vision/detail/video_files.hpp"
#include "tiered/vision/detail/vision_families.hpp"
#include "tiered/vision/video.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered {
namespace detail {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Numbers in names by their value.
inline bool natural_less(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (!is_digit(a[0]) || !is_digit(b[0])) {
      if (a[0] != b[0]) return static_cast<unsigned char>(a[0]) < static_cast<unsigned char>(b[0]);
      a.remove_prefix(1), b.remove_prefix(1);
      continue;
    }
    auto const number = [](std::string_view& text) {
      std::size_t const end = std::min(text.find_first_not_of("0123456789"), text.size());
      std::string_view digits = text.substr(0, end);
      text.remove_prefix(end);
      digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
      return digits;
    };
    std::string_view const x = number(a), y = number(b);
    if (x.size() != y.size()) return x.size() < y.size();
    if (x != y) return x < y;
  }
  return a.size() < b.size();
}

inline bool has_image_name(std::string_view name) {
  if (name.starts_with('.')) return false;
  std::string kind(name.substr(std::min(name.rfind('.'), name.size())));
  for (char& c : kind) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  for (std::string_view const known : {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif"}) {
    if (kind == known) return true;
  }
  return false;
}

inline std::vector<std::string> images_in(std::string const& folder) {
  std::unique_ptr<DIR, int (*)(DIR*)> const open(::opendir(folder.c_str()), &::closedir);
  if (open == nullptr) {
    int const code = errno;
    throw Error(code == ENOENT || code == ENOTDIR ? Errc::not_found : Errc::io, concat(folder, ": ", errno_text(code)));
  }
  std::vector<std::string> names;
  while (::dirent const* const entry = ::readdir(open.get())) {
    if (has_image_name(entry->d_name)) names.emplace_back(entry->d_name);
  }
  if (names.empty())
    throw Error(Errc::not_found, concat(folder, ": holds no frames: no name ends in .jpg, .jpeg, .png, .webp, .bmp or .gif"));
  std::sort(names.begin(), names.end(),
            [](std::string const& a, std::string const& b) { return natural_less(a, b) || (!natural_less(b, a) && a < b); });
  for (std::string& name : names) name = concat(folder, folder.ends_with('/') ? "" : "/", name);
  return names;
}

class FrameFiles final : public VideoSource {
 public:
  FrameFiles(std::string name, std::vector<std::string> files, double frames_per_second, ImageLimits const& limits,
             std::atomic<bool> const* cancelled)
      : name_(std::move(name)), files_(std::move(files)), limits_(limits), cancelled_(cancelled) {
    expects(frames_per_second > 0 && std::isfinite(frames_per_second), "frames have a positive rate");
    expects(!files_.empty(), "a video has frames");
    info_ = {std::int64_t(files_.size()), frames_per_second, load_image(files_.front(), limits_).size()};
  }
  VideoInfo const& info() const override { return info_; }
  std::string_view name() const override { return name_; }
  void add_content(MediaHasher& hasher, std::span<std::int64_t const> frames) const override {
    for (std::int64_t const i : frames) add_file(hasher, file(i), cancelled_);
  }
  Image frame(std::int64_t index) override {
    Image image = load_image(file(index), limits_);
    if (image.size() == info_.size) return image;
    throw Error(Errc::bad_file, concat(file(index), ": a frame of ", image.width(), " x ", image.height(), " pixels in a video of ",
                                       info_.size.width, " x ", info_.size.height));
  }

 private:
  std::string const& file(std::int64_t index) const {
    expects(index >= 0 && index < info_.n_frames, "frames of a video are numbered from 0");
    return files_[std::size_t(index)];
  }
  std::string name_;
  std::vector<std::string> files_;
  ImageLimits limits_;
  std::atomic<bool> const* cancelled_;
  VideoInfo info_;
};

/// As torch.arange() with a step of total / n, in f32, and then cut to whole numbers; without the frame behind the last that it has now and
/// then, by rounding.
inline std::vector<std::int64_t> evenly_from_first(std::int64_t total, std::int64_t n) {
  double const step = double(total) / double(n);
  std::vector<std::int64_t> out;
  for (std::int64_t i = 0; i < n; ++i) out.push_back(std::min(std::int64_t(float(step * double(i))), total - 1));
  return out;
}
/// As numpy.linspace() from the first to the last, rounded, halves to even.
inline std::vector<std::int64_t> evenly_to_last(std::int64_t total, std::int64_t n) {
  std::vector<std::int64_t> out;
  double const step = n > 1 ? double(total - 1) / double(n - 1) : 0;
  for (std::int64_t i = 0; i < n; ++i) {
    double const at = i + 1 == n && n > 1 ? double(total - 1) : step * double(i), below = std::floor(at), rest = at - below;
    bool const up = rest > 0.5 || (rest == 0.5 && std::int64_t(below) % 2 != 0);
    out.push_back(std::int64_t(below) + (up ? 1 : 0));
  }
  return out;
}

}  // namespace detail

std::unique_ptr<VideoSource> open_frames(std::string const& folder, double frames_per_second, ImageLimits const& limits,
                                         std::atomic<bool> const* cancelled) {
  return std::make_unique<detail::FrameFiles>(folder, detail::images_in(folder), frames_per_second, limits, cancelled);
}

std::unique_ptr<VideoSource> open_frames(std::vector<std::string> files, double frames_per_second, ImageLimits const& limits,
                                         std::atomic<bool> const* cancelled) {
  std::string name = files.empty() ? std::string() : files.front();
  return std::make_unique<detail::FrameFiles>(std::move(name), std::move(files), frames_per_second, limits, cancelled);
}

std::vector<std::int64_t> sample_frames(VideoInfo const& info, VideoSampling const& sampling, VisionConfig const& config) {
  constexpr std::int64_t least = 4, most = 768, limit = 1 << 20;
  bool const to_last = detail::vision_family(config.projector, "").frames_apart;
  std::int64_t const total = info.n_frames, per_patch = config.temporal_size;
  expects(total > 0 && per_patch > 0, "a video has frames");
  expects(sampling.n_frames ? *sampling.n_frames > 0 && *sampling.n_frames <= limit : sampling.frames_per_second > 0,
          "the number of frames is in 1..2^20, or their rate positive");
  std::int64_t n = 0;
  if (sampling.n_frames) {
    n = *sampling.n_frames;
    if (!to_last) n = std::int64_t(std::nearbyint(double(n) / double(per_patch))) * per_patch;
  } else {
    expects(info.frames_per_second > 0, "a video has a positive rate of frames");
    double const wanted = double(total) / info.frames_per_second * sampling.frames_per_second;
    double const whole = std::min(to_last ? std::floor(wanted) : wanted, double(limit));
    std::int64_t const ceiling = to_last ? std::min(most, total) : std::min(most, total) / per_patch * per_patch;
    n = std::int64_t(std::min(std::max(whole, double(least)), double(ceiling)));
    if (!to_last) n = n / per_patch * per_patch;
  }
  if (n < per_patch || total < per_patch || (!to_last && n > total)) {
    throw Error(Errc::unsupported, concat("a video of ", total, " frames, of which ", sampling.n_frames ? *sampling.n_frames : n,
                                          " are to be taken; the model takes ", per_patch, " at a time"));
  }
  return to_last ? detail::evenly_to_last(total, n) : detail::evenly_from_first(total, n);
}

}  // namespace tiered
