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

namespace tiered {

Conversation::Conversation(Sequence sequence, std::vector<std::int32_t> tokens)
    : sequence_(std::move(sequence)), tokens_(std::move(tokens)) {
  if (tokens_.size() != std::size_t(sequence_.length()))
    throw Error(Errc::precondition, concat(tokens_.size(), " tokens for a sequence of ", sequence_.length()));
}

std::span<std::int32_t const> Conversation::tokens() const {
  std::size_t const n = std::size_t(sequence_.length());
  expects(n <= tokens_.size(), "a conversation's sequence grows through the conversation only");
  return std::span(tokens_).first(n);
}

void Conversation::truncate(std::int32_t n) { sequence_.truncate(n); }

/// Tokens that stay.
std::int32_t Conversation::keep_prefix(std::span<std::int32_t const> tokens, std::int32_t max_context) {
  expects(!tokens.empty(), "a prompt has at least one token");
  if (tokens.size() > std::size_t(max_context))
    throw Error(Errc::over_budget, concat("a prompt of ", tokens.size(), " tokens does not fit a context of ", max_context));
  std::span<std::int32_t const> const held = this->tokens();
  auto const n = std::mismatch(held.begin(), held.end(), tokens.begin(), tokens.end()).first - held.begin();
  std::int32_t const kept = std::min(std::int32_t(n), std::int32_t(tokens.size()) - 1);  // one at least gives logits
  truncate(kept);
  return kept;
}

}  // namespace tiered
