/// Defines what preprocess.hpp declares: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/vision/detail/resize_weights.hpp"
#include "tiered/vision/detail/vision_families.hpp"
#include "tiered/vision/preprocess.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered {
namespace detail {

/// n / d as Python rounds it: halves to even.
inline std::int64_t rounded_quotient(std::int64_t n, std::int64_t d) {
  std::int64_t const quotient = n / d, twice_rest = n % d * 2;
  return quotient + (twice_rest > d || (twice_rest == d && quotient % 2 != 0) ? 1 : 0);
}

constexpr std::int64_t max_pixels = std::int64_t{1} << 40;  // times frames, still of 63 bits

inline void check_config(PatchConfig const& c) {
  expects(c.patch_size > 0 && c.merge_size > 0 && c.temporal_patch_size > 0 && c.patch_size <= 1024 && c.merge_size <= 1024 &&
              c.temporal_patch_size <= 1024 && c.min_pixels > 0 && c.min_pixels <= max_pixels && c.max_pixels > 0 &&
              c.max_pixels <= max_pixels,
          "patch sizes of a PatchConfig are in 1..1024, and its limits of pixels in 1..2^40");
}

inline void check_frames(ImageSize size, std::int64_t n_frames) {
  expects(size.width > 0 && size.height > 0 && size.width <= max_pixels / size.height, "frames have 1 to 2^40 pixels");
  expects(n_frames > 0 && n_frames <= 1 << 20, "a video has 1 to 2^20 frames");
}

/// Sides that are multiples of the factor, for `n_frames` frames of `size`, of which `n_counted` count when rounded.
inline ImageSize resized(ImageSize size, std::int64_t n_frames, std::int64_t n_counted, PatchConfig const& config) {
  std::int64_t const longer = std::max(size.width, size.height), shorter = std::min(size.width, size.height);
  if (longer > 200 * shorter) {
    throw Error(Errc::unsupported, concat("an image of ", size.width, " x ", size.height,
                                          " pixels: one side may be 200 times the other at most, as in the models' reference processor"));
  }
  std::int64_t const factor = config.factor();
  ImageSize result{rounded_quotient(size.width, factor) * factor, rounded_quotient(size.height, factor) * factor};
  double const height = double(size.height), width = double(size.width), f = double(factor);
  double const n_pixels = double(n_frames * size.n_pixels());
  if (n_counted * result.n_pixels() > config.max_pixels) {
    double const beta = std::sqrt(n_pixels / double(config.max_pixels));
    result.height = std::max(factor, std::int64_t(std::floor(height / beta / f)) * factor);
    result.width = std::max(factor, std::int64_t(std::floor(width / beta / f)) * factor);
  } else if (n_counted * result.n_pixels() < config.min_pixels) {
    double const beta = std::sqrt(double(config.min_pixels) / n_pixels);
    result.height = std::int64_t(std::ceil(height * beta / f)) * factor;
    result.width = std::int64_t(std::ceil(width * beta / f)) * factor;
  }
  return result;
}

inline std::uint8_t rounded_byte(std::int32_t sum, int shift) { return std::uint8_t(std::clamp(sum >> shift, 0, 255)); }

inline void resize_row(std::uint8_t const* in, ResizeWeights const& columns, std::uint8_t* out) {
  std::int32_t const half = columns.shift > 0 ? 1 << (columns.shift - 1) : 0;
  for (std::size_t x = 0; x < columns.first.size(); ++x, out += 3) {
    std::uint8_t const* pixel = in + 3 * columns.first[x];
    std::int16_t const* const weight = columns.weight.data() + x * columns.stride;
    std::int32_t r = half, g = half, b = half;
    for (std::int32_t j = 0; j < columns.count[x]; ++j, pixel += 3) {
      r += pixel[0] * weight[j];
      g += pixel[1] * weight[j];
      b += pixel[2] * weight[j];
    }
    out[0] = rounded_byte(r, columns.shift);
    out[1] = rounded_byte(g, columns.shift);
    out[2] = rounded_byte(b, columns.shift);
  }
}

constexpr std::size_t wide = 32;

/// n bytes of a row out of as many rows as there are weights. Of a fixed number, which compilers turn into vectors at -O2 too.
template <std::size_t n>
void add_rows(std::uint8_t const* in, std::size_t row_bytes, std::span<std::int16_t const> weights, int shift, std::uint8_t* out) {
  std::int32_t sums[n];
  for (std::size_t i = 0; i < n; ++i) sums[i] = shift > 0 ? 1 << (shift - 1) : 0;
  for (std::int16_t const weight : weights) {
    for (std::size_t i = 0; i < n; ++i) sums[i] += std::int16_t{in[i]} * weight;
    in += row_bytes;
  }
  for (std::size_t i = 0; i < n; ++i) out[i] = rounded_byte(sums[i], shift);
}

/// Rows [begin, end) of the result. Columns are resized for the input rows that these need, and no others.
inline void resize_rows(Image const& in, ResizeWeights const& columns, ResizeWeights const& rows, std::int64_t begin, std::int64_t end,
                        Image& out) {
  bool const same_width = in.width() == out.width(), same_height = in.height() == out.height();
  std::size_t const row_bytes = out.row_bytes();
  auto const last = std::size_t(end - 1);
  std::int64_t const from = same_height ? begin : rows.first[std::size_t(begin)];
  std::int64_t const to = same_height ? end : rows.first[last] + rows.count[last];
  std::unique_ptr<std::uint8_t[]> narrowed;
  if (!same_width && !same_height) narrowed = std::make_unique_for_overwrite<std::uint8_t[]>(std::size_t(to - from) * row_bytes);
  if (!same_width) {
    for (std::int64_t y = from; y < to; ++y) {
      resize_row(in.row(y), columns, same_height ? out.row(y) : narrowed.get() + std::size_t(y - from) * row_bytes);
    }
  }
  if (same_height) return;
  for (std::int64_t y = begin; y < end; ++y) {
    std::int64_t const first = rows.first[std::size_t(y)];
    std::uint8_t const* const source = same_width ? in.row(first) : narrowed.get() + std::size_t(first - from) * row_bytes;
    std::int16_t const* const weights = rows.weight.data() + std::size_t(y) * rows.stride;
    std::span const taps(weights, std::size_t(rows.count[std::size_t(y)]));
    std::size_t x = 0;
    for (; x + wide <= row_bytes; x += wide) add_rows<wide>(source + x, row_bytes, taps, rows.shift, out.row(y) + x);
    for (; x < row_bytes; ++x) add_rows<1>(source + x, row_bytes, taps, rows.shift, out.row(y) + x);
  }
}

}  // namespace detail

PatchConfig patch_config(VisionConfig const& config) {
  return {config.patch_size, config.merge_size, config.temporal_size, config.min_pixels,
          config.max_pixels, config.image_mean, config.image_std};
}

PatchConfig video_patch_config(VisionConfig const& config) {
  detail::VisionFamily const& family = detail::vision_family(config.projector, "");
  PatchConfig out = patch_config(config);
  out.min_pixels = family.min_video_pixels;
  out.max_pixels = family.max_video_pixels;
  return out;
}

ImageSize smart_resize(ImageSize size, PatchConfig const& config) {
  detail::check_config(config);
  detail::check_frames(size, 1);
  return detail::resized(size, 1, 1, config);
}

ImageSize smart_resize_video(ImageSize size, std::int64_t n_frames, PatchConfig const& config) {
  detail::check_config(config);
  detail::check_frames(size, n_frames);
  std::int64_t const per_patch = config.temporal_patch_size, factor = config.factor();
  if (n_frames < per_patch) {
    throw Error(Errc::unsupported, concat("a video of ", n_frames, " frames; the model takes ", per_patch, " at a time"));
  }
  if (size.height < factor || size.width < factor) {
    double const scale = std::max(double(factor) / double(size.height), double(factor) / double(size.width));
    size = {std::int64_t(double(size.width) * scale), std::int64_t(double(size.height) * scale)};
  }
  return detail::resized(size, n_frames, detail::rounded_quotient(n_frames, per_patch) * per_patch, config);
}

Image resize_bicubic(Image const& image, ImageSize size, Team* team) {
  expects(!image.empty(), "resize_bicubic() is of an image that has pixels");
  if (image.size() == size) return image;
  Image out(size);
  detail::ResizeWeights columns, rows;
  if (image.width() != size.width) columns = detail::resize_weights(image.width(), size.width);
  if (image.height() != size.height) rows = detail::resize_weights(image.height(), size.height);
  auto const work = [&](std::int64_t begin, std::int64_t end) { detail::resize_rows(image, columns, rows, begin, end, out); };
  // Neighbouring ranges both resize the columns of the few rows between them.
  std::int64_t const smallest = 32;
  if (team == nullptr) {
    for (std::int64_t y = 0; y < size.height; y += smallest) work(y, std::min(y + smallest, size.height));
  } else {
    team->parallel_for(size.height, smallest, work);
  }
  return out;
}

Patches::Patches(Image image, PatchConfig const& config, Team* team) : config_(config) {
  expects(!image.empty(), "patches are of an image that has pixels");
  ImageSize const size = smart_resize(image.size(), config_);
  std::vector<Image> frames;
  frames.push_back(std::move(image));
  prepare(std::move(frames), size, team);
}

Patches::Patches(std::vector<Image> frames, ImageSize size, PatchConfig const& config, Team* team) : config_(config) {
  detail::check_config(config_);
  expects(!frames.empty(), "patches are of one frame or more");
  prepare(std::move(frames), size, team);
}

void Patches::prepare(std::vector<Image> frames, ImageSize size, Team* team) {
  std::int64_t const patch = config_.patch_size, factor = config_.factor();
  expects(size.width > 0 && size.height > 0 && size.width % factor == 0 && size.height % factor == 0,
          "frames are resized to multiples of patch_size * merge_size");
  ImageSize const from = frames.front().size();
  for (Image const& frame : frames) expects(!frame.empty() && frame.size() == from, "frames of a video have one size");
  for (Image& frame : frames) {
    if (frame.size() != size) frame = resize_bicubic(frame, size, team);
  }
  std::int64_t const per_patch = config_.temporal_patch_size;
  grid_ = {(std::int64_t(frames.size()) + per_patch - 1) / per_patch, size.height / patch, size.width / patch};
  frames_ = std::make_shared<std::vector<Image> const>(std::move(frames));
  for (std::size_t c = 0; c < 3; ++c) {
    float const mean = config_.mean[c] * 255.0f, std_dev = config_.std_dev[c] * 255.0f;  // so fused by the processor
    for (std::size_t value = 0; value < 256; ++value) normalised_[c][value] = (float(value) - mean) / std_dev;
  }
}

void Patches::write(std::int64_t first, std::int64_t n, std::span<float> out, Team* team) const {
  expects(first >= 0 && n >= 0 && first <= grid_.n_patches() && n <= grid_.n_patches() - first, "a range of patches lies in the grid");
  expects(out.size() == std::size_t(n * patch_elems()), "room for n patches of patch_elems() floats");
  auto const work = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) write_one(first + i, out.data() + i * patch_elems());
  };
  if (team == nullptr) return work(0, n);
  team->parallel_for(n, team->grain(n, 16), work);
}

void Patches::write_one(std::int64_t patch, float* out) const {
  std::int64_t const merge = config_.merge_size, side = config_.patch_size, per_block = merge * merge;
  std::int64_t const t = patch / (grid_.h * grid_.w), in_frame = patch % (grid_.h * grid_.w);
  std::int64_t const block = in_frame / per_block, in_block = in_frame % per_block, blocks_a_row = grid_.w / merge;
  std::int64_t const y = (block / blocks_a_row * merge + in_block / merge) * side;
  std::int64_t const x = (block % blocks_a_row * merge + in_block % merge) * side;
  auto const n_frames = std::int64_t(frames_->size());
  for (std::size_t c = 0; c < 3; ++c) {
    std::array<float, 256> const& value = normalised_[c];
    for (std::int64_t frame = 0; frame < config_.temporal_patch_size; ++frame) {
      std::int64_t const which = t * config_.temporal_patch_size + frame;
      if (frame > 0 && which >= n_frames) {  // the frame before once more
        out = std::copy_n(out - side * side, side * side, out);
        continue;
      }
      Image const& image = (*frames_)[std::size_t(which)];
      for (std::int64_t dy = 0; dy < side; ++dy) {
        std::uint8_t const* pixel = image.row(y + dy) + 3 * x + c;
        for (std::int64_t dx = 0; dx < side; ++dx, pixel += 3) *out++ = value[*pixel];
      }
    }
  }
}

}  // namespace tiered
