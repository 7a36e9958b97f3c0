/// From logits to the next token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/split_mix.hpp"

namespace tiered {

/// The token with the largest logit; on equality the lowest. A logit that is not a number is never chosen.
/// Errors  Errc::device if none is a number: the model computed nothing that could be sampled.
std::int32_t argmax(std::span<float const> logits);

struct TokenLogprob {
  std::int32_t token = -1;
  double logprob = 0;  ///< natural logarithm of its probability
  bool operator==(TokenLogprob const&) const = default;
};

/// The model's own distribution, softmax of all logits before any option changes them; sums in double. What is not a number
/// has no part in it. Where the largest logit is infinite, those that equal it share everything. Borrows the logits.
class Logprobs {
 public:
  /// Errors  Errc::device if no logit is a number.
  explicit Logprobs(std::span<float const> logits);
  /// -inf for a logit that is not a number.  Errors  Errc::precondition for a token outside of the logits.
  double of(std::int32_t token) const;
  /// The n most likely, best first, on equality the lower token first; fewer where fewer logits are numbers.
  std::vector<TokenLogprob> top(std::int32_t n) const;

 private:
  double of_value(float value) const;
  std::span<float const> logits_;
  float max_ = 0;
  double log_sum_ = 0;  // of exp(logit - max_), or of the number of infinite ones
};
inline std::vector<TokenLogprob> top_logprobs(std::span<float const> logits, std::int32_t n) { return Logprobs(logits).top(n); }

/// Added to the logit of a token; minus infinity bans it.
struct LogitBias {
  std::int32_t token = -1;
  float bias = 0;
};

/// Names and meaning are llama.cpp's. The defaults change nothing: the most likely token.
struct SamplerOptions {
  float temperature = 0;            ///< 0: greedy
  std::int32_t top_k = 0;           ///< the k most likely; 0: all
  float top_p = 1;                  ///< the smallest set of most likely tokens whose probabilities sum to this
  float min_p = 0;                  ///< tokens with at least this share of the likeliest token's probability
  float typical_p = 1;              ///< the smallest set of tokens nearest to the expected surprise whose probabilities sum to more
  float repeat_penalty = 1;         ///< > 1: a positive logit of a token seen is divided, another multiplied by it
  std::int32_t repeat_last_n = 64;  ///< how many tokens, of the prompt too, count as seen; 0: none; -1: all
  float presence_penalty = 0;       ///< taken from the logit of a token seen
  float frequency_penalty = 0;      ///< taken from it once for each time it was seen
  std::vector<LogitBias> logit_bias{};
  std::uint64_t seed = 0;

  bool penalizes() const { return repeat_last_n != 0 && (repeat_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0); }
};

/// Draws after bias, penalties, top-k, typical-p, top-p, min-p and temperature, in this order (llama.cpp's): all but the last
/// shape the model's own probabilities, each those that the one before left.
///
/// Same seed, history and logits: same tokens on every machine. Only exp() and long sums are not the same everywhere, in the last
/// bits of a double, which decide a draw once in some 10^12. Tokens count as seen when accept() says so, drawn or not. One thread.
class Sampler {
 public:
  /// Errors  Errc::precondition for numbers that mean nothing.
  explicit Sampler(SamplerOptions options = {});
  SamplerOptions const& options() const { return options_; }

  /// `allowed`: one flag a token, or empty for all (constrained sampling).
  /// Errors  Errc::device if no allowed token has a logit that is a number; precondition for a bias on a token that is none.
  std::int32_t sample(std::span<float const> logits, std::span<std::uint8_t const> allowed = {});

  /// `token` was seen: part of a prompt, or drawn.  Errors  Errc::precondition below 0.
  void accept(std::int32_t token);
  void accept(std::span<std::int32_t const> tokens) {
    for (std::int32_t token : tokens) accept(token);
  }
  /// Nothing was seen yet; draws go on.
  void forget();
  /// As when it was made: nothing was seen, and draws begin anew.
  void reset();

 private:
  struct Candidate {
    float value = 0;
    std::int32_t token = 0;
  };
  struct Ranked {
    double key = 0, weight = 0;  // the lower key first, of equal ones the lower token
    std::int32_t token = 0;
    bool operator<(Ranked const& other) const { return key < other.key || (key == other.key && token < other.token); }
  };
  struct Seen {
    std::int32_t token = 0, count = 0;
  };

  std::span<float const> adjusted(std::span<float const> logits, std::span<std::uint8_t const> allowed);
  void penalize(std::span<float> values) const;
  void collect(std::span<float const> values);
  float largest() const;
  std::int32_t first_largest() const;
  double weigh(double temperature);
  void cut_typical();
  void cut_top_p();
  void cut_min_p();
  Ranked last_kept(double mass, bool beyond);
  std::int32_t draw();

  SamplerOptions options_;
  SplitMix64 random_;
  std::vector<std::int32_t> window_;  // the last repeat_last_n tokens, a ring; empty where all count
  std::size_t window_next_ = 0;
  std::vector<Seen> seen_;             // what the window holds, by token
  std::vector<float> values_;          // logits with bias, penalties and mask: NaN for what may not be chosen
  std::vector<Candidate> candidates_;  // ascending by token, so that no library's way of sorting can change a draw
  std::vector<double> weights_;        // of the candidates: exp((value - largest) / temperature)
  std::vector<Ranked> ranked_;
};

}  // namespace tiered
