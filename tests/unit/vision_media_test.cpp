// Images and videos of a prompt before an encoder sees them.
#include "tiered/vision/media.hpp"

#include <algorithm>
#include <atomic>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "media_data.hpp"
#include "temp_dir.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/vision/vision_model.hpp"
#include "vision_data.hpp"

using namespace tiered;
using tiered_test::error_of;
using tiered_test::family_config;
using tiered_test::numbered_image;
using tiered_test::TempDir;

namespace {

/// A video in memory that counts.
class Film final : public VideoSource {
 public:
  Film(std::int64_t n_frames, double rate, ImageSize size) : info_{n_frames, rate, size} {}
  VideoInfo const& info() const override { return info_; }
  std::string_view name() const override { return "film"; }
  void add_content(MediaHasher& hasher, std::span<std::int64_t const> frames) const override {
    for (std::int64_t const i : frames) hasher.add(i);
  }
  Image frame(std::int64_t index) override {
    asked.push_back(index);
    if (asked.size() == cancels_at) cancelled = true;
    return numbered_image(info_.size, int(index % 50));
  }
  std::vector<std::int64_t> asked;
  std::atomic<bool> cancelled{false};
  std::size_t cancels_at = 0;

 private:
  VideoInfo info_;
};

std::vector<float> all_patches(Patches const& p) {
  std::vector<float> out(std::size_t(p.grid().n_patches() * p.patch_elems()));
  p.write(0, p.grid().n_patches(), out);
  return out;
}

}  // namespace

TEST_CASE("a projector's numbers are those of preprocessing", "[vision][media]") {
  VisionConfig c = family_config("qwen3vl_merger");
  c.image_mean = {0.5f, 0.4f, 0.3f};
  PatchConfig const images = patch_config(c), videos = video_patch_config(c);
  CHECK(images.factor() == 32);
  CHECK(images.temporal_patch_size == 2);
  CHECK(images.mean == c.image_mean);
  CHECK(images.std_dev == c.image_std);
  CHECK((images.min_pixels == c.min_pixels && images.max_pixels == c.max_pixels));
  CHECK((videos.min_pixels == 4096 && videos.max_pixels == 25165824));
  CHECK(videos.mean == images.mean);
  c.projector = "other";
  CHECK(error_of([&] { video_patch_config(c); }).says("\"other\"", "qwen2.5vl_merger"));
  CHECK(error_of([&] { mrope_config(c); }).code == Errc::unsupported);
  CHECK(mrope_config(family_config("qwen2.5vl_merger")).tokens_per_second == 2);
  CHECK(mrope_config(family_config("qwen2vl_merger")).tokens_per_second == 0);
  CHECK(mrope_config(family_config("qwen3vl_merger")).frames_apart);
}

// LC#13445, LC#16842: sizes at which other programs fail or see boxes elsewhere. Tokens by smart_resize() of transformers.
TEST_CASE("images of the sizes that users report", "[vision][media]") {
  struct Size {
    ImageSize size;
    std::int64_t tokens[3];
  };
  for (Size const& s : {Size{{1242, 881}, {44 * 31, 44 * 31, 39 * 28}},
                        {{1, 1}, {4, 4, 64}},
                        {{4032, 3024}, {144 * 108, 144 * 108, 126 * 94}},
                        {{3024, 4032}, {144 * 108, 144 * 108, 126 * 94}},
                        {{2000, 11}, {71, 71, 109}},
                        {{640, 480}, {23 * 17, 23 * 17, 20 * 15}}}) {
    for (std::size_t i = 0; i < 3; ++i) {
      if (s.size.n_pixels() > 10'000'000 && i == 1) continue;  // as the first
      INFO(s.size.width << " x " << s.size.height << ", " << tiered_test::projector_families()[i]);
      VisionConfig const c = family_config(tiered_test::projector_families()[i]);
      Media const image = MediaReader(c).image(numbered_image(s.size, 1), "photo");
      PatchGrid const g = image.info().grid;
      CHECK(image.info().kind == PromptKind::image);
      CHECK(g.t == 1);
      if (s.size.width != 2000) CHECK(g.n_tokens(2) == s.tokens[i]);
      CHECK(image.step_tokens(2) == g.n_tokens(2));
      CHECK((g.w >= g.h) == (s.size.width >= s.size.height));
      if (s.size.n_pixels() > 1 << 20) continue;
      Patches const direct(numbered_image(s.size, 1), patch_config(c));
      CHECK(image.patches({0, 1}).grid() == direct.grid());
      CHECK(all_patches(image.patches({0, 1})) == all_patches(direct));
    }
  }
  auto const narrow = error_of([] { MediaReader(family_config("qwen2vl_merger")).image(numbered_image({2010, 10}, 1), "strip"); });
  CHECK(narrow.code == Errc::unsupported);
  CHECK(narrow.says("strip: ", "2010 x 10"));
}

TEST_CASE("limits of tokens hold, and follow each other where they cross", "[vision][media]") {
  VisionConfig const c = family_config("qwen2.5vl_merger");
  auto const tokens = [&](std::int64_t least, std::int64_t most) {
    MediaOptions options;
    options.min_tokens = least;
    options.max_tokens = most;
    return MediaReader(c, options).image(numbered_image({640, 480}, 1)).info().grid.n_tokens(2);
  };
  CHECK(tokens(0, 0) == 391);
  CHECK(tokens(0, 100) <= 100);
  CHECK(tokens(0, 100) > 60);
  CHECK(tokens(1024, 0) >= 1024);
  CHECK(tokens(0, 1) == 1);
  CHECK(tokens(20000, 0) >= 20000);  // above the file's most
  CHECK(error_of([&] { tokens(5, 4); }).code == Errc::precondition);
  CHECK(error_of([&] { tokens(-1, 0); }).code == Errc::precondition);
}

// Of Qwen3-VL with at most 64 tokens, a photo of 200 x 150 had 70, since the least of its family is 64, too: the encoder had no room for
// it.
TEST_CASE("no image and no step of a video has more tokens than were asked for, or patches than are announced", "[vision][media]") {
  SplitMix64 random(20260);
  std::vector<ImageSize> sizes = {{200, 150}, {320, 240}, {24, 16}, {1990, 10}, {10, 1990}, {1, 1}, {1, 200}, {640, 480}, {400, 2}};
  for (int i = 0; i < 60; ++i) {
    std::int64_t const width = 1 + std::int64_t(random.below(700)), height = 1 + std::int64_t(random.below(700));
    if (std::max(width, height) <= 200 * std::min(width, height)) sizes.push_back({width, height});
  }
  int n_at_most = 0;
  for (std::string const& family : tiered_test::projector_families()) {
    VisionConfig const c = family_config(family);
    for (auto const& [least, most] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {0, 64}, {0, 128}, {0, 16}, {4, 16}, {16, 16}, {0, 1}, {0, 700}, {0, 7}, {300, 0}, {0, 0}}) {
      MediaReader const reader(c, tiered_test::few_tokens(least, most));
      for (ImageSize const size : sizes) {
        INFO(family << ", " << least << " to " << most << " tokens, " << size.width << " x " << size.height);
        std::int64_t const of_image = reader.image(Image(size)).info().grid.frame_patches();
        CHECK(of_image <= reader.max_patches());
        std::int64_t of_video = 0;
        for (std::int64_t const n_frames : {2, 4, 5, 7}) {
          if (n_frames % 2 != 0 && family != "qwen3vl_merger") continue;
          Media const video = reader.video(std::make_shared<Film>(8, 2.0, size), {.n_frames = n_frames});
          of_video = std::max(of_video, video.info().grid.frame_patches());
        }
        CHECK(of_video <= reader.max_patches());
        if (most == 0) continue;
        CHECK(of_image <= 4 * most);
        CHECK(of_video <= 4 * most);
        n_at_most += of_image > 3 * most ? 1 : 0;
      }
      if (most > 0) CHECK(reader.max_patches() == 4 * most);
    }
  }
  CHECK(n_at_most > 200);
}

TEST_CASE("room is for what files and families allow, and follows a least above them", "[vision][media]") {
  VisionConfig c = family_config("qwen2.5vl_merger");
  CHECK(max_patches(c) == 4 * 16384);
  CHECK(max_patches(family_config("qwen3vl_merger")) == 4 * 16384);
  CHECK(max_patches(c, tiered_test::few_tokens(20000, 0)) > 4 * 20000);
  CHECK(max_patches(c, tiered_test::few_tokens(20000, 0)) < 4 * 24000);
  c.max_pixels = 28 * 28 * 300;  // less than the family's videos have
  CHECK(max_patches(c) == 4 * 768);
  c.projector = "other";
  CHECK(max_patches(c) == 4 * 300);
}

TEST_CASE("an image of a file is known by the file's bytes", "[vision][media]") {
  tiered_test::TempDir const dir;
  MediaReader const reader(family_config("qwen2vl_merger"));
  auto const write = [&](std::string const& name, std::uint8_t blue) {  // a BMP of 30 x 29 pixels of one colour
    constexpr std::uint32_t width = 30, height = 29, row_bytes = 92;
    std::vector<std::byte> bytes(54 + row_bytes * height, std::byte{blue});
    auto const put = [&](std::size_t at, std::uint32_t value, std::size_t n) {
      for (std::size_t i = 0; i < n; ++i) bytes[at + i] = std::byte(value >> 8 * i & 255);
    };
    std::pair<std::size_t, std::uint32_t> const header[] = {{2, std::uint32_t(bytes.size())},
                                                            {6, 0},
                                                            {10, 54},
                                                            {14, 40},
                                                            {18, width},
                                                            {22, height},
                                                            {30, 0},
                                                            {34, 0},
                                                            {38, 0},
                                                            {42, 0},
                                                            {46, 0},
                                                            {50, 0}};
    put(0, 0x4d42, 2);
    for (auto const& [at, value] : header) put(at, value, 4);
    put(26, 1, 2);
    put(28, 24, 2);
    return dir.write(name, bytes);
  };
  auto const hash = [&](std::string const& file) { return reader.image(file).info().hashes.at(0); };
  MediaHash const one = hash(write("a.bmp", 10));
  CHECK(hash(write("b.bmp", 10)) == one);
  CHECK(hash(write("a.bmp", 11)) != one);
  std::string const file = write("c.bmp", 12);
  CHECK(MediaReader(family_config("qwen2.5vl_merger")).image(file).info().hashes.at(0) != hash(file));
  CHECK(reader.image(load_image(file)).info().hashes.at(0) == reader.image(load_image(file), "another name").info().hashes.at(0));
  CHECK(all_patches(reader.image(file).patches({0, 1})) == all_patches(reader.image(load_image(file)).patches({0, 1})));
}

TEST_CASE("hashes tell pictures apart by what an encoder would see", "[vision][media]") {
  VisionConfig const c = family_config("qwen2.5vl_merger");
  MediaReader const reader(c);
  auto const hash = [](Media const& m) { return m.info().hashes.at(0); };
  MediaHash const one = hash(reader.image(numbered_image({64, 48}, 1), "a"));
  CHECK(hash(reader.image(numbered_image({64, 48}, 1), "another name")) == one);
  Image other = numbered_image({84, 56}, 1);
  MediaHash const exact = hash(reader.image(other));
  other.row(55)[251] ^= 1;
  CHECK(hash(reader.image(other)) != exact);
  CHECK(hash(reader.image(numbered_image({48, 64}, 1))) != one);
  CHECK(hash(MediaReader(c, tiered_test::few_tokens(20, 40)).image(numbered_image({64, 48}, 1))) != one);
  // The same bytes in rows of another length.
  Image flat({112, 28}), tall({28, 112});
  std::fill(flat.rgb().begin(), flat.rgb().end(), std::uint8_t{9});
  std::fill(tall.rgb().begin(), tall.rgb().end(), std::uint8_t{9});
  CHECK(hash(reader.image(flat)) != hash(reader.image(tall)));
  VisionConfig finer = c;
  finer.image_mean[1] += 0.25f;
  CHECK(hash(MediaReader(finer).image(numbered_image({64, 48}, 1))) != one);
  finer = c;
  finer.name = "another model";
  CHECK(hash(MediaReader(finer).image(numbered_image({64, 48}, 1))) != one);
  finer = c;
  finer.weights.bytes[31] = 1;
  CHECK(hash(MediaReader(finer).image(numbered_image({64, 48}, 1))) != one);
}

TEST_CASE("encoders that are alike but for their weights see other pictures", "[vision][media]") {
  std::string const path = tiered_test::vlm_path("qwen25vl.mmproj.f16.gguf");
  std::ifstream stream(path, std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(stream), {});
  auto const weights = [](std::string const& file) { return VisionModel(GgufFile::open(file)).vision().weights; };
  MediaHash const original = weights(path);
  CHECK(original != MediaHash{});
  TempDir const dir;
  CHECK(weights(dir.write("same.gguf", std::as_bytes(std::span(bytes)))) == original);
  GgufFile const file = GgufFile::open(path);
  for (GgufTensor const& t : file.tensors()) {
    INFO(t.name);
    std::string tuned = bytes;
    tuned.at(t.file_offset + t.bytes / 2) ^= 1;
    CHECK(weights(dir.write("tuned.gguf", std::as_bytes(std::span(tuned)))) != original);
  }
}

TEST_CASE("files that are no images are refused with their names", "[vision][media]") {
  TempDir const dir;
  MediaReader const reader(family_config("qwen2vl_merger"));
  CHECK(error_of([&] { reader.image(dir / "none.jpg"); }).code == Errc::not_found);
  std::string const path = dir.write("broken.png", std::as_bytes(std::span("\x89PNG\r\n\x1a\nno more")));
  auto const broken = error_of([&] { reader.image(path); });
  CHECK(broken.code == (can_decode(ImageFormat::png) ? Errc::bad_file : Errc::unsupported));
  CHECK(broken.message.find(path) == 0);
  CHECK(broken.message.find(path, 1) == std::string::npos);
}

TEST_CASE("a video is read step by step, when it is asked for", "[vision][media]") {
  for (std::string const& family : tiered_test::projector_families()) {
    INFO(family);
    VisionConfig const c = family_config(family);
    auto const film = std::make_shared<Film>(100, 10.0, ImageSize{60, 90});
    Media const video = MediaReader(c, tiered_test::few_tokens(1, 12)).video(film, {.frames_per_second = 1});
    MediaInfo const& info = video.info();
    CHECK(film->asked.empty());
    std::vector<std::int64_t> const frames = sample_frames(film->info(), {.frames_per_second = 1}, c);
    REQUIRE(frames.size() == 10);
    CHECK(info.kind == PromptKind::video);
    CHECK(info.grid.t == 5);
    CHECK(info.hashes.size() == 5);
    CHECK(info.seconds.size() == 5);
    CHECK(info.seconds_per_patch == 2.0);
    CHECK(video.step_tokens(2) <= 12);
    CHECK(std::adjacent_find(info.hashes.begin(), info.hashes.end()) == info.hashes.end());
    std::vector<float> parts;
    for (std::int32_t t = 0; t < 5; t += 2) {
      Range const steps{t, std::min(t + 2, 5)};
      film->asked.clear();
      Patches const p = video.patches(steps);
      CHECK(p.grid() == PatchGrid{steps.size(), info.grid.h, info.grid.w});
      CHECK(film->asked == std::vector(frames.begin() + 2 * steps.begin, frames.begin() + 2 * steps.end));
      std::vector<float> const values = all_patches(p);
      parts.insert(parts.end(), values.begin(), values.end());
    }
    CHECK(parts == all_patches(video.patches({0, 5})));
    CHECK(error_of([&] { video.patches({0, 6}); }).code == Errc::precondition);
    CHECK(error_of([&] { video.patches({2, 2}); }).code == Errc::precondition);
    // Other frames of the same film, or the same at another size, are other steps.
    Media const slower = MediaReader(c, tiered_test::few_tokens(1, 12)).video(film, {.frames_per_second = 0.5});
    CHECK(slower.info().hashes != info.hashes);
    Media const larger = MediaReader(c, tiered_test::few_tokens(20, 30)).video(film, {.frames_per_second = 1});
    CHECK(larger.info().hashes[0] != info.hashes[0]);
  }
}

TEST_CASE("frames are decoded no further once nobody wants them", "[vision][media]") {
  VisionConfig const c = family_config("qwen2vl_merger");
  auto const film = std::make_shared<Film>(100, 10.0, ImageSize{60, 90});
  MediaOptions options = tiered_test::few_tokens(1, 12);
  options.cancelled = &film->cancelled;
  MediaReader const reader(c, options);
  Media const video = reader.video(film, {.frames_per_second = 1});
  film->cancels_at = 3;
  CHECK(error_of([&] { video.patches({0, 5}); }).code == Errc::cancelled);
  CHECK(film->asked.size() == 3);
  CHECK(error_of([&] { reader.video(film, {.frames_per_second = 1}); }).code == Errc::cancelled);
  film->cancelled = false;
  CHECK(video.patches({0, 5}).grid().t == 5);
}

TEST_CASE("an odd frame stands twice", "[vision][media]") {
  VisionConfig const c = family_config("qwen3vl_merger");
  auto const film = std::make_shared<Film>(40, 10.0, ImageSize{64, 64});
  Media const video = MediaReader(c).video(film, {.n_frames = 5});
  CHECK(video.info().grid.t == 3);
  Patches const last = video.patches({2, 3});
  CHECK(last.frames().size() == 1);
  CHECK(last.grid().t == 1);
  CHECK(film->asked == std::vector<std::int64_t>{39});
}

TEST_CASE("media that cannot be are refused", "[vision][media]") {
  auto const made = [](MediaInfo info) { return error_of([&] { Media("x", std::move(info), nullptr); }).code; };
  CHECK(made({PromptKind::image, {1, 2, 2}, 1, {}, std::vector<MediaHash>(1)}) == Errc::precondition);
  CHECK(made({PromptKind::image, {2, 2, 2}, 1, {}, std::vector<MediaHash>(2)}) == Errc::precondition);
  CHECK(error_of([] { MediaReader(family_config("qwen2vl_merger")).video(nullptr); }).code == Errc::precondition);
}
