/// What examples of own policies share: a model on a GPU or the simulated device, run with two bundles of policies, and what one won.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "same_text.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"
#if TIERED_HAS_CUDA
#include "tiered/cuda.hpp"
#endif

namespace example {

/// PROGRAM MODEL.gguf [BUDGET] [PROMPT], or with --vram BUDGET; --sim: the simulated device even where there is a GPU. Without
/// `budget_first`, BUDGET is given with --vram only.
struct Arguments {
  std::string model, prompt = "The quick brown fox";
  std::optional<std::size_t> budget;  ///< nothing: see budget_for()
  bool simulated = !TIERED_HAS_CUDA;

  std::size_t budget_for(tiered::GgufFile const& gguf) const {
    if (budget) return *budget;
    return simulated ? 48 * tiered::MiB : gguf.total_bytes() / 2 + tiered::GiB;  // half of the weights, and what a CUDA context takes
  }
};

/// Nothing where the program was called wrongly, which is said.
inline std::optional<Arguments> parse(int argc, char** argv, char const* program, bool budget_first = true) {
  Arguments a;
  std::vector<std::string> texts;
  std::string budget;
  for (int i = 1; i < argc; ++i) {
    std::string_view const arg = argv[i];
    if (arg == "--sim") {
      a.simulated = true;
    } else if (arg == "--vram" && i + 1 < argc) {
      budget = argv[++i];
    } else if (arg.starts_with("--")) {
      texts.clear();  // whoever mistypes an option is told so, and gets no text that begins with it
      break;
    } else {
      texts.emplace_back(arg);
    }
  }
  if (budget_first && budget.empty() && texts.size() > 1) {
    budget = texts[1];
    texts.erase(texts.begin() + 1);
  }
  if (texts.empty() || texts.size() > 2) {
    std::fprintf(stderr, "usage: %s MODEL.gguf %s [PROMPT] [--sim]   (BUDGET such as 48M, of the device's memory)\n", program,
                 budget_first ? "[BUDGET]" : "[--vram BUDGET]");
    return std::nullopt;
  }
  a.model = texts[0];
  if (texts.size() > 1) a.prompt = texts[1];
  if (!budget.empty() && !(a.budget = tiered::parse_bytes(budget))) {
    std::fprintf(stderr, "%s: %s is no size\n", program, budget.c_str());
    return std::nullopt;
  }
#if TIERED_HAS_CUDA
  int n = 0;
  if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) a.simulated = true;
#endif
  return a;
}

/// What a model reads and says. A file without a tokenizer (random weights, for speed) has tokens that are numbers; its prompts, and the
/// tokens behind them, are drawn, since what such a model chooses itself soon goes round in a circle.
class Words {
 public:
  explicit Words(tiered::GgufFile const& gguf) {
    if (gguf.find("tokenizer.ggml.tokens") != nullptr) tokenizer_.emplace(tiered::make_tokenizer(gguf));
  }
  bool are_drawn() const { return !tokenizer_; }
  /// n tokens of one topic, as tiered-bench has them: 16 of five ids each take turns in the vocabulary.
  static std::vector<std::int32_t> draw(std::size_t n, std::int32_t vocab_size) {
    tiered::SplitMix64 random(1);
    auto const below = [&](std::int32_t limit) { return std::int32_t(random.below(std::uint64_t(limit))); };
    std::vector<std::int32_t> tokens;
    while (tokens.size() < n) tokens.push_back(vocab_size < 80 ? below(vocab_size) : below(vocab_size / 80) * 80 + 15 + below(5));
    return tokens;
  }
  std::vector<std::int32_t> prompt(std::string const& text, std::int32_t vocab_size) const {
    return tokenizer_ ? tokenizer_->encode(text) : draw(32, vocab_size);
  }
  std::string operator()(std::int32_t token) const { return tokenizer_ ? tokenizer_->decode(token) : tiered::concat(' ', token); }

 private:
  std::optional<tiered::Tokenizer> tokenizer_;
};

/// A bundle's own way with one text.
struct Outcome {
  std::vector<Choice> choices;        ///< of each token
  std::optional<SameText> same_text;  ///< as another's, which must live as long: of a text that was made along it
  std::string text;
  double first_token_s = 0;
  std::vector<double> token_s;  ///< of the tokens behind it
  double copied_per_token = 0;  ///< bytes to the device: counted where its copy engine counts, else the plan's
  double predicted_s = 0;       ///< of a token, by the plan; 0: a made-up machine's, which says nothing of this one
  std::size_t vram_peak_bytes = 0;
  std::uint64_t hits = 0, uses = 0;  ///< of the expert cache, for all but the prompt

  double tokens_per_s() const { return double(token_s.size()) / std::accumulate(token_s.begin(), token_s.end(), 0.0); }
  /// The best of four stretches: other programs take their share, too.
  double best_per_s() const {
    double best = 0;
    std::size_t const n = token_s.size() / 4;
    for (auto at = token_s.begin(); n > 0 && std::size_t(token_s.end() - at) >= n; at += std::ptrdiff_t(n))
      best = std::max(best, double(n) / std::accumulate(at, at + std::ptrdiff_t(n), 0.0));
    return best;
  }
  double share_of_hits() const { return uses > 0 ? 100.0 * double(hits) / double(uses) : 0.0; }
};

template <class E>
double copied_bytes(E& engine) {
  if constexpr (requires { engine.machine().copy->bytes_to_device(); }) return double(engine.machine().copy->bytes_to_device());
  return 0;
}

inline double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

/// A prompt and some tokens behind it: those that this engine chooses, or those of `along`, so that both have the same work.
template <class E>
Outcome run(E& engine, Words const& words, std::string const& prompt, Outcome const* along = nullptr, int n_tokens = 64) {
  Outcome o;
  if (along != nullptr) o.same_text.emplace(along->choices);
  std::int32_t const vocab_size = engine.model().config().vocab_size;
  std::vector<std::int32_t> const prompt_tokens = words.prompt(prompt, vocab_size);
  std::vector<std::int32_t> const drawn =
      words.are_drawn() ? Words::draw(prompt_tokens.size() + std::size_t(n_tokens) + 1, vocab_size) : std::vector<std::int32_t>();
  tiered::Sequence const sequence = engine.new_sequence();
  double const start_s = now_s();
  std::span<float const> logits = engine.prefill(sequence, prompt_tokens);
  o.first_token_s = now_s() - start_s;
  double copied = 0;
  auto const before = engine.stats().experts;
  for (int i = 0; i <= n_tokens; ++i) {
    if (o.same_text) o.same_text->add(logits);
    o.choices.emplace_back(logits);
    std::int32_t token = along != nullptr ? along->choices[std::size_t(i)].token : o.choices.back().token;
    if (words.are_drawn()) token = drawn[prompt_tokens.size() + std::size_t(i)];
    o.text += words(token);
    double const step_s = now_s();
    logits = engine.decode(sequence, token);
    if (i > 0)
      o.token_s.push_back(now_s() - step_s);
    else
      copied = copied_bytes(engine);  // the first step also brings what the plan for single tokens keeps in VRAM
  }
  copied = copied_bytes(engine) - copied;
  tiered::Estimate const estimate = engine.plans().tiers.empty() ? tiered::Estimate{} : engine.plans().tiers.front().estimate;
  o.copied_per_token = copied > 0 ? copied / n_tokens : estimate.copied_bytes;
  if (engine.profile().source != tiered::ProfileSource::simulated) o.predicted_s = estimate.seconds;
  tiered::EngineStats const after = engine.stats();
  o.hits = after.experts.hits - before.hits;
  o.uses = o.hits + after.experts.misses - before.misses;
  o.vram_peak_bytes = after.vram_peak_bytes;
  return o;
}

inline void print(char const* name, Outcome const& o, std::size_t budget) {
  std::printf("%-18s first token after %.3f s, then %.1f tokens/s", name, o.first_token_s, o.tokens_per_s());
  if (o.predicted_s > 0) std::printf(" (the plan said %.1f)", 1 / o.predicted_s);
  std::printf("; %s copied to the device for each token", tiered::format_bytes(std::uint64_t(o.copied_per_token)).c_str());
  if (o.uses > 0) std::printf("; %.1f %% of %llu uses of experts hit", o.share_of_hits(), static_cast<unsigned long long>(o.uses));
  std::printf("; peak %s of %s\n", tiered::format_bytes(o.vram_peak_bytes).c_str(), tiered::format_bytes(budget).c_str());
}

/// What one's own policy won or lost, and whether its text, made along the built-in one's, is the same.
/// Returns the program's exit code: see SameText::tell().
inline int compare(char const* name, Outcome const& own, Outcome const& built_in, Words const& words, Arguments const& a) {
  std::printf("%-18s %+.1f %% tokens/s, %+.1f %% bytes copied", name, 100 * (own.tokens_per_s() / built_in.tokens_per_s() - 1),
              built_in.copied_per_token > 0 ? 100 * (own.copied_per_token / built_in.copied_per_token - 1) : 0.0);
  if (own.uses > 0 || built_in.uses > 0) std::printf(", %+.1f points of hits", own.share_of_hits() - built_in.share_of_hits());
  std::printf(", against the built-in one, on %s\n\n%s%s\n\n", a.simulated ? "the simulated device" : "the GPU",
              words.are_drawn() ? "" : a.prompt.c_str(), built_in.text.c_str());
  return own.same_text->tell(words, a.simulated);
}

}  // namespace example
