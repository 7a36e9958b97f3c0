/// Conversations with pictures, against the greedy text and the logits of transformers.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "media_data.hpp"
#include "tiered/engine/conversation.hpp"
#include "tiered/engine/media_input.hpp"
#include "vision_data.hpp"

namespace tiered::test {

struct DialogTurn {
  std::vector<std::array<std::int32_t, 3>> pictures;  ///< columns, rows, kind
  std::string question, prompt;
  std::vector<std::int32_t> tokens, answer;
  std::vector<float> logits;
};

inline std::vector<DialogTurn> read_dialog(std::string const& model) {
  FixtureReader in("../vision_golden/" + model + ".dialog.bin");
  auto const text = [&] { return in.bytes(in.number<std::uint32_t>()); };
  auto const ids = [&] { return in.numbers<std::int32_t>(in.number<std::uint32_t>()); };
  std::vector<DialogTurn> turns(in.number<std::uint32_t>());
  for (DialogTurn& t : turns) {
    t.pictures.resize(in.number<std::uint32_t>());
    for (auto& p : t.pictures) p = {in.number<std::int32_t>(), in.number<std::int32_t>(), in.number<std::int32_t>()};
    t.question = text();
    t.prompt = text();
    t.tokens = ids();
    t.answer = ids();
    t.logits = in.numbers<float>(in.number<std::uint32_t>());
  }
  REQUIRE(in.at_end());
  return turns;
}

/// Largest difference over the range.
inline double range_difference(std::span<float const> got, std::vector<float> const& expected) {
  if (got.size() != expected.size()) return INFINITY;
  auto const [low, high] = std::minmax_element(expected.begin(), expected.end());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    double const d = std::fabs(double(got[i]) - double(expected[i]));
    if (!(d <= worst)) worst = d;
  }
  return worst / double(*high - *low);
}

/// The likeliest token that is no mark.
inline std::int32_t likeliest(std::span<float const> logits, Tokenizer const& tokenizer) {
  std::int32_t best = -1;
  for (std::int32_t id = 0; id < std::int32_t(logits.size()); ++id) {
    if (tokenizer.vocab().type(id) == TokenType::control) continue;
    if (best < 0 || logits[std::size_t(id)] > logits[std::size_t(best)]) best = id;
  }
  return best;
}

/// `same_bits`: a prompt gives the same bits whether or not its beginning was known. Else nearly so: products of other numbers of rows are
/// summed in another order.
template <class E, class Encoder>
void check_dialog(E& engine, Encoder& encoder, std::string const& model, bool same_bits = true) {
  Tokenizer const tokenizer = make_tokenizer(engine.model().file());
  MediaInput input(encoder, engine.model().config(), tokenizer, few_tokens());
  Conversation conversation(engine.new_sequence());
  std::vector<Media> media;
  std::int64_t const expected_steps[][2] = {{1, 0}, {0, 0}, {2, 0}, {0, 1}};  // encoded, out of the cache
  std::size_t n_turn = 0;
  for (DialogTurn const& turn : read_dialog(model)) {
    INFO("turn " << n_turn << ": " << turn.question);
    for (auto const& [w, h, kind] : turn.pictures) media.push_back(input.reader().image(numbered_image({w, h}, kind)));
    CHECK(tokenizer.encode(turn.prompt, {.add_special = false, .parse_special = true}) == turn.tokens);
    MediaPrompt const prompt = input.prompt(turn.prompt, media);
    bool asked = false;
    PromptUse const use = conversation.prompt(engine, prompt, [&](MediaPrompt const& p, std::int32_t from) {
      asked = true;
      return input(p, from);
    });
    CHECK(asked == !turn.pictures.empty());
    if (asked) CHECK(input.last_use().n_encoded == expected_steps[n_turn][0]);
    if (asked) CHECK(input.last_use().n_cached == expected_steps[n_turn][1]);
    CHECK((use.n_reused > 0) == (n_turn > 0));
    std::vector<float> const logits(use.logits.begin(), use.logits.end());
    double const off = range_difference(logits, turn.logits);
    INFO("logits off by " << off);
    CHECK(off < 1e-3);
    // As from an empty sequence.
    Conversation fresh(engine.new_sequence());
    std::span<float const> const anew = fresh.prompt(engine, prompt, input).logits;
    if (same_bits) CHECK(std::equal(anew.begin(), anew.end(), logits.begin(), logits.end()));
    CHECK(range_difference(anew, logits) < 1e-3);
    std::vector<std::int32_t> answer{likeliest(logits, tokenizer)};
    while (answer.size() < turn.answer.size()) answer.push_back(likeliest(conversation.extend(engine, {&answer.back(), 1}), tokenizer));
    CHECK(answer == turn.answer);
    ++n_turn;
  }
  CHECK(n_turn == std::size(expected_steps));
}

inline EngineOptions exact_options() {
  EngineOptions options;
  options.max_context = 512;
  options.n_sequences = 2;
  options.n_threads = 2;
  options.f32_activations = true;
  options.kv_type = DType::f32;
  return options;
}

}  // namespace tiered::test
