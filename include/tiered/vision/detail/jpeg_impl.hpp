/// JPEG by libjpeg (libjpeg-turbo): for one source file of a program.
#pragma once

#include <algorithm>
#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "tiered/core/config.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/detail/orientation.hpp"
#include "tiered/vision/detail/pixels.hpp"

#if TIERED_HAS_JPEG
#include <jpeglib.h>
// After jpeglib.h:
#include <jerror.h>
#endif

namespace tiered::detail {

#if TIERED_HAS_JPEG
bool const has_jpeg = true;

/// libjpeg leaves by longjmp, over frames that must have no destructors: hence two steps, and all that lives longer is here.
class JpegReader {
 public:
  explicit JpegReader(std::span<std::byte const> bytes) : bytes_(bytes) {
    info_.err = ::jpeg_std_error(&errors_);
    errors_.error_exit = [](j_common_ptr info) { give_up(info); };
    errors_.output_message = [](j_common_ptr) {};
    errors_.emit_message = [](j_common_ptr info, int level) {
      if (level < 0 && is_damage(info->err->msg_code)) give_up(info);
    };
    progress_.progress_monitor = [](j_common_ptr info) { check_scans(info); };
  }
  JpegReader(JpegReader const&) = delete;
  JpegReader& operator=(JpegReader const&) = delete;
  ~JpegReader() { ::jpeg_destroy_decompress(&info_); }

  /// Errors  as decode_image().
  ImageSize read_header() {
    if (setjmp(leave_) != 0) fail();
    info_.client_data = this;  // which creation leaves
    jpeg_create_decompress(&info_);
    info_.progress = &progress_;
    ::jpeg_mem_src(&info_, reinterpret_cast<unsigned char const*>(bytes_.data()), static_cast<unsigned long>(bytes_.size()));
    // Instead of an end of image that libjpeg makes up.
    info_.src->fill_input_buffer = [](j_decompress_ptr info) -> boolean {
      ERREXIT(info, JERR_INPUT_EOF);
      return FALSE;
    };
    ::jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xffff);  // EXIF and XMP
    ::jpeg_read_header(&info_, TRUE);
    is_cmyk_ = info_.num_components == 4;
    info_.out_color_space = is_cmyk_ ? JCS_CMYK : JCS_RGB;
    return {std::int64_t{info_.image_width}, std::int64_t{info_.image_height}};
  }
  /// After read_header(). Every block of Huffman-coded data takes a bit at least.
  bool can_hold(ImageSize size) const {
    return info_.arith_code || std::uint64_t(size.width) * std::uint64_t(size.height) / 64 / 8 <= bytes_.size();
  }
  /// Arithmetic coding says next to nothing in next to no bits: work and memory follow the bytes all the same, beyond what is quick. A
  /// photo has less than a hundredth of that many pixels a byte.
  /// Errors  over_budget with both numbers.
  void check_work(ImageSize size) const {
    constexpr std::uint64_t pixels_per_byte = 8192, always = 1 << 20;
    std::uint64_t const most = std::max(always, std::uint64_t{bytes_.size()} * pixels_per_byte);
    if (!info_.arith_code || std::uint64_t(size.n_pixels()) <= most) return;
    throw Error(Errc::over_budget, concat("a JPEG image of ", size.width, " x ", size.height, " pixels in ", bytes_.size(),
                                          " bytes of arithmetic coding, more than the limit of ", most, " for so few"));
  }
  /// `row` holds a row of 4 bytes a pixel.
  void read_rows(Image& image, std::uint8_t* row) {
    if (setjmp(leave_) != 0) fail();
    ::jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      std::uint8_t* const rgb = image.row(info_.output_scanline);
      JSAMPROW rows[1] = {is_cmyk_ ? row : rgb};
      ::jpeg_read_scanlines(&info_, rows, 1);
      if (is_cmyk_) from_inverted_cmyk(row, image.width(), rgb);
    }
    ::jpeg_finish_decompress(&info_);
  }
  bool is_cmyk() const { return is_cmyk_; }

  int orientation() const {
    constexpr std::string_view exif("Exif\0\0", 6), xmp("http://ns.adobe.com/xap/1.0/\0", 29);
    int found = 0;
    for (auto const* marker = info_.marker_list; marker != nullptr; marker = marker->next) {
      auto const data = std::as_bytes(std::span(marker->data, marker->data_length));
      if (as_text(data).starts_with(exif) && found == 0) found = exif_orientation(data.subspan(exif.size()));
    }
    for (auto const* marker = info_.marker_list; marker != nullptr && found == 0; marker = marker->next) {
      auto const data = std::as_bytes(std::span(marker->data, marker->data_length));
      if (as_text(data).starts_with(xmp)) found = xmp_orientation(as_text(data));
    }
    return found;
  }

 private:
  static JpegReader& self(j_common_ptr info) { return *static_cast<JpegReader*>(info->client_data); }
  [[noreturn]] static void give_up(j_common_ptr info) {
    JpegReader& reader = self(info);
    info->err->format_message(info, reader.message_);
    int const code = info->err->msg_code;
    bool never = code == JERR_BAD_PRECISION || code == JERR_SOF_UNSUPPORTED || code == JERR_CONVERSION_NOTIMPL ||
                 code == JERR_COMPONENT_COUNT || code == JERR_NOT_COMPILED;
#if JPEG_LIB_VERSION < 70  // later ones know arithmetic coding, and have no such code
    never = never || code == JERR_ARITH_NOTIMPL;
#endif
    reader.code_ = never ? Errc::unsupported : code == JERR_OUT_OF_MEMORY ? Errc::out_of_memory : Errc::bad_file;
    std::longjmp(reader.leave_, 1);
  }
  /// Of libjpeg's warnings those after which pixels are guessed; others are of markers that do not matter.
  static bool is_damage(int code) {
    return code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_ARITH_BAD_CODE || code == JWRN_JPEG_EOF ||
           code == JWRN_MUST_RESYNC;
  }
  /// Each scan goes over the whole image, however few bytes it has: a small file could keep a program busy for hours. Encoders make
  /// about ten; a small image may have more.
  static void check_scans(j_common_ptr info) {
    if (!info->is_decompressor) return;
    auto const& reading = *reinterpret_cast<j_decompress_ptr>(info);
    std::uint64_t const n_pixels = std::uint64_t{reading.image_width} * reading.image_height;
    int const max_scans = int(std::clamp<std::uint64_t>(0x80000000u / n_pixels, 20, 200));
    if (reading.input_scan_number <= max_scans) return;
    std::snprintf(self(info).message_, sizeof message_, "more than %d scans", max_scans);
    self(info).code_ = Errc::bad_file;
    std::longjmp(self(info).leave_, 1);
  }
  [[noreturn]] void fail() { throw Error(code_, concat("JPEG: ", message_)); }

  std::span<std::byte const> bytes_;
  ::jpeg_decompress_struct info_{};
  ::jpeg_error_mgr errors_{};
  ::jpeg_progress_mgr progress_{};
  std::jmp_buf leave_{};
  char message_[JMSG_LENGTH_MAX] = {};
  Errc code_ = Errc::bad_file;
  bool is_cmyk_ = false;
};

Image decode_jpeg(std::span<std::byte const> bytes, ImageLimits const& limits) {
  JpegReader reader(bytes);
  ImageSize const size = reader.read_header();
  check_size(ImageFormat::jpeg, size, limits);
  check_holds(ImageFormat::jpeg, size, bytes.size(), reader.can_hold(size));
  reader.check_work(size);
  Image image(size);
  auto const row = std::make_unique<std::uint8_t[]>(reader.is_cmyk() ? std::size_t(size.width) * 4 : 1);
  int const orientation = reader.orientation();  // its marker goes with the last row
  reader.read_rows(image, row.get());
  return oriented(std::move(image), orientation);
}
#else
bool const has_jpeg = false;

Image decode_jpeg(std::span<std::byte const>, ImageLimits const&) {
  throw Error(Errc::unsupported, "JPEG images: tiered was built without libjpeg (Debian: libjpeg-dev)");
}
#endif

}  // namespace tiered::detail
