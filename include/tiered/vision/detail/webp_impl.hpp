/// WebP by libwebp and libwebpdemux: for one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "tiered/core/config.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/detail/orientation.hpp"
#include "tiered/vision/detail/pixels.hpp"

#if TIERED_HAS_WEBP
#include <webp/decode.h>
#include <webp/demux.h>
#endif

namespace tiered::detail {

#if TIERED_HAS_WEBP
bool const has_webp = true;

/// The orientation in the chunks of a RIFF file.
inline int webp_orientation(std::span<std::byte const> bytes) {
  int from_exif = 0, from_xmp = 0;
  for (std::size_t at = 12; at + 8 <= bytes.size();) {
    std::string_view const kind = as_text(bytes.subspan(at, 4));
    std::size_t n_bytes = 0;
    for (std::size_t i = 4; i-- > 0;) n_bytes = n_bytes << 8 | std::size_t(bytes[at + 4 + i]);
    at += 8;
    if (n_bytes > bytes.size() - at) break;
    auto data = bytes.subspan(at, n_bytes);
    if (kind == "EXIF") {
      if (as_text(data).starts_with(std::string_view("Exif\0\0", 6))) data = data.subspan(6);  // some writers keep JPEG's prefix
      from_exif = exif_orientation(data);
    } else if (kind == "XMP ") {
      from_xmp = xmp_orientation(as_text(data));
    }
    at += n_bytes + n_bytes % 2;
  }
  return from_exif != 0 ? from_exif : from_xmp;
}

inline void check_webp(::VP8StatusCode status, std::size_t n_bytes) {
  switch (status) {
    case VP8_STATUS_OK: return;
    case VP8_STATUS_OUT_OF_MEMORY: throw Error(Errc::out_of_memory, "no memory to decode a WebP image");
    case VP8_STATUS_UNSUPPORTED_FEATURE: throw Error(Errc::unsupported, "WebP: a kind of image that libwebp does not know");
    case VP8_STATUS_NOT_ENOUGH_DATA: throw Error(Errc::bad_file, concat("WebP: the file is cut off (it has ", n_bytes, " bytes)"));
    default: throw Error(Errc::bad_file, concat("WebP: the data is damaged (libwebp's status ", int(status), ")"));
  }
}

/// Fills `out`, of 3 or 4 bytes a pixel.
inline void decode_still_webp(std::span<std::byte const> bytes, ImageSize size, bool alpha, std::uint8_t* out) {
  ::WebPDecoderConfig config;
  if (!::WebPInitDecoderConfig(&config)) throw Error(Errc::unsupported, "WebP: libwebp is older than its header");
  config.output.colorspace = alpha ? MODE_RGBA : MODE_RGB;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = out;
  config.output.u.RGBA.stride = int(size.width) * (alpha ? 4 : 3);
  config.output.u.RGBA.size = std::size_t(size.n_pixels()) * (alpha ? 4 : 3);
  check_webp(::WebPDecode(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size(), &config), bytes.size());
}

inline Image first_webp_frame(std::span<std::byte const> bytes, ImageSize size) {
  ::WebPData const data{reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size()};
  std::unique_ptr<::WebPAnimDecoder, void (*)(::WebPAnimDecoder*)> const decoder(::WebPAnimDecoderNew(&data, nullptr),
                                                                                 ::WebPAnimDecoderDelete);
  std::uint8_t* rgba = nullptr;
  int time_ms = 0;
  if (decoder == nullptr || !::WebPAnimDecoderGetNext(decoder.get(), &rgba, &time_ms)) {
    throw Error(Errc::bad_file,
                concat("WebP: the first frame of an animation is damaged or cut off (the file has ", bytes.size(), " bytes)"));
  }
  Image image(size);
  over_white(rgba, size.n_pixels(), image.rgb().data());
  return image;
}

Image decode_webp(std::span<std::byte const> bytes, ImageLimits const& limits) {
  ::WebPBitstreamFeatures features;
  check_webp(::WebPGetFeatures(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size(), &features), bytes.size());
  ImageSize const size{features.width, features.height};
  check_size(ImageFormat::webp, size, limits);
  Image image;
  if (features.has_animation) {
    image = first_webp_frame(bytes, size);
  } else {
    image = Image(size);
    if (features.has_alpha) {
      auto const rgba = std::make_unique_for_overwrite<std::uint8_t[]>(std::size_t(size.n_pixels()) * 4);
      decode_still_webp(bytes, size, true, rgba.get());
      over_white(rgba.get(), size.n_pixels(), image.rgb().data());
    } else {
      decode_still_webp(bytes, size, false, image.rgb().data());
    }
  }
  return oriented(std::move(image), webp_orientation(bytes));
}
#else
bool const has_webp = false;

Image decode_webp(std::span<std::byte const>, ImageLimits const&) {
  throw Error(Errc::unsupported, "WebP images: tiered was built without libwebp (Debian: libwebp-dev)");
}
#endif

}  // namespace tiered::detail
