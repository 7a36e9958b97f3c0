/// How an image is turned: what EXIF and XMP say, and turning it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "tiered/vision/image.hpp"

namespace tiered::detail {

inline std::string_view as_text(std::span<std::byte const> bytes) { return {reinterpret_cast<char const*>(bytes.data()), bytes.size()}; }

/// Orientation (1..8) in an EXIF block, which begins with its TIFF header. 0 where there is none, or the block is broken: a picture
/// is not refused for that.
inline int exif_orientation(std::span<std::byte const> tiff) {
  if (tiff.size() < 8) return 0;
  bool const big = as_text(tiff.first(2)) == "MM";
  if (!big && as_text(tiff.first(2)) != "II") return 0;
  auto const number = [&](std::size_t at, std::size_t n_bytes) -> std::uint32_t {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < n_bytes; ++i) value = value << 8 | std::uint32_t(tiff[big ? at + i : at + n_bytes - 1 - i]);
    return value;
  };
  std::size_t const directory = number(4, 4);
  if (directory > tiff.size() - 2) return 0;
  std::size_t const n_entries = number(directory, 2);
  for (std::size_t i = 0, at = directory + 2; i < n_entries && at + 12 <= tiff.size(); ++i, at += 12) {
    if (number(at, 2) != 0x0112) continue;
    // Bytes of a TIFF type that Pillow takes for a number, signed ones too; an unsigned byte (1) is text to it.
    constexpr std::array<std::uint8_t, 14> bytes_of_type = {0, 0, 0, 2, 4, 0, 1, 0, 2, 4, 0, 0, 0, 4};
    std::uint32_t const type = number(at + 2, 2);
    if (number(at + 4, 4) != 1 || type >= bytes_of_type.size() || bytes_of_type[type] == 0) return 0;
    std::uint32_t const value = number(at + 8, bytes_of_type[type]);
    return value >= 1 && value <= 8 ? int(value) : 0;
  }
  return 0;
}

/// The same in an XMP packet: tiff:Orientation as an attribute or an element.
inline int xmp_orientation(std::string_view xmp) {
  constexpr std::string_view key = "tiff:Orientation";
  for (std::size_t at = xmp.find(key); at != xmp.npos; at = xmp.find(key, at + 1)) {
    std::string_view rest = xmp.substr(at + key.size());
    if (rest.starts_with("=\"")) {
      rest.remove_prefix(2);
    } else if (rest.starts_with(">")) {
      rest.remove_prefix(1);
    } else {
      continue;
    }
    if (!rest.empty() && rest[0] >= '0' && rest[0] <= '9') return rest[0] >= '1' && rest[0] <= '8' ? rest[0] - '0' : 0;
  }
  return 0;
}

/// As a viewer shows an image stored with that EXIF orientation; 0 and 1 leave it.
inline Image oriented(Image image, int orientation) {
  if (orientation <= 1) return image;
  // Of the stored image, whose pixel lies at (x, y) of the shown one: swapped sides first, then mirrored ones.
  bool const swap = orientation >= 5;
  bool const from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  bool const from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  ImageSize const stored = image.size();
  Image shown(swap ? ImageSize{stored.height, stored.width} : stored);
  constexpr std::int64_t tile = 32;  // a tile of each image stays in the cache
  for (std::int64_t y0 = 0; y0 < shown.height(); y0 += tile) {
    for (std::int64_t x0 = 0; x0 < shown.width(); x0 += tile) {
      for (std::int64_t y = y0; y < std::min(y0 + tile, shown.height()); ++y) {
        for (std::int64_t x = x0; x < std::min(x0 + tile, shown.width()); ++x) {
          std::int64_t const across = swap ? y : x, down = swap ? x : y;
          std::int64_t const from_x = from_right ? stored.width - 1 - across : across;
          std::int64_t const from_y = from_below ? stored.height - 1 - down : down;
          std::memcpy(shown.row(y) + 3 * x, std::as_const(image).row(from_y) + 3 * from_x, 3);
        }
      }
    }
  }
  return shown;
}

}  // namespace tiered::detail
