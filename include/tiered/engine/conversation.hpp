/// A sequence together with the tokens that it holds, so that the next prompt processes only what is new.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/engine/sequence.hpp"
#include "tiered/model/batch.hpp"
#include "tiered/vision/media_prompt.hpp"
#include "tiered/vision/media_span.hpp"
#include "tiered/vision/vision_encoding.hpp"

namespace tiered {

/// What became of a prompt.
struct PromptUse {
  std::int32_t n_tokens = 0;        ///< of the prompt
  std::int32_t n_reused = 0;        ///< of those, how many the sequence held already; at least one is processed
  std::span<float const> logits{};  ///< after the last token; valid until the engine's next step
};

/// The vectors of a prompt's media from a token on, as Batch::embeddings has them: see media_vectors().
using EmbedMedia = FunctionRef<MediaEmbeddings(MediaPrompt const&, std::int32_t from)>;

/// Owns a sequence of an engine. What a step that failed or was cancelled had done is kept and known: sequence().length() is the truth.
/// Same thread as the engine.
class Conversation {
 public:
  /// `tokens` and `media`: what the sequence holds.
  /// Errors  Errc::precondition where tokens are not as many as it has positions, or media not ascending, apart and among them.
  explicit Conversation(Sequence sequence, std::vector<std::int32_t> tokens = {}, std::vector<MediaSpan> media = {});

  Sequence const& sequence() const { return sequence_; }
  std::int32_t length() const { return std::int32_t(tokens().size()); }
  /// Of positions [0, length()).
  std::span<std::int32_t const> tokens() const;
  /// Of those, which came from images and videos; the last may be cut.
  std::vector<MediaSpan> media() const;
  /// Forgets positions from n on.
  void truncate(std::int32_t n);
  /// Hands the sequence over; nothing is left to call then but assignment.
  Sequence release() && { return std::move(sequence_); }

  /// The tokens of a whole prompt: forgets what the sequence holds beyond the common prefix, processes the rest. What the sequence has at
  /// another rotary position than the prompt is not common: an answer behind a long video goes on behind the video's time, and lies nearer
  /// in the next prompt. Same logits, bit for bit, as from an empty sequence.
  /// Errors  of Engine::step; Errc::over_budget with both numbers for more than the context, before anything is forgotten.
  template <class E>
  PromptUse prompt(E& engine, std::span<std::int32_t const> tokens) {
    std::int32_t const n_reused = reused(common_prefix(tokens, {}, {}, engine.max_context()), tokens.size());
    truncate(n_reused);
    return {std::int32_t(tokens.size()), n_reused, extend(engine, tokens.subspan(std::size_t(n_reused)))};
  }
  /// The same with images and videos, which belong to the common prefix where they are the same. `embed` is asked for what is behind it,
  /// if there is any, before anything is forgotten.
  /// Errors  also those of `embed`; precondition where positions of the prompt are not known that are to be processed.
  template <class E>
  PromptUse prompt(E& engine, MediaPrompt const& prompt, EmbedMedia embed) {
    std::int32_t const n_common = common_prefix(prompt.tokens, prompt.spans, prompt.positions, engine.max_context()),
                       n_reused = reused(n_common, prompt.tokens.size());
    MediaEmbeddings const vectors = has_media_behind(prompt, n_reused) ? embed(prompt, n_reused) : MediaEmbeddings();
    std::vector<std::int32_t> const positions = positions_behind(prompt, n_common);
    begin(prompt, n_reused);
    std::vector<Row> const rows = rows_of(prompt);
    return {prompt.n_tokens(), n_reused, engine.step({rows, vectors, positions}).row(0)};
  }
  /// Processes tokens behind those that are there; logits after the last, until the engine's next step.
  /// Errors  of Engine::step
  template <class E>
  std::span<float const> extend(E& engine, std::span<std::int32_t const> tokens) {
    begin_text(tokens);
    return engine.prefill(sequence_, tokens);
  }

 private:
  static bool has_media_behind(MediaPrompt const& prompt, std::int32_t n);
  /// One at least is processed, for its logits.
  static std::int32_t reused(std::int32_t n_common, std::size_t n_tokens) {
    return n_common < std::int32_t(n_tokens) ? n_common : std::int32_t(n_tokens) - 1;
  }
  std::int32_t common_prefix(std::span<std::int32_t const> tokens, std::span<MediaSpan const> media,
                             std::span<std::int32_t const> positions, std::int32_t max_context) const;
  std::vector<std::int32_t> positions_behind(MediaPrompt const& prompt, std::int32_t n_common) const;
  void begin(MediaPrompt const& prompt, std::int32_t n_reused);
  void begin_text(std::span<std::int32_t const> tokens);
  std::vector<Row> rows_of(MediaPrompt const& prompt) const;

  Sequence sequence_;
  std::vector<std::int32_t> tokens_;  // more than are done until they are: tokens() knows
  std::vector<MediaSpan> media_;      // likewise
};

}  // namespace tiered
