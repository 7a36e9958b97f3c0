/// Image files: JPEG, PNG, WebP, BMP and GIF as RGB. Link tiered::cpu, or include tiered/cpu.hpp in one source file (then with
/// TIERED_HAS_JPEG, TIERED_HAS_PNG and TIERED_HAS_WEBP set to 1 for the libraries that are there).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tiered/vision/image.hpp"
#include "tiered/vision/media_hash.hpp"

namespace tiered {

enum class ImageFormat : std::uint8_t { unknown, jpeg, png, webp, bmp, gif, tiff, heif };

/// By the first bytes. tiff and heif are only known in order to be refused by name.
ImageFormat image_format(std::span<std::byte const> bytes);
char const* name(ImageFormat format);
/// Whether this build has the decoder: libjpeg, libpng and libwebp are optional.
bool can_decode(ImageFormat format);

/// What a file may ask for; looked at in its header, before anything is decoded.
struct ImageLimits {
  std::int64_t max_pixels = 178'956'970;            ///< where Pillow refuses too; 537 MB as RGB
  std::int64_t max_file_bytes = 512 * 1024 * 1024;  ///< of load_image()
};

/// Decodes to what Pillow and transformers make of a file: EXIF orientation applied, as by load_image() there (or, where there is none,
/// that of XMP in JPEG, WebP and, where it is not compressed, PNG); transparency over white, as by convert_to_rgb(), where load_image()
/// drops it; CMYK and YCCK by Adobe's convention; colour profiles and gamma without effect; the first frame of an animation. Of 16 bits
/// the upper 8 count, of grey too, where Pillow clips all above 255 to white.
/// Refused as Pillow does: a file that is cut off anywhere. Where JPEG data is damaged, too, though Pillow guesses.
/// Memory   the image, twice where it is turned; transparent interlaced PNG 4 bytes a pixel more, transparent or lossless WebP 4 or 5,
///          animated WebP 8, progressive JPEG 3 to 8. Of some kinds (BMP of runs, WebP) some hundred bytes can hold as many pixels as
///          `limits` allow.
/// Errors   bad_file with what is wrong; unsupported for other formats, kinds of a format that no decoder knows, and decoders that
///          this build lacks; over_budget for more than max_pixels, and for arithmetic JPEG of more than 2^20 pixels and 8192 a byte;
///          out_of_memory.
/// Threads  any, at the same time.
Image decode_image(std::span<std::byte const> bytes, ImageLimits const& limits = {});

/// The same for a file; messages begin with its path. Also not_found and io, and over_budget for more than max_file_bytes. `content`: the
/// file's bytes are added to it.
Image load_image(std::string const& path, ImageLimits const& limits = {}, MediaHasher* content = nullptr);

}  // namespace tiered
