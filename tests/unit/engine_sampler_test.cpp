#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/engine/sampler.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using tiered_test::error_of;

namespace {
float const quiet_nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
}

TEST_CASE("argmax takes the lowest of equals and never a NaN") {
  CHECK(argmax(std::vector<float>{1, 3, 3, 2}) == 1);
  CHECK(argmax(std::vector<float>{quiet_nan, -5, quiet_nan}) == 1);
  CHECK(argmax(std::vector<float>{-inf, -inf}) == 0);
  CHECK(error_of([] { argmax(std::vector<float>{quiet_nan, quiet_nan}); }).code == Errc::device);
}

TEST_CASE("numbers that mean nothing are refused") {
  CHECK(error_of([] { Sampler({.temperature = -1}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.temperature = quiet_nan}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.top_k = -1}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.top_p = 0}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.top_p = 1.5f}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.min_p = -0.1f}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.min_p = quiet_nan}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.typical_p = 0}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.repeat_penalty = 0}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.repeat_penalty = inf}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.repeat_last_n = -2}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.presence_penalty = quiet_nan}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.frequency_penalty = inf}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.logit_bias = {{1, inf}}}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.logit_bias = {{1, quiet_nan}}}); }).code == Errc::precondition);
  CHECK(error_of([] { Sampler({.temperature = -1.5f}); }).says("temperature", "-1.5"));
  CHECK(error_of([] { Sampler({.top_k = -7}); }).says("top_k", "-7"));
  CHECK(error_of([] { Sampler({.frequency_penalty = inf}); }).says("frequency_penalty", "inf"));
  CHECK(error_of([] { Sampler({.logit_bias = {{13, quiet_nan}}}); }).says("token 13", "nan"));
  Sampler sampler{SamplerOptions{}};
  CHECK(error_of([&] { sampler.accept(-3); }).says("-3"));
  std::vector<std::uint8_t> const flags(3, 1);
  CHECK(error_of([&] { sampler.sample(std::vector<float>(5), flags); }).says("3 flags", "5 logits"));
  CHECK(error_of([&] { sampler.sample(std::vector<float>(5, quiet_nan)); }).says("5 logits"));
}

TEST_CASE("draws follow the softmax of logits over temperature") {
  std::vector<float> const logits{0, std::log(2.f), std::log(5.f)};
  for (float temperature : {1.f, 0.5f}) {
    Sampler sampler({.temperature = temperature, .seed = 42});
    std::map<int, int> counts;
    int const n = 20000;
    for (int i = 0; i < n; ++i) ++counts[sampler.sample(logits)];
    double const a = 1, b = std::pow(2.0, 1 / temperature), c = std::pow(5.0, 1 / temperature), sum = a + b + c;
    // five standard deviations of a binomial share
    auto const tolerance = [&](double p) { return 5 * std::sqrt(p * (1 - p) / n); };
    CHECK(std::fabs(counts[0] / double(n) - a / sum) < tolerance(a / sum));
    CHECK(std::fabs(counts[1] / double(n) - b / sum) < tolerance(b / sum));
    CHECK(std::fabs(counts[2] / double(n) - c / sum) < tolerance(c / sum));
  }
}

TEST_CASE("top-k and top-p cut the tail") {
  std::vector<float> const logits{std::log(1.f), std::log(2.f), std::log(3.f), std::log(4.f)};
  Sampler k({.temperature = 1, .top_k = 2, .seed = 1}), p({.temperature = 1, .top_p = 0.35f, .seed = 1}),
      wide({.temperature = 1, .top_p = 0.65f, .seed = 1});
  std::map<int, int> by_k, by_p, by_wide;
  for (int i = 0; i < 2000; ++i) {
    ++by_k[k.sample(logits)];
    ++by_p[p.sample(logits)];
    ++by_wide[wide.sample(logits)];
  }
  CHECK(by_k.size() == 2);
  CHECK(by_k.count(2) == 1);
  CHECK(by_k.count(3) == 1);
  CHECK(by_p.size() == 1);
  CHECK(by_p.count(3) == 1);
  CHECK(by_wide.size() == 2);
}

TEST_CASE("top-p looks at probabilities before temperature, as llama.cpp does") {
  std::vector<float> const logits{std::log(1.f), std::log(2.f), std::log(3.f), std::log(4.f)};  // 0.1 0.2 0.3 0.4
  Sampler hot({.temperature = 100, .top_p = 0.65f, .seed = 1}), cold({.temperature = 0.5f, .top_p = 0.65f, .seed = 1});
  std::map<int, int> by_hot, by_cold;
  int const n = 4000;
  for (int i = 0; i < n; ++i) {
    ++by_hot[hot.sample(logits)];
    ++by_cold[cold.sample(logits)];
  }
  CHECK(by_hot.size() == 2);  // nearly even between the two that are left
  CHECK(std::fabs(by_hot[3] / double(n) - 0.5) < 0.05);
  CHECK(by_cold.size() == 2);
  CHECK(std::fabs(by_cold[3] / double(n) - 16.0 / 25) < 5 * std::sqrt(0.64 * 0.36 / n));
}

TEST_CASE("same seed, same tokens; another seed, others") {
  std::vector<float> const logits(100, 0.f);
  auto const draw = [&](std::uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<std::int32_t> out;
    for (int i = 0; i < 50; ++i) out.push_back(sampler.sample(logits));
    return out;
  };
  CHECK(draw(7) == draw(7));
  CHECK(draw(7) != draw(8));
}

TEST_CASE("a mask keeps tokens out, greedy or not") {
  std::vector<float> const logits{1, 9, 5};
  std::vector<std::uint8_t> const allowed{1, 0, 1};
  CHECK(Sampler().sample(logits, allowed) == 2);
  Sampler warm({.temperature = 1, .seed = 3});
  for (int i = 0; i < 200; ++i) CHECK(warm.sample(logits, allowed) != 1);
  CHECK(error_of([&] { Sampler().sample(logits, std::vector<std::uint8_t>{0, 0, 0}); }).code == Errc::device);
}

TEST_CASE("infinite and undefined logits") {
  Sampler sampler({.temperature = 1, .seed = 5});
  CHECK(sampler.sample(std::vector<float>{0, inf, 2}) == 1);
  for (int i = 0; i < 50; ++i) CHECK(sampler.sample(std::vector<float>{quiet_nan, -inf, 2}) == 2);
}

// ---- the whole chain against a plain reference

namespace {

struct Token {
  std::int32_t id;
  double value;
};

std::vector<double> softmax(std::vector<Token> const& tokens, double temperature = 1) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (Token const& t : tokens) max = std::max(max, t.value);
  std::vector<double> p;
  for (Token const& t : tokens) p.push_back(std::exp((t.value - max) / temperature));
  for (double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}

/// Sorts by `key`, lower tokens first on equality, and keeps what keeps(sum of the probabilities before, of those with it).
template <class Key, class Keeps>
void keep_sorted(std::vector<Token>& tokens, Key const& key, Keeps const& keeps) {
  std::vector<double> const p = softmax(tokens);
  std::vector<std::size_t> order(tokens.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return key(tokens[a], p[a]) < key(tokens[b], p[b]) || (key(tokens[a], p[a]) == key(tokens[b], p[b]) && tokens[a].id < tokens[b].id);
  });
  std::vector<Token> kept;
  double before = 0;
  for (std::size_t i : order) {
    if (!keeps(kept.size(), before)) break;
    kept.push_back(tokens[i]);
    before += p[i];
  }
  tokens = kept;
}

/// Step by step as the options are documented; what is left, by token.
std::vector<Token> chain(std::vector<float> logits, SamplerOptions const& o, std::vector<std::int32_t> const& seen) {
  for (LogitBias const& b : o.logit_bias) logits[std::size_t(b.token)] += b.bias;
  std::map<std::int32_t, int> counts;
  std::size_t const n = o.repeat_last_n < 0 ? seen.size() : std::min(seen.size(), std::size_t(o.repeat_last_n));
  for (std::size_t i = seen.size() - n; i < seen.size(); ++i) ++counts[seen[i]];
  for (auto const& [token, count] : counts) {
    float& x = logits[std::size_t(token)];
    x = x > 0 ? x / o.repeat_penalty : x * o.repeat_penalty;
    x -= float(count) * o.frequency_penalty + o.presence_penalty;
  }
  std::vector<Token> tokens;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == logits[i] && !(std::isinf(logits[i]) && logits[i] < 0)) tokens.push_back({std::int32_t(i), double(logits[i])});
  }
  auto const by_value = [](Token const& t, double) { return -t.value; };
  if (o.top_k > 0) keep_sorted(tokens, by_value, [&](std::size_t kept, double) { return kept < std::size_t(o.top_k); });
  if (o.typical_p < 1) {
    double entropy = 0;
    for (double p : softmax(tokens)) entropy -= p * std::log(p);
    auto const surprise = [&](Token const&, double p) { return std::fabs(-std::log(p) - entropy); };
    keep_sorted(tokens, surprise, [&](std::size_t, double before) { return before <= double(o.typical_p); });
  }
  if (o.top_p < 1) keep_sorted(tokens, by_value, [&](std::size_t kept, double before) { return kept == 0 || before < double(o.top_p); });
  if (o.min_p > 0 && !tokens.empty()) {
    std::vector<double> const p = softmax(tokens);
    double const most = *std::max_element(p.begin(), p.end());
    std::vector<Token> kept;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (p[i] >= double(o.min_p) * most) kept.push_back(tokens[i]);
    }
    tokens = kept;
  }
  std::sort(tokens.begin(), tokens.end(), [](Token const& a, Token const& b) { return a.id < b.id; });
  return tokens;
}

std::int32_t pick(std::vector<Token> const& tokens, SamplerOptions const& o, double uniform) {
  if (o.temperature == 0) {
    return std::max_element(tokens.begin(), tokens.end(), [](Token const& a, Token const& b) { return a.value < b.value; })->id;
  }
  std::vector<double> const p = softmax(tokens, double(o.temperature));
  double sum = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    sum += p[i];
    if (uniform < sum) return tokens[i].id;
  }
  return tokens.back().id;
}

SamplerOptions random_options(SplitMix64& random, std::int32_t vocab) {
  SamplerOptions o;
  auto const sometimes = [&](auto value, auto neutral) { return random.below(2) == 0 ? value : neutral; };
  o.temperature = random.below(5) == 0 ? 0.f : random.between(0.2f, 3);
  o.top_k = sometimes(1 + std::int32_t(random.below(std::uint64_t(vocab) + 5)), 0);
  o.top_p = sometimes(random.between(0.01f, 1), 1.f);
  o.min_p = sometimes(random.between(0, 0.5f), 0.f);
  o.typical_p = sometimes(random.between(0.05f, 1), 1.f);
  o.repeat_penalty = sometimes(random.between(0.5f, 2), 1.f);
  o.presence_penalty = sometimes(random.between(-1, 1), 0.f);
  o.frequency_penalty = sometimes(random.between(-1, 1), 0.f);
  o.repeat_last_n = std::int32_t(random.below(12)) - 1;
  for (std::uint64_t i = random.below(3); i > 0; --i) {
    float const bias = random.below(3) == 0 ? -inf : random.between(-4, 4);
    o.logit_bias.push_back({std::int32_t(random.below(std::uint64_t(vocab))), bias});
  }
  o.seed = random.next();
  return o;
}

}  // namespace

TEST_CASE("the chain draws what a plain one draws, for any options, logits and history") {
  std::uint64_t const seed = 4711;
  INFO("seed " << seed);
  SplitMix64 random(seed);
  for (int round = 0; round < 4000; ++round) {
    INFO("round " << round);
    std::int32_t const vocab = 2 + std::int32_t(random.below(round % 50 == 0 ? 3000 : 60));
    SamplerOptions const o = random_options(random, vocab);
    Sampler sampler(o);
    SplitMix64 uniform(o.seed);
    std::vector<std::int32_t> seen;
    for (int step = 0; step < 10; ++step) {
      std::vector<float> logits;
      for (std::int32_t i = 0; i < vocab; ++i) {
        // Odd steps of 1/64, so that no sum of probabilities lies at a limit by construction; equal values are frequent.
        logits.push_back(random.below(20) == 0 ? quiet_nan : float(std::int32_t(random.below(1000)) - 500) / 64);
      }
      std::vector<Token> const left = chain(logits, o, seen);
      if (left.empty()) {
        CHECK(error_of([&] { sampler.sample(logits); }).code == Errc::device);
        break;
      }
      std::int32_t const expected = pick(left, o, o.temperature == 0 ? 0 : uniform.unit());
      REQUIRE(sampler.sample(logits) == expected);
      seen.push_back(random.below(3) == 0 ? std::int32_t(random.below(std::uint64_t(vocab))) : expected);
      sampler.accept(seen.back());
    }
  }
}

TEST_CASE("the whole chain's frequencies are the exact probabilities") {
  SamplerOptions o{.temperature = 1.3f,
                   .top_k = 9,
                   .top_p = 0.95f,
                   .min_p = 0.05f,
                   .typical_p = 0.97f,
                   .repeat_penalty = 1.2f,
                   .presence_penalty = 0.2f,
                   .frequency_penalty = 0.1f,
                   .logit_bias = {{4, 0.5f}, {1, -inf}},
                   .seed = 99};
  std::vector<float> const logits{2.1f, 9, 1.7f, 1.2f, 0.3f, 2.4f, -0.5f, 0.9f, 0.1f, -1.5f, 1.1f, -0.2f};
  std::vector<std::int32_t> const seen{5, 0, 5, 7};
  std::vector<Token> const left = chain(logits, o, seen);
  std::vector<double> const p = softmax(left, double(o.temperature));
  Sampler sampler(o);
  sampler.accept(seen);
  int const n = 40000;
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(logits)];
  REQUIRE(left.size() >= 5);
  REQUIRE(counts.size() == left.size());
  double chi_square = 0;
  for (std::size_t i = 0; i < left.size(); ++i) {
    double const expected = p[i] * n, off = counts[left[i].id] - expected;
    chi_square += off * off / expected;
  }
  double const freedom = double(left.size() - 1);
  CHECK(chi_square < freedom + 4 * std::sqrt(2 * freedom));  // mean and four standard deviations of the chi-square distribution
}

TEST_CASE("a vocabulary of real size gives what the plain chain gives") {
  std::int32_t const vocab = 150000;
  SplitMix64 random(31);
  std::vector<float> peaked, flat(std::size_t(vocab), 1.5f);
  for (std::int32_t i = 0; i < vocab; ++i) {
    float sum = 0;
    for (int j = 0; j < 8; ++j) sum += random.between(-2, 2);
    peaked.push_back(sum);
  }
  for (SamplerOptions o :
       {SamplerOptions{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f}, SamplerOptions{.temperature = 1, .top_p = 0.9f},
        SamplerOptions{.temperature = 1, .min_p = 0.05f}, SamplerOptions{.temperature = 1, .typical_p = 0.6f},
        SamplerOptions{.temperature = 1.5f}, SamplerOptions{.temperature = 1, .top_k = 100000}}) {
    for (auto const* logits : {&peaked, &flat}) {
      INFO("top_k " << o.top_k << " top_p " << o.top_p << " min_p " << o.min_p << " typical_p " << o.typical_p);
      if (logits == &flat && o.typical_p < 1) continue;  // all surprises are equal: who comes first, rounding says
      std::vector<Token> const left = chain(*logits, o, {});
      o.seed = 5;
      Sampler sampler(o);
      SplitMix64 uniform(o.seed);
      for (int i = 0; i < 3; ++i) REQUIRE(sampler.sample(*logits) == pick(left, o, uniform.unit()));
    }
  }
}

TEST_CASE("a seed names one text for ever") {
  std::vector<float> logits;
  for (int i = 0; i < 50; ++i) logits.push_back(float(i * 37 % 50) / 10);
  Sampler sampler({.temperature = 1, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.1f, .seed = 2026});
  std::vector<std::int32_t> drawn;
  for (int i = 0; i < 12; ++i) sampler.accept(drawn.emplace_back(sampler.sample(logits)));
  CHECK(drawn == std::vector<std::int32_t>{39, 24, 31, 16, 35, 31, 47, 35, 12, 8, 13, 43});
}

// ---- the parts by hand

TEST_CASE("penalties count what was accepted within the window") {
  std::vector<float> const logits{4, 3, -1, 2};
  Sampler sampler({.repeat_penalty = 2, .repeat_last_n = 2});
  CHECK(sampler.sample(logits) == 0);  // drawing alone is not accepting
  CHECK(sampler.sample(logits) == 0);
  sampler.accept(0);  // 4 becomes 2
  CHECK(sampler.sample(logits) == 1);
  sampler.accept(1);  // 3 becomes 1.5; 2 and 2 are equal: the lower token
  CHECK(sampler.sample(logits) == 0);
  sampler.accept(3);  // token 0 leaves the window
  CHECK(sampler.sample(logits) == 0);
  sampler.accept(std::vector<std::int32_t>{0, 0});
  CHECK(sampler.sample(logits) == 1);
  sampler.forget();
  CHECK(sampler.sample(logits) == 0);
  Sampler negative({.repeat_penalty = 3});
  negative.accept(1);
  CHECK(negative.sample(std::vector<float>{-2, -1}) == 0);  // a seen token with a negative logit gets less likely too
  Sampler frequency({.frequency_penalty = 0.6f}), presence({.presence_penalty = 0.6f}), none({.repeat_penalty = 9, .repeat_last_n = 0});
  for (int i = 0; i < 2; ++i) {
    for (Sampler* s : {&frequency, &presence, &none}) s->accept(0);
  }
  CHECK(frequency.sample(logits) == 1);
  CHECK(presence.sample(logits) == 0);
  CHECK(none.sample(logits) == 0);
  CHECK(error_of([&] { none.accept(-1); }).code == Errc::precondition);
  Sampler whole({.repeat_penalty = 2, .repeat_last_n = -1});
  whole.accept(0);
  for (int i = 0; i < 1000; ++i) whole.accept(3);
  CHECK(whole.sample(logits) == 1);
  whole.accept(77);  // of a larger vocabulary: nothing to penalise here
  CHECK(whole.sample(logits) == 1);
}

TEST_CASE("a bias moves a token, minus infinity bans it") {
  std::vector<float> const logits{1, 3, 2};
  CHECK(Sampler({.logit_bias = {{0, 2.5f}}}).sample(logits) == 0);
  CHECK(Sampler({.logit_bias = {{1, -inf}}}).sample(logits) == 2);
  CHECK(Sampler({.logit_bias = {{0, 1}, {0, 1.5f}}}).sample(logits) == 0);
  CHECK(error_of([&] { Sampler({.logit_bias = {{0, -inf}, {1, -inf}, {2, -inf}}}).sample(logits); }).code == Errc::device);
  CHECK(error_of([&] { Sampler({.logit_bias = {{3, 1}}}).sample(logits); }).says("3"));
  Sampler warm({.temperature = 1, .logit_bias = {{1, -inf}}, .seed = 2});
  for (int i = 0; i < 200; ++i) CHECK(warm.sample(logits) != 1);
}

TEST_CASE("typical-p drops the too likely before the too unlikely") {
  // 0.6, then 40 tokens of 0.01: the entropy is 2.15, the surprise of the first 0.51, of the others 4.6.
  std::vector<float> logits(41, std::log(0.01f));
  logits[0] = std::log(0.6f);
  CHECK(Sampler({.typical_p = 0.5f}).sample(logits) == 0);  // 1.64 away, the others 2.45
  // 0.3 and 70 times 0.01: the entropy is 3.58, the first is 2.38 away, the others 1.02.
  std::vector<float> flatter(71, std::log(0.01f));
  flatter[0] = std::log(0.3f);
  CHECK(Sampler({.typical_p = 0.5f}).sample(flatter) == 1);  // greedy among what is left
  CHECK(Sampler({.typical_p = 0.75f}).sample(flatter) == 0);
}

TEST_CASE("reset() begins the same draws again, forget() does not") {
  std::vector<float> const logits(100, 0.f);
  Sampler sampler({.temperature = 1, .repeat_penalty = 1.5f, .seed = 8});
  auto const draw = [&] {
    std::vector<std::int32_t> out;
    for (int i = 0; i < 20; ++i) sampler.accept(out.emplace_back(sampler.sample(logits)));
    return out;
  };
  std::vector<std::int32_t> const first = draw();
  sampler.reset();
  CHECK(draw() == first);
  sampler.forget();
  CHECK(draw() != first);
}

TEST_CASE("log-probabilities are those of the model") {
  std::vector<float> const logits{std::log(1.f), quiet_nan, std::log(2.f), std::log(4.f), std::log(2.f), std::log(1.f)};
  std::vector<TokenLogprob> const top = top_logprobs(logits, 4);
  REQUIRE(top.size() == 4);
  CHECK(top[0].token == 3);
  CHECK(top[1].token == 2);
  CHECK(top[2].token == 4);
  CHECK(top[3].token == 0);
  CHECK(std::fabs(top[0].logprob - std::log(0.4)) < 1e-7);  // the logits are floats
  CHECK(std::fabs(top[3].logprob - std::log(0.1)) < 1e-7);
  CHECK(top_logprobs(logits, 0).empty());
  CHECK(top_logprobs(logits, 99).size() == 5);
  Logprobs const all(logits);
  CHECK(all.of(2) == top[1].logprob);
  CHECK(all.of(1) == -std::numeric_limits<double>::infinity());
  CHECK(error_of([&] { all.of(6); }).code == Errc::precondition);
  CHECK(error_of([&] { all.of(-1); }).code == Errc::precondition);
  CHECK(error_of([] { top_logprobs(std::vector<float>{quiet_nan}, 1); }).code == Errc::device);
  CHECK(error_of([] { top_logprobs(std::vector<float>{}, 1); }).code == Errc::device);
}

TEST_CASE("log-probabilities stay exact where floats would not") {
  std::vector<float> large{30000, 29999, 29000};
  CHECK(std::fabs(Logprobs(large).of(0) + std::log1p(std::exp(-1.0))) < 1e-15);
  CHECK(std::fabs(Logprobs(large).of(2) + 1000 + std::log1p(std::exp(-1.0))) < 1e-12);
  std::vector<float> const flat(150000, -7.25f);
  CHECK(std::fabs(Logprobs(flat).of(149999) + std::log(150000.0)) < 1e-12);
  std::vector<float> const infinite{1, inf, inf};
  CHECK(std::fabs(Logprobs(infinite).of(1) + std::log(2.0)) < 1e-15);
  CHECK(Logprobs(infinite).of(0) == -std::numeric_limits<double>::infinity());
  SplitMix64 random(6);
  std::vector<float> logits;
  for (int i = 0; i < 5000; ++i) logits.push_back(random.between(-30, 30));
  Logprobs const all(logits);
  double sum = 0;
  for (std::int32_t i = 0; i < 5000; ++i) sum += std::exp(all.of(i));
  CHECK(std::fabs(sum - 1) < 1e-12);
}
