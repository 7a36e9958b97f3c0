// Positions of prompts with images and videos against get_rope_index() of transformers.
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/vision/positions.hpp"
#include "vision_data.hpp"

using tiered::Errc;
using tiered::MropeConfig;
using tiered::MropePositions;
using tiered::PatchGrid;
using tiered::PromptKind;
using tiered::PromptPart;
using tiered::VideoGrid;
using tiered_test::error_of;
using tiered_test::FixtureReader;

namespace {

constexpr std::int32_t image_token = 1, video_token = 2;

using Numbers = std::vector<std::int32_t>;

std::vector<PromptPart> split(Numbers const& tokens, std::vector<PatchGrid> const& images, std::vector<VideoGrid> const& videos,
                              MropeConfig const& config = {}) {
  return split_prompt(tokens, image_token, video_token, images, videos, config);
}

}  // namespace

TEST_CASE("positions are those of transformers", "[vision][positions]") {
  FixtureReader in("positions.bin");
  int n_cases = 0;
  for (; !in.at_end(); ++n_cases) {
    auto const head = in.numbers<std::int32_t>(4);
    INFO("case " << n_cases << ", model " << head[0] << ", tokens per second " << head[1]);
    MropeConfig config;
    if (head[0] == 1) config.tokens_per_second = head[1];
    config.frames_apart = head[0] == 2;
    std::vector<PatchGrid> images;
    for (int i = 0; i < head[2]; ++i) {
      auto const g = in.numbers<std::int32_t>(3);
      images.push_back({g[0], g[1], g[2]});
    }
    std::vector<VideoGrid> videos;
    for (int i = 0; i < head[3]; ++i) {
      auto const g = in.numbers<std::int32_t>(3);
      videos.push_back({{g[0], g[1], g[2]}, double(in.number<float>())});
    }
    auto const n = std::size_t(in.number<std::int32_t>());
    Numbers const tokens = in.numbers<std::int32_t>(n);
    auto const parts = split(tokens, images, videos, config);
    MropePositions const positions = mrope_positions(parts, config);
    CHECK(positions.time == in.numbers<std::int32_t>(n));
    CHECK(positions.height == in.numbers<std::int32_t>(n));
    CHECK(positions.width == in.numbers<std::int32_t>(n));
    CHECK(positions.next == in.number<std::int32_t>());
  }
  CHECK(n_cases == 36);
}

TEST_CASE("a later turn goes on where the last ended", "[vision][positions]") {
  std::vector<PromptPart> const parts = {{PromptKind::text, 3}, {PromptKind::image, 6, {1, 4, 6}}, {PromptKind::text, 2}};
  MropePositions const first = mrope_positions(parts, {});
  CHECK(first.time == Numbers{0, 1, 2, 3, 3, 3, 3, 3, 3, 6, 7});
  CHECK(first.height == Numbers{0, 1, 2, 3, 3, 3, 4, 4, 4, 6, 7});
  CHECK(first.width == Numbers{0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7});
  CHECK(first.next == 8);
  MropePositions const second = mrope_positions(parts, {}, first.next);
  for (std::size_t i = 0; i < first.time.size(); ++i) {
    CHECK(second.time[i] == first.time[i] + 8);
    CHECK(second.height[i] == first.height[i] + 8);
    CHECK(second.width[i] == first.width[i] + 8);
  }
  CHECK(second.next == 16);
  CHECK(tiered::mrope_positions({}, {}, 5).next == 5);
}

TEST_CASE("text after a long video begins behind its height and width, or behind its time", "[vision][positions]") {
  std::vector<PromptPart> const parts = {{PromptKind::text, 1}, {PromptKind::video, 3, {3, 2, 2}, 2.0}, {PromptKind::text, 1}};
  MropeConfig config{.tokens_per_second = 4};
  CHECK(mrope_positions(parts, config).time == Numbers{0, 1, 9, 17, 2});
  CHECK(mrope_positions(parts, config).next == 18);
  config.text_after_time = true;
  CHECK(mrope_positions(parts, config).time == Numbers{0, 1, 9, 17, 18});
  CHECK(mrope_positions(parts, config).next == 19);
}

TEST_CASE("images may follow each other", "[vision][positions]") {
  auto const parts = split({9, 1, 1, 1, 8}, {{1, 2, 4}, {1, 2, 2}}, {});
  REQUIRE(parts.size() == 4);
  CHECK(parts[1] == PromptPart{PromptKind::image, 2, {1, 2, 4}});
  CHECK(parts[2] == PromptPart{PromptKind::image, 1, {1, 2, 2}});
  CHECK(mrope_positions(parts, {}).width == Numbers{0, 1, 2, 3, 4});
}

TEST_CASE("placeholders and grids must be of one number", "[vision][positions]") {
  PatchGrid const grid{1, 2, 4};
  VideoGrid const video{{2, 2, 2}, 1};
  CHECK(error_of([&] { split({1, 1}, {}, {}); }).code == Errc::precondition);
  CHECK(error_of([&] { split({9, 9}, {grid}, {}); }).says("0 of 1 images"));
  CHECK(error_of([&] { split({1}, {grid}, {}); }).says("1 tokens", "which has 2"));
  CHECK(error_of([&] { split({1, 1, 1}, {grid}, {}); }).code == Errc::precondition);
  CHECK(error_of([&] { split({1, 2}, {grid}, {video}); }).code == Errc::precondition);
  for (PatchGrid const& bad : {PatchGrid{}, PatchGrid{1, 3, 4}, PatchGrid{std::int64_t{1} << 40, 2, 2}}) {
    CHECK(error_of([&] { split({1}, {bad}, {}); }).code == Errc::precondition);
    CHECK(error_of([&] { split({2}, {}, {{bad, 1}}, {.frames_apart = true}); }).code == Errc::precondition);
  }
  CHECK(split({2, 2}, {}, {video}).size() == 1);
  CHECK(split({2, 9, 2}, {}, {video}, {.frames_apart = true}).size() == 3);
  CHECK(error_of([&] { split({2, 9, 2}, {}, {video}); }).code == Errc::precondition);
}

TEST_CASE("positions refuse grids that do not fit their tokens", "[vision][positions]") {
  auto const code = [](PromptPart const& part, MropeConfig const& config = {}) {
    return error_of([&] { mrope_positions(std::vector{part}, config); }).code;
  };
  CHECK(code({PromptKind::image, 3, {1, 4, 4}}) == Errc::precondition);
  CHECK(code({PromptKind::image, 3, {1, 3, 4}}) == Errc::precondition);
  CHECK(code({PromptKind::image, 0, {0, 4, 4}}) == Errc::precondition);
  CHECK(code({PromptKind::text, -1}) == Errc::precondition);
  CHECK(code({PromptKind::text, std::int64_t{1} << 62}) == Errc::precondition);
  CHECK(code({PromptKind::image, std::int64_t{1} << 38, {1, 1 << 20, 1 << 20}}) == Errc::precondition);
  CHECK(code({PromptKind::video, 1, {1, 2, 2}, -1.0}, {.tokens_per_second = 1}) == Errc::precondition);
  CHECK(code({PromptKind::text, 4}, {.merge_size = 0}) == Errc::precondition);
  CHECK(error_of([] { mrope_positions(std::vector<PromptPart>{{PromptKind::text, 9}}, {}, 0x7ffffffa); }).code == Errc::precondition);
}

TEST_CASE("frame pairs have the time between their frames", "[vision][positions]") {
  std::vector<std::int64_t> const frames = {0, 12, 24, 36, 50};
  CHECK(tiered::frame_seconds(frames, 24.0) == std::vector<double>{0.25, 1.25, 50.0 / 24});
  CHECK(tiered::frame_time_text(0.25) == "<0.2 seconds>");  // halves to even, as Python
  CHECK(tiered::frame_time_text(50.0 / 24) == "<2.1 seconds>");
  CHECK(error_of([] { tiered::frame_seconds({}, 24.0); }).code == Errc::precondition);
  CHECK(error_of([&] { tiered::frame_seconds(frames, 0.0); }).code == Errc::precondition);
}
