/// Writes JPEG files by libjpeg, where the build has it.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#if defined(TIERED_BENCH_JPEG)
#include <csetjmp>

#include <jpeglib.h>
#endif

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/vision/image.hpp"

namespace bench {

#if defined(TIERED_BENCH_JPEG)
inline constexpr bool has_jpeg_writer = true;

namespace detail {

/// libjpeg leaves by longjmp, over frames that must have no destructors: so all that is released later is here.
struct JpegWriter {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  std::jmp_buf leave{};
  char message[JMSG_LENGTH_MAX] = "";
  unsigned char* out = nullptr;
  unsigned long n_bytes = 0;

  JpegWriter() = default;
  JpegWriter(JpegWriter const&) = delete;
  JpegWriter& operator=(JpegWriter const&) = delete;
  ~JpegWriter() {
    jpeg_destroy_compress(&info);
    std::free(out);
  }

  /// Whether it worked; else message says why not.
  bool compress(tiered::Image const& image, int quality) {
    info.err = jpeg_std_error(&errors);
    info.client_data = this;
    errors.error_exit = [](j_common_ptr of) {
      auto* const self = static_cast<JpegWriter*>(of->client_data);
      of->err->format_message(of, self->message);
      std::longjmp(self->leave, 1);
    };
    if (setjmp(leave) != 0) return false;
    jpeg_create_compress(&info);
    jpeg_mem_dest(&info, &out, &n_bytes);
    info.image_width = JDIMENSION(image.width());
    info.image_height = JDIMENSION(image.height());
    info.input_components = 3;
    info.in_color_space = JCS_RGB;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, quality, TRUE);
    jpeg_start_compress(&info, TRUE);
    while (info.next_scanline < info.image_height) {
      JSAMPROW row = const_cast<JSAMPROW>(image.row(info.next_scanline));  // it only reads
      jpeg_write_scanlines(&info, &row, 1);
    }
    jpeg_finish_compress(&info);
    return true;
  }
};

}  // namespace detail

/// Colours at half the resolution, as cameras write them.
/// Errors  io with libjpeg's reason.
inline std::vector<std::byte> to_jpeg(tiered::Image const& image, int quality = 90) {
  auto const writer = std::make_unique<detail::JpegWriter>();
  if (!writer->compress(image, quality)) throw tiered::Error(tiered::Errc::io, tiered::concat("libjpeg: ", writer->message));
  auto const* const begin = reinterpret_cast<std::byte const*>(writer->out);
  return {begin, begin + writer->n_bytes};
}
#else
inline constexpr bool has_jpeg_writer = false;
/// Errors  unsupported: always.
inline std::vector<std::byte> to_jpeg(tiered::Image const&, int = 90) {
  throw tiered::Error(tiered::Errc::unsupported, "this program was built without libjpeg");
}
#endif

}  // namespace bench
