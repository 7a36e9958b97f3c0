/// Defines Vocab: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/pre_tokenizer.hpp"
#include "tiered/io/vocab.hpp"

namespace tiered {

Vocab::Vocab(VocabData const& data) {
  take_table(data);
  build_index();
  take_ids(data);
  find_ends(data.eom);
}

void Vocab::take_table(VocabData const& data) {
  std::size_t const n = data.tokens.size();
  if (n == 0) throw Error(Errc::bad_file, "the vocabulary has no tokens");
  if (n > 0x40000000) throw Error(Errc::bad_file, concat("the vocabulary has ", n, " tokens, more than 2^30"));
  if (!data.scores.empty() && data.scores.size() != n) {
    throw Error(Errc::bad_file, concat("the vocabulary has ", n, " tokens, but ", data.scores.size(), " scores"));
  }
  if (!data.types.empty() && data.types.size() != n) {
    throw Error(Errc::bad_file, concat("the vocabulary has ", n, " tokens, but ", data.types.size(), " token types"));
  }
  std::uint64_t bytes = 0;
  for (std::string_view const token : data.tokens) bytes += token.size();
  if (bytes > 0xffffffffu) throw Error(Errc::bad_file, concat("the vocabulary's texts have ", bytes, " bytes, more than 4 GiB"));
  texts_.reserve(std::size_t(bytes));
  begins_.reserve(n + 1);
  begins_.push_back(0);
  for (std::string_view const token : data.tokens) {
    texts_ += token;
    begins_.push_back(std::uint32_t(texts_.size()));
  }
  types_.assign(n, TokenType::normal);
  for (std::size_t i = 0; i < data.types.size(); ++i) {
    std::int32_t const type = data.types[i];
    if (type >= 1 && type <= 6) types_[i] = TokenType(type);  // 0, "undefined", and what may come: as normal
  }
  scores_ = data.scores;
}

std::size_t Vocab::slot(std::string_view text, std::size_t hash) const {
  std::size_t i = hash & (index_.size() - 1);
  auto const high = std::uint32_t(std::uint64_t(hash) >> 32);
  while (index_[i].id >= 0 && (index_[i].hash != high || this->text(index_[i].id) != text)) i = (i + 1) & (index_.size() - 1);
  return i;
}

void Vocab::build_index() {
  std::size_t slots = 16;
  while (slots < 2 * types_.size()) slots *= 2;
  index_.assign(slots, Slot{});
  for (std::int32_t id = 0; id < size(); ++id) {
    std::size_t const hash = std::hash<std::string_view>{}(text(id));
    Slot& entry = index_[slot(text(id), hash)];
    if (entry.id < 0) entry = {id, std::uint32_t(std::uint64_t(hash) >> 32)};
  }
}

std::int32_t Vocab::find(std::string_view text) const { return index_[slot(text, std::hash<std::string_view>{}(text))].id; }

void Vocab::take_ids(VocabData const& data) {
  bool const is_spm = data.model == "llama";
  auto const id_or = [&](std::int32_t id, std::int32_t fallback, char const* what) {
    if (id >= size()) throw Error(Errc::bad_file, concat(what, " is token ", id, " of a vocabulary of ", size()));
    return id >= 0 ? id : fallback < size() ? fallback : -1;
  };
  // SentencePiece's own defaults are unk 0, bos 1, eos 2; files of the first converters rely on them.
  bos_ = id_or(data.bos, is_spm ? 1 : -1, "bos_token_id");
  eos_ = id_or(data.eos, is_spm ? 2 : -1, "eos_token_id");
  unk_ = id_or(data.unk, is_spm ? 0 : -1, "unknown_token_id");
  pad_ = id_or(data.pad, -1, "padding_token_id");
  eot_ = id_or(data.eot, -1, "eot_token_id");
  id_or(data.eom, -1, "eom_token_id");
  if (data.add_bos.value_or(false) && bos_ < 0) throw Error(Errc::bad_file, "add_bos_token is set, but there is no bos_token_id");
  if (data.add_eos.value_or(false) && eos_ < 0) throw Error(Errc::bad_file, "add_eos_token is set, but there is no eos_token_id");
  PreTokenizer const* const pre = is_spm ? nullptr : find_pre_tokenizer(data.pre);
  add_bos_ = data.add_bos.value_or(is_spm || (pre != nullptr && pre->add_bos)) && bos_ >= 0;
  add_eos_ = data.add_eos.value_or(false);
  blank_is_u2581_ = is_spm;
  add_space_prefix_ = is_spm && data.add_space_prefix.value_or(true);
}

/// Files often name only one token of several that end an answer, and some give it a wrong type: these texts are never anything else.
void Vocab::find_ends(std::int32_t eom) {
  static constexpr std::array<std::string_view, 16> turn_ends{
      "<|eot_id|>",      "<|im_end|>", "<end_of_turn>",   "<|end|>",       "<turn|>",
      "<|end_of_turn|>", "[EOT]",      "<EOT>",           "_<EOT>",        "<end_of_utterance>",
      "<|return|>",      "<|call|>",   "<|end_of_text|>", "<|endoftext|>", "<｜end▁of▁sentence｜>",
      "<|eom_id|>"};
  // These may be plain text elsewhere (</s> is an HTML tag to Gemma), so they count as control tokens only.
  static constexpr std::array<std::string_view, 6> control_ends{"</s>", "<eos>", "[EOS]", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"};
  auto const add = [&](std::int32_t id) {
    if (id >= 0) ends_.push_back(id);
  };
  // A model that has <|return|> and <|call|> uses <|end|> between the parts of one answer.
  bool const end_is_inner = find("<|return|>") >= 0 && find("<|call|>") >= 0;
  for (std::string_view const text : turn_ends) {
    std::int32_t const id = find(text);
    if (id < 0 || (end_is_inner && text == "<|end|>")) continue;
    types_[std::size_t(id)] = TokenType::control;
    if (eot_ < 0) eot_ = id;
    add(id);
  }
  for (std::string_view const text : control_ends) {
    std::int32_t const id = find(text);
    if (id >= 0 && types_[std::size_t(id)] == TokenType::control) add(id);
  }
  add(eos_), add(eot_), add(eom);
  std::sort(ends_.begin(), ends_.end());
  ends_.erase(std::unique(ends_.begin(), ends_.end()), ends_.end());
}

bool Vocab::is_end_of_generation(std::int32_t id) const { return std::binary_search(ends_.begin(), ends_.end(), id); }

}  // namespace tiered
