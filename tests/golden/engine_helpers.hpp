/// What the tests that run whole models share: the list of tiny files, and one way to run each.
#pragma once

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

/// The simulated device with a placement chosen at run time.
struct SweepPolicies : SimPolicies {
  using Placement = AnyPlacement;
};

}  // namespace tiered::test
