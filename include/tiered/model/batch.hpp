/// What goes through a model in one step: rows of (sequence, position, token or vector).
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
  std::int32_t embedding = -1;  ///< index into Batch::embeddings: that vector enters the model as it is, and not the token; -1: the token
};

/// Rows of one sequence stand in order of position, without gaps, the first at the sequence's length.
struct Batch {
  std::span<Row const> rows;
  /// [1 + ModelConfig::n_deepstack_layers, n, dim]: vectors of rows that say so, such as a vision encoder's, and what is added to those
  /// rows behind layers 0, 1, ... Borrowed until the step returns.
  std::span<float const> embeddings{};
  /// [3, n_rows], time, height and width, each >= 0: where rotary embeddings turn rows to, of models that tell them apart (M-RoPE). A row's
  /// place in its sequence stays Row::position. Empty: rows are text, each three times at Sequence::rope_position() and on.
  std::span<std::int32_t const> rope_positions{};
};

}  // namespace tiered
