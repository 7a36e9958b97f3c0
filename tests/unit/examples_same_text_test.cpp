// Whether a policy's text is the built-in one's, as examples of own policies say it.
#include "../examples/same_text.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace example;

namespace {

constexpr std::size_t n_steps = 32, vocab_size = 40;

/// Logits of some steps; in each the first two tokens are the best, `lead` apart.
std::vector<std::vector<float>> some_logits(float lead, std::uint64_t seed) {
  tiered::SplitMix64 random(seed);
  std::vector<std::vector<float>> steps(n_steps);
  for (std::vector<float>& logits : steps) {
    for (std::size_t i = 0; i < vocab_size; ++i) logits.push_back(random.between(-1, 1));
    logits[0] = 2 + lead, logits[1] = 2;
  }
  return steps;
}
std::vector<std::vector<float>> with_noise(std::vector<std::vector<float>> steps, float noise, std::uint64_t seed) {
  tiered::SplitMix64 random(seed);
  for (std::vector<float>& logits : steps) {
    for (float& v : logits) v += random.between(-noise, noise);
  }
  return steps;
}
/// The exit code.
int compared(std::vector<std::vector<float>> const& first, std::vector<std::vector<float>> const& second, bool exact) {
  std::vector<Choice> choices;
  for (auto const& logits : first) choices.emplace_back(logits);
  SameText text(choices);
  for (auto const& logits : second) text.add(logits);
  auto const text_of = [](std::int32_t token) { return std::to_string(token); };
  return text.tell(text_of, exact);
}

}  // namespace

TEST_CASE("a choice is the likeliest token, and knows how far the others lay behind", "[examples]") {
  std::vector<float> const logits{1, 5, 2, 4.5f, 0, 3, -1, -2, -3, -4};
  Choice const c(logits);
  CHECK(c.token == 1);
  REQUIRE(c.best.size() == Choice::n_best);
  CHECK(c.best[1] == std::pair<std::int32_t, float>(3, 4.5f));
  CHECK(c.lead_over(1) == 0);
  CHECK(c.lead_over(3) == 0.5);
  CHECK(c.lead_over(9) == 7);  // not among the best: as the last of these
  CHECK(Choice(std::span(logits).first(3)).best.size() == 3);
}

TEST_CASE("the noise of a text is what its best logits are off", "[examples]") {
  auto const logits = some_logits(1, 3);
  std::vector<Choice> choices;
  for (auto const& step : logits) choices.emplace_back(step);
  SameText same(choices), off(choices);
  for (auto step : logits) {
    same.add(step);
    for (float& v : step) v += 0.25f;
    off.add(step);
  }
  CHECK(same.noise() == 0);
  CHECK(off.noise() == 0.25);
  CHECK(off.tolerance() == Approx(1.06).epsilon(0.01));
}

TEST_CASE("texts that part are a failure, but for near ties where sums round differently", "[examples]") {
  auto const apart = some_logits(1, 5), tied = some_logits(0.01f, 7);
  CHECK(compared(apart, apart, true) == 0);
  CHECK(compared(apart, with_noise(apart, 0.05f, 1), false) == 0);
  CHECK(compared(tied, with_noise(tied, 0.05f, 1), false) == 0);
  CHECK(compared(tied, with_noise(tied, 0.05f, 1), true) == 1);
  auto wrong = with_noise(apart, 0.05f, 1);
  std::swap(wrong[20][0], wrong[20][9]);
  CHECK(compared(apart, wrong, false) == 1);
  CHECK(compared(apart, wrong, true) == 1);
}
