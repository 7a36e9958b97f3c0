/// Pictures to encode: of well-known sizes, photo-like by seed, as files that must be decoded.
#pragma once

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "jpeg.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/image.hpp"

namespace bench {

struct PictureSize {
  std::string name;
  tiered::ImageSize size;
};

inline constexpr std::pair<std::string_view, std::array<int, 2>> picture_sizes[] = {
    {"480p", {854, 480}},    {"720p", {1280, 720}}, {"1080p", {1920, 1080}},
    {"1440p", {2560, 1440}}, {"4K", {3840, 2160}},  {"8K", {7680, 4320}},
};

/// One of those, or WIDTHxHEIGHT.
/// Errors  precondition for another text, or sides that are not 28 to 16384 (what a JPEG file and an encoder take).
inline PictureSize picture_size(std::string const& text) {
  for (auto const& [name, sides] : picture_sizes) {
    if (text == name) return {text, {sides[0], sides[1]}};
  }
  tiered::ImageSize size;
  char const *const begin = text.data(), *const end = begin + text.size();
  auto const [cross, error] = std::from_chars(begin, end, size.width);
  bool const is_size =
      error == std::errc{} && cross != end && *cross == 'x' && std::from_chars(cross + 1, end, size.height).ptr == end && cross + 1 != end;
  auto const fits = [](std::int64_t side) { return side >= 28 && side <= 16384; };
  if (is_size && fits(size.width) && fits(size.height)) return {text, size};
  std::string names;
  for (auto const& [name, sides] : picture_sizes) names += tiered::concat(' ', name);
  throw tiered::Error(tiered::Errc::precondition,
                      tiered::concat("an image of ", text, ": WIDTHxHEIGHT, of 28 to 16384 each, or one of", names));
}

namespace detail {

/// Random values on a lattice, and linear in between.
class ValueNoise {
 public:
  ValueNoise(tiered::ImageSize size, int cell, tiered::SplitMix64& random)
      : cell_(cell), stride_(std::size_t(size.width / cell + 2)), values_(stride_ * std::size_t(size.height / cell + 2)) {
    for (float& v : values_) v = random.between(-1, 1);
  }
  /// row[x] += share * noise at (x, y).
  void add(std::int64_t y, float share, std::span<float> row) const {
    float const* const above = values_.data() + std::size_t(y / cell_) * stride_;
    float const* const below = above + stride_;
    float const down = float(y % cell_) / float(cell_), scale = 1 / float(cell_);
    for (std::size_t x = 0, i = 0; x < row.size(); ++i) {
      float const left = above[i] + (below[i] - above[i]) * down, right = above[i + 1] + (below[i + 1] - above[i + 1]) * down;
      for (int k = 0; k < cell_ && x < row.size(); ++k, ++x) row[x] += share * (left + (right - left) * (float(k) * scale));
    }
  }

 private:
  int cell_;
  std::size_t stride_;
  std::vector<float> values_;
};

}  // namespace detail

/// Gradients, shapes of many sizes, and a sensor's noise: 1.7 bits a pixel as JPEG of quality 90, which photos take, too.
inline tiered::Image make_picture(tiered::ImageSize size, std::uint64_t seed) {
  tiered::SplitMix64 random(seed);
  static constexpr std::pair<int, float> octaves[] = {{256, 60.f}, {64, 30.f}, {16, 14.f}, {4, 12.f}};
  static constexpr std::pair<int, float> tints[] = {{192, 30.f}, {48, 10.f}};
  std::vector<detail::ValueNoise> light, tint[3];
  for (auto const& [cell, share] : octaves) light.emplace_back(size, cell, random);
  for (auto& of_channel : tint) {
    for (auto const& [cell, share] : tints) of_channel.emplace_back(size, cell, random);
  }
  tiered::Image image(size);
  std::vector<float> common(std::size_t(size.width)), row(common.size());
  for (std::int64_t y = 0; y < size.height; ++y) {
    std::ranges::fill(common, 150.f - 60.f * float(y) / float(size.height));
    for (std::size_t i = 0; i < light.size(); ++i) light[i].add(y, octaves[i].second, common);
    std::uint8_t* const to = image.row(y);
    for (std::size_t channel = 0; channel < 3; ++channel) {
      row = common;
      for (std::size_t i = 0; i < std::size(tints); ++i) tint[channel][i].add(y, tints[i].second, row);
      for (std::size_t x = 0; x < row.size(); ++x)
        to[3 * x + channel] = std::uint8_t(std::clamp(row[x] + 8.f * random.between(-1, 1), 0.f, 255.f));
    }
  }
  return image;
}

/// Windows' format: what every build can decode.
inline std::vector<std::byte> to_bmp(tiered::Image const& image) {
  std::size_t const row_bytes = (image.row_bytes() + 3) / 4 * 4;
  constexpr std::uint32_t header_bytes = 14 + 40;
  std::vector<std::byte> out(header_bytes + row_bytes * std::size_t(image.height()));
  auto const put = [&](std::size_t at, auto value) { std::memcpy(out.data() + at, &value, sizeof value); };
  std::memcpy(out.data(), "BM", 2);
  put(2, std::uint32_t(out.size()));
  put(10, header_bytes);
  put(14, std::uint32_t{40});
  put(18, std::int32_t(image.width()));
  put(22, std::int32_t(image.height()));
  put(26, std::uint16_t{1});
  put(28, std::uint16_t{24});
  for (std::int64_t y = 0; y < image.height(); ++y) {  // from bottom to top, blue first
    std::uint8_t const* const from = image.row(y);
    std::byte* const to = out.data() + header_bytes + row_bytes * std::size_t(image.height() - 1 - y);
    for (std::size_t i = 0; i < image.row_bytes(); i += 3) {
      for (std::size_t c = 0; c < 3; ++c) to[i + c] = std::byte(from[i + 2 - c]);
    }
  }
  return out;
}

/// Of what pictures are written in.
inline constexpr std::string_view picture_format = has_jpeg_writer ? "JPEG" : "BMP (built without libjpeg)";
inline std::vector<std::byte> to_picture_file(tiered::Image const& image) {
  if constexpr (has_jpeg_writer) return to_jpeg(image);
  return to_bmp(image);
}

/// A picture's file.
struct Picture {
  PictureSize is;
  std::string path;
  std::uint64_t file_bytes = 0;
};

/// A temporary folder of pictures, each written when it is asked for first; gone with them.
class PictureFolder {
 public:
  PictureFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tiered_bench_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw tiered::Error(tiered::Errc::io, tiered::concat(name, ": ", std::strerror(errno)));
    path_ = name;
  }
  PictureFolder(PictureFolder const&) = delete;
  PictureFolder& operator=(PictureFolder const&) = delete;
  ~PictureFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  /// Errors  io with the system's reason.
  Picture const& picture(PictureSize const& is) {
    for (Picture const& p : pictures_) {
      if (p.is.size == is.size) return p;
    }
    std::vector<std::byte> const bytes = to_picture_file(make_picture(is.size, std::uint64_t(is.size.n_pixels())));
    Picture p{is, tiered::concat(path_, '/', is.size.width, 'x', is.size.height), bytes.size()};
    std::FILE* const file = std::fopen(p.path.c_str(), "wb");
    bool const written = file != nullptr && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
    if (file == nullptr || std::fclose(file) != 0 || !written)
      throw tiered::Error(tiered::Errc::io, tiered::concat(p.path, ": cannot be written: ", std::strerror(errno)));
    pictures_.push_back(std::move(p));
    return pictures_.back();
  }

 private:
  std::string path_;
  std::vector<Picture> pictures_;
};

}  // namespace bench
