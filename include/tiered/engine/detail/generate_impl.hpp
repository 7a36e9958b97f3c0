/// Defines what a Generation does whatever its engine is: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/engine/generate.hpp"

namespace tiered {

char const* name(EndReason reason) {
  switch (reason) {
    case EndReason::none: return "none";
    case EndReason::eos: return "eos";
    case EndReason::length: return "length";
    case EndReason::stop_string: return "stop_string";
    case EndReason::context_full: return "context_full";
    case EndReason::cancelled: return "cancelled";
  }
  return "?";
}

namespace detail {

GenerationCore::GenerationCore(Tokenizer tokenizer, GenerationOptions options, std::int32_t vocab_size, std::int32_t max_context)
    : tokenizer_(std::move(tokenizer)), vocab_size_(vocab_size), max_context_(max_context), decoder_(tokenizer_) {
  set_options(std::move(options));
}

void GenerationCore::set_options(GenerationOptions options) {
  if (options.max_tokens < -1) throw Error(Errc::precondition, concat("max_tokens is >= -1, not ", options.max_tokens));
  if (options.n_logprobs < -1) throw Error(Errc::precondition, concat("n_logprobs is >= -1, not ", options.n_logprobs));
  if (options.n_keep < -1 || options.n_keep >= max_context_)
    throw Error(Errc::precondition, concat("n_keep is ", options.n_keep, ": it must be -1, or less than the context of ", max_context_));
  Sampler sampler(options.sampler);
  StopStrings stop(options.stop);
  options_ = std::move(options);
  sampler_ = std::move(sampler);
  stop_ = std::move(stop);
  decoder_ = StreamDecoder(tokenizer_, options_.decode);
  make_mask();
  started_ = false;
}

/// Not to be drawn: what ends a text where that is ignored, and rows of the output matrix that stand for no token.
void GenerationCore::make_mask() {
  allowed_.clear();
  if (!options_.ignore_eos && vocab_size_ <= tokenizer_.size()) return;
  for (std::int32_t id = 0; id < vocab_size_; ++id) allowed_.push_back(id < tokenizer_.size() && !(options_.ignore_eos && ends_text(id)));
}

bool GenerationCore::ends_text(std::int32_t token) const {
  return tokenizer_.is_end_of_generation(token) || std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end();
}

void GenerationCore::begin(std::span<std::int32_t const> prompt) {
  started_ = false;
  expects(!prompt.empty(), "a prompt has at least one token");
  for (std::int32_t token : prompt) {
    if (token < 0 || token >= vocab_size_)
      throw Error(Errc::precondition, concat("token ", token, " of the prompt is outside of a vocabulary of ", vocab_size_));
  }
  sampler_.forget();
  sampler_.accept(prompt);
  stop_.reset();
  decoder_.finish();
  n_prompt_ = std::int32_t(prompt.size());
  n_tokens_ = n_dropped_ = 0;
  drawn_.reset();
  taken_.reset();
  end_token_ = -1;
  end_ = options_.max_tokens == 0 ? EndReason::length : EndReason::none;
}

void GenerationCore::choose(std::span<float const> logits) {
  started_ = true;
  if (end_ != EndReason::none) return;
  Drawn drawn;
  drawn.token = sampler_.sample(logits, allowed_);
  if (options_.n_logprobs >= 0) {
    Logprobs const logprobs(logits);
    drawn.logprob = TokenLogprob{drawn.token, logprobs.of(drawn.token)};
    drawn.top = logprobs.top(options_.n_logprobs);
  }
  sampler_.accept(drawn.token);
  drawn_ = std::move(drawn);
}

void GenerationCore::cancel() {
  started_ = true;
  end_ = EndReason::cancelled;
}

std::optional<std::int32_t> GenerationCore::unprocessed() const {
  expects(started_, "Generation: there is no prompt: start() comes first, after an error too");
  return end_ == EndReason::none ? taken_ : std::nullopt;
}

GenerationEvent GenerationCore::take() {
  GenerationEvent event;
  if (end_ == EndReason::none && ends_text(drawn_->token)) {
    end_ = EndReason::eos;
    end_token_ = drawn_->token;
    event.logprob = drawn_->logprob;
    event.top_logprobs = std::move(drawn_->top);
  }
  event.n_dropped = std::exchange(n_dropped_, 0);
  event.end = end_;
  if (end_ != EndReason::none) {
    event.token = end_token_;
    if (stop_.matched()) event.stop_string = stop_.strings()[*stop_.matched()];
    event.text = stop_.flush();
    if (!decoder_.finish().empty()) event.text += "\uFFFD";  // half a character, and the other half will not come
    return event;
  }
  event.token = drawn_->token;
  event.logprob = drawn_->logprob;
  event.top_logprobs = std::move(drawn_->top);
  event.text = stop_.push(decoder_.push(event.token));
  taken_ = event.token;
  drawn_.reset();
  if (stop_.matched()) {
    decoder_.finish();  // behind the stop string: not shown either
    end_ = EndReason::stop_string;
  } else if (++n_tokens_ == options_.max_tokens) {
    end_ = EndReason::length;
  }
  return event;
}

void GenerationCore::advance(Conversation& conversation, std::int32_t token, Extend extend) {
  started_ = false;  // until it is done
  if (conversation.length() < max_context_) {
    choose(extend({&token, 1}));
  } else if (options_.context_full == ContextFull::stop || !shift(conversation, token, extend)) {
    end_ = EndReason::context_full;
    started_ = true;
  }
}

/// False where nothing can be dropped. What is kept is processed again from n_keep on: its keys and values depend on what is gone. Media
/// are not: their pixels may be gone.
bool GenerationCore::shift(Conversation& conversation, std::int32_t token, Extend extend) {
  std::span<std::int32_t const> const held = conversation.tokens();
  std::size_t const n_keep = std::size_t(options_.n_keep < 0 ? n_prompt_ : options_.n_keep);
  if (n_keep >= held.size()) return false;
  std::size_t n_dropped = (held.size() - n_keep + 1) / 2;
  if (std::vector<MediaSpan> const media = conversation.media(); !media.empty())
    n_dropped = std::max(n_dropped, std::size_t(std::max(media.back().end(), std::int32_t(n_keep))) - n_keep);
  std::vector<std::int32_t> kept(held.begin() + std::ptrdiff_t(n_keep + n_dropped), held.end());
  kept.push_back(token);
  n_dropped_ += std::int32_t(n_dropped);
  conversation.truncate(std::int32_t(n_keep));
  choose(extend(kept));
  return true;
}

}  // namespace detail
}  // namespace tiered
