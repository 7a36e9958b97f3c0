/// What the tests that run whole models share: the list of tiny files, and one way to run each.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "golden_data.hpp"
#include "tiered/engine/engine.hpp"
#include "tiered/engine/sampler.hpp"
#include "tiered/engine/sim_policies.hpp"
#include "tiered/plan/any_policy.hpp"

namespace tiered::test {

using namespace tiered_test;

inline std::shared_ptr<Transformer const> open_golden(std::string const& gguf) { return make_model(GgufFile::open(golden_path(gguf))); }

/// Rows of `tokens` from `begin` on, all wanting logits.
inline std::vector<Row> rows_of(SequenceId id, std::vector<std::int32_t> const& tokens, std::size_t begin, std::size_t end) {
  std::vector<Row> rows;
  for (std::size_t i = begin; i < end; ++i) rows.push_back({id, std::int32_t(i), tokens[i], true});
  return rows;
}

/// Logits after every token, the tokens taken in steps of the given sizes (the last size again and again).
template <class E>
std::vector<float> all_logits(E& engine, std::vector<std::int32_t> const& tokens, std::vector<std::size_t> const& steps) {
  Sequence const sequence = engine.new_sequence();
  std::vector<float> out;
  for (std::size_t begin = 0, step = 0; begin < tokens.size(); ++step) {
    std::size_t const end = std::min(tokens.size(), begin + steps[std::min(step, steps.size() - 1)]);
    std::vector<Row> const rows = rows_of(sequence.id(), tokens, begin, end);
    Logits const logits = engine.step({rows});
    for (std::int32_t i = 0; i < logits.n_rows(); ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
    begin = end;
  }
  return out;
}

/// Greedy continuation of a prompt.
template <class E>
std::vector<std::int32_t> greedy(E& engine, std::vector<std::int32_t> const& prompt, std::size_t n) {
  Sequence const sequence = engine.new_sequence();
  std::span<float const> logits = engine.prefill(sequence, prompt);
  std::vector<std::int32_t> out;
  while (out.size() < n) {
    out.push_back(argmax(logits));
    if (out.size() < n) logits = engine.decode(sequence, out.back());
  }
  return out;
}

struct Difference {
  double worst = 0, rms = 0;  ///< over the range of the fixture's logits
};
inline Difference compare(std::vector<float> const& got, GoldenFixture const& expected) {
  Difference d;
  for (std::size_t i = 0; i < expected.logits.size(); ++i) {
    double const e = std::fabs(double(got.at(i)) - double(expected.logits[i])) / double(expected.logit_range);
    if (!(e <= d.worst)) d.worst = e;  // also where e is not a number
    d.rms += e * e;
  }
  d.rms = std::sqrt(d.rms / double(expected.logits.size()));
  return d;
}

/// Share of a row's norm that rounding to 8-bit activations may cost: a block's step is its largest element / 127, its error is
/// uniform in one step, and the largest of 32 normal values is about 2.4 times their root mean square.
inline constexpr double q8_noise = 2.4 / 127 / 3.4641016;
/// By how much later layers may enlarge what earlier ones got wrong (norms on heads and softmax sharpen differences).
inline constexpr double gain = 2;

/// The noise of all products on the way, independent of each other: seven in a layer, and the head.
inline double quantised_tolerance(Transformer const& model, GoldenFixture const& f) {
  double sum = 0;
  for (float v : f.logits) sum += double(v) * double(v);
  double const rms = std::sqrt(sum / double(f.logits.size())) / double(f.logit_range);
  return gain * q8_noise * std::sqrt(7.0 * model.config().n_layers + 1) * rms;
}

/// The median over rows of a row's root mean square: rows whose router, at a near tie, took another expert do not move it.
inline double median_row_rms(std::vector<float> const& got, GoldenFixture const& f) {
  std::vector<double> rows;
  for (std::size_t i = 0; i < f.tokens.size(); ++i) {
    double sum = 0;
    for (std::size_t k = i * f.vocab_size; k < (i + 1) * f.vocab_size; ++k)
      sum += std::pow((double(got.at(k)) - double(f.logits[k])) / double(f.logit_range), 2);
    rows.push_back(std::sqrt(sum / double(f.vocab_size)));
  }
  std::sort(rows.begin(), rows.end());
  return rows[rows.size() / 2];
}

/// The simulated device with a placement chosen at run time.
struct SweepPolicies : SimPolicies {
  using Placement = AnyPlacement;
};

}  // namespace tiered::test
