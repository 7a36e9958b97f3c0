/// A sequence together with the tokens that it holds, so that the next prompt processes only what is new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/sequence.hpp"

namespace tiered {

/// What became of a prompt.
struct PromptUse {
  std::int32_t n_tokens = 0;        ///< of the prompt
  std::int32_t n_reused = 0;        ///< of those, how many the sequence held already; at least one is processed
  std::span<float const> logits{};  ///< after the last token; valid until the engine's next step
};

/// Owns a sequence of an engine. What a step that failed or was cancelled had done is kept and known: sequence().length() is the truth.
/// Same thread as the engine.
class Conversation {
 public:
  /// `tokens`: what the sequence holds.  Errors  Errc::precondition where those are not as many as it has positions.
  explicit Conversation(Sequence sequence, std::vector<std::int32_t> tokens = {});

  Sequence const& sequence() const { return sequence_; }
  std::int32_t length() const { return std::int32_t(tokens().size()); }
  /// Of positions [0, length()).
  std::span<std::int32_t const> tokens() const;
  /// Forgets positions from n on.
  void truncate(std::int32_t n);
  /// Hands the sequence over; nothing is left to call then but assignment.
  Sequence release() && { return std::move(sequence_); }

  /// The tokens of a whole prompt: forgets what the sequence holds beyond the common prefix, processes the rest.
  /// Same logits, bit for bit, as from an empty sequence.
  /// Errors  of Engine::step; Errc::over_budget with both numbers for more than the context, before anything is forgotten.
  template <class E>
  PromptUse prompt(E& engine, std::span<std::int32_t const> tokens) {
    std::int32_t const n_reused = keep_prefix(tokens, engine.max_context());
    return {std::int32_t(tokens.size()), n_reused, extend(engine, tokens.subspan(std::size_t(n_reused)))};
  }
  /// Processes tokens behind those that are there; logits after the last, until the engine's next step.
  /// Errors  of Engine::step
  template <class E>
  std::span<float const> extend(E& engine, std::span<std::int32_t const> tokens) {
    tokens_.resize(std::size_t(length()));
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());  // more than are done until they are: tokens() knows
    return engine.prefill(sequence_, tokens);
  }

 private:
  std::int32_t keep_prefix(std::span<std::int32_t const> tokens, std::int32_t max_context);

  Sequence sequence_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace tiered
