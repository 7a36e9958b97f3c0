// Pictures in conversations: what is reused, what is encoded, what sessions keep, and what is refused.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "golden/engine_helpers.hpp"
#include "media_data.hpp"
#include "temp_dir.hpp"
#include "tiered/engine/detail/checksum.hpp"
#include "tiered/engine/generate.hpp"
#include "tiered/engine/media_input.hpp"
#include "tiered/engine/session.hpp"

using namespace tiered;
using namespace tiered::test;
using tiered_test::error_of;
using tiered_test::TempDir;

namespace {

constexpr std::string_view picture = "<|vision_start|><|image_pad|><|vision_end|>", film = "<|vision_start|><|video_pad|><|vision_end|>";

EngineOptions small_options() {
  EngineOptions options;
  options.max_context = 400;
  options.n_sequences = 2;
  options.n_threads = 2;
  return options;
}

/// An engine, a counting encoder and all between them.
struct Seeing {
  explicit Seeing(std::string const& name, EngineOptions const& options = small_options())
      : engine(make_model(GgufFile::open(vlm_path(name + ".f16.gguf"))), options),
        tokenizer(make_tokenizer(engine.model().file())),
        encoder(name),
        input(encoder, engine.model().config(), tokenizer, few_tokens()) {}

  Media image(int kind, ImageSize size = {60, 44}) const { return input.reader().image(numbered_image(size, kind)); }
  MediaPrompt prompt(std::string const& text, std::vector<Media> media) const { return input.prompt(text, std::move(media)); }
  std::vector<float> ask(Conversation& conversation, MediaPrompt const& p) {
    PromptUse const use = conversation.prompt(engine, p, input);
    n_reused = use.n_reused;
    return {use.logits.begin(), use.logits.end()};
  }
  std::vector<float> ask_anew(MediaPrompt const& p) {
    Conversation fresh(engine.new_sequence());
    return ask(fresh, p);
  }
  /// Of a span of a prompt: its number of steps so far.
  int encoded() const { return int(encoder.n_steps); }

  Engine<CpuPolicies> engine;
  Tokenizer tokenizer;
  CountingEncoder encoder;
  MediaInput<CountingEncoder> input;
  std::int32_t n_reused = 0;
};

}  // namespace

TEST_CASE("the same words with another picture are not reused, the same picture is", "[golden][vision][media]") {
  for (std::string const& name : vlm_models()) {
    INFO(name);
    Seeing s(name);
    Conversation conversation(s.engine.new_sequence());
    std::string const text = concat("Look: ", picture, " what?");
    MediaPrompt const a = s.prompt(text, {s.image(1)}), b = s.prompt(text, {s.image(2)});
    REQUIRE(a.tokens == b.tokens);
    std::vector<float> const of_a = s.ask(conversation, a);
    CHECK((s.n_reused == 0 && s.encoded() == 1));
    CHECK(conversation.media() == a.spans);
    CHECK(s.ask(conversation, a) == of_a);
    CHECK((s.n_reused == a.n_tokens() - 1 && s.encoded() == 1));

    std::vector<float> const of_b = s.ask(conversation, b);
    CHECK(s.n_reused == b.spans[0].begin);
    CHECK(s.encoded() == 2);
    CHECK(of_b != of_a);
    CHECK(of_b == s.ask_anew(b));
    CHECK(s.ask(conversation, a) == of_a);  // and back: processed again, not encoded again
    CHECK((s.n_reused == a.spans[0].begin && s.encoded() == 2));

    // As words alone: its tokens are not the picture.
    std::vector<std::int32_t> const words = a.tokens;
    std::span<float const> const logits = conversation.prompt(s.engine, words).logits;
    CHECK_FALSE(std::equal(logits.begin(), logits.end(), of_a.begin(), of_a.end()));
    CHECK(conversation.media().empty());
    CHECK(s.ask(conversation, a) == of_a);
    CHECK(s.n_reused == a.spans[0].begin);
    CHECK(s.encoded() == 2);
  }
}

TEST_CASE("pictures in later turns: only what is new is processed and encoded", "[golden][vision][media]") {
  for (std::string const& name : vlm_models()) {
    INFO(name);
    Seeing s(name);
    Conversation conversation(s.engine.new_sequence());
    std::string const first = concat("A ", picture, " b."), second = concat(first, " c ", picture, picture, " d."),
                      third = second + " And?";
    std::vector<Media> media{s.image(1)};
    s.ask(conversation, s.prompt(first, media));
    std::int32_t const held = conversation.length();
    media.push_back(s.image(2, {40, 80}));
    media.push_back(s.image(1));  // as the first
    MediaPrompt const two = s.prompt(second, media);
    std::vector<float> const logits = s.ask(conversation, two);
    CHECK((s.n_reused == held && s.encoded() == 2));
    CHECK(logits == s.ask_anew(two));
    MediaPrompt const three = s.prompt(third, media);
    s.ask(conversation, three);
    CHECK((s.n_reused == two.n_tokens() && s.encoded() == 2));
    CHECK(conversation.media() == three.spans);
    // Text on: its positions go on where those of the pictures end.
    std::int32_t const next = conversation.sequence().rope_position();
    CHECK(next < conversation.length());
    CHECK(next == *std::max_element(three.positions.begin(), three.positions.end()) + 1);

    // Cut within the second picture: the rest of it comes out of the cache.
    std::vector<float> const whole = s.ask_anew(three);
    conversation.truncate(three.spans[1].begin + 1);
    CHECK(conversation.media().back().n_tokens == 1);
    CHECK(s.ask(conversation, three) == whole);
    CHECK(s.n_reused == three.spans[1].begin + 1);
    // Other words behind a cut picture.
    conversation.truncate(three.spans[1].begin + 1);
    std::vector<std::int32_t> const words{10, 11};
    conversation.extend(s.engine, words);
    CHECK(conversation.media().back().n_tokens == 1);
    CHECK(s.ask(conversation, three) == whole);
    CHECK(s.n_reused == three.spans[1].begin + 1);
    CHECK(s.encoded() == 2);
  }
}

TEST_CASE("videos are reused where frames and rate are the same", "[golden][vision][media]") {
  for (std::string const& name : vlm_models()) {
    INFO(name);
    Seeing s(name);
    auto const video = [&](double rate) {
      return s.input.reader().video(std::make_shared<NumberedFilm>(8, rate, ImageSize{48, 40}), {.n_frames = 8});
    };
    std::string const text = concat("See ", film, " so?");
    Conversation conversation(s.engine.new_sequence());
    MediaPrompt const slow = s.prompt(text, {video(2)}), fast = s.prompt(text, {video(8)});
    std::vector<float> const logits = s.ask(conversation, slow);
    CHECK(s.encoded() == 4);
    CHECK(s.ask(conversation, s.prompt(text, {video(2)})) == logits);
    CHECK((s.n_reused == slow.n_tokens() - 1 && s.encoded() == 4));
    std::vector<float> const of_fast = s.ask(conversation, fast);
    std::int32_t const n_reused = s.n_reused;
    CHECK(s.encoded() == 4);
    CHECK(of_fast == s.ask_anew(fast));
    // Time is told by positions of Qwen2.5-VL and by words of Qwen3-VL; Qwen2-VL does not know it.
    CHECK((of_fast == logits) == (name == "qwen2vl"));
    if (name == "qwen25vl") CHECK(n_reused == fast.spans[1].begin);
  }
}

// Sixty steps reach far beyond height and width, behind which text goes on. What is generated goes on behind all of it, as in transformers.
TEST_CASE("behind a long video an answer is not reused where the next prompt has it at another position", "[golden][vision][media]") {
  for (std::string const& name : vlm_models()) {
    INFO(name);
    TempDir const folder;
    EngineOptions options = small_options();
    options.n_sequences = 3;
    options.max_context = 1600;
    Seeing s(name, options);
    bool const long_time = name != "qwen3vl";  // whose steps are pictures of their own
    Media const video = s.input.reader().video(std::make_shared<NumberedFilm>(120, 2.0, ImageSize{30, 20}), {.n_frames = 120});
    REQUIRE(video.info().grid.t == 60);
    std::string const text = concat("See ", film, name == "qwen3vl" ? "" : " what is in it?"), answer = "one two";
    MediaPrompt const first = s.prompt(text, {video}), second = s.prompt(concat(text, answer, " and then?"), {video});
    std::vector<std::int32_t> const said = s.tokenizer.encode(answer);
    REQUIRE(std::equal(said.begin(), said.end(), second.tokens.begin() + first.n_tokens()));

    Conversation conversation(s.engine.new_sequence());
    std::vector<float> const asked = s.ask(conversation, first);
    std::int32_t const most = *std::max_element(first.positions.begin(), first.positions.end());
    CHECK(conversation.sequence().rope_position() == most + 1);
    std::int32_t const last_at = conversation.sequence().rope_position(first.n_tokens() - 1);
    CHECK(last_at == first.positions[std::size_t(first.n_tokens() - 1)]);
    CHECK((last_at < most) == long_time);
    conversation.extend(s.engine, said);
    CHECK(conversation.sequence().rope_position(first.n_tokens()) == most + 1);
    std::string const file = folder / "kept";
    save_session(s.engine, conversation, file);

    std::vector<float> const again = s.ask(conversation, second);
    CHECK(s.n_reused == first.n_tokens() + (long_time ? 0 : std::int32_t(said.size())));
    CHECK(again == s.ask_anew(second));
    // Once more in full: now all of it lies where the prompt has it.
    CHECK(s.ask(conversation, second) == again);
    CHECK(s.n_reused == second.n_tokens() - 1);

    // What a session holds, and nothing more: its last token once more, where it was.
    Conversation kept = load_session(s.engine, file);
    std::span<float const> const on = kept.extend(s.engine, std::vector<std::int32_t>{5});
    std::vector<float> const expected(on.begin(), on.end());
    load_session(s.engine, file, kept);
    kept.extend(s.engine, std::vector<std::int32_t>{5});
    CHECK(s.ask(kept, behind(kept.tokens(), kept.media(), {})) == expected);
    CHECK(s.n_reused == kept.length() - 1);
    kept.truncate(first.n_tokens());
    CHECK(s.ask(kept, behind(kept.tokens(), kept.media(), {})) == asked);
    CHECK((s.n_reused == first.n_tokens() - 1 && kept.sequence().rope_position(s.n_reused) == last_at));
    CHECK(s.ask(kept, first) == asked);
    CHECK(s.encoded() == 60);
  }
}

TEST_CASE("sessions keep which pictures there were", "[golden][vision][media]") {
  for (std::string const& name : vlm_models()) {
    INFO(name);
    TempDir const folder;
    Seeing s(name);
    std::string const text = concat("Look: ", picture, " and ", picture, " what?");
    MediaPrompt const a = s.prompt(text, {s.image(1), s.image(2, {40, 80})}), b = s.prompt(text, {s.image(1), s.image(3, {40, 80})});
    Conversation conversation(s.engine.new_sequence());
    std::vector<float> const of_a = s.ask(conversation, a), of_b = s.ask_anew(b);
    std::string const file = folder / "a.session";
    save_session(s.engine, conversation, file);

    Seeing other(name);
    Conversation restored = load_session(other.engine, file);
    CHECK(restored.media() == a.spans);
    CHECK(std::equal(restored.tokens().begin(), restored.tokens().end(), a.tokens.begin(), a.tokens.end()));
    CHECK(restored.sequence().rope_position() == conversation.sequence().rope_position());
    CHECK(other.ask(restored, a) == of_a);
    CHECK((other.n_reused == a.n_tokens() - 1 && other.encoded() == 0));
    // On behind it, with a new picture, and pixels of the old ones unknown.
    MediaPrompt const more =
        behind(restored.tokens(), restored.media(),
               other.input.prompt(concat(" More: ", picture, "?"), {other.image(4)}, {false, true}, restored.sequence().rope_position()));
    std::vector<float> const continued = other.ask(restored, more);
    CHECK((other.n_reused == a.n_tokens() && other.encoded() == 1));
    CHECK(continued == s.ask_anew(s.prompt(concat(text, " More: ", picture, "?"), {s.image(1), s.image(2, {40, 80}), s.image(4)})));
    CHECK(other.ask(restored, b) == of_b);
    CHECK(other.n_reused == b.spans[1].begin);

    // Cut in the middle of a picture.
    conversation.truncate(a.spans[1].begin + 1);
    save_session(s.engine, conversation, file);
    load_session(other.engine, file, restored);
    CHECK(restored.media().back().n_tokens == 1);
    CHECK(other.ask(restored, a) == of_a);
    CHECK(other.n_reused == a.spans[1].begin + 1);
    // What is behind a session must be known: its own pixels are not.
    MediaPrompt const lost = behind(a.tokens, a.spans, other.prompt("?", {}));
    other.input = MediaInput(other.encoder, other.engine.model().config(), other.tokenizer, few_tokens());
    restored.truncate(2);
    CHECK(error_of([&] { other.ask(restored, lost); }).code == Errc::precondition);
    CHECK(restored.length() == 2);
  }
}

TEST_CASE("sessions with pictures that cannot be are refused, and text's stay as they were", "[golden][vision][media]") {
  TempDir const folder;
  Seeing s("qwen2vl");
  MediaPrompt const a = s.prompt(concat("Look: ", picture, " and ", picture, " what?"), {s.image(1), s.image(2)});
  Conversation conversation(s.engine.new_sequence());
  s.ask(conversation, a);
  std::string const file = folder / "a.session";
  save_session(s.engine, conversation, file);
  std::ifstream stream(file, std::ios::binary);
  std::string const good(std::istreambuf_iterator<char>(stream), {});
  auto const version = [](std::string const& bytes) { return int(bytes[8]); };
  CHECK(version(good) == 4);
  std::size_t const list = 40 + 4 * std::size_t(a.n_tokens()), first = list + 8;
  auto const refused = [&](std::size_t at, std::int64_t value, std::size_t bytes) {
    std::string bad = good;
    for (std::size_t i = 0; i < bytes; ++i) bad[at + i] = char(std::uint64_t(value) >> 8 * i & 255);
    detail::Checksum sum;
    sum.add(std::as_bytes(std::span(bad).first(bad.size() - 8)));
    std::uint64_t const value_of = sum.value();
    std::memcpy(bad.data() + bad.size() - 8, &value_of, 8);
    std::ofstream(file, std::ios::binary) << bad;
    return error_of([&] { load_session(s.engine, file, conversation); });
  };
  std::int32_t const length = conversation.length();
  for (auto const& [at, value] :
       std::vector<std::pair<std::size_t, std::int64_t>>{{list, 0}, {list, 3}, {list, 1}, {list, std::int64_t{1} << 62}, {list, -1}}) {
    INFO(value << " pictures");
    CHECK(refused(at, value, 8).code == Errc::bad_file);
  }
  for (auto const& [at, value] : std::vector<std::pair<std::size_t, std::int64_t>>{
           {first, -1}, {first, a.n_tokens()}, {first + 4, 0}, {first + 4, 0x7fffffff}, {first + 4, -5}, {first + 48, a.spans[0].begin}}) {
    INFO("at " << at << ": " << value);
    CHECK(refused(at, value, 4).code == Errc::bad_file);
  }
  CHECK(refused(8, 5, 4).says("version 5"));
  CHECK(refused(8, 3, 4).says("version 3"));
  CHECK(conversation.length() == length);
  CHECK(refused(first, a.spans[0].begin, 4).code == std::nullopt);  // the same number again: all is well

  conversation.truncate(3);
  save_session(s.engine, conversation, file);
  std::ifstream again(file, std::ios::binary);
  CHECK(version(std::string(std::istreambuf_iterator<char>(again), {})) == 1);
}

TEST_CASE("too many tokens are refused with numbers, before anything is encoded or forgotten", "[golden][vision][media]") {
  Seeing s("qwen2vl");
  Conversation conversation(s.engine.new_sequence());
  s.ask(conversation, s.prompt(concat("A ", picture), {s.image(1)}));
  std::int32_t const length = conversation.length();
  std::string text = "A ";
  std::vector<Media> media;
  for (int i = 0; i < 40; ++i) {
    text += picture;
    media.push_back(s.image(i + 1));
  }
  MediaPrompt const large = s.prompt(text, media);
  std::int64_t n_media = 0;
  for (MediaSpan const& span : large.spans) n_media += span.n_tokens;
  int const encoded = s.encoded();
  auto const refused = error_of([&] { s.ask(conversation, large); });
  CHECK(refused.code == Errc::over_budget);
  CHECK(refused.says(concat("a prompt of ", large.n_tokens(), " tokens"), concat(n_media, " of them of images"), "a context of 400"));
  CHECK((s.encoded() == encoded && conversation.length() == length));
}

TEST_CASE("an encoder that fails leaves the conversation as it was", "[golden][vision][media]") {
  Seeing s("qwen25vl");
  Conversation conversation(s.engine.new_sequence());
  MediaPrompt const a = s.prompt(concat("A ", picture, " b"), {s.image(1)});
  std::vector<float> const logits = s.ask(conversation, a);
  MediaPrompt const b = s.prompt(concat("A ", picture, " b"), {s.image(2)});
  auto const fails = [](MediaPrompt const&, std::int32_t) -> std::vector<float> { throw Error(Errc::over_budget, "5 of 4"); };
  CHECK(error_of([&] { conversation.prompt(s.engine, b, fails); }).code == Errc::over_budget);
  CHECK(conversation.length() == a.n_tokens());
  CHECK(s.ask(conversation, a) == logits);
  CHECK(s.n_reused == a.n_tokens() - 1);
  // Too few vectors for its rows.
  auto const none = [](MediaPrompt const&, std::int32_t) { return std::vector<float>(); };
  CHECK(error_of([&] { conversation.prompt(s.engine, b, none); }).code == Errc::precondition);
  CHECK(s.ask(conversation, a) == logits);
}

TEST_CASE("encoder, decoder and vocabulary must be of one model", "[golden][vision][media]") {
  Seeing s("qwen2vl");
  auto const refused = [&](VisionConfig const& encoder, ModelConfig const& decoder) {
    return error_of([&] { MediaText(encoder, decoder, s.tokenizer); });
  };
  VisionConfig wide = s.encoder.config();
  wide.output_dim = 48;
  CHECK(refused(wide, s.engine.model().config()).says("48", "32"));
  CHECK(refused(wide, s.engine.model().config()).code == Errc::unsupported);
  VisionConfig deep = s.encoder.config();
  deep.layers[0].deepstack = true;
  CHECK(refused(deep, s.engine.model().config()).says("1 layers", "takes 0"));
  auto const words = open_golden("qwen2.f32.gguf");
  auto const text_only = refused(s.encoder.config(), words->config());
  CHECK(text_only.code == Errc::unsupported);
  CHECK(text_only.says("qwen2", "text only"));
  Tokenizer const plain = make_tokenizer(words->file());
  CHECK(error_of([&] { MediaText(s.encoder.config(), s.engine.model().config(), plain); }).says("<|image_pad|>"));
}

TEST_CASE("text behind a prompt with pictures: events, penalties, and a context that is full", "[golden][vision][media]") {
  EngineOptions options = small_options();
  options.max_context = 64;
  Seeing s("qwen2vl", options);
  GenerationOptions how;
  how.sampler.temperature = 0;
  how.ignore_eos = true;
  how.max_tokens = 200;
  how.context_full = ContextFull::shift;
  how.n_keep = 2;
  Generation generation(s.engine, s.tokenizer, how);
  MediaPrompt const p = s.prompt(concat("A b ", picture, " c d e f g?"), {s.image(1)});
  PromptUse const use = generation.start(p, s.input);
  CHECK((use.n_tokens == p.n_tokens() && use.n_reused == 0));
  std::int32_t n_dropped = 0, n_first = 0;
  int n_tokens = 0;
  for (GenerationEvent e = generation.next(); !e.is_end(); e = generation.next()) {
    if (e.n_dropped > 0 && n_first == 0) n_first = e.n_dropped;
    n_dropped += e.n_dropped;
    ++n_tokens;
  }
  CHECK(n_tokens == 200);
  CHECK(n_first >= p.spans.back().end() - 2);  // the picture went, whole
  CHECK(n_dropped > 100);
  CHECK(generation.conversation().media().empty());
  CHECK(s.encoded() == 1);

  // Kept in front: it stays, and nothing is encoded again.
  how.n_keep = p.spans.back().end();
  generation.set_options(how);
  generation.start(p, s.input);
  while (!generation.next().is_end()) {
  }
  CHECK(generation.conversation().media() == p.spans);
  CHECK(s.encoded() == 1);
  s.engine.cancel_token().cancel();
  generation.start(s.prompt(concat("Z ", picture, "?"), {s.image(1)}), s.input);
  CHECK(generation.next().end == EndReason::cancelled);
}
