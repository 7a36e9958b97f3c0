/// Defines what image_file.hpp declares: for one source file of a program. Decoders have sources of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/file.hpp"
#include "tiered/vision/detail/orientation.hpp"
#include "tiered/vision/detail/pixels.hpp"
#include "tiered/vision/image_file.hpp"

namespace tiered {

ImageFormat image_format(std::span<std::byte const> bytes) {
  std::string_view const text = detail::as_text(bytes);
  if (text.starts_with("\xff\xd8\xff")) return ImageFormat::jpeg;
  if (text.starts_with("\x89PNG\r\n\x1a\n")) return ImageFormat::png;
  if (text.starts_with("RIFF") && text.size() >= 12 && text.substr(8, 4) == "WEBP") return ImageFormat::webp;
  if (text.starts_with("BM")) return ImageFormat::bmp;
  if (text.starts_with("GIF87a") || text.starts_with("GIF89a")) return ImageFormat::gif;
  if (text.starts_with(std::string_view("II*\0", 4)) || text.starts_with(std::string_view("MM\0*", 4))) return ImageFormat::tiff;
  if (text.size() >= 12 && text.substr(4, 4) == "ftyp") {
    std::string_view const brand = text.substr(8, 4);
    for (std::string_view const known : {"heic", "heix", "hevc", "mif1", "msf1", "avif", "avis"}) {
      if (brand == known) return ImageFormat::heif;
    }
  }
  return ImageFormat::unknown;
}

char const* name(ImageFormat format) {
  switch (format) {
    case ImageFormat::unknown: return "unknown";
    case ImageFormat::jpeg: return "JPEG";
    case ImageFormat::png: return "PNG";
    case ImageFormat::webp: return "WebP";
    case ImageFormat::bmp: return "BMP";
    case ImageFormat::gif: return "GIF";
    case ImageFormat::tiff: return "TIFF";
    case ImageFormat::heif: return "HEIF or AVIF";
  }
  return "?";
}

bool can_decode(ImageFormat format) {
  switch (format) {
    case ImageFormat::jpeg: return detail::has_jpeg;
    case ImageFormat::png: return detail::has_png;
    case ImageFormat::webp: return detail::has_webp;
    case ImageFormat::bmp:
    case ImageFormat::gif: return true;
    default: return false;
  }
}

Image decode_image(std::span<std::byte const> bytes, ImageLimits const& limits) {
  ImageFormat const format = image_format(bytes);
  try {
    switch (format) {
      case ImageFormat::jpeg: return detail::decode_jpeg(bytes, limits);
      case ImageFormat::png: return detail::decode_png(bytes, limits);
      case ImageFormat::webp: return detail::decode_webp(bytes, limits);
      case ImageFormat::bmp: return detail::decode_bmp(bytes, limits);
      case ImageFormat::gif: return detail::decode_gif(bytes, limits);
      case ImageFormat::unknown:
        throw Error(Errc::bad_file,
                    concat("not an image: none of the known kinds (JPEG, PNG, WebP, BMP, GIF) begins like these ", bytes.size(), " bytes"));
      default: throw Error(Errc::unsupported, concat(name(format), " images are not read; JPEG, PNG, WebP, BMP and GIF are"));
    }
  } catch (std::bad_alloc const&) {
    throw Error(Errc::out_of_memory, concat("no memory for the pixels of a ", name(format), " image"));
  }
}

Image load_image(std::string const& path, ImageLimits const& limits, MediaHasher* content) {
  auto const file = detail::FileHandle::open(path);
  if (limits.max_file_bytes < 0 || file.size_bytes() > std::uint64_t(limits.max_file_bytes)) {
    throw Error(Errc::over_budget,
                concat(path, ": ", file.size_bytes(), " bytes, more than the limit of ", limits.max_file_bytes, " for an image"));
  }
  try {
    auto const n_bytes = std::size_t(file.size_bytes());
    auto const data = std::make_unique_for_overwrite<std::byte[]>(n_bytes);
    file.read_at(0, {data.get(), n_bytes});
    if (content != nullptr) content->add(std::span<std::byte const>(data.get(), n_bytes));
    return decode_image({data.get(), n_bytes}, limits);
  } catch (std::bad_alloc const&) {
    throw Error(Errc::out_of_memory, concat(path, ": no memory for its ", file.size_bytes(), " bytes"));
  } catch (Error const& e) {
    if (e.code() == Errc::io) throw;  // says the path itself
    throw Error(e.code(), concat(path, ": ", e.what()));
  }
}

}  // namespace tiered
