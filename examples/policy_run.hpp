/// What examples of own policies share: a model on a GPU or the simulated device, run with two bundles of policies, and what one won.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/sim.hpp"
#include "tiered/tiered.hpp"
#if TIERED_HAS_CUDA
#include "tiered/cuda.hpp"
#endif

namespace example {

/// PROGRAM MODEL.gguf [BUDGET] [PROMPT], or with --vram BUDGET; --sim: the simulated device even where there is a GPU.
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
inline std::optional<Arguments> parse(int argc, char** argv, char const* program) {
  Arguments a;
  std::vector<std::string> texts;
  std::string budget;
  for (int i = 1; i < argc; ++i) {
    std::string_view const arg = argv[i];
    if (arg == "--sim") {
      a.simulated = true;
    } else if (arg == "--vram" && i + 1 < argc) {
      budget = argv[++i];
    } else {
      texts.emplace_back(arg);
    }
  }
  if (budget.empty() && texts.size() > 1) {
    budget = texts[1];
    texts.erase(texts.begin() + 1);
  }
  if (texts.empty() || texts.size() > 2) {
    std::fprintf(stderr, "usage: %s MODEL.gguf [BUDGET] [PROMPT] [--sim]   (BUDGET such as 48M, of the device's memory)\n", program);
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

/// A bundle's own way with one text.
struct Outcome {
  std::string text;
  double first_token_s = 0, tokens_per_s = 0;
  double copied_per_token = 0;  ///< bytes to the device: counted where its copy engine counts, else the plan's
  std::size_t vram_peak_bytes = 0;
  std::uint64_t hits = 0, uses = 0;  ///< of the expert cache, for all but the prompt
};

template <class E>
double copied_bytes(E& engine) {
  if constexpr (requires { engine.machine().copy->bytes_to_device(); }) return double(engine.machine().copy->bytes_to_device());
  return 0;
}

/// A prompt and some tokens behind it.
template <class E>
Outcome run(E& engine, tiered::Tokenizer const& tokenizer, std::string const& prompt, int n_tokens = 64) {
  auto const now_s = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  Outcome o;
  tiered::Sequence const sequence = engine.new_sequence();
  double const start_s = now_s();
  auto logits = engine.prefill(sequence, tokenizer.encode(prompt));
  o.first_token_s = now_s() - start_s;
  double second_s = 0, copied = 0;
  auto const before = engine.stats().experts;
  for (int i = 0; i <= n_tokens; ++i) {
    auto const token = tiered::argmax(logits);
    o.text += tokenizer.decode(token);
    logits = engine.decode(sequence, token);
    if (i > 0) continue;  // the first step also brings what the plan for single tokens keeps in VRAM
    second_s = now_s();
    copied = copied_bytes(engine);
  }
  o.tokens_per_s = n_tokens / (now_s() - second_s);
  copied = copied_bytes(engine) - copied;
  o.copied_per_token = copied > 0 ? copied / n_tokens : engine.plans().tiers.front().estimate.copied_bytes;
  tiered::EngineStats const after = engine.stats();
  o.hits = after.experts.hits - before.hits;
  o.uses = o.hits + after.experts.misses - before.misses;
  o.vram_peak_bytes = after.vram_peak_bytes;
  return o;
}

inline void print(char const* name, Outcome const& o, std::size_t budget) {
  std::printf("%-18s first token after %.3f s, then %.1f tokens/s; %s copied to the device for each token", name, o.first_token_s,
              o.tokens_per_s, tiered::format_bytes(std::uint64_t(o.copied_per_token)).c_str());
  if (o.uses > 0)
    std::printf("; %.1f %% of %llu uses of experts hit", 100.0 * double(o.hits) / double(o.uses), static_cast<unsigned long long>(o.uses));
  std::printf("; peak %s of %s\n", tiered::format_bytes(o.vram_peak_bytes).c_str(), tiered::format_bytes(budget).c_str());
}

/// What one's own policy won or lost, and whether the text is the same: on the simulated device it is; on a GPU sums round by where they
/// are made, so that it may part at a near tie.
/// Returns the program's exit code.
inline int compare(char const* name, Outcome const& own, Outcome const& built_in, bool simulated, std::string const& prompt) {
  std::printf("%-18s %+.1f %% tokens/s, %+.1f %% bytes copied", name, 100 * (own.tokens_per_s / built_in.tokens_per_s - 1),
              built_in.copied_per_token > 0 ? 100 * (own.copied_per_token / built_in.copied_per_token - 1) : 0.0);
  auto const share = [](Outcome const& o) { return o.uses > 0 ? 100.0 * double(o.hits) / double(o.uses) : 0.0; };
  if (own.uses > 0 || built_in.uses > 0) std::printf(", %+.1f points of hits", share(own) - share(built_in));
  bool const same = own.text == built_in.text;
  std::printf(", against the built-in one\n\n%s%s\n\nThe two texts are %s.\n", prompt.c_str(), own.text.c_str(),
              same ? "the same" : "DIFFERENT");
  return same || !simulated ? 0 : 1;
}

}  // namespace example
