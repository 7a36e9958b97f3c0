/// An image in memory: 8-bit RGB, rows from top to bottom.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "tiered/core/error.hpp"

namespace tiered {

struct ImageSize {
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::int64_t n_pixels() const { return width * height; }
  friend bool operator==(ImageSize const&, ImageSize const&) = default;
};

/// Owns its pixels: [height, width, 3] u8, red first, no padding. Copies are deep; empty after a move.
class Image {
 public:
  Image() = default;
  /// Pixels are not set, so that memory of a file that lies about its size is taken only as rows arrive.
  /// Errors  precondition for a side outside 1..2^31-1, or more than 2^40 pixels; std::bad_alloc.
  explicit Image(ImageSize size) : size_(checked(size)), rgb_(std::make_unique_for_overwrite<std::uint8_t[]>(n_bytes())) {}
  Image(Image const& other) : size_(other.size_) {
    if (other.empty()) return;
    rgb_ = std::make_unique_for_overwrite<std::uint8_t[]>(n_bytes());
    std::copy_n(other.rgb_.get(), n_bytes(), rgb_.get());
  }
  Image(Image&& other) noexcept : size_(std::exchange(other.size_, {})), rgb_(std::move(other.rgb_)) {}
  Image& operator=(Image other) noexcept {
    std::swap(size_, other.size_);
    rgb_.swap(other.rgb_);
    return *this;
  }
  ~Image() = default;

  ImageSize size() const { return size_; }
  std::int64_t width() const { return size_.width; }
  std::int64_t height() const { return size_.height; }
  bool empty() const { return rgb_ == nullptr; }
  std::size_t n_bytes() const { return std::size_t(size_.n_pixels()) * 3; }

  std::span<std::uint8_t> rgb() { return {rgb_.get(), n_bytes()}; }
  std::span<std::uint8_t const> rgb() const { return {rgb_.get(), n_bytes()}; }
  /// 3 * width bytes; y in [0, height).
  std::uint8_t* row(std::int64_t y) { return rgb_.get() + std::size_t(y) * row_bytes(); }
  std::uint8_t const* row(std::int64_t y) const { return rgb_.get() + std::size_t(y) * row_bytes(); }
  std::size_t row_bytes() const { return std::size_t(size_.width) * 3; }

 private:
  static ImageSize checked(ImageSize size) {
    constexpr std::int64_t max_side = 0x7fffffff, max_pixels = std::int64_t{1} << 40;
    expects(size.width > 0 && size.height > 0 && size.width <= max_side && size.height <= max_side && size.n_pixels() <= max_pixels,
            "an image has 1 to 2^31-1 columns and rows, and 2^40 pixels at most");
    return size;
  }
  ImageSize size_{};
  std::unique_ptr<std::uint8_t[]> rgb_;
};

}  // namespace tiered
