// Prompts with images and videos: text, tokens and positions of transformers' processors.
#include "tiered/vision/media_prompt.hpp"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "media_data.hpp"
#include "tiered/io/chat_template.hpp"
#include "vision_data.hpp"

using namespace tiered;
using tiered_test::error_of;
using tiered_test::family_config;
using tiered_test::FixtureReader;

namespace {

constexpr std::string_view marks[] = {"<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"};
constexpr MediaTokens byte_ids{260, 261};

/// A token for each byte, and one for each mark: as the fixture has it.
std::vector<std::int32_t> encoded(std::string_view text) {
  std::vector<std::int32_t> out;
  while (!text.empty()) {
    std::size_t mark = 0;
    while (mark < std::size(marks) && !text.starts_with(marks[mark])) ++mark;
    out.push_back(mark < std::size(marks) ? std::int32_t(256 + mark) : std::int32_t(static_cast<unsigned char>(text[0])));
    text.remove_prefix(mark < std::size(marks) ? marks[mark].size() : 1);
  }
  return out;
}

/// Nobody looks at it.
class NoPixels final : public MediaPixels {
 public:
  Patches patches(Range) override { throw Error(Errc::precondition, "there are no pixels"); }
};

MediaHash hash_of(int n) {
  MediaHasher hasher;
  hasher.add(std::int64_t{n});
  return hasher.value();
}

Media medium(PromptKind kind, PatchGrid grid, int n, double seconds_per_patch = 1, std::vector<double> seconds = {}) {
  MediaInfo info{kind, grid, seconds_per_patch, std::move(seconds), {}};
  for (std::int64_t t = 0; t < grid.t; ++t) info.hashes.push_back(hash_of(100 * n + int(t)));
  return Media("medium", std::move(info), std::make_unique<NoPixels>());
}

struct Case {
  std::uint32_t model = 0;
  std::string chat_template, rendered, with_times;
  bool add = false, marked = false;
  std::vector<ChatMessage> messages;
  std::vector<Media> media;
  std::vector<std::int32_t> ids, positions;
};

std::string text(FixtureReader& in) { return in.bytes(in.number<std::uint32_t>()); }

Case read_case(FixtureReader& in) {
  Case c;
  c.model = in.number<std::uint32_t>();
  c.chat_template = text(in);
  c.add = in.number<std::uint32_t>() != 0;
  c.marked = in.number<std::uint32_t>() != 0;
  c.messages.resize(in.number<std::uint32_t>());
  for (ChatMessage& m : c.messages) {
    m.role = text(in);
    std::uint32_t const n = in.number<std::uint32_t>();
    if (n == 0) m.content = text(in);
    for (std::uint32_t i = 0; i < n; ++i) {
      ChatPart part;
      part.kind = ChatPart::Kind(in.number<std::uint32_t>());
      part.text = text(in);
      m.parts.push_back(part);
    }
  }
  std::uint32_t const n_media = in.number<std::uint32_t>();
  VisionConfig const config = family_config(tiered_test::projector_families()[c.model]);
  for (std::uint32_t i = 0; i < n_media; ++i) {
    PromptKind const kind = in.number<std::uint32_t>() == 1 ? PromptKind::image : PromptKind::video;
    std::int64_t const w = in.number<std::int32_t>() / config.patch_size, h = in.number<std::int32_t>() / config.patch_size;
    if (kind == PromptKind::image) {
      c.media.push_back(medium(kind, {1, h, w}, int(i)));
      continue;
    }
    std::uint32_t const n_frames = in.number<std::uint32_t>();
    std::int32_t const total = in.number<std::int32_t>();
    double const rate = in.number<double>();
    std::vector<std::int32_t> const frames = in.numbers<std::int32_t>(n_frames);
    std::vector<std::int64_t> const indices(frames.begin(), frames.end());
    c.media.push_back(
        medium(kind, {(n_frames + 1) / 2, h, w}, int(i), 2 / (double(n_frames) / total * rate), frame_seconds(indices, rate)));
  }
  c.rendered = text(in);
  c.with_times = text(in);
  c.ids = in.numbers<std::int32_t>(in.number<std::uint32_t>());
  c.positions = in.numbers<std::int32_t>(3 * c.ids.size());
  return c;
}

std::vector<Case> const& cases() {
  static std::vector<Case> const all = [] {
    std::vector<Case> out;
    for (FixtureReader in("../vision_prompt/prompts.bin"); !in.at_end();) out.push_back(read_case(in));
    return out;
  }();
  return all;
}

}  // namespace

TEST_CASE("conversations with images and videos become the text, the tokens and the positions of transformers", "[vision][media]") {
  REQUIRE(cases().size() >= 26);
  for (std::size_t i = 0; i < cases().size(); ++i) {
    Case const& c = cases()[i];
    INFO("case " << i << ", model " << c.model);
    MropeConfig const config = mrope_config(family_config(tiered_test::projector_families()[c.model]));
    ChatOptions options;
    if (c.marked) options.variables.emplace_back("add_vision_id", "true");
    std::string const rendered = ChatTemplate(c.chat_template).render(c.messages, c.add, options);
    CHECK(rendered == c.rendered);
    std::string const timed = with_frame_times(rendered, c.media, config);
    CHECK(timed == c.with_times);
    MediaPrompt const prompt = media_prompt(encoded(timed), c.media, byte_ids, config);
    CHECK(prompt.tokens == c.ids);
    CHECK(prompt.positions == c.positions);
    // Spans are the placeholders, and nothing else.
    std::vector<std::int32_t> marked = prompt.tokens;
    REQUIRE(prompt.spans.size() == prompt.places.size());
    for (std::size_t s = 0; s < prompt.spans.size(); ++s) {
      MediaSpan const& span = prompt.spans[s];
      MediaInfo const& info = prompt.media.at(std::size_t(prompt.places[s].medium)).info();
      CHECK(span.hash == info.hashes.at(std::size_t(prompt.places[s].step)));
      CHECK(span.time == prompt.positions[std::size_t(span.begin)]);
      for (std::int32_t t = span.begin; t < span.end(); ++t) {
        CHECK(marked[std::size_t(t)] == (info.kind == PromptKind::image ? byte_ids.image : byte_ids.video));
        marked[std::size_t(t)] = 0;
      }
    }
    CHECK(std::find_if(marked.begin(), marked.end(), [](std::int32_t t) { return t == byte_ids.image || t == byte_ids.video; }) ==
          marked.end());
  }
}

TEST_CASE("places and media of other numbers are refused with both", "[vision][media]") {
  MropeConfig const config = mrope_config(family_config("qwen2vl_merger")), apart = mrope_config(family_config("qwen3vl_merger"));
  Media const image = medium(PromptKind::image, {1, 2, 2}, 1), video = medium(PromptKind::video, {2, 2, 2}, 2, 1, {0, 1});
  auto const prompt = [&](std::string const& text, std::vector<Media> media) {
    return error_of([&] { media_prompt(encoded(text), std::move(media), byte_ids, config); });
  };
  CHECK(prompt("<|image_pad|><|image_pad|>", {image}).says("2 places for images, of which 1 was given"));
  CHECK(prompt("words", {image, image}).says("0 places for images, of which 2 were given"));
  CHECK(prompt("<|image_pad|>", {video}).says("1 place for images, of which 0 were given"));
  CHECK(prompt("<|video_pad|>", {}).says("1 place for videos, of which 0 were given"));
  CHECK(error_of([&] { with_frame_times("<|video_pad|> <|video_pad|>", {&video, 1}, apart); }).says("2 places for videos", "1 was given"));
  CHECK(error_of([&] { with_frame_times("none", {&video, 1}, apart); }).says("0 places for videos", "1 was given"));
  // Steps that were written, but not all of them.
  CHECK(
      error_of([&] { media_prompt(encoded("<|video_pad|>"), {video}, byte_ids, apart); }).says("1 place for steps of videos, of which 2"));
  CHECK(error_of([&] { media_prompt(encoded("<|video_pad|><|video_pad|><|video_pad|>"), {video}, byte_ids, apart); }).says("3 places"));
  CHECK(media_prompt(encoded("a<|image_pad|>b<|video_pad|>"), {video, image}, byte_ids, config).n_tokens() == 2 + 1 + 2);
  // A video's mark without begin and end around it.
  CHECK(
      with_frame_times("<|vision_start|><|video_pad|>!", {&video, 1}, apart) ==
      "<|vision_start|><0.0 seconds><|vision_start|><|video_pad|><|vision_end|><1.0 seconds><|vision_start|><|video_pad|><|vision_end|>!");
}

TEST_CASE("a prompt of more tokens than there can be is refused before it is made", "[vision][media]") {
  MropeConfig const config = mrope_config(family_config("qwen2vl_merger"));
  Media const huge = medium(PromptKind::image, {1, 1 << 17, 1 << 17}, 1);
  auto const error = error_of([&] { media_prompt(encoded("<|image_pad|>"), {huge}, byte_ids, config); });
  CHECK(error.code == Errc::over_budget);
  CHECK(error.says("4294967296 tokens"));
}

TEST_CASE("a prompt behind a text has its places and positions there", "[vision][media]") {
  MropeConfig const config = mrope_config(family_config("qwen2vl_merger"));
  Media const image = medium(PromptKind::image, {1, 4, 6}, 1);
  MediaSpan const before{2, 3, 2, 0, hash_of(9)};
  std::vector<std::int32_t> const held = {1, 2, 260, 260, 260, 3};
  MediaPrompt const p = behind(held, {&before, 1}, media_prompt(encoded("ab<|image_pad|>c"), {image}, byte_ids, config, 50));
  CHECK(p.tokens == std::vector<std::int32_t>{1, 2, 260, 260, 260, 3, 'a', 'b', 260, 260, 260, 260, 260, 260, 'c'});
  REQUIRE(p.spans.size() == 2);
  CHECK(p.spans[0] == before);
  CHECK(p.spans[1] == MediaSpan{8, 6, 52, 0, image.info().hashes[0]});
  CHECK(p.places == std::vector<MediaPlace>{{-1, 0}, {0, 0}});
  CHECK(p.n_positions() == 9);
  CHECK(p.positions[0] == 50);
  CHECK(p.positions[8] == 55);
}

TEST_CASE("what two sequences share ends where their media differ", "[vision][media]") {
  MediaSpan const a{3, 4, 3, 0, hash_of(1)}, b{9, 2, 7, 0, hash_of(2)}, other{9, 2, 7, 0, hash_of(3)}, later{9, 2, 8, 0, hash_of(2)};
  MediaSpan const cut{3, 2, 3, 0, hash_of(1)};
  auto const common = [](std::vector<MediaSpan> const& x, std::vector<MediaSpan> const& y) {
    std::int32_t const n = common_media_prefix(x, y, 20);
    CHECK(common_media_prefix(y, x, 20) == n);
    return n;
  };
  CHECK(common({}, {}) == 20);
  CHECK(common({a, b}, {a, b}) == 20);
  CHECK(common({a, b}, {a}) == 9);
  CHECK(common({a}, {}) == 3);
  CHECK(common({a, b}, {a, other}) == 9);
  CHECK(common({a, b}, {a, later}) == 9);
  CHECK(common({cut}, {a, b}) == 5);
  CHECK(common({a, b}, {b}) == 3);
  CHECK(common_media_prefix(std::vector{a, b}, std::vector{a}, 6) == 6);
}
