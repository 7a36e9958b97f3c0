/// BMP, which needs no library: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/detail/pixels.hpp"

namespace tiered::detail {

/// Headers of OS/2 and Windows of any version; 1, 4, 8, 16, 24 and 32 bits; bit fields; run lengths of 4 and 8 bits.
class BmpReader {
 public:
  /// Errors  as decode_image().
  BmpReader(std::span<std::byte const> bytes, ImageLimits const& limits) : bytes_(bytes) {
    need(14 + 4);
    std::uint32_t const header_bytes = u32(14);
    if (header_bytes < 12 || header_bytes > 4096) throw bad(concat("a header of ", header_bytes, " bytes"));
    need(14 + std::size_t(header_bytes));
    read_sizes(header_bytes);
    check_size(ImageFormat::bmp, size_, limits);
    std::size_t at = 14 + std::size_t(header_bytes);
    read_fields(header_bytes, at);
    if (bits_ <= 8) read_palette(header_bytes == 12 ? 3 : 4, at);
    data_at_ = u32(10);
    if (data_at_ > bytes_.size()) throw bad(concat("pixels at byte ", data_at_, " of ", bytes_.size()));
  }

  Image read() const {
    if (compression_ == rle8 || compression_ == rle4) return read_runs();
    std::size_t const row_bytes = (std::size_t(size_.width) * bits_ + 31) / 32 * 4;
    std::size_t const n_bytes = bytes_.size() - data_at_;
    // The padding of the last row may be missing.
    std::size_t const last_row_bytes = (std::size_t(size_.width) * bits_ + 7) / 8;
    if (n_bytes < last_row_bytes || (n_bytes - last_row_bytes) / row_bytes < std::size_t(size_.height) - 1) {
      throw bad(concat("cut off: ", n_bytes, " bytes of ", size_.height, " rows of ", row_bytes));
    }
    Image image(size_);
    auto const rgba = std::make_unique_for_overwrite<std::uint8_t[]>(std::size_t(size_.width) * 4);
    for (std::int64_t y = 0; y < size_.height; ++y) read_row(data_at_ + std::size_t(y) * row_bytes, rgba.get(), image.row(shown_row(y)));
    return image;
  }

 private:
  enum Compression : std::uint32_t { none = 0, rle8 = 1, rle4 = 2, fields = 3, alpha_fields = 6 };
  /// A channel of a pixel of 16 or 32 bits.
  struct Field {
    std::uint32_t mask = 0;
    std::uint8_t value(std::uint32_t pixel) const {
      if (mask == 0) return 0;
      int const shift = std::countr_zero(mask);
      return std::uint8_t(std::uint64_t{(pixel & mask) >> shift} * 255 / (mask >> shift));
    }
  };

  static Error bad(std::string const& what) { return Error(Errc::bad_file, concat("BMP: ", what)); }
  void need(std::size_t n_bytes) const {
    if (bytes_.size() < n_bytes) throw bad(concat("cut off: ", bytes_.size(), " bytes, the header has ", n_bytes));
  }
  std::uint8_t u8(std::size_t at) const { return std::uint8_t(bytes_[at]); }
  std::uint32_t u16(std::size_t at) const { return u8(at) | std::uint32_t{u8(at + 1)} << 8; }
  std::uint32_t u32(std::size_t at) const { return u16(at) | u16(at + 2) << 16; }
  std::int64_t shown_row(std::int64_t y) const { return top_down_ ? y : size_.height - 1 - y; }

  void read_sizes(std::uint32_t header_bytes) {
    if (header_bytes == 12) {
      size_ = {std::int64_t{u16(18)}, std::int64_t{u16(20)}};
      bits_ = u16(24);
    } else {
      if (header_bytes < 16) throw bad(concat("a header of ", header_bytes, " bytes"));
      std::int64_t const height = std::int32_t(u32(22));
      top_down_ = height < 0;
      size_ = {std::int64_t{std::int32_t(u32(18))}, top_down_ ? -height : height};
      bits_ = u16(28);
      if (header_bytes >= 40) compression_ = u32(30);
    }
  }
  void read_fields(std::uint32_t header_bytes, std::size_t& at) {
    bool const bits_fit = compression_ == none   ? bits_ == 1 || bits_ == 4 || bits_ == 8 || bits_ == 16 || bits_ == 24 || bits_ == 32
                          : compression_ == rle8 ? bits_ == 8
                          : compression_ == rle4 ? bits_ == 4
                          : compression_ == fields || compression_ == alpha_fields ? bits_ == 16 || bits_ == 32
                                                                                   : false;
    if (!bits_fit) throw Error(Errc::unsupported, concat("BMP: ", bits_, " bits a pixel with compression ", compression_));
    if (bits_ == 16) rgba_ = {Field{0x7c00}, Field{0x03e0}, Field{0x001f}, Field{}};
    if (bits_ == 32) rgba_ = {Field{0xff0000}, Field{0xff00}, Field{0xff}, Field{}};
    if (compression_ != fields && compression_ != alpha_fields) return;
    // Behind the first version's header, within those of later ones, which are longer.
    std::size_t const n_masks = header_bytes >= 56 || compression_ == alpha_fields ? 4 : 3;
    std::size_t const masks_at = 14 + 40;
    need(masks_at + n_masks * 4);
    for (std::size_t i = 0; i < n_masks; ++i) rgba_[i].mask = u32(masks_at + i * 4);
    at = std::max(at, masks_at + n_masks * 4);
  }
  void read_palette(std::size_t entry_bytes, std::size_t at) {
    std::size_t const most = std::size_t{1} << bits_;
    std::size_t const stated = entry_bytes == 4 && at >= 14 + 40 ? u32(46) : 0;
    std::size_t const n_colors = stated == 0 ? most : std::min(stated, most);
    need(at + n_colors * entry_bytes);
    for (std::size_t i = 0; i < n_colors; ++i) {
      std::size_t const entry = at + i * entry_bytes;
      palette_[i] = {u8(entry + 2), u8(entry + 1), u8(entry)};
    }
  }
  void read_row(std::size_t at, std::uint8_t* rgba, std::uint8_t* rgb) const {
    if (bits_ == 24) {
      auto const* bgr = reinterpret_cast<std::uint8_t const*>(bytes_.data()) + at;
      for (std::int64_t x = 0; x < size_.width; ++x, bgr += 3, rgb += 3) rgb[0] = bgr[2], rgb[1] = bgr[1], rgb[2] = bgr[0];
      return;
    }
    for (std::int64_t x = 0; x < size_.width; ++x) {
      std::size_t const i = std::size_t(x);
      if (bits_ <= 8) {
        std::size_t const bit = i * bits_;
        std::uint32_t const index = u8(at + bit / 8) >> (8 - bits_ - bit % 8) & ((1u << bits_) - 1);
        std::memcpy(rgb + 3 * i, palette_[index].data(), 3);
      } else {
        std::uint32_t const pixel = bits_ == 16 ? u16(at + 2 * i) : u32(at + 4 * i);
        for (std::size_t c = 0; c < 4; ++c) rgba[4 * i + c] = rgba_[c].value(pixel);
        if (rgba_[3].mask == 0) rgba[4 * i + 3] = 255;
      }
    }
    if (bits_ > 8) over_white(rgba, size_.width, rgb);
  }

  /// Runs need not reach every pixel: what they leave out has the first colour.
  Image read_runs() const {
    Image image(size_);
    for (std::int64_t y = 0; y < size_.height; ++y) {
      for (std::int64_t x = 0; x < size_.width; ++x) std::memcpy(image.row(y) + 3 * x, palette_[0].data(), 3);
    }
    std::int64_t x = 0, y = 0;
    std::size_t at = data_at_;
    auto const take = [&] {
      if (at >= bytes_.size()) throw bad(concat("cut off in row ", y, " of ", size_.height));
      return u8(at++);
    };
    auto const put = [&](std::uint32_t index) {
      if (x < size_.width && y < size_.height) std::memcpy(image.row(shown_row(y)) + 3 * x, palette_[index].data(), 3);
      ++x;
    };
    while (y < size_.height) {
      std::uint32_t const n = take(), code = take();
      if (n > 0) {
        for (std::uint32_t i = 0; i < n; ++i) put(bits_ == 8 ? code : i % 2 == 0 ? code >> 4 : code & 15);
      } else if (code == 0) {  // end of a row
        x = 0;
        ++y;
      } else if (code == 1) {  // end of the image
        return image;
      } else if (code == 2) {  // a step
        x += take();
        y += take();
      } else {  // so many pixels as they are, in words of 16 bits
        std::uint32_t byte = 0;
        for (std::uint32_t i = 0; i < code; ++i) {
          if (bits_ == 8 || i % 2 == 0) byte = take();
          put(bits_ == 8 ? byte : i % 2 == 0 ? byte >> 4 : byte & 15);
        }
        if ((bits_ == 8 ? code : (code + 1) / 2) % 2 != 0) static_cast<void>(take());
      }
    }
    return image;
  }

  std::span<std::byte const> bytes_;
  ImageSize size_{};
  bool top_down_ = false;
  std::uint32_t bits_ = 0;
  std::uint32_t compression_ = none;
  std::array<Field, 4> rgba_{};
  std::array<std::array<std::uint8_t, 3>, 256> palette_{};
  std::size_t data_at_ = 0;
};

Image decode_bmp(std::span<std::byte const> bytes, ImageLimits const& limits) { return BmpReader(bytes, limits).read(); }

}  // namespace tiered::detail
