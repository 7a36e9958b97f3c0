// Real files, teacher-forced, against transformers on the dequantised weights (tests/data/real).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "cached_file.hpp"
#include "catch.hpp"
#include "golden/engine_helpers.hpp"

using namespace tiered;
using namespace tiered::test;

namespace {

struct Agreement {
  std::size_t n_same = 0, n = 0;
  double perplexity = 0;
  double noise = 0;                  ///< root mean square of what the best logit is off
  std::vector<double> lost_margins;  ///< margins of the reference where the best token differs
  double share() const { return double(n_same) / double(n); }
};

double log_sum_exp(std::span<float const> logits) {
  double const top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float v : logits) sum += std::exp(double(v) - top);
  return top + std::log(sum);
}

Agreement teacher_forced(std::string const& path, RealFixture const& f, bool f32_activations) {
  EngineOptions options;
  options.max_context = std::int32_t(f.tokens.size());
  options.f32_activations = f32_activations;
  options.kv_type = f32_activations ? DType::f32 : DType::f16;
  Engine<CpuPolicies> engine(make_model(GgufFile::open(path)), options);
  Sequence const sequence = engine.new_sequence();
  Agreement a;
  double log_prob = 0;
  for (std::size_t begin = 0; begin < f.tokens.size(); begin += 64) {
    std::size_t const end = std::min(f.tokens.size(), begin + 64);
    std::vector<Row> const rows = rows_of(sequence.id(), f.tokens, begin, end);
    Logits const logits = engine.step({rows});
    for (std::size_t i = begin; i < end; ++i) {
      std::span<float const> const row = logits.row(std::int32_t(i - begin));
      bool const same = argmax(row) == f.top_token[i];
      a.n_same += same ? 1 : 0;
      if (!same) a.lost_margins.push_back(double(f.top_logit[i]) - double(f.second_logit[i]));
      a.noise += std::pow(double(row[std::size_t(f.top_token[i])]) - double(f.top_logit[i]), 2);
      if (i + 1 < f.tokens.size()) log_prob += double(row[std::size_t(f.tokens[i + 1])]) - log_sum_exp(row);
    }
  }
  a.n = f.tokens.size();
  a.noise = std::sqrt(a.noise / double(a.n));
  a.perplexity = std::exp(-log_prob / double(a.n - 1));
  return a;
}

void check_against(char const* file, char const* fixture) {
  auto const path = cached_file(file);
  if (!path) return;
  RealFixture const f = read_real(real_path(fixture));
  REQUIRE(f.tokens.size() >= 500);
  Agreement const exact = teacher_forced(*path, f, true);
  INFO(file << ", f32 activations: same " << exact.share() << ", noise " << exact.noise << ", perplexity " << exact.perplexity << " for "
            << f.perplexity);
  CHECK(exact.share() >= 0.995);
  CHECK(std::fabs(exact.perplexity / f.perplexity - 1) < 1e-3);
  Agreement const quick = teacher_forced(*path, f, false);
  INFO(file << ", 8-bit activations: same " << quick.share() << ", noise " << quick.noise << ", perplexity " << quick.perplexity << " for "
            << f.perplexity);
  CHECK(quick.share() >= 0.97);
  CHECK(std::fabs(quick.perplexity / f.perplexity - 1) < 0.01);
  // Both logits of a near tie are off by the noise; three standard deviations of their difference.
  for (double margin : quick.lost_margins) CHECK(margin < 3 * std::sqrt(2.0) * quick.noise);
  std::printf("%s: f32 %.4f same, perplexity %.4f; 8-bit %.4f same, perplexity %.4f (transformers %.4f), logit noise %.3f\n", file,
              exact.share(), exact.perplexity, quick.share(), quick.perplexity, f.perplexity, quick.noise);
}

}  // namespace

TEST_CASE("SmolLM2 agrees with transformers") { check_against("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2.real"); }

TEST_CASE("Gemma 3 agrees with transformers, beyond its sliding window") { check_against("gemma-3-270m-q4_k_m.gguf", "gemma3.real"); }

TEST_CASE("SmolLM2: ten budgets, every policy, one text") {
  auto const path = cached_file("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!path) return;
  auto const model = make_model(GgufFile::open(*path));
  std::vector<std::int32_t> const prompt{504, 14124, 314, 253};
  EngineOptions options;
  options.max_context = 256;
  Engine<CpuPolicies> cpu(model, options);
  std::vector<std::int32_t> const expected = greedy(cpu, prompt, 6);
  for (char const* policy : {"all_vram", "attention_first", "seconds_per_byte", "stream_all"}) {
    std::size_t most_used = 0;
    for (std::size_t budget : {0 * MiB, 1 * MiB, 4 * MiB, 8 * MiB, 16 * MiB, 32 * MiB, 64 * MiB, 96 * MiB, 128 * MiB, 256 * MiB}) {
      INFO(policy << " " << budget);
      options.vram_bytes = budget;
      Engine<SweepPolicies> engine(model, options, {.placement = make_placement(policy)});
      CHECK(greedy(engine, prompt, 6) == expected);
      CHECK(engine.stats().vram_peak_bytes <= budget);
      most_used = std::max(most_used, engine.stats().vram_peak_bytes);
    }
    CHECK(most_used > 64 * MiB);
  }
}
