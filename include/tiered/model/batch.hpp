/// What goes through a model in one step: rows of (sequence, position, token).
#pragma once

#include <cstdint>
#include <span>

#include "tiered/core/ids.hpp"

namespace tiered {

/// One position of one sequence. A SequenceId means something in the engine that gave it, and in no other.
struct Row {
  SequenceId sequence{};
  std::int32_t position = 0, token = 0;
  bool want_logits = false;
};

/// Rows of one sequence stand in order of position, without gaps, the first at the sequence's length.
struct Batch {
  std::span<Row const> rows;
  std::span<float const> embeddings{};             ///< [n_rows, dim] instead of tokens, where a model has a vision encoder
  std::span<std::int32_t const> rope_positions{};  ///< [3, n_rows] for multi-section rope
};

}  // namespace tiered
