/// Whether a policy leaves a text as it is: one text is made along the tokens of another, and each choice is compared.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/tiered.hpp"

namespace example {

/// What a token was chosen from: the likeliest ones with their logits.
struct Choice {
  static constexpr std::size_t n_best = 8;
  std::int32_t token = 0;
  std::vector<std::pair<std::int32_t, float>> best;

  explicit Choice(std::span<float const> logits) : token(tiered::argmax(logits)) {
    std::vector<std::int32_t> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    auto const end = ids.begin() + std::ptrdiff_t(std::min(n_best, ids.size()));
    std::partial_sort(ids.begin(), end, ids.end(),
                      [&](std::int32_t a, std::int32_t b) { return logits[std::size_t(a)] > logits[std::size_t(b)]; });
    for (auto id = ids.begin(); id != end; ++id) best.emplace_back(*id, logits[std::size_t(*id)]);
  }
  /// How far `other` lay behind; of one that was not among the best, as far as the last of those at least.
  double lead_over(std::int32_t other) const {
    auto const at = std::ranges::find(best, other, [](auto const& candidate) { return candidate.first; });
    return double(best.front().second) - double(at == best.end() ? best.back().second : at->second);
  }
};

/// The choices of a second text, made behind the tokens of the first. On one kind of device logits are the same, whatever is placed where.
/// On a GPU sums round by where they are made: logits are off by some noise, and another token is no mistake where the two lie closer than
/// that noise explains.
class SameText {
 public:
  explicit SameText(std::vector<Choice> const& expected) : expected_(&expected) {}

  /// The logits of the next token.
  void add(std::span<float const> logits) {
    Choice const& there = (*expected_)[n_];
    for (auto const& [id, logit] : there.best) squares_ += std::pow(double(logits[std::size_t(id)]) - double(logit), 2), ++n_compared_;
    std::int32_t const here = tiered::argmax(logits);
    if (here != there.token) partings_.push_back({n_, here, there.lead_over(here)});
    ++n_;
  }
  /// Root mean square of what the best logits are off.
  double noise() const { return n_compared_ > 0 ? std::sqrt(squares_ / double(n_compared_)) : 0; }
  /// Both logits of a tie are off by the noise: three standard deviations of their difference.
  double tolerance() const { return 3 * std::sqrt(2.0) * noise(); }

  /// Says whether the texts are one, and where they part. `exact`: they must not, not even at a tie.
  /// Returns the program's exit code: 1 where a choice differs by more than rounding explains.
  int tell(tiered::FunctionRef<std::string(std::int32_t)> text_of, bool exact) const {
    if (partings_.empty()) return std::printf("The two texts are the same.\n"), 0;
    auto const is_tie = [&](Parting const& p) { return !exact && p.lead <= tolerance(); };
    auto const worst = std::ranges::find_if_not(partings_, is_tie);
    Parting const& p = worst == partings_.end() ? partings_.front() : *worst;
    std::printf("The two texts %s: at token %zu of %zu \"%s\" for \"%s\", which lay %.4g ahead",
                worst == partings_.end() ? "part at a near tie" : "are DIFFERENT", p.at + 1, n_, text_of(p.here).c_str(),
                text_of((*expected_)[p.at].token).c_str(), p.lead);
    if (!exact) std::printf("; rounding explains %.4g (logits are off by %.4g)", tolerance(), noise());
    std::printf("; %zu of %zu choices differ.\n", partings_.size(), n_);
    return worst == partings_.end() ? 0 : 1;
  }

 private:
  struct Parting {
    std::size_t at;
    std::int32_t here;
    double lead;  // of the first text's token, in its logits
  };
  std::vector<Choice> const* expected_;
  std::vector<Parting> partings_;
  double squares_ = 0;
  std::size_t n_ = 0, n_compared_ = 0;
};

}  // namespace example
