// Vectors of a prompt's media: encoded once, kept within a bound, laid out in planes.
#include "tiered/vision/media_vectors.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "media_data.hpp"

using namespace tiered;
using tiered_test::CountingEncoder;
using tiered_test::error_of;
using tiered_test::few_tokens;
using tiered_test::numbered_image;
using tiered_test::NumberedFilm;

namespace {

constexpr MediaTokens ids{98, 99};

MediaHash hash_of(int n) {
  MediaHasher hasher;
  hasher.add(std::int64_t{n});
  return hasher.value();
}

/// Remembers the largest piece that it was given, and what was to follow.
struct MeasuredEncoder {
  explicit MeasuredEncoder(CountingEncoder& e) : inner(e) {}
  VisionConfig const& config() const { return inner.config(); }
  VisionEncoding encode(std::span<Patches const> all, bool more) {
    std::int64_t n = 0, n_patches = 0;
    std::size_t n_frames = 0;
    for (Patches const& p : all) {
      n += p.grid().n_tokens(config().merge_size);
      n_patches += p.grid().n_patches();
      n_frames += p.frames().size();
    }
    most_patches = std::max(most_patches, n_patches);
    most_frames = std::max(most_frames, n_frames);
    most_media = std::max(most_media, all.size());
    ++n_calls;
    n_followed += more;
    // Of any numbers: what is measured is memory.
    return {n, std::vector<float>(std::size_t(n * config().output_dim), float(n_calls)), {}};
  }
  CountingEncoder& inner;
  std::int64_t most_patches = 0;
  std::size_t most_frames = 0, most_media = 0;
  int n_calls = 0, n_followed = 0;
};

struct FailingEncoder {
  VisionConfig const& config() const { return inner.config(); }
  VisionEncoding encode(auto const&...) { throw Error(Errc::cancelled, "enough"); }
  CountingEncoder& inner;
};

std::vector<float> all_of(VisionEncoding const& e) {
  std::vector<float> out = e.tokens;
  for (auto const& features : e.deepstack) out.insert(out.end(), features.begin(), features.end());
  return out;
}

}  // namespace

TEST_CASE("vectors are the encoder's, plane by plane, each picture encoded once, several together", "[vision][media]") {
  for (std::string const& model : tiered_test::vlm_models()) {
    INFO(model);
    CountingEncoder encoder(model);
    MediaReader const reader(encoder.config(), few_tokens());
    MropeConfig const config = mrope_config(encoder.config());
    Media const a = reader.image(numbered_image({60, 44}, 1)), b = reader.image(numbered_image({40, 80}, 2));
    std::vector<std::int32_t> const tokens = {5, 98, 6, 7, 98, 8, 98, 9};
    MediaPrompt const prompt = media_prompt(tokens, {a, b, a}, ids, config);
    EncodingCache cache;
    MediaUse use;
    MediaEmbeddings const vectors = media_vectors(encoder, cache, prompt, 0, &use);
    CHECK((encoder.n_calls == 1 && encoder.n_steps == 2));
    CHECK((use.n_encoded == 2 && use.n_cached == 1));
    CHECK(use.n_vectors == 2 * a.step_tokens(2) + b.step_tokens(2));

    VisionEncoding const of_a = encoder.encode(a.patches({0, 1})), of_b = encoder.encode(b.patches({0, 1}));
    std::size_t const dim = std::size_t(encoder.config().output_dim), n = std::size_t(use.n_vectors);
    std::size_t const n_planes = of_a.deepstack.size() + 1;
    REQUIRE(vectors.size() == n_planes * n * dim);
    auto const plane = [](VisionEncoding const& e, std::size_t p) { return p == 0 ? e.tokens : e.deepstack[p - 1]; };
    for (std::size_t p = 0; p < n_planes; ++p) {
      std::vector<float> expected;
      for (VisionEncoding const* e : {&of_a, &of_b, &of_a}) {
        std::vector<float> const part = plane(*e, p);
        expected.insert(expected.end(), part.begin(), part.end());
      }
      CHECK(std::equal(expected.begin(), expected.end(), vectors.begin() + std::ptrdiff_t(p * n * dim)));
    }

    // From the second row of the second picture on: nothing new is encoded, and those rows are left out.
    int const before = encoder.n_calls;
    std::int32_t const from = prompt.spans[1].begin + 1;
    MediaEmbeddings const rest = media_vectors(encoder, cache, prompt, from, &use);
    CHECK(encoder.n_calls == before);
    std::size_t const skipped = std::size_t(a.step_tokens(2)) + 1, left = n - skipped;
    REQUIRE(rest.size() == n_planes * left * dim);
    for (std::size_t p = 0; p < n_planes; ++p) {
      CHECK(std::equal(rest.begin() + std::ptrdiff_t(p * left * dim), rest.begin() + std::ptrdiff_t((p + 1) * left * dim),
                       vectors.begin() + std::ptrdiff_t((p * n + skipped) * dim)));
    }
    CHECK(media_vectors(encoder, cache, prompt, prompt.n_tokens() - 1).empty());
    CHECK(encoder.n_calls == before);

    // Another picture of the same size is another picture.
    MediaPrompt const other = media_prompt(tokens, {a, reader.image(numbered_image({40, 80}, 3)), a}, ids, config);
    CHECK(media_vectors(encoder, cache, other, 0) != vectors);
    CHECK(encoder.n_calls == before + 1);
  }
}

TEST_CASE("vectors from any token on are the last ones of all", "[vision][media]") {
  for (std::string const& model : tiered_test::vlm_models()) {
    CountingEncoder encoder(model);
    MediaReader const reader(encoder.config(), few_tokens());
    std::vector<std::int32_t> const tokens = {5, 98, 6, 98, 9};
    for (auto const& [first, second] : {std::pair(ImageSize{60, 44}, ImageSize{40, 80}), std::pair(ImageSize{40, 80}, ImageSize{60, 44})}) {
      MediaPrompt const prompt = media_prompt(tokens, {reader.image(numbered_image(first, 1)), reader.image(numbered_image(second, 2))},
                                              ids, mrope_config(encoder.config()));
      EncodingCache cache;
      MediaEmbeddings const all = media_vectors(encoder, cache, prompt, 0);
      std::size_t const dim = std::size_t(encoder.config().output_dim), n_planes = std::size_t(encoder.config().n_deepstack()) + 1,
                        n = all.size() / (n_planes * dim);
      for (std::int32_t from = 0; from <= prompt.n_tokens(); ++from) {
        INFO(model << ", from " << from);
        std::size_t left = 0;
        for (MediaSpan const& span : prompt.spans) left += std::size_t(std::max(span.end() - std::max(span.begin, from), 0));
        MediaEmbeddings const rest = media_vectors(encoder, cache, prompt, from);
        REQUIRE(rest.size() == n_planes * left * dim);
        bool same = true;
        for (std::size_t p = 0; p < n_planes; ++p)
          same = same && std::equal(rest.begin() + std::ptrdiff_t(p * left * dim), rest.begin() + std::ptrdiff_t((p + 1) * left * dim),
                                    all.begin() + std::ptrdiff_t((p * n + n - left) * dim));
        CHECK(same);
      }
    }
  }
}

TEST_CASE("a video's steps are encoded together, and kept apart", "[vision][media]") {
  for (std::string const& model : tiered_test::vlm_models()) {
    INFO(model);
    CountingEncoder encoder(model);
    MropeConfig const config = mrope_config(encoder.config());
    MediaReader const reader(encoder.config(), few_tokens(1, 6));
    Media const video = reader.video(std::make_shared<NumberedFilm>(8, 1, ImageSize{60, 40}), {.n_frames = 8});
    std::vector<std::int32_t> tokens = {5};
    for (int i = 0; i < (config.frames_apart ? 4 : 1); ++i) tokens.insert(tokens.end(), {99, 6});
    MediaPrompt const prompt = media_prompt(tokens, {video}, ids, config);
    REQUIRE(prompt.spans.size() == 4);
    EncodingCache cache;
    MediaEmbeddings const vectors = media_vectors(encoder, cache, prompt, 0);
    CHECK((encoder.n_calls == 1 && encoder.n_steps == 4));
    CHECK(cache.size() == 4);
    CHECK(vectors == all_of(encoder.encode(video.patches({0, 4}))));
    // Steps that are known are left out of a later call, wherever they lie.
    EncodingCache second;
    second.put(prompt.spans[1].hash, cache.find(prompt.spans[1].hash));
    int const before = encoder.n_calls;
    std::int64_t const n_steps = encoder.n_steps;
    CHECK(media_vectors(encoder, second, prompt, 0) == vectors);
    CHECK((encoder.n_calls == before + 1 && encoder.n_steps == n_steps + 3));
  }
}

TEST_CASE("memory for pixels does not grow with a video's length", "[vision][media]") {
  CountingEncoder tiny("qwen2vl");
  std::int64_t most_patches = 0;
  std::size_t most_frames = 0;
  for (std::int64_t const n_frames : {std::int64_t{400}, std::int64_t{1600}}) {
    MeasuredEncoder encoder(tiny);
    Media const video = MediaReader(tiny.config(), few_tokens(90, 100))
                            .video(std::make_shared<NumberedFilm>(n_frames, 1, ImageSize{64, 64}), {.n_frames = n_frames});
    MediaPrompt const prompt = media_prompt(std::vector<std::int32_t>{5, 99, 6}, {video}, ids, mrope_config(tiny.config()));
    EncodingCache cache(1 << 20);
    media_vectors(encoder, cache, prompt, 0);
    CHECK(cache.bytes() <= cache.max_bytes());
    CHECK(encoder.n_calls > 4);
    CHECK(encoder.n_followed == encoder.n_calls - 1);  // all but the last
    if (most_frames != 0) CHECK((encoder.most_patches == most_patches && encoder.most_frames == most_frames));
    most_patches = encoder.most_patches;
    most_frames = encoder.most_frames;
    CHECK(most_patches <= 1 << 14);
  }
}

TEST_CASE("pictures go to the encoder together up to a bound, one alone whatever its size", "[vision][media]") {
  CountingEncoder tiny("qwen2vl");
  MropeConfig const config = mrope_config(tiny.config());
  std::int64_t const per_token = std::int64_t{tiny.config().merge_size} * tiny.config().merge_size;
  auto const image = [&](std::int64_t n_tokens, int kind) {
    return MediaReader(tiny.config(), few_tokens(n_tokens, n_tokens)).image(numbered_image({64, 64}, kind));
  };
  Media const large = image(80 * 80, 1);
  REQUIRE(large.step_tokens(tiny.config().merge_size) * per_token > 1 << 14);
  std::vector<Media> media{image(900, 2), large};
  for (int kind = 3; kind < 9; ++kind) media.push_back(image(900, kind));  // four together are within the bound, five are not
  media.push_back(media[2]);
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < media.size(); ++i) tokens.insert(tokens.end(), {5, 98});
  MeasuredEncoder encoder(tiny);
  EncodingCache none(0);
  MediaUse use;
  MediaEmbeddings const vectors = media_vectors(encoder, none, media_prompt(tokens, media, ids, config), 0, &use);
  CHECK(encoder.n_calls == 4);  // one, the large one, four, two
  CHECK(encoder.n_followed == 3);
  CHECK(encoder.most_media == 4);
  CHECK((use.n_encoded == 8 && use.n_cached == 1));  // though no cache kept it
  // Each picture has the number of its call, wherever it stands.
  std::size_t const dim = std::size_t(tiny.config().output_dim);
  std::size_t at = 0;
  int const calls[] = {1, 2, 3, 3, 3, 3, 4, 4, 3};
  for (std::size_t i = 0; i < media.size(); ++i) {
    std::size_t const n = std::size_t(media[i].step_tokens(tiny.config().merge_size)) * dim;
    CHECK(std::all_of(vectors.begin() + std::ptrdiff_t(at), vectors.begin() + std::ptrdiff_t(at + n),
                      [&](float v) { return v == float(calls[i]); }));
    at += n;
  }
  CHECK(at == vectors.size());
}

TEST_CASE("a cache keeps what was used last, within its bound", "[vision][media]") {
  auto const encoding = [](std::size_t n_floats) {
    auto e = std::make_shared<VisionEncoding>();
    e->tokens.resize(n_floats / 2);
    e->deepstack.emplace_back(n_floats - n_floats / 2);
    return e;
  };
  EncodingCache cache(1000);
  CHECK(cache.find(hash_of(1)) == nullptr);
  cache.put(hash_of(1), encoding(100));
  cache.put(hash_of(2), encoding(100));
  CHECK(cache.bytes() == 800);
  CHECK(cache.find(hash_of(1)) != nullptr);
  cache.put(hash_of(3), encoding(60));
  CHECK(cache.find(hash_of(2)) == nullptr);
  CHECK(cache.find(hash_of(1)) != nullptr);
  CHECK(cache.bytes() == 640);
  cache.put(hash_of(3), encoding(60));
  CHECK((cache.bytes() == 640 && cache.size() == 2));
  cache.put(hash_of(4), encoding(251));  // more than all
  CHECK((cache.bytes() == 640 && cache.find(hash_of(4)) == nullptr));
  cache.put(hash_of(5), encoding(250));
  CHECK((cache.bytes() == 1000 && cache.size() == 1));
  EncodingCache none(0);
  none.put(hash_of(1), encoding(1));
  CHECK(none.size() == 0);
}

TEST_CASE("what cannot be encoded is said", "[vision][media]") {
  CountingEncoder encoder("qwen2vl");
  EncodingCache cache;
  MropeConfig const config = mrope_config(encoder.config());
  Media const a = MediaReader(encoder.config(), few_tokens()).image(numbered_image({60, 44}, 1));
  MediaPrompt const prompt = media_prompt(std::vector<std::int32_t>{5, 98, 6}, {a}, ids, config);
  MediaPrompt const known = behind(prompt.tokens, prompt.spans, media_prompt(std::vector<std::int32_t>{7}, {}, ids, config));
  CHECK(media_vectors(encoder, cache, known, known.n_tokens() - 1).empty());
  auto const gone = error_of([&] { media_vectors(encoder, cache, known, 0); });
  CHECK(gone.code == Errc::precondition);
  CHECK(gone.says("token 1"));
  media_vectors(encoder, cache, prompt, 0);
  CHECK(media_vectors(encoder, cache, known, 0) == media_vectors(encoder, cache, prompt, 0));  // the cache has it

  struct Wrong {
    VisionConfig const& config() const { return inner.config(); }
    VisionEncoding encode(std::span<Patches const>, bool) { return {1, {1, 2, 3}, {}}; }
    CountingEncoder& inner;
  } wrong{encoder};
  EncodingCache empty;
  CHECK(error_of([&] { media_vectors(wrong, empty, prompt, 0); }).code == Errc::precondition);
}

TEST_CASE("what was done up to an error is told", "[vision][media]") {
  CountingEncoder encoder("qwen2vl");
  FailingEncoder failing{encoder};
  MediaReader const reader(encoder.config(), few_tokens());
  MropeConfig const config = mrope_config(encoder.config());
  Media const a = reader.image(numbered_image({60, 44}, 1)), b = reader.image(numbered_image({60, 44}, 2));
  EncodingCache cache;
  media_vectors(encoder, cache, media_prompt(std::vector<std::int32_t>{98}, {a}, ids, config), 0);
  MediaPrompt const prompt = media_prompt(std::vector<std::int32_t>{98, 5, 98}, {a, b}, ids, config);
  MediaUse use{7, 7, 7};
  CHECK(error_of([&] { media_vectors(failing, cache, prompt, 0, &use); }).code == Errc::cancelled);
  CHECK((use.n_encoded == 0 && use.n_cached == 1));
  media_vectors(encoder, cache, prompt, 0, &use);
  CHECK((use.n_encoded == 1 && use.n_cached == 1));
}
