/// Rows of other pixel kinds as RGB, to the last bit as Pillow converts them, and what every decoder checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/image.hpp"
#include "tiered/vision/image_file.hpp"

namespace tiered::detail {

/// value / 255, rounded, for value in [0, 255 * 255].
constexpr std::uint32_t div_255(std::uint32_t value) { return (((value + 128) >> 8) + value + 128) >> 8; }

/// [n, 4] over white to [n, 3]. Pillow blends with 7 more bits, and leaves alone what cannot be seen.
inline void over_white(std::uint8_t const* rgba, std::int64_t n, std::uint8_t* rgb) {
  for (std::int64_t i = 0; i < n; ++i, rgba += 4, rgb += 3) {
    std::uint32_t const share = std::uint32_t{rgba[3]} << 7, rest = 255 * 128 - share;
    for (int c = 0; c < 3; ++c) {
      std::uint32_t const sum = rgba[c] * share + 255 * rest + (0x80u << 7);
      rgb[c] = std::uint8_t(((sum >> 8) + sum) >> 8 >> 7);
    }
  }
}

/// [n, 4] inverted CMYK, as Adobe's programs write it, to [n, 3].
inline void from_inverted_cmyk(std::uint8_t const* cmyk, std::int64_t n, std::uint8_t* rgb) {
  for (std::int64_t i = 0; i < n; ++i, cmyk += 4, rgb += 3) {
    std::uint32_t const light = cmyk[3];
    for (int c = 0; c < 3; ++c) rgb[c] = std::uint8_t(light - div_255((255u - cmyk[c]) * light));
  }
}

/// Errors  bad_file for no pixels; over_budget for more than the limit.
inline void check_size(ImageFormat format, ImageSize size, ImageLimits const& limits) {
  if (size.width <= 0 || size.height <= 0) {
    throw Error(Errc::bad_file, concat("a ", name(format), " image of ", size.width, " x ", size.height, " pixels"));
  }
  if (size.width > limits.max_pixels / size.height) {
    throw Error(Errc::over_budget, concat("a ", name(format), " image of ", size.width, " x ", size.height,
                                          " pixels, more than the limit of ", limits.max_pixels));
  }
}

/// Errors  bad_file where a decoder knows that so many bytes hold fewer pixels.
inline void check_holds(ImageFormat format, ImageSize size, std::size_t n_bytes, bool can_hold) {
  if (can_hold) return;
  throw Error(Errc::bad_file, concat(name(format), ": ", n_bytes, " bytes cannot hold ", size.width, " x ", size.height, " pixels"));
}

// One per source of a decoder. Errors  as decode_image(), but for out_of_memory, which is std::bad_alloc here.
Image decode_bmp(std::span<std::byte const> bytes, ImageLimits const& limits);
Image decode_gif(std::span<std::byte const> bytes, ImageLimits const& limits);
Image decode_jpeg(std::span<std::byte const> bytes, ImageLimits const& limits);
Image decode_png(std::span<std::byte const> bytes, ImageLimits const& limits);
Image decode_webp(std::span<std::byte const> bytes, ImageLimits const& limits);
extern bool const has_jpeg, has_png, has_webp;

}  // namespace tiered::detail
