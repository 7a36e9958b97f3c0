/// Video files by FFmpeg's libraries, which are opened when a video is: for one source file of a program.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/config.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/file.hpp"
#include "tiered/vision/detail/cancelled.hpp"
#include "tiered/vision/detail/orientation.hpp"
#include "tiered/vision/detail/video_files.hpp"
#include "tiered/vision/video.hpp"

#if TIERED_HAS_FFMPEG
#include <dlfcn.h>
extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/display.h>
#include <libswscale/swscale.h>
}
#endif

namespace tiered {

#if TIERED_HAS_FFMPEG
namespace detail {

/// The functions of FFmpeg that are used here, looked up when the first video is opened: its libraries bring a hundred others, which would
/// cost every program's start. Of the versions whose headers this was compiled with.
class FfmpegLibraries {
 public:
  /// Null where they are not installed.
  static FfmpegLibraries const* find_installed() {
    static FfmpegLibraries const libraries;
    return libraries.is_complete_ ? &libraries : nullptr;
  }
  /// Where there is a video already.
  static FfmpegLibraries const& get() { return *find_installed(); }

 private:
  static void* open(char const* name, int version) {
    // Never closed: a library that has started threads cannot be.
    return ::dlopen(concat("lib", name, ".so.", version).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  /// A function of the type that is asked for.
  struct Symbol {
    void* address;
    template <class Function>
    operator Function*() const {
      return reinterpret_cast<Function*>(address);
    }
  };
  Symbol find(void* library, char const* name) {
    void* const found = library != nullptr ? ::dlsym(library, name) : nullptr;
    is_complete_ = is_complete_ && found != nullptr;
    return {found};
  }

  bool is_complete_ = true;
  void* avutil_ = open("avutil", LIBAVUTIL_VERSION_MAJOR);
  void* swscale_ = open("swscale", LIBSWSCALE_VERSION_MAJOR);
  void* avcodec_ = open("avcodec", LIBAVCODEC_VERSION_MAJOR);
  void* avformat_ = open("avformat", LIBAVFORMAT_VERSION_MAJOR);

 public:
  decltype(&::avformat_open_input) avformat_open_input = find(avformat_, "avformat_open_input");
  decltype(&::avformat_find_stream_info) avformat_find_stream_info = find(avformat_, "avformat_find_stream_info");
  decltype(&::avformat_close_input) avformat_close_input = find(avformat_, "avformat_close_input");
  decltype(&::av_find_best_stream) av_find_best_stream = find(avformat_, "av_find_best_stream");
  decltype(&::av_read_frame) av_read_frame = find(avformat_, "av_read_frame");
  decltype(&::avcodec_find_decoder) avcodec_find_decoder = find(avcodec_, "avcodec_find_decoder");
  decltype(&::avcodec_get_name) avcodec_get_name = find(avcodec_, "avcodec_get_name");
  decltype(&::avcodec_alloc_context3) avcodec_alloc_context3 = find(avcodec_, "avcodec_alloc_context3");
  decltype(&::avcodec_parameters_to_context) avcodec_parameters_to_context = find(avcodec_, "avcodec_parameters_to_context");
  decltype(&::avcodec_open2) avcodec_open2 = find(avcodec_, "avcodec_open2");
  decltype(&::avcodec_free_context) avcodec_free_context = find(avcodec_, "avcodec_free_context");
  decltype(&::avcodec_send_packet) avcodec_send_packet = find(avcodec_, "avcodec_send_packet");
  decltype(&::avcodec_receive_frame) avcodec_receive_frame = find(avcodec_, "avcodec_receive_frame");
  decltype(&::av_packet_alloc) av_packet_alloc = find(avcodec_, "av_packet_alloc");
  decltype(&::av_packet_free) av_packet_free = find(avcodec_, "av_packet_free");
  decltype(&::av_packet_unref) av_packet_unref = find(avcodec_, "av_packet_unref");
  decltype(&::av_frame_alloc) av_frame_alloc = find(avutil_, "av_frame_alloc");
  decltype(&::av_frame_free) av_frame_free = find(avutil_, "av_frame_free");
  decltype(&::av_dict_set) av_dict_set = find(avutil_, "av_dict_set");
  decltype(&::av_dict_free) av_dict_free = find(avutil_, "av_dict_free");
  decltype(&::av_strerror) av_strerror = find(avutil_, "av_strerror");
  decltype(&::av_display_rotation_get) av_display_rotation_get = find(avutil_, "av_display_rotation_get");
  decltype(&::sws_getCachedContext) sws_getCachedContext = find(swscale_, "sws_getCachedContext");
  decltype(&::sws_getCoefficients) sws_getCoefficients = find(swscale_, "sws_getCoefficients");
  decltype(&::sws_setColorspaceDetails) sws_setColorspaceDetails = find(swscale_, "sws_setColorspaceDetails");
  decltype(&::sws_scale) sws_scale = find(swscale_, "sws_scale");
  decltype(&::sws_freeContext) sws_freeContext = find(swscale_, "sws_freeContext");
#if LIBAVFORMAT_VERSION_MAJOR >= 61
  decltype(&::av_packet_side_data_get) av_packet_side_data_get = find(avcodec_, "av_packet_side_data_get");
#else
  decltype(&::av_stream_get_side_data) av_stream_get_side_data = find(avformat_, "av_stream_get_side_data");
#endif
};

struct FreeFfmpeg {
  void operator()(AVFormatContext* p) const { FfmpegLibraries::get().avformat_close_input(&p); }
  void operator()(AVCodecContext* p) const { FfmpegLibraries::get().avcodec_free_context(&p); }
  void operator()(AVPacket* p) const { FfmpegLibraries::get().av_packet_free(&p); }
  void operator()(AVFrame* p) const { FfmpegLibraries::get().av_frame_free(&p); }
  void operator()(SwsContext* p) const { FfmpegLibraries::get().sws_freeContext(p); }
};
template <class T>
using FfmpegPtr = std::unique_ptr<T, FreeFfmpeg>;

template <class T>
FfmpegPtr<T> ffmpeg_made(T* made) {
  if (made == nullptr) throw Error(Errc::out_of_memory, "no memory to read a video");
  return FfmpegPtr<T>(made);
}

/// One pass over the packets and frames of a file's video.
class FfmpegPass {
 public:
  FfmpegPass(std::string const& path, ImageLimits const& limits, std::atomic<bool> const* cancelled)
      : path_(path), cancelled_(cancelled), packet_(ffmpeg_made(FfmpegLibraries::get().av_packet_alloc())) {
    open_format();
    open_codec(limits);
  }
  AVStream const& stream() const { return *format_->streams[stream_]; }

  /// The next packet of the video, or false at the end.
  bool read() {
    for (;;) {
      check_cancelled(cancelled_);
      FfmpegLibraries::get().av_packet_unref(packet_.get());
      int const code = FfmpegLibraries::get().av_read_frame(format_.get(), packet_.get());
      if (code == AVERROR_EOF) return false;
      check(code, Errc::bad_file, "cannot be read");
      if (packet_->stream_index == stream_ && packet_->size > 0) return true;  // an empty one repeats a frame that is shown already
    }
  }
  /// Of the packet that was read: whether a frame of it is shown. VP8 has some that only later ones look at; a bit says so.
  bool is_shown() const {
    bool const hidden = stream().codecpar->codec_id == AV_CODEC_ID_VP8 && (packet_->data[0] & 0x10) == 0;
    return !hidden && (packet_->flags & AV_PKT_FLAG_DISCARD) == 0;
  }
  /// Whether a shown packet is a frame. Some of MPEG-4 only say that the last one lasts; of interlaced video one may be half a frame.
  bool has_frame_in_each_packet() const {
    AVCodecParameters const& p = *stream().codecpar;
    return p.codec_id != AV_CODEC_ID_MPEG4 && p.field_order <= AV_FIELD_PROGRESSIVE;
  }
  /// The next frame, or false behind the last.
  bool decode(AVFrame* frame) {
    for (;;) {
      int const code = FfmpegLibraries::get().avcodec_receive_frame(codec_.get(), frame);
      if (code == AVERROR_EOF) return false;
      if (code != AVERROR(EAGAIN)) return check(code, Errc::bad_file, "cannot be decoded"), true;
      check(FfmpegLibraries::get().avcodec_send_packet(codec_.get(), read() ? packet_.get() : nullptr), Errc::bad_file,
            "cannot be decoded");
    }
  }

 private:
  void check(int code, Errc kind, std::string_view what) const {
    if (code >= 0) return;
    if (code == AVERROR(ENOMEM)) throw Error(Errc::out_of_memory, concat(path_, ": no memory to read it"));
    char text[AV_ERROR_MAX_STRING_SIZE] = {};
    FfmpegLibraries::get().av_strerror(code, text, sizeof text);
    throw Error(kind, concat(path_, ": ", what, ": ", text));
  }
  void open_format() {
    AVDictionary* options = nullptr;
    // Neither the network nor lists of other files.
    FfmpegLibraries::get().av_dict_set(&options, "protocol_whitelist", "file", 0);
    FfmpegLibraries::get().av_dict_set(
        &options, "format_whitelist",
        "mov,mp4,matroska,webm,avi,mpegts,mpeg,mpegvideo,flv,ogg,asf,h264,hevc,ivf,m4v,mjpeg,gif,apng,yuv4mpegpipe,nut", 0);
    AVFormatContext* format = nullptr;
    int const code = FfmpegLibraries::get().avformat_open_input(&format, path_.c_str(), nullptr, &options);
    FfmpegLibraries::get().av_dict_free(&options);
    check(code, Errc::bad_file, "is no video that can be read");
    format_.reset(format);
    check(FfmpegLibraries::get().avformat_find_stream_info(format, nullptr), Errc::bad_file, "is no video that can be read");
    stream_ = FfmpegLibraries::get().av_find_best_stream(format, AVMEDIA_TYPE_VIDEO, -1, -1, nullptr, 0);
    if (stream_ < 0) throw Error(Errc::bad_file, concat(path_, ": holds no video"));
    for (unsigned i = 0; i < format->nb_streams; ++i) {
      if (int(i) != stream_) format->streams[i]->discard = AVDISCARD_ALL;
    }
  }
  void open_codec(ImageLimits const& limits) {
    AVCodecParameters const* const parameters = stream().codecpar;
    std::int64_t const width = parameters->width, height = parameters->height;
    if (width <= 0 || height <= 0) throw Error(Errc::bad_file, concat(path_, ": frames of ", width, " x ", height, " pixels"));
    if (width > limits.max_pixels / height) {
      throw Error(Errc::over_budget,
                  concat(path_, ": frames of ", width, " x ", height, " pixels, more than the limit of ", limits.max_pixels));
    }
    AVCodec const* const codec = FfmpegLibraries::get().avcodec_find_decoder(parameters->codec_id);
    if (codec == nullptr)
      throw Error(Errc::unsupported,
                  concat(path_, ": no decoder here knows ", FfmpegLibraries::get().avcodec_get_name(parameters->codec_id)));
    codec_ = ffmpeg_made(FfmpegLibraries::get().avcodec_alloc_context3(codec));
    check(FfmpegLibraries::get().avcodec_parameters_to_context(codec_.get(), parameters), Errc::bad_file, "cannot be decoded");
    codec_->max_pixels = limits.max_pixels;
    codec_->thread_count = 0;        // as many as it likes
    codec_->log_level_offset = 100;  // errors are told by us
    check(FfmpegLibraries::get().avcodec_open2(codec_.get(), codec, nullptr), Errc::unsupported, "cannot be decoded");
  }

  std::string const& path_;
  std::atomic<bool> const* cancelled_;
  FfmpegPtr<AVPacket> packet_;
  FfmpegPtr<AVFormatContext> format_;
  FfmpegPtr<AVCodecContext> codec_;
  int stream_ = -1;
};

/// As exif_orientation(): how frames are to be turned.
inline int stream_orientation(AVStream const& stream) {
  std::uint8_t const* data = nullptr;
#if LIBAVFORMAT_VERSION_MAJOR >= 61
  AVPacketSideData const* const side = FfmpegLibraries::get().av_packet_side_data_get(
      stream.codecpar->coded_side_data, stream.codecpar->nb_coded_side_data, AV_PKT_DATA_DISPLAYMATRIX);
  if (side != nullptr && side->size >= 9 * sizeof(std::int32_t)) data = side->data;
#else
  std::size_t n_bytes = 0;
  data = FfmpegLibraries::get().av_stream_get_side_data(&stream, AV_PKT_DATA_DISPLAYMATRIX, &n_bytes);
  if (n_bytes < 9 * sizeof(std::int32_t)) data = nullptr;
#endif
  if (data == nullptr) return 0;
  double const against_clock = FfmpegLibraries::get().av_display_rotation_get(reinterpret_cast<std::int32_t const*>(data));
  if (!std::isfinite(against_clock)) return 0;
  int const quarters = (int(std::lround(-against_clock / 90)) % 4 + 4) % 4;
  constexpr int orientations[] = {0, 6, 3, 8};
  return orientations[quarters];
}

class FfmpegVideo final : public VideoSource {
 public:
  FfmpegVideo(std::string const& path, ImageLimits const& limits, std::atomic<bool> const* cancelled)
      : path_(path), limits_(limits), cancelled_(cancelled), frame_(ffmpeg_made(FfmpegLibraries::get().av_frame_alloc())) {
    static_cast<void>(FileHandle::open(path));  // says better what is wrong with a path
    FfmpegPass pass(path_, limits_, cancelled_);
    AVStream const& stream = pass.stream();
    AVRational const rate = stream.avg_frame_rate.num > 0 ? stream.avg_frame_rate : stream.r_frame_rate;
    stored_ = {stream.codecpar->width, stream.codecpar->height};
    orientation_ = stream_orientation(stream);
    info_.size = orientation_ >= 5 ? ImageSize{stored_.height, stored_.width} : stored_;
    info_.frames_per_second = rate.num > 0 && rate.den > 0 ? double(rate.num) / double(rate.den) : 0;
    if (pass.has_frame_in_each_packet()) {
      while (pass.read()) info_.n_frames += pass.is_shown() ? 1 : 0;
    } else {
      while (pass.decode(frame_.get())) ++info_.n_frames;
    }
    if (info_.n_frames == 0 || !(info_.frames_per_second > 0)) {
      throw Error(Errc::bad_file, concat(path_, ": a video of ", info_.n_frames, " frames, ", info_.frames_per_second, " a second"));
    }
  }
  VideoInfo const& info() const override { return info_; }
  std::string_view name() const override { return path_; }
  void add_content(MediaHasher& hasher, std::span<std::int64_t const> frames) const override {
    if (!content_) {
      MediaHasher of_file;
      add_file(of_file, path_, cancelled_);
      content_ = of_file.value();
    }
    hasher.add(std::as_bytes(std::span(content_->bytes)));
    for (std::int64_t const i : frames) hasher.add(i);
  }
  Image frame(std::int64_t index) override {
    expects(index >= 0 && index < info_.n_frames, "frames of a video are numbered from 0");
    if (index == last_index_) return last_;
    if (pass_ == nullptr || index < next_) {
      pass_ = std::make_unique<FfmpegPass>(path_, limits_, cancelled_);
      next_ = 0;
    }
    for (; next_ <= index; ++next_) {
      if (pass_->decode(frame_.get())) continue;
      pass_.reset();
      throw Error(Errc::bad_file, concat(path_, ": is cut off or damaged: ", next_, " of its ", info_.n_frames, " frames can be decoded"));
    }
    last_ = as_image();
    last_index_ = index;
    return last_;
  }

 private:
  Image as_image() {
    if (ImageSize const size{frame_->width, frame_->height}; size != stored_) {
      throw Error(Errc::bad_file, concat(path_, ": a frame of ", size.width, " x ", size.height, " pixels in a video of ", stored_.width,
                                         " x ", stored_.height));
    }
    // Cached: made anew where the kind of pixels changes.
    scaler_.reset(FfmpegLibraries::get().sws_getCachedContext(
        scaler_.release(), frame_->width, frame_->height, AVPixelFormat(frame_->format), frame_->width, frame_->height, AV_PIX_FMT_RGB24,
        SWS_BILINEAR | SWS_ACCURATE_RND | SWS_FULL_CHR_H_INT, nullptr, nullptr, nullptr));
    if (scaler_ == nullptr) throw Error(Errc::unsupported, concat(path_, ": its pixels cannot be turned into RGB"));
    int const* const matrix = FfmpegLibraries::get().sws_getCoefficients(frame_->colorspace);  // of no colour space: BT.601's
    static_cast<void>(FfmpegLibraries::get().sws_setColorspaceDetails(scaler_.get(), matrix, frame_->color_range == AVCOL_RANGE_JPEG,
                                                                      matrix, 1, 0, 1 << 16,
                                                                      1 << 16));  // fails for what is RGB already
    Image image(stored_);
    constexpr std::size_t vector = 64;  // whole ones are written, beyond a row's end too
    std::size_t const stride = (image.row_bytes() + vector - 1) / vector * vector + vector;
    rgb_.resize(stride * std::size_t(image.height()));
    std::uint8_t* const rows[4] = {rgb_.data(), nullptr, nullptr, nullptr};
    int const row_bytes[4] = {int(stride), 0, 0, 0};
    FfmpegLibraries::get().sws_scale(scaler_.get(), frame_->data, frame_->linesize, 0, frame_->height, rows, row_bytes);
    for (std::int64_t y = 0; y < image.height(); ++y) std::memcpy(image.row(y), rgb_.data() + std::size_t(y) * stride, image.row_bytes());
    return oriented(std::move(image), orientation_);
  }

  std::string path_;
  ImageLimits limits_;
  std::atomic<bool> const* cancelled_;
  VideoInfo info_;
  ImageSize stored_{};
  int orientation_ = 0;
  mutable std::optional<MediaHash> content_;
  std::unique_ptr<FfmpegPass> pass_;
  FfmpegPtr<AVFrame> frame_;
  FfmpegPtr<SwsContext> scaler_;
  std::vector<std::uint8_t> rgb_;
  std::int64_t next_ = 0, last_index_ = -1;
  Image last_;
};

}  // namespace detail

bool can_decode_video() { return detail::FfmpegLibraries::find_installed() != nullptr; }

std::unique_ptr<VideoSource> open_video(std::string const& path, ImageLimits const& limits, std::atomic<bool> const* cancelled) {
  if (!can_decode_video()) {
    throw Error(Errc::unsupported, concat(path, ": the libraries of FFmpeg that tiered was built with are not installed (libavformat.so.",
                                          LIBAVFORMAT_VERSION_MAJOR, "); a folder of frames can be read"));
  }
  return std::make_unique<detail::FfmpegVideo>(path, limits, cancelled);
}
#else
bool can_decode_video() { return false; }

std::unique_ptr<VideoSource> open_video(std::string const& path, ImageLimits const&, std::atomic<bool> const*) {
  throw Error(Errc::unsupported, concat(path,
                                        ": tiered was built without FFmpeg (Debian: libavformat-dev libavcodec-dev libswscale-dev); "
                                        "a folder of frames can be read"));
}
#endif

}  // namespace tiered
