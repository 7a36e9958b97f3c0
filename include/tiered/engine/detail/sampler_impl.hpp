/// Defines Sampler and Logprobs: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/sampler.hpp"

namespace tiered {
namespace detail {

struct RankedLogit {
  float value = 0;
  std::int32_t token = 0;
  bool operator<(RankedLogit const& other) const { return value > other.value || (value == other.value && token < other.token); }
};

/// The k first in order of value, the lower token first on equality; unordered. One pass with a bar that rises whenever twice k
/// have passed it, so that most values cost one comparison.
inline std::vector<RankedLogit> largest_logits(std::span<float const> values, std::size_t k) {
  std::vector<RankedLogit> best;
  if (k == 0) return best;
  k = std::min(k, values.size());
  std::size_t const room = std::max<std::size_t>(2 * k, 512);
  best.reserve(room);
  bool has_bar = false;
  float bar = 0;
  auto const shrink = [&] {
    if (best.size() <= k) return;
    std::nth_element(best.begin(), best.begin() + std::ptrdiff_t(k - 1), best.end());
    best.resize(k);
    bar = best.back().value;  // the k-th: what comes later must be larger, since its token is
    has_bar = true;
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (has_bar ? !(values[i] > bar) : values[i] != values[i]) continue;
    best.push_back({values[i], std::int32_t(i)});
    if (best.size() == room) shrink();
  }
  shrink();
  return best;
}

/// expects(), with the value that breaks the rule.
template <class T>
void expects_of(T value, bool condition, char const* rule) {
  if (!condition) throw Error(Errc::precondition, concat(rule, ", not ", value));
}
[[noreturn]] inline void no_candidate(std::size_t n_logits) {
  throw Error(Errc::device, concat("of ", n_logits, " logits none that is allowed is a number"));
}

}  // namespace detail

std::int32_t argmax(std::span<float const> logits) {
  std::size_t best = 0;
  while (best < logits.size() && logits[best] != logits[best]) ++best;
  if (best == logits.size()) detail::no_candidate(logits.size());
  float max = logits[best];
  for (std::size_t i = best + 1; i < logits.size(); ++i) {
    if (logits[i] > max) max = logits[best = i];
  }
  return std::int32_t(best);
}

// ---- probabilities of the model

Logprobs::Logprobs(std::span<float const> logits) : logits_(logits), max_(logits[std::size_t(argmax(logits))]) {
  double sum = 0;
  for (float value : logits) {
    if (value != value) continue;
    sum += std::isinf(max_) ? (value == max_ ? 1.0 : 0.0) : std::exp(double(value) - double(max_));
  }
  log_sum_ = std::log(sum);
}

double Logprobs::of_value(float value) const {
  if (value != value) return -std::numeric_limits<double>::infinity();
  if (std::isinf(max_)) return value == max_ ? -log_sum_ : -std::numeric_limits<double>::infinity();
  return double(value) - double(max_) - log_sum_;
}

double Logprobs::of(std::int32_t token) const {
  if (token < 0 || std::size_t(token) >= logits_.size())
    throw Error(Errc::precondition, concat("token ", token, " is outside of ", logits_.size(), " logits"));
  return of_value(logits_[std::size_t(token)]);
}

std::vector<TokenLogprob> Logprobs::top(std::int32_t n) const {
  std::vector<detail::RankedLogit> best = detail::largest_logits(logits_, std::size_t(std::max(n, 0)));
  std::sort(best.begin(), best.end());
  std::vector<TokenLogprob> out;
  for (detail::RankedLogit const& b : best) out.push_back({b.token, of_value(b.value)});
  return out;
}

// ---- what was seen

Sampler::Sampler(SamplerOptions options) : options_(std::move(options)), random_(options_.seed) {
  using detail::expects_of;
  SamplerOptions const& o = options_;
  expects_of(o.temperature, o.temperature >= 0 && std::isfinite(o.temperature), "temperature is a number >= 0");
  expects_of(o.top_k, o.top_k >= 0, "top_k is >= 0");
  expects_of(o.top_p, o.top_p > 0 && o.top_p <= 1, "top_p is in (0, 1]");
  expects_of(o.min_p, o.min_p >= 0 && o.min_p <= 1, "min_p is in [0, 1]");
  expects_of(o.typical_p, o.typical_p > 0 && o.typical_p <= 1, "typical_p is in (0, 1]");
  expects_of(o.repeat_penalty, o.repeat_penalty > 0 && std::isfinite(o.repeat_penalty) && std::isfinite(1 / o.repeat_penalty),
             "repeat_penalty is a number > 0 whose inverse is one");
  expects_of(o.repeat_last_n, o.repeat_last_n >= -1, "repeat_last_n is >= -1");
  expects_of(o.presence_penalty, std::isfinite(o.presence_penalty), "presence_penalty is a number");
  expects_of(o.frequency_penalty, std::isfinite(o.frequency_penalty), "frequency_penalty is a number");
  for (LogitBias const& b : o.logit_bias) {
    if (!(b.bias < std::numeric_limits<float>::infinity()))
      throw Error(Errc::precondition, concat("the logit bias of token ", b.token, " is a number or minus infinity, not ", b.bias));
  }
}

void Sampler::accept(std::int32_t token) {
  detail::expects_of(token, token >= 0, "Sampler::accept: tokens are >= 0");
  if (!options_.penalizes()) return;
  auto const find = [this](std::int32_t t) {
    return std::lower_bound(seen_.begin(), seen_.end(), t, [](Seen const& s, std::int32_t wanted) { return s.token < wanted; });
  };
  if (options_.repeat_last_n > 0) {
    if (window_.size() < std::size_t(options_.repeat_last_n)) {
      window_.push_back(token);
    } else {
      auto const oldest = find(std::exchange(window_[window_next_], token));
      if (--oldest->count == 0) seen_.erase(oldest);
      window_next_ = (window_next_ + 1) % window_.size();
    }
  }
  auto const at = find(token);
  if (at != seen_.end() && at->token == token) {
    ++at->count;
  } else {
    seen_.insert(at, {token, 1});
  }
}

void Sampler::forget() {
  window_.clear();
  window_next_ = 0;
  seen_.clear();
}

void Sampler::reset() {
  forget();
  random_ = SplitMix64(options_.seed);
}

// ---- one draw

std::int32_t Sampler::sample(std::span<float const> logits, std::span<std::uint8_t const> allowed) {
  if (!allowed.empty() && allowed.size() != logits.size())
    throw Error(Errc::precondition, concat("Sampler: ", allowed.size(), " flags for ", logits.size(), " logits"));
  std::span<float const> const values = adjusted(logits, allowed);
  bool const typical = options_.typical_p < 1;
  if (options_.temperature == 0 && !typical) return argmax(values);
  collect(values);
  if (candidates_.empty()) detail::no_candidate(logits.size());
  if (std::isinf(largest())) return first_largest();
  if (typical) cut_typical();
  if (options_.temperature == 0) return first_largest();
  if (options_.top_p < 1) cut_top_p();
  if (options_.min_p > 0) cut_min_p();
  return draw();
}

/// The logits with bias, penalties and mask: themselves where none of these is there.
std::span<float const> Sampler::adjusted(std::span<float const> logits, std::span<std::uint8_t const> allowed) {
  bool const penalizes = options_.penalizes() && !seen_.empty();
  if (allowed.empty() && options_.logit_bias.empty() && !penalizes) return logits;
  constexpr float banned = std::numeric_limits<float>::quiet_NaN();
  values_.assign(logits.begin(), logits.end());
  for (LogitBias const& b : options_.logit_bias) {
    if (b.token < 0 || std::size_t(b.token) >= values_.size())
      throw Error(Errc::precondition,
                  concat("a logit bias is for token ", b.token, ", which a vocabulary of ", values_.size(), " has not"));
    values_[std::size_t(b.token)] = std::isinf(b.bias) ? banned : values_[std::size_t(b.token)] + b.bias;
  }
  if (penalizes) penalize(values_);
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (allowed[i] == 0) values_[i] = banned;
  }
  return values_;
}

void Sampler::penalize(std::span<float> values) const {
  for (Seen const& s : seen_) {
    if (std::size_t(s.token) >= values.size()) break;
    float& value = values[std::size_t(s.token)];
    // Keskar et al. (CTRL, 2019) only divide, which makes a token with a negative logit likelier.
    value = value > 0 ? value / options_.repeat_penalty : value * options_.repeat_penalty;
    value -= float(s.count) * options_.frequency_penalty + options_.presence_penalty;
  }
}

/// All values that are numbers, or the top_k of them.
void Sampler::collect(std::span<float const> values) {
  candidates_.clear();
  if (options_.top_k == 0 || std::size_t(options_.top_k) >= values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] == values[i]) candidates_.push_back({values[i], std::int32_t(i)});
    }
    return;
  }
  for (detail::RankedLogit const& b : detail::largest_logits(values, std::size_t(options_.top_k)))
    candidates_.push_back({b.value, b.token});
  std::sort(candidates_.begin(), candidates_.end(), [](Candidate a, Candidate b) { return a.token < b.token; });
}

std::int32_t Sampler::first_largest() const {
  return std::max_element(candidates_.begin(), candidates_.end(), [](Candidate a, Candidate b) { return a.value < b.value; })->token;
}

float Sampler::largest() const {
  float max = candidates_.front().value;
  for (Candidate const& c : candidates_) max = std::max(max, c.value);
  return max;
}

/// Fills weights_; their sum.
double Sampler::weigh(double temperature) {
  double const top = double(largest());
  double total = 0;
  weights_.clear();
  for (Candidate const& c : candidates_) {
    weights_.push_back(std::exp((double(c.value) - top) / temperature));
    total += weights_.back();
  }
  return total;
}

/// The last of ranked_, in its order, that belongs to the shortest beginning whose weights sum to `mass`, or, if `beyond`, to
/// more; the very last if all do not. Halves what it looks at each time, so that nothing long is ever sorted.
Sampler::Ranked Sampler::last_kept(double mass, bool beyond) {
  auto const reaches = [&](double sum) { return beyond ? sum > mass : sum >= mass; };
  auto begin = ranked_.begin(), end = ranked_.end();
  double before = 0;
  while (end - begin > 64) {
    auto const middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    double sum = before;
    for (auto r = begin; r != middle; ++r) sum += r->weight;
    if (reaches(sum)) {
      end = middle;
    } else {
      before = sum;
      begin = middle;
    }
  }
  std::sort(begin, end);
  for (auto r = begin; r != end; ++r) {
    before += r->weight;
    if (reaches(before)) return *r;
  }
  return *(end - 1);
}

/// Locally typical sampling (Meister et al., 2022): tokens whose surprise -log p is nearest to the entropy come first.
void Sampler::cut_typical() {
  double const total = weigh(1), top = double(largest()), log_total = std::log(total);
  auto const log_p = [&](std::size_t i) { return double(candidates_[i].value) - top - log_total; };
  double entropy = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (weights_[i] > 0) entropy -= weights_[i] / total * log_p(i);
  }
  auto const rank = [&](std::size_t i) { return Ranked{std::fabs(-log_p(i) - entropy), weights_[i], candidates_[i].token}; };
  ranked_.clear();
  for (std::size_t i = 0; i < candidates_.size(); ++i) ranked_.push_back(rank(i));
  Ranked const last = last_kept(double(options_.typical_p) * total, true);
  std::size_t n = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (!(last < rank(i))) candidates_[n++] = candidates_[i];
  }
  candidates_.resize(n);
}

void Sampler::cut_top_p() {
  double const total = weigh(1), mass = double(options_.top_p) * total;
  // All tokens below this weight together have less than what may be left out: they are left out, whatever their order.
  double const least = (total - mass) / double(candidates_.size());
  ranked_.clear();
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (weights_[i] >= least) ranked_.push_back({-double(candidates_[i].value), weights_[i], candidates_[i].token});
  }
  Ranked const last = last_kept(mass, false);
  std::erase_if(candidates_, [&](Candidate c) { return last < Ranked{-double(c.value), 0, c.token}; });
}

void Sampler::cut_min_p() {
  double const least = double(largest()) + std::log(double(options_.min_p));
  std::erase_if(candidates_, [&](Candidate c) { return double(c.value) < least; });
}

std::int32_t Sampler::draw() {
  double left = weigh(double(options_.temperature)) * random_.unit();
  std::size_t last = 0;
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    if (weights_[i] == 0) continue;
    left -= weights_[i];
    if (left < 0) return candidates_[i].token;
    last = i;  // rounding may leave a little of the last one
  }
  return candidates_[last].token;
}

}  // namespace tiered
