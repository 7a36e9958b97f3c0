/// Rows of tokens and vectors with rotary positions of their own, as a vision-language model's prompt has them: for tests of whole models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "golden/engine_helpers.hpp"

namespace tiered::test {

inline constexpr char const* vision_models[] = {"qwen2vl", "qwen3vl"};
inline constexpr std::size_t n_text_at_end = 10;  ///< rows of a fixture behind its last vector

/// Rows [begin, end) of a fixture as a batch, all wanting logits.
class VisionBatch {
 public:
  VisionBatch(VisionFixture const& f, SequenceId id, std::size_t begin, std::size_t end, bool with_positions = true) : vectors_(f.vectors) {
    std::int32_t n_vectors = 0;
    for (std::size_t i = 0; i < end; ++i) {
      Row row{id, std::int32_t(i), f.tokens[i], true};
      if (f.tokens[i] < 0) row.embedding = n_vectors++;
      if (i >= begin) rows_.push_back(row);
    }
    std::size_t const n = f.tokens.size();
    for (std::size_t k = 0; k < 3 && with_positions; ++k)
      positions_.insert(positions_.end(), f.positions.begin() + std::ptrdiff_t(k * n + begin),
                        f.positions.begin() + std::ptrdiff_t(k * n + end));
  }
  operator Batch() const { return {rows_, vectors_, positions_}; }

 private:
  std::vector<Row> rows_;
  std::span<float const> vectors_;
  std::vector<std::int32_t> positions_;
};

inline void append(std::vector<float>& out, Logits const& logits) {
  for (std::int32_t i = 0; i < logits.n_rows(); ++i) out.insert(out.end(), logits.row(i).begin(), logits.row(i).end());
}

/// Logits after every row, taken in steps of the given sizes (the last size again and again); rows from `text` on say no positions.
template <class E>
std::vector<float> vision_logits(E& engine, VisionFixture const& f, std::vector<std::size_t> const& steps, std::size_t text) {
  Sequence const sequence = engine.new_sequence();
  std::vector<float> out;
  for (std::size_t begin = 0, step = 0; begin < f.tokens.size(); ++step) {
    std::size_t end = std::min(f.tokens.size(), begin + steps[std::min(step, steps.size() - 1)]);
    if (begin < text) end = std::min(end, text);
    append(out, engine.step(VisionBatch(f, sequence.id(), begin, end, begin < text)));
    begin = end;
  }
  return out;
}

inline double worst_of(std::vector<float> const& got, VisionFixture const& f) {
  double worst = 0;
  for (std::size_t i = 0; i < f.logits.size(); ++i) {
    double const e = std::fabs(double(got.at(i)) - double(f.logits[i])) / double(f.logit_range);
    if (!(e <= worst)) worst = e;
  }
  return worst;
}

inline VisionFixture open_vision(std::string const& name) { return read_vision(golden_path(name + ".vision")); }

}  // namespace tiered::test
