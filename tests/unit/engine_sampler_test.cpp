#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/engine/sampler.hpp"

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
