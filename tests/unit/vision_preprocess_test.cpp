// Sizes, pixels and order of patches against the processors of transformers.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/vision/preprocess.hpp"
#include "vision_data.hpp"

using tiered::Errc;
using tiered::Image;
using tiered::ImageSize;
using tiered::PatchConfig;
using tiered::Patches;
using tiered::PatchGrid;
using tiered::Team;
using tiered_test::error_of;
using tiered_test::FixtureReader;

namespace {

/// Those of make_patches.py.
PatchConfig config_of(int i) {
  PatchConfig config;
  constexpr std::array<float, 3> half = {0.5f, 0.5f, 0.5f};
  if (i == 1) config.min_pixels = 3136, config.max_pixels = 12845056;
  if (i == 2) config = {.patch_size = 16, .min_pixels = 65536, .max_pixels = 16777216, .mean = half, .std_dev = half};
  if (i == 3) config.min_pixels = 4 * 28 * 28, config.max_pixels = 64 * 28 * 28;
  return config;
}

Image picture(ImageSize size, int frame = 0) {
  Image image(size);
  std::uint32_t i = 7919u * std::uint32_t(frame);
  for (std::uint8_t& value : image.rgb()) value = std::uint8_t(i++ * 2654435761u >> 13);
  return image;
}

struct PatchCase {
  int config = 0, n_frames = 0;
  ImageSize size{};
  PatchGrid grid{};
  std::uint32_t crc = 0;
  std::vector<std::pair<std::int64_t, float>> samples{};
};

std::vector<PatchCase> patch_cases() {
  FixtureReader in("patches.bin");
  std::vector<PatchCase> cases;
  while (!in.at_end()) {
    auto const head = in.numbers<std::int32_t>(7);
    PatchCase c{head[0], head[3], {head[1], head[2]}, {head[4], head[5], head[6]}};
    c.crc = in.number<std::uint32_t>();
    for (int i = 0; i < 24; ++i) {
      auto const at = in.number<std::int64_t>();
      c.samples.emplace_back(at, in.number<float>());
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

Patches patches_of(PatchCase const& c, Team* team) {
  PatchConfig const config = config_of(c.config);
  if (c.n_frames == 0) return Patches(picture(c.size), config, team);
  std::vector<Image> frames;
  for (int frame = 0; frame < c.n_frames; ++frame) frames.push_back(picture(c.size, frame));
  ImageSize const size = c.config == 2 ? smart_resize_video(c.size, c.n_frames, config) : smart_resize(c.size, config);
  return Patches(std::move(frames), size, config, team);
}

std::vector<float> all_values(Patches const& patches, Team* team = nullptr) {
  std::vector<float> values(std::size_t(patches.grid().n_patches() * patches.patch_elems()));
  patches.write(0, patches.grid().n_patches(), values, team);
  return values;
}

}  // namespace

TEST_CASE("patches are those of the reference processor, to the last bit", "[vision][preprocess]") {
  auto const cases = patch_cases();
  REQUIRE(cases.size() == 25);
  for (PatchCase const& c : cases) {
    INFO("config " << c.config << ", " << c.size.width << " x " << c.size.height << ", frames " << c.n_frames);
    Patches const patches = patches_of(c, nullptr);
    REQUIRE(patches.grid() == c.grid);
    std::vector<float> const values = all_values(patches);
    for (auto const& [at, value] : c.samples) REQUIRE(values[std::size_t(at)] == value);
    CHECK(tiered_test::crc32(std::as_bytes(std::span(values))) == c.crc);
  }
}

TEST_CASE("patches are the same from several threads, and in pieces", "[vision][preprocess]") {
  Team team(3);
  for (PatchCase const& c : patch_cases()) {
    if (c.size.n_pixels() > 2'000'000) continue;
    INFO("config " << c.config << ", " << c.size.width << " x " << c.size.height << ", frames " << c.n_frames);
    Patches const patches = patches_of(c, &team);
    CHECK(tiered_test::crc32(std::as_bytes(std::span<float const>(all_values(patches, &team)))) == c.crc);
    std::vector<float> pieces;
    std::int64_t const n = patches.grid().n_patches(), step = std::max<std::int64_t>(n / 5, 1) + 1;
    for (std::int64_t first = 0; first < n; first += step) {
      std::int64_t const n_now = std::min(step, n - first);
      std::vector<float> piece(std::size_t(n_now * patches.patch_elems()));
      patches.write(first, n_now, piece);
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    CHECK(tiered_test::crc32(std::as_bytes(std::span<float const>(pieces))) == c.crc);
  }
}

TEST_CASE("a video in pieces of one patch of frames is the whole video", "[vision][preprocess]") {
  PatchConfig const config = config_of(3);
  ImageSize const size{100, 70}, resized = smart_resize(size, config);
  auto const frames = [&](int begin, int end) {
    std::vector<Image> some;
    for (int i = begin; i < end; ++i) some.push_back(picture(size, i));
    return some;
  };
  std::vector<float> const whole = all_values(Patches(frames(0, 5), resized, config));
  std::vector<float> pieces;
  for (int begin = 0; begin < 5; begin += 2) {
    std::vector<float> const piece = all_values(Patches(frames(begin, std::min(begin + 2, 5)), resized, config));
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  CHECK(pieces == whole);
}

TEST_CASE("sizes are those of smart_resize()", "[vision][preprocess]") {
  FixtureReader in("sizes.bin");
  int n_cases = 0, n_refused = 0;
  for (; !in.at_end(); ++n_cases) {
    auto const c = in.numbers<std::int32_t>(6);
    PatchConfig const config = config_of(c[0]);
    ImageSize const size{c[2], c[3]};
    INFO("config " << c[0] << ", frames " << c[1] << ", " << size.width << " x " << size.height);
    auto const resize = [&] { return c[1] > 0 ? smart_resize_video(size, c[1], config) : smart_resize(size, config); };
    if (c[4] == 0) {
      ++n_refused;
      auto const error = error_of(resize);
      CHECK(error.code == Errc::unsupported);
      CHECK((error.says("200") || error.says("frames")));
    } else {
      CHECK(resize() == ImageSize{c[4], c[5]});
    }
  }
  CHECK(n_cases == 600);
  CHECK(n_refused > 20);
}

TEST_CASE("an image of the right size stays as it is", "[vision][preprocess]") {
  Image image = picture({56, 56});
  std::vector<Image> frames;
  frames.push_back(std::move(image));
  Patches const patches(std::move(frames), {56, 56}, PatchConfig{});
  CHECK(patches.grid() == PatchGrid{1, 4, 4});
  CHECK(patches.grid().n_tokens(2) == 4);
  CHECK(patches.size() == ImageSize{56, 56});
  Image const same = resize_bicubic(picture({56, 56}), {56, 56});
  Image const expected = picture({56, 56});
  CHECK(std::equal(same.rgb().begin(), same.rgb().end(), expected.rgb().begin()));
}

TEST_CASE("patches say what they are not made of", "[vision][preprocess]") {
  CHECK(error_of([] { Patches{Image{}}; }).code == Errc::precondition);
  CHECK(error_of([] { Patches(std::vector<Image>{}, {28, 28}, {}); }).code == Errc::precondition);
  CHECK(error_of([] {
          std::vector<Image> frames;
          frames.push_back(picture({28, 28}));
          frames.push_back(picture({28, 56}));
          Patches(std::move(frames), {28, 28}, {});
        }).code == Errc::precondition);
  for (ImageSize const size : {ImageSize{28, 30}, ImageSize{0, 28}, ImageSize{}, ImageSize{-28, 28}}) {
    CHECK(error_of([&] {
            std::vector<Image> frames;
            frames.push_back(picture({28, 28}));
            Patches(std::move(frames), size, {});
          }).code == Errc::precondition);
  }
  CHECK(error_of([] { tiered::smart_resize({10, 10}, {.patch_size = 0}); }).code == Errc::precondition);
  CHECK(error_of([] { tiered::smart_resize({10, 10}, {.min_pixels = 0}); }).code == Errc::precondition);
  CHECK(error_of([] { tiered::smart_resize({0, 10}, {}); }).code == Errc::precondition);
  CHECK(error_of([] { resize_bicubic(Image{}, {28, 28}); }).code == Errc::precondition);
  CHECK(error_of([] { resize_bicubic(picture({3, 3}), {28, 0}); }).code == Errc::precondition);
  Patches const patches(picture({56, 56}));
  std::vector<float> out(std::size_t(patches.patch_elems()));
  CHECK(error_of([&] { patches.write(16, 1, out); }).code == Errc::precondition);
  CHECK(error_of([&] { patches.write(-1, 1, out); }).code == Errc::precondition);
  CHECK(error_of([&] { patches.write(0, 2, out); }).code == Errc::precondition);
  CHECK_FALSE(error_of([&] { patches.write(15, 1, out); }).code.has_value());
}
