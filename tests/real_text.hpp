/// Greedy text of a real model on a device, against the CPU with f32 activations: where it parts, the two best logits must be a near tie.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "golden/engine_helpers.hpp"
#include "tiered/io/tokenizer.hpp"

namespace tiered::test {

inline constexpr std::size_t real_text_tokens = 64;
inline constexpr char const* real_text_prompt =
    "The history of the lighthouse begins long before the first lamp was lit. Sailors who came home at night looked for";

/// Logits before each token, and the tokens.
struct GreedyText {
  std::vector<std::int32_t> tokens;
  std::vector<std::vector<float>> logits;
};

/// Prompt at once, then token by token: those of `forced`, or the best ones.
template <class E>
GreedyText text_of(E& engine, std::vector<std::int32_t> const& prompt, std::vector<std::int32_t> const* forced = nullptr) {
  Sequence const sequence = engine.new_sequence();
  std::span<float const> logits = engine.prefill(sequence, prompt);
  GreedyText text;
  while (text.tokens.size() < real_text_tokens) {
    text.logits.emplace_back(logits.begin(), logits.end());
    text.tokens.push_back(argmax(logits));
    if (text.tokens.size() == real_text_tokens) break;
    logits = engine.decode(sequence, forced != nullptr ? (*forced)[text.tokens.size() - 1] : text.tokens.back());
  }
  return text;
}

/// How much the logit of `a` lies above that of `b`.
inline double lead(std::vector<float> const& logits, std::int32_t a, std::int32_t b) {
  return double(logits[std::size_t(a)]) - double(logits[std::size_t(b)]);
}

/// Root mean square of what the best few logits of the reference are off: of those a token is chosen from.
inline double contenders_noise(GreedyText const& expected, GreedyText const& got) {
  constexpr std::size_t n_contenders = 8;
  double sum = 0;
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < expected.logits.size(); ++i) {
    std::vector<float> const& e = expected.logits[i];
    ids.resize(e.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::partial_sort(ids.begin(), ids.begin() + n_contenders, ids.end(),
                      [&](std::int32_t a, std::int32_t b) { return e[std::size_t(a)] > e[std::size_t(b)]; });
    for (std::size_t k = 0; k < n_contenders; ++k)
      sum += std::pow(double(got.logits[i][std::size_t(ids[k])]) - double(e[std::size_t(ids[k])]), 2);
  }
  return std::sqrt(sum / double(expected.logits.size() * n_contenders));
}

/// What rounding to 8 bits in all products may cost, as quantised_tolerance().
inline double noise_limit(ModelConfig const& config, GreedyText const& expected) {
  double sum = 0, n = 0;
  for (std::vector<float> const& row : expected.logits) {
    for (float const v : row) sum += double(v) * double(v);
    n += double(row.size());
  }
  return gain * q8_noise * std::sqrt(7.0 * config.n_layers + 1) * std::sqrt(sum / n);
}

/// `got` was made along the tokens of `expected`, so that every token is compared, those behind the first that parts, too.
inline void check_real_text(std::string const& what, ModelConfig const& config, GreedyText const& expected, GreedyText const& got) {
  double const noise = contenders_noise(expected, got), limit = noise_limit(config, expected);
  double const tolerance = 3 * std::sqrt(2.0) * noise;  // both logits of a tie are off: three standard deviations of their difference
  std::size_t n_same = 0;
  for (std::size_t i = 0; i < expected.tokens.size(); ++i) {
    std::int32_t const there = expected.tokens[i], here = got.tokens[i];
    n_same += there == here ? 1 : 0;
    if (there == here) continue;
    double const margin = lead(expected.logits[i], there, here), reversed = lead(got.logits[i], here, there);
    std::printf("%s: parts at token %zu: %d on the CPU by %.4f, %d here by %.4f; tolerance %.4f\n", what.c_str(), i, int(there), margin,
                int(here), reversed, tolerance);
    INFO(what << ", token " << i << ": margin " << margin << ", here " << reversed << ", tolerance " << tolerance);
    CHECK(margin <= tolerance);
  }
  std::printf("%s: %zu of %zu tokens the same; noise of logits %.4f of at most %.4f\n", what.c_str(), n_same, expected.tokens.size(), noise,
              limit);
  INFO(what << ": noise " << noise << ", limit " << limit);
  CHECK(noise < limit);
}

inline EngineOptions real_text_options() {
  EngineOptions options;
  options.max_context = 256;
  options.hardware = HardwareProfile::simulated();  // the same plans everywhere, and nothing of earlier runs
  return options;
}

inline std::size_t weight_bytes(Transformer const& model) {
  std::size_t sum = 0;
  for (Shard const& s : model.table().shards) sum += s.bytes;
  return sum;
}

/// The least budget, to 64 KiB, with which plan(bytes) puts something on the device.
template <class Plans>
std::size_t least_budget(std::size_t enough, Plans plans) {
  std::size_t none = 0;
  while (enough - none > 64 * KiB) {
    std::size_t const middle = none + (enough - none) / 2;
    (plans(middle).vram_bytes > 0 ? enough : none) = middle;
  }
  return enough;
}

/// A model on the CPU, and on a device at all of a budget, at half of the weights' size, and at the least that plans.
/// `make_engine(model, options, bytes)`: an engine whose plan has so many bytes; `plans(model, options, bytes)`: its plans alone.
template <class MakeEngine, class Plans>
void check_real_model(std::string const& path, MakeEngine make_engine, Plans plans) {
  GgufFile const gguf = GgufFile::open(path);
  auto const model = make_model(gguf);
  std::vector<std::int32_t> const prompt = make_tokenizer(gguf).encode(real_text_prompt);
  EngineOptions options = real_text_options();
  GreedyText expected;
  {
    EngineOptions exact = options;
    exact.f32_activations = true;
    Engine<CpuPolicies> cpu(model, exact);
    expected = text_of(cpu, prompt);
  }
  std::size_t const weights = weight_bytes(*model), all = 2 * weights + 256 * MiB;
  std::size_t const least = least_budget(all, [&](std::size_t bytes) { return plans(model, options, bytes); });
  CHECK(least < weights / 2);
  std::string const name = path.substr(path.find_last_of('/') + 1);
  for (auto const& [bytes, title] :
       {std::pair(all, "all of it"), std::pair(weights / 2, "half of the weights"), std::pair(least, "the least")}) {
    auto engine = make_engine(model, options, bytes);
    REQUIRE(engine.plans().vram_bytes > 0);
    CHECK(engine.plans().vram_bytes <= bytes);
    GreedyText const got = text_of(engine, prompt, &expected.tokens);
    check_real_text(concat(name, ", ", title, " (", format_bytes(bytes), ")"), model->config(), expected, got);
  }
}

}  // namespace tiered::test
