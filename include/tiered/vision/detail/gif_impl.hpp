/// The first frame of a GIF, which needs no library: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/detail/pixels.hpp"

namespace tiered::detail {

/// Bytes of a GIF from front to back.
class GifBytes {
 public:
  explicit GifBytes(std::span<std::byte const> bytes) : bytes_(bytes) {}
  static Error bad(std::string const& what) { return Error(Errc::bad_file, concat("GIF: ", what)); }
  std::uint32_t u8() {
    if (at_ == bytes_.size()) throw bad(concat("cut off after ", at_, " bytes"));
    return std::uint32_t(bytes_[at_++]);
  }
  std::uint32_t u16() {
    std::uint32_t const low = u8();
    return low | u8() << 8;
  }
  /// Behind a chain of blocks, which ends with an empty one.
  void skip_blocks() {
    while (std::uint32_t const n = u8()) {
      for (std::uint32_t i = 0; i < n; ++i) u8();
    }
  }
  std::size_t size() const { return bytes_.size(); }

 private:
  std::span<std::byte const> bytes_;
  std::size_t at_ = 0;
};

/// Codes of growing width, out of a chain of blocks.
class GifCodes {
 public:
  explicit GifCodes(GifBytes& bytes) : bytes_(bytes) {}
  std::uint32_t next(int width) {
    for (; n_bits_ < width; n_bits_ += 8) {
      if (left_ == 0) left_ = bytes_.u8();
      if (left_ == 0) throw GifBytes::bad("its pixels end early");
      bits_ |= bytes_.u8() << n_bits_;
      --left_;
    }
    std::uint32_t const code = bits_ & ((1u << width) - 1);
    bits_ >>= width;
    n_bits_ -= width;
    return code;
  }

 private:
  GifBytes& bytes_;
  std::uint32_t bits_ = 0, left_ = 0;
  int n_bits_ = 0;
};

/// Fills `out` with indices of colours.
inline void unpack_gif(GifBytes& bytes, std::span<std::uint8_t> out) {
  constexpr std::uint32_t max_codes = 4096, none = max_codes;
  int const min_width = int(bytes.u8());
  if (min_width < 1 || min_width > 8) throw GifBytes::bad(concat("codes of ", min_width, " bits"));
  std::uint32_t const clear = 1u << min_width, end = clear + 1;
  std::array<std::uint16_t, max_codes> before{};  // a string is another one, and a last index
  std::array<std::uint8_t, max_codes> last{};
  for (std::uint32_t i = 0; i < clear; ++i) last[i] = std::uint8_t(i);
  std::array<std::uint8_t, max_codes + 1> string{};  // backwards
  std::uint32_t n_codes = end + 1, previous = none;
  int width = min_width + 1;
  GifCodes codes(bytes);
  for (std::size_t done = 0; done < out.size();) {
    std::uint32_t const code = codes.next(width);
    if (code == clear) {
      n_codes = end + 1, previous = none, width = min_width + 1;
      continue;
    }
    if (code == end) throw GifBytes::bad(concat("its pixels end after ", done, " of ", out.size()));
    bool const is_new = code == n_codes && previous != none;  // the previous string and its first index again
    if (!is_new && code >= (previous == none ? clear : n_codes)) throw GifBytes::bad(concat("code ", code, " of ", n_codes));
    std::size_t n = is_new ? 1 : 0;
    std::uint32_t at = is_new ? previous : code;
    for (; at > end; at = before[at]) string[n++] = last[at];
    string[n++] = last[at];
    if (is_new) string[0] = last[at];
    if (previous != none && n_codes < max_codes) {
      before[n_codes] = std::uint16_t(previous);
      last[n_codes] = last[at];
      if (++n_codes == 1u << width && width < 12) ++width;
    }
    previous = code;
    while (n > 0 && done < out.size()) out[done++] = string[--n];
  }
}

class GifReader {
 public:
  /// Errors  as decode_image().
  static Image read(std::span<std::byte const> file, ImageLimits const& limits) {
    GifReader reader(file);
    return reader.first_frame(limits);
  }

 private:
  explicit GifReader(std::span<std::byte const> file) : bytes_(file) {}

  void read_palette(std::uint32_t flags) {
    palette_ = {};
    for (std::size_t i = 0; i < std::size_t{2} << (flags & 7); ++i) {
      for (std::uint8_t& value : palette_[i]) value = std::uint8_t(bytes_.u8());
    }
  }
  /// Up to the first frame; what extensions say of it.
  void skip_to_frame() {
    for (;;) {
      std::uint32_t const kind = bytes_.u8();
      if (kind == ',') return;
      if (kind == ';') throw GifBytes::bad("no image in it");
      if (kind != '!') continue;
      constexpr std::uint32_t graphic_control = 0xf9;
      if (bytes_.u8() == graphic_control) {
        std::uint32_t const n = bytes_.u8();
        for (std::uint32_t i = 0, flags = 0; i < n; ++i) {
          std::uint32_t const value = bytes_.u8();
          if (i == 0) flags = value;
          if (i == 3) transparent_ = flags & 1 ? int(value) : -1;
        }
        if (n == 0) continue;
      }
      bytes_.skip_blocks();
    }
  }
  Image first_frame(ImageLimits const& limits) {
    for (int i = 0; i < 6; ++i) bytes_.u8();
    ImageSize screen{bytes_.u16(), bytes_.u16()};  // braces: from left to right
    std::uint32_t const screen_flags = bytes_.u8();
    bytes_.u16();  // background, which viewers do not show, and shape of pixels
    for (std::size_t i = 0; i < palette_.size(); ++i) palette_[i].fill(std::uint8_t(i));
    if (screen_flags & 0x80) read_palette(screen_flags);
    skip_to_frame();
    std::int64_t const left = bytes_.u16(), top = bytes_.u16();
    ImageSize const frame{bytes_.u16(), bytes_.u16()};
    std::uint32_t const flags = bytes_.u8();
    screen = {std::max(screen.width, left + frame.width), std::max(screen.height, top + frame.height)};
    check_size(ImageFormat::gif, frame, limits);
    check_size(ImageFormat::gif, screen, limits);
    if (flags & 0x80) read_palette(flags);
    // A code of 3 bits or more stands for 4096 pixels at most.
    if (std::size_t(frame.n_pixels()) / 16384 > bytes_.size()) {
      throw GifBytes::bad(concat(bytes_.size(), " bytes cannot hold ", frame.width, " x ", frame.height, " pixels"));
    }
    auto const indices = std::make_unique_for_overwrite<std::uint8_t[]>(std::size_t(frame.n_pixels()));
    unpack_gif(bytes_, {indices.get(), std::size_t(frame.n_pixels())});

    if (transparent_ >= 0) palette_[std::size_t(transparent_)].fill(255);
    Image image(screen);
    for (std::int64_t y = 0; y < screen.height; ++y) {
      for (std::int64_t x = 0; x < screen.width; ++x) put(image, x, y, std::size_t(std::max(transparent_, 0)));
    }
    std::uint8_t const* index = indices.get();
    bool const interlaced = (flags & 0x40) != 0;
    for (int pass = 0; pass < (interlaced ? 4 : 1); ++pass) {
      constexpr std::array<std::int64_t, 4> begins = {0, 4, 2, 1}, steps = {8, 8, 4, 2};
      std::int64_t const step = interlaced ? steps[std::size_t(pass)] : 1;
      for (std::int64_t y = interlaced ? begins[std::size_t(pass)] : 0; y < frame.height; y += step) {
        for (std::int64_t x = 0; x < frame.width; ++x) put(image, left + x, top + y, *index++);
      }
    }
    return image;
  }
  void put(Image& image, std::int64_t x, std::int64_t y, std::size_t index) const {
    std::copy_n(palette_[index].data(), 3, image.row(y) + 3 * x);
  }

  GifBytes bytes_;
  std::array<std::array<std::uint8_t, 3>, 256> palette_{};
  int transparent_ = -1;
};

Image decode_gif(std::span<std::byte const> bytes, ImageLimits const& limits) { return GifReader::read(bytes, limits); }

}  // namespace tiered::detail
