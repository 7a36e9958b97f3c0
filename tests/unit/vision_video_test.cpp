// Frames out of folders and files, and which of them a model sees.
#include "tiered/vision/video.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "media_data.hpp"
#include "temp_dir.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/vision/media.hpp"
#include "tiered/vision/preprocess.hpp"
#include "vision_data.hpp"

using namespace tiered;
using tiered_test::error_of;
using tiered_test::family_config;
using tiered_test::TempDir;

namespace {

/// A BMP of one colour.
std::vector<std::byte> bmp(int width, int height, int value) {
  int const row = (3 * width + 3) / 4 * 4;
  std::vector<std::uint8_t> out(std::size_t(54 + row * height), std::uint8_t(value));
  auto const put = [&](std::size_t at, std::uint32_t n, int bytes) {
    for (int i = 0; i < bytes; ++i) out[at + std::size_t(i)] = std::uint8_t(n >> 8 * i);
  };
  out[0] = 'B', out[1] = 'M';
  put(2, std::uint32_t(out.size()), 4), put(6, 0, 4), put(10, 54, 4), put(14, 40, 4), put(18, std::uint32_t(width), 4);
  put(22, std::uint32_t(height), 4), put(26, 1, 2), put(28, 24, 2);
  for (std::size_t at = 30; at < 54; at += 4) put(at, 0, 4);
  auto const bytes = std::as_bytes(std::span(out));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

TEST_CASE("frames, sizes and seconds are those that the processors take", "[vision][video]") {
  tiered_test::FixtureReader in("../vision_prompt/videos.bin");
  int n_cases = 0;
  for (; !in.at_end(); ++n_cases) {
    std::uint32_t const model = in.number<std::uint32_t>();
    VideoInfo info;
    info.n_frames = in.number<std::int32_t>();
    info.frames_per_second = in.number<double>();
    info.size.width = in.number<std::int32_t>();
    info.size.height = in.number<std::int32_t>();
    double const rate = in.number<double>();
    std::int32_t const n = in.number<std::int32_t>();
    std::vector<std::int32_t> const expected = in.numbers<std::int32_t>(in.number<std::uint32_t>());
    ImageSize resized;
    resized.width = in.number<std::int32_t>();
    resized.height = in.number<std::int32_t>();
    double const seconds = in.number<double>();
    INFO("model " << model << ": " << info.n_frames << " frames at " << info.frames_per_second << ", rate " << rate << " or " << n);
    VisionConfig const config = family_config(tiered_test::projector_families()[model]);
    VideoSampling sampling{.frames_per_second = rate};
    if (rate == 0) sampling = {.frames_per_second = 2, .n_frames = n};
    std::vector<std::int64_t> const frames = sample_frames(info, sampling, config);
    CHECK(std::vector<std::int64_t>(expected.begin(), expected.end()) == frames);
    PatchConfig const patches = video_patch_config(config);
    CHECK((model < 2 ? smart_resize(info.size, patches) : smart_resize_video(info.size, std::int64_t(frames.size()), patches)) == resized);
    CHECK(std::fabs(2 / (double(frames.size()) / double(info.n_frames) * info.frames_per_second) - seconds) < 1e-12 * seconds);
  }
  CHECK(n_cases > 150);
}

TEST_CASE("samplings that cannot be are refused with both numbers", "[vision][video]") {
  VisionConfig const two = family_config("qwen2vl_merger"), three = family_config("qwen3vl_merger");
  VideoInfo const ten{10, 5, {8, 8}}, one{1, 5, {8, 8}};
  CHECK(error_of([&] { sample_frames(ten, {.n_frames = 20}, two); }).says("10 frames", "20"));
  CHECK(error_of([&] { sample_frames(one, {}, two); }).code == Errc::unsupported);
  CHECK(error_of([&] { sample_frames(one, {}, three); }).code == Errc::unsupported);
  CHECK(error_of([&] { sample_frames(ten, {.n_frames = 1}, two); }).code == Errc::unsupported);
  CHECK(error_of([&] { sample_frames(ten, {.n_frames = 1}, three); }).code == Errc::unsupported);
  CHECK(error_of([&] { sample_frames(ten, {.n_frames = 0}, two); }).code == Errc::precondition);
  CHECK(error_of([&] { sample_frames(ten, {.frames_per_second = 0}, two); }).code == Errc::precondition);
  CHECK(error_of([&] { sample_frames(ten, {.frames_per_second = NAN}, two); }).code == Errc::precondition);
  CHECK(sample_frames(ten, {.frames_per_second = 1e300}, three).size() == 10);
  CHECK(sample_frames(ten, {.frames_per_second = 1e-300}, two).size() == 4);
}

TEST_CASE("the images of a folder are frames, in the order that people count", "[vision][video]") {
  TempDir const dir;
  for (char const* const name : {"f10.bmp", "f9.BMP", "f2.bmp", "e100.bmp", "f010.bmp"}) {
    std::string const text(name);
    dir.write(name, bmp(5, 3, text == "e100.bmp" ? 1 : text == "f2.bmp" ? 2 : text == "f9.BMP" ? 9 : text == "f010.bmp" ? 10 : 11));
  }
  dir.write("notes.txt", std::as_bytes(std::span("no frame")));
  dir.write(".hidden.bmp", bmp(5, 3, 77));
  auto const video = open_frames(dir / "", 4.0);
  CHECK(video->info().n_frames == 5);
  CHECK(video->info().frames_per_second == 4);
  CHECK(video->info().size == ImageSize{5, 3});
  int const expected[] = {1, 2, 9, 10, 11};
  for (int i = 0; i < 5; ++i) CHECK(int(video->frame(i).row(0)[0]) == expected[i]);
  CHECK(int(video->frame(1).row(2)[14]) == 2);
  CHECK(error_of([&] { video->frame(5); }).code == Errc::precondition);

  auto const content = [](VideoSource const& source, std::vector<std::int64_t> const& frames) {
    MediaHasher hasher;
    source.add_content(hasher, frames);
    return hasher.value();
  };
  MediaHash const before = content(*video, {1, 2});
  CHECK(content(*video, {1, 2}) == before);
  CHECK(content(*video, {1, 3}) != before);
  dir.write("f2.bmp", bmp(5, 3, 3));
  CHECK(content(*video, {1, 2}) != before);
  CHECK(content(*video, {3, 4}) == content(*open_frames(std::vector{dir / "f010.bmp", dir / "f10.bmp"}, 1), {0, 1}));

  dir.write("f9.BMP", bmp(5, 4, 9));
  auto const uneven = error_of([&] { video->frame(2); });
  CHECK(uneven.code == Errc::bad_file);
  CHECK(uneven.says("f9.BMP", "5 x 4", "5 x 3"));
}

TEST_CASE("folders without frames are refused", "[vision][video]") {
  TempDir const dir;
  CHECK(error_of([&] { open_frames(dir / "none", 1.0); }).code == Errc::not_found);
  auto const empty = error_of([&] { open_frames(dir / "", 1.0); });
  CHECK(empty.code == Errc::not_found);
  CHECK(empty.says("holds no frames"));
  dir.write("a.bmp", bmp(4, 4, 1));
  CHECK(error_of([&] { open_frames(dir / "", 0.0); }).code == Errc::precondition);
  CHECK(error_of([&] { open_frames(dir / "a.bmp", 1.0); }).code == Errc::not_found);
  CHECK(error_of([&] { open_frames(std::vector<std::string>(), 1.0); }).code == Errc::precondition);
  dir.write("b.bmp", std::as_bytes(std::span("BM broken")));
  auto const video = open_frames(dir / "", 1.0);
  CHECK(error_of([&] { video->frame(1); }).says("b.bmp"));
}

TEST_CASE("video files need FFmpeg, and say so", "[vision][video]") {
  TempDir const dir;
  std::string const path = dir.write("film.mp4", std::as_bytes(std::span("no film at all")));
  if (!can_decode_video()) {
    CHECK(error_of([&] { open_video(path); }).says("libavformat-dev"));
    return;
  }
  CHECK(error_of([&] { open_video(path); }).code == Errc::bad_file);
  CHECK(error_of([&] { open_video(dir / "none.mp4"); }).code == Errc::not_found);
  // A list of files elsewhere is no video.
  std::string const list =
      dir.write("list.m3u8", std::as_bytes(std::span("#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:9/x.ts\n#EXT-X-ENDLIST\n")));
  CHECK(error_of([&] { open_video(list); }).code == Errc::bad_file);
}

// film.mkv: twelve frames of numbered_image() at 12.5 a second, FFV1, lossless; turned.mp4: six frames of 32 x 16, the left half dark, to
// be shown a quarter turned. Both by FFmpeg's program.
TEST_CASE("frames of a file are those that went in, whatever comes after what", "[vision][video]") {
  if (!can_decode_video()) return;
  std::string const path = TIERED_TEST_DATA "/vision_prompt/film.mkv";
  auto const video = open_video(path);
  CHECK(video->info().n_frames == 12);
  CHECK(video->info().frames_per_second == 12.5);
  REQUIRE(video->info().size == ImageSize{24, 16});
  for (int const i : {0, 1, 5, 5, 11, 3, 4, 0}) {
    INFO(i);
    Image const image = video->frame(i), expected = tiered_test::numbered_image({24, 16}, i);
    CHECK(std::equal(image.rgb().begin(), image.rgb().end(), expected.rgb().begin()));
  }
  CHECK(error_of([&] { video->frame(12); }).code == Errc::precondition);
  CHECK(error_of([&] { video->frame(-1); }).code == Errc::precondition);
  auto const large = error_of([&] { open_video(path, {.max_pixels = 100}); });
  CHECK(large.code == Errc::over_budget);
  CHECK(large.says("film.mkv", "24 x 16", "100"));

  auto const content = [](VideoSource const& source, std::vector<std::int64_t> const& frames) {
    MediaHasher hasher;
    source.add_content(hasher, frames);
    return hasher.value();
  };
  CHECK(content(*video, {1}) != content(*video, {2}));
  CHECK(content(*video, {1}) == content(*open_video(path), {1}));
}

TEST_CASE("files that are cut or damaged give the frames that are there, or say so", "[vision][video]") {
  if (!can_decode_video()) return;
  std::ifstream stream(TIERED_TEST_DATA "/vision_prompt/film.mkv", std::ios::binary);
  std::string const whole(std::istreambuf_iterator<char>(stream), {});
  TempDir const dir;
  for (std::size_t const n : {std::size_t{100}, whole.size() / 3, whole.size() - 400}) {
    INFO(n << " bytes");
    std::string const path = dir.write("cut.mkv", std::as_bytes(std::span(whole.data(), n)));
    auto const error = error_of([&] {
      auto const video = open_video(path);
      REQUIRE(video->info().n_frames <= 12);
      for (std::int64_t i = 0; i < video->info().n_frames; ++i) REQUIRE(video->frame(i).size() == ImageSize{24, 16});
    });
    if (error.code) CHECK(error.code == Errc::bad_file);
    if (error.code) CHECK(error.says("cut.mkv"));
    if (n == 100) CHECK(error.code.has_value());
  }
  tiered::SplitMix64 random(77);
  for (int i = 0; i < 40; ++i) {
    std::string damaged = whole;
    for (int k = 0; k < 8; ++k) damaged[random.next() % damaged.size()] = char(random.next());
    std::string const path = dir.write("damaged.mkv", std::as_bytes(std::span(damaged)));
    auto const error = error_of([&] {
      auto const video = open_video(path, {.max_pixels = 1 << 20});
      for (std::int64_t f = 0; f < std::min<std::int64_t>(video->info().n_frames, 20); ++f) video->frame(f);
    });
    if (error.code) CHECK((error.code == Errc::bad_file || error.code == Errc::unsupported || error.code == Errc::over_budget));
  }
}

// hidden.webm: 40 frames in 43 packets, each frame brighter by 3 than the last. uncoded.m4v: 8 frames and 2 packets that repeat one, each
// frame brighter by 6.
TEST_CASE("packets without a frame are not counted", "[vision][video]") {
  if (!can_decode_video()) return;
  struct Case {
    char const* name;
    std::int64_t n_frames;
    double rate, step;
  };
  for (Case const& c : {Case{"hidden.webm", 40, 20, 3}, Case{"uncoded.m4v", 8, 25, 6}}) {
    INFO(c.name);
    auto const video = open_video(std::string(TIERED_TEST_DATA "/vision_prompt/") + c.name);
    REQUIRE(video->info().n_frames == c.n_frames);
    CHECK(video->info().frames_per_second == c.rate);
    double first = 0;
    for (std::int64_t i = 0; i < c.n_frames; ++i) {
      double sum = 0;
      Image const image = video->frame(i);
      for (std::uint8_t const value : image.rgb()) sum += value;
      double const mean = sum / double(image.rgb().size());
      if (i == 0) first = mean;
      CHECK(std::fabs(mean - first - c.step * double(i)) < 1.5 * c.step);
    }
  }
}

TEST_CASE("a flag ends what takes long, and nothing is lost", "[vision][video]") {
  std::atomic<bool> cancelled{false};
  auto const all_of = [&](VideoSource& video) {
    MediaHasher hasher;
    video.add_content(hasher, std::vector<std::int64_t>{0, 1});
    Image const image = video.frame(1);
    hasher.add(std::as_bytes(image.rgb()));
    return hasher.value();
  };
  auto const check = [&](auto const& open) {
    auto const video = open(&cancelled);
    cancelled = true;
    MediaHasher hasher;
    CHECK(error_of([&] { video->add_content(hasher, std::vector<std::int64_t>{0, 1}); }).code == Errc::cancelled);
    cancelled = false;
    CHECK(all_of(*video) == all_of(*open(nullptr)));
  };
  TempDir const dir;
  for (char const* const name : {"1.bmp", "2.bmp"}) dir.write(name, bmp(5, 3, name[0]));
  check([&](std::atomic<bool> const* flag) { return open_frames(dir / "", 4.0, {}, flag); });
  if (!can_decode_video()) return;
  std::string const path = TIERED_TEST_DATA "/vision_prompt/film.mkv";
  check([&](std::atomic<bool> const* flag) { return open_video(path, {}, flag); });
  cancelled = true;
  CHECK(error_of([&] { open_video(path, {}, &cancelled); }).code == Errc::cancelled);
  cancelled = false;
  auto const video = open_video(path, {}, &cancelled);
  video->frame(2);
  cancelled = true;
  CHECK(error_of([&] { video->frame(11); }).code == Errc::cancelled);
  cancelled = false;
  for (int const i : {3, 11, 0}) {
    Image const image = video->frame(i), expected = tiered_test::numbered_image({24, 16}, i);
    CHECK(std::equal(image.rgb().begin(), image.rgb().end(), expected.rgb().begin()));
  }
}

TEST_CASE("frames are upright", "[vision][video]") {
  if (!can_decode_video()) return;
  auto const video = open_video(TIERED_TEST_DATA "/vision_prompt/turned.mp4");
  CHECK(video->info().n_frames == 6);
  CHECK(video->info().frames_per_second == 6);
  REQUIRE(video->info().size == ImageSize{16, 32});
  Image const image = video->frame(3);
  REQUIRE(image.size() == ImageSize{16, 32});
  CHECK(int(image.row(4)[24]) < 60);
  CHECK(int(image.row(28)[24]) > 190);
}
