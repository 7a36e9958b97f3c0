/// From logits to the next token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/split_mix.hpp"

namespace tiered {

/// The token with the largest logit; on equality the lowest. A logit that is not a number is never chosen.
/// Errors  Errc::device if none is a number: the model computed nothing that could be sampled.
inline std::int32_t argmax(std::span<float const> logits) {
  std::size_t best = logits.size();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] == logits[i] && (best == logits.size() || logits[i] > logits[best])) best = i;
  }
  if (best == logits.size()) throw Error(Errc::device, "every logit is NaN");
  return std::int32_t(best);
}

struct SamplerOptions {
  float temperature = 0;   ///< 0: greedy
  std::int32_t top_k = 0;  ///< 0: all
  float top_p = 1;         ///< smallest set of most likely tokens whose probabilities sum to this, before temperature
  std::uint64_t seed = 0;
};

/// Greedy, or drawn after top-k, top-p and temperature, in this order, which is llama.cpp's: top-p cuts the model's own
/// probabilities, temperature shapes what is left. Same seed and same logits, same tokens. One thread.
class Sampler {
 public:
  /// Errors  Errc::precondition for numbers that mean nothing.
  explicit Sampler(SamplerOptions const& options = {}) : options_(options), random_(options.seed) {
    expects(options.temperature >= 0 && std::isfinite(options.temperature), "temperature is a number >= 0");
    expects(options.top_k >= 0, "top_k is >= 0");
    expects(options.top_p > 0 && options.top_p <= 1, "top_p is in (0, 1]");
  }
  SamplerOptions const& options() const { return options_; }

  /// `allowed`: one flag a token, or empty for all (constrained sampling).
  /// Errors  Errc::device if no allowed token has a logit that is a number.
  std::int32_t sample(std::span<float const> logits, std::span<std::uint8_t const> allowed = {}) {
    expects(allowed.empty() || allowed.size() == logits.size(), "Sampler: one flag for each logit");
    if (options_.temperature == 0 && allowed.empty()) return argmax(logits);
    candidates_.clear();
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] == logits[i] && (allowed.empty() || allowed[i] != 0)) candidates_.push_back({logits[i], std::int32_t(i)});
    }
    if (candidates_.empty()) throw Error(Errc::device, "no allowed token has a logit that is a number");
    std::size_t const n = options_.temperature == 0 ? 1
                          : options_.top_k > 0      ? std::min(candidates_.size(), std::size_t(options_.top_k))
                                                    : candidates_.size();
    auto const middle = candidates_.begin() + std::ptrdiff_t(n);
    std::partial_sort(candidates_.begin(), middle, candidates_.end(),
                      [](Candidate a, Candidate b) { return a.value > b.value || (a.value == b.value && a.token < b.token); });
    candidates_.erase(middle, candidates_.end());
    return options_.temperature == 0 ? candidates_.front().token : draw();
  }

 private:
  struct Candidate {
    float value = 0;
    std::int32_t token = 0;
  };

  std::int32_t draw() {
    double const top = candidates_.front().value;
    if (std::isinf(top)) return candidates_.front().token;
    double total = 0;
    weights_.clear();
    for (Candidate const& c : candidates_) {
      weights_.push_back(std::exp(double(c.value) - top));
      total += weights_.back();
    }
    double kept = 0;
    std::size_t n = 0;
    while (n < weights_.size() && (n == 0 || kept < double(options_.top_p) * total)) kept += weights_[n++];
    kept = 0;
    for (std::size_t i = 0; i < n; ++i) kept += weights_[i] = std::exp((double(candidates_[i].value) - top) / double(options_.temperature));
    double at = random_.unit() * kept;
    for (std::size_t i = 0; i < n; ++i) {
      at -= weights_[i];
      if (at < 0) return candidates_[i].token;
    }
    return candidates_[n - 1].token;
  }

  SamplerOptions options_;
  SplitMix64 random_;
  std::vector<Candidate> candidates_;
  std::vector<double> weights_;
};

}  // namespace tiered
