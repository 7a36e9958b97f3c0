/// PNG by libpng: for one source file of a program.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "tiered/core/config.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/detail/orientation.hpp"
#include "tiered/vision/detail/pixels.hpp"

#if TIERED_HAS_PNG
#include <png.h>
#endif

namespace tiered::detail {

#if TIERED_HAS_PNG
bool const has_png = true;

/// What uncompressed XMP says: a chunk of text of which libpng is told nothing.
inline int png_xmp_orientation(std::span<std::byte const> bytes) {
  constexpr std::string_view key("XML:com.adobe.xmp\0\0", 19);  // and no compression
  int found = 0;
  for (std::size_t at = 8; found == 0 && at + 12 <= bytes.size();) {
    std::size_t n_bytes = 0;
    for (std::size_t i = 0; i < 4; ++i) n_bytes = n_bytes << 8 | std::size_t(bytes[at + i]);
    if (n_bytes > bytes.size() - at - 12) break;
    std::string_view const data = as_text(bytes.subspan(at + 8, n_bytes));
    if (as_text(bytes.subspan(at + 4, 4)) == "iTXt" && data.starts_with(key)) found = xmp_orientation(data);
    at += n_bytes + 12;
  }
  return found;
}

/// libpng leaves by longjmp, over frames that must have no destructors: hence two steps, and all that lives longer is here.
class PngReader {
 public:
  explicit PngReader(std::span<std::byte const> bytes) : bytes_(bytes) {}
  PngReader(PngReader const&) = delete;
  PngReader& operator=(PngReader const&) = delete;
  ~PngReader() { ::png_destroy_read_struct(&png_, &info_, nullptr); }

  /// Errors  as decode_image().
  ImageSize read_header() {
    if (setjmp(leave_) != 0) fail();
    png_ = ::png_create_read_struct(PNG_LIBPNG_VER_STRING, this, give_up, [](png_structp, png_const_charp) {});
    if (png_ != nullptr) info_ = ::png_create_info_struct(png_);
    if (info_ == nullptr) throw Error(Errc::out_of_memory, "no memory to read a PNG image, or libpng is not of its header's version");
    ::png_set_read_fn(png_, this, read);
    ::png_set_user_limits(png_, 0x7fffffff, 0x7fffffff);  // check_size() says more
    ignore_what_pixels_do_not_need();
    ::png_read_info(png_, info_);
    bits_ = std::uint64_t{::png_get_bit_depth(png_, info_)} * ::png_get_channels(png_, info_);
    return {std::int64_t{::png_get_image_width(png_, info_)}, std::int64_t{::png_get_image_height(png_, info_)}};
  }
  /// After read_header(). A byte of deflate gives 1032 at most.
  bool can_hold(ImageSize size) const { return std::uint64_t(size.width) * std::uint64_t(size.height) / 8 * bits_ / 1032 <= bytes_.size(); }
  /// After read_header(): everything to 8-bit RGB or RGBA. Upper 8 of 16 bits; colour keys and the alpha of palettes become alpha.
  void set_transforms() {
    if (setjmp(leave_) != 0) fail();
    ::png_set_expand(png_);
    ::png_set_strip_16(png_);
    ::png_set_gray_to_rgb(png_);
    n_passes_ = ::png_set_interlace_handling(png_);
    ::png_read_update_info(png_, info_);
    has_alpha_ = ::png_get_channels(png_, info_) == 4;
  }
  /// Of RGBA: one, or all where a pass fills only part of each.
  std::size_t rgba_rows(ImageSize size) const { return !has_alpha_ ? 0 : n_passes_ > 1 ? std::size_t(size.height) : 1; }
  void read_rows(Image& image, std::uint8_t* rgba) {
    if (setjmp(leave_) != 0) fail();
    for (pass_ = 0; pass_ < n_passes_; ++pass_) {
      for (y_ = 0; y_ < image.height(); ++y_) {
        std::uint8_t* const row =
            has_alpha_ ? rgba + (n_passes_ > 1 ? std::size_t(y_) * std::size_t(image.width()) * 4 : 0) : image.row(y_);
        ::png_read_row(png_, row, nullptr);
        if (has_alpha_ && pass_ + 1 == n_passes_) over_white(row, image.width(), image.row(y_));
      }
    }
    ::png_read_end(png_, info_);
  }
  int orientation() const {
    png_bytep exif = nullptr;
    png_uint_32 n_bytes = 0;
    bool const has_exif = ::png_get_eXIf_1(png_, info_, &n_bytes, &exif) != 0;
    int const found = has_exif ? exif_orientation(std::as_bytes(std::span(exif, n_bytes))) : 0;
    return found != 0 ? found : png_xmp_orientation(bytes_);
  }

 private:
  /// Text and profiles may be compressed, and as large unpacked as an attacker likes.
  void ignore_what_pixels_do_not_need() {
    static constexpr char names[] = "bKGD\0cHRM\0gAMA\0hIST\0iCCP\0iTXt\0oFFs\0pCAL\0pHYs\0sBIT\0sCAL\0sPLT\0sRGB\0tEXt\0tIME\0zTXt";
    ::png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
    ::png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, reinterpret_cast<png_const_bytep>(names), int(sizeof names / 5));
  }
  [[noreturn]] static void give_up(png_structp png, png_const_charp message) {
    auto& reader = *static_cast<PngReader*>(::png_get_error_ptr(png));
    std::snprintf(reader.message_, sizeof reader.message_, "%s", message);
    std::longjmp(reader.leave_, 1);
  }
  static void read(png_structp png, png_bytep out, std::size_t n_bytes) {
    auto& reader = *static_cast<PngReader*>(::png_get_io_ptr(png));
    if (n_bytes > reader.bytes_.size() - reader.at_) ::png_error(png, "the file is cut off");
    std::memcpy(out, reader.bytes_.data() + reader.at_, n_bytes);
    reader.at_ += n_bytes;
  }
  /// libpng's messages may hold what a file says of a chunk's name, in brackets where it is not of letters.
  [[noreturn]] void fail() { throw Error(Errc::bad_file, concat("PNG: ", message_, " (", at_, " of ", bytes_.size(), " bytes read)")); }

  std::span<std::byte const> bytes_;
  std::size_t at_ = 0;
  ::png_structp png_ = nullptr;
  ::png_infop info_ = nullptr;
  std::jmp_buf leave_{};
  char message_[160] = {};
  std::uint64_t bits_ = 0;
  int n_passes_ = 1, pass_ = 0;
  std::int64_t y_ = 0;
  bool has_alpha_ = false;
};

Image decode_png(std::span<std::byte const> bytes, ImageLimits const& limits) {
  PngReader reader(bytes);
  ImageSize const size = reader.read_header();
  check_size(ImageFormat::png, size, limits);
  check_holds(ImageFormat::png, size, bytes.size(), reader.can_hold(size));
  reader.set_transforms();
  Image image(size);
  auto const rgba = std::make_unique_for_overwrite<std::uint8_t[]>(reader.rgba_rows(size) * std::size_t(size.width) * 4);
  reader.read_rows(image, rgba.get());
  return oriented(std::move(image), reader.orientation());
}
#else
bool const has_png = false;

Image decode_png(std::span<std::byte const>, ImageLimits const&) {
  throw Error(Errc::unsupported, "PNG images: tiered was built without libpng (Debian: libpng-dev)");
}
#endif

}  // namespace tiered::detail
