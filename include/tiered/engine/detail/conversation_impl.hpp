/// Defines Conversation: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/conversation.hpp"
#include "tiered/engine/detail/media_check.hpp"

namespace tiered {

Conversation::Conversation(Sequence sequence, std::vector<std::int32_t> tokens, std::vector<MediaSpan> media)
    : sequence_(std::move(sequence)), tokens_(std::move(tokens)), media_(std::move(media)) {
  if (tokens_.size() != std::size_t(sequence_.length()))
    throw Error(Errc::precondition, concat(tokens_.size(), " tokens for a sequence of ", sequence_.length()));
  detail::check_media(media_, tokens_.size());
}

std::span<std::int32_t const> Conversation::tokens() const {
  std::size_t const n = std::size_t(sequence_.length());
  expects(n <= tokens_.size(), "a conversation's sequence grows through the conversation only");
  return std::span(tokens_).first(n);
}

std::vector<MediaSpan> Conversation::media() const {
  std::vector<MediaSpan> out;
  for (MediaSpan span : media_) {
    span.n_tokens = std::min(span.n_tokens, length() - span.begin);
    if (span.n_tokens > 0) out.push_back(span);
  }
  return out;
}

void Conversation::truncate(std::int32_t n) { sequence_.truncate(n); }

bool Conversation::has_media_behind(MediaPrompt const& prompt, std::int32_t n) {
  return !prompt.spans.empty() && prompt.spans.back().end() > n;
}

/// Tokens that the sequence has, maybe all. `positions`: as of a MediaPrompt; those that it does not know are as the sequence has them.
std::int32_t Conversation::common_prefix(std::span<std::int32_t const> tokens, std::span<MediaSpan const> media,
                                         std::span<std::int32_t const> positions, std::int32_t max_context) const {
  expects(!tokens.empty(), "a prompt has at least one token");
  detail::check_media(media, tokens.size());
  if (tokens.size() > std::size_t(max_context)) {
    std::int64_t n_media = 0;
    for (MediaSpan const& span : media) n_media += span.n_tokens;
    throw Error(Errc::over_budget, concat("a prompt of ", tokens.size(), " tokens",
                                          n_media > 0 ? concat(", ", n_media, " of them of images or videos,") : std::string(),
                                          " does not fit a context of ", max_context));
  }
  std::span<std::int32_t const> const held = this->tokens();
  auto const n = std::int32_t(std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first - held.begin());
  std::int32_t const n_common = common_media_prefix(this->media(), media, n);
  std::size_t const n_known = positions.size() / 3, first_known = tokens.size() - n_known;
  expects(n_known <= tokens.size(), "a prompt has no more positions than tokens");
  bool const is_text = positions.empty() && media.empty();
  for (std::int32_t i = is_text ? 0 : std::int32_t(first_known); i < n_common; ++i) {
    std::size_t const at = std::size_t(i) - (is_text ? 0 : first_known);
    std::int32_t const wanted = is_text ? i : std::max({positions[at], positions[n_known + at], positions[2 * n_known + at]});
    if (sequence_.rope_position(i) != wanted) return i;
  }
  return n_common;
}

/// [3, n]: of the rows that are processed; empty: they are text that goes on behind the sequence.
std::vector<std::int32_t> Conversation::positions_behind(MediaPrompt const& prompt, std::int32_t n_common) const {
  std::size_t const n = std::size_t(prompt.n_tokens()), n_known = std::size_t(prompt.n_positions()),
                    n_rows = n - std::size_t(reused(n_common, n));
  std::vector<std::int32_t> out;
  for (std::size_t axis = 0; axis < 3 && n_known >= n_rows; ++axis) {
    auto const end = prompt.positions.begin() + std::ptrdiff_t((axis + 1) * n_known);
    out.insert(out.end(), end - std::ptrdiff_t(n_rows), end);
  }
  bool const once_more = std::size_t(n_common) == n && n_known == 0 && !prompt.spans.empty();
  if (once_more) out.assign(3, sequence_.rope_position(n_common - 1));  // where it was: text may lie before a video's last step
  return out;
}

void Conversation::begin(MediaPrompt const& prompt, std::int32_t n_reused) {
  bool const needs_positions = !prompt.positions.empty() || has_media_behind(prompt, n_reused);
  if (needs_positions && n_reused < prompt.n_tokens() - prompt.n_positions()) {
    throw Error(Errc::precondition, concat("rotary positions are known from token ", prompt.n_tokens() - prompt.n_positions(),
                                           " of the prompt on, and the sequence has ", n_reused, " of its tokens"));
  }
  truncate(n_reused);
  tokens_ = prompt.tokens;
  media_ = prompt.spans;
}

void Conversation::begin_text(std::span<std::int32_t const> tokens) {
  media_ = media();
  tokens_.resize(std::size_t(length()));
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
}

/// What is behind the sequence; the last wants logits.
std::vector<Row> Conversation::rows_of(MediaPrompt const& prompt) const {
  std::int32_t const first = sequence_.length(), n = prompt.n_tokens();
  std::vector<Row> rows;
  for (std::int32_t i = first; i < n; ++i) rows.push_back({sequence_.id(), i, prompt.tokens[std::size_t(i)], i + 1 == n});
  std::int32_t n_vectors = 0;
  for (MediaSpan const& span : prompt.spans) {
    for (std::int32_t i = std::max(span.begin, first); i < span.end(); ++i) rows[std::size_t(i - first)].embedding = n_vectors++;
  }
  return rows;
}

}  // namespace tiered
