/// Defines Tokenizer and StreamDecoder: for one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/bpe.hpp"
#include "tiered/io/detail/printable.hpp"
#include "tiered/io/detail/token_trie.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/spm.hpp"
#include "tiered/io/tokenizer.hpp"
#include "tiered/io/utf8.hpp"
#include "tiered/io/vocab.hpp"

namespace tiered {

static_assert(SubwordModel<BytePairModel> && SubwordModel<SentencePieceModel>);

std::shared_ptr<detail::TokenTrie const> Tokenizer::find_specials(Vocab const& vocab) {
  auto trie = std::make_shared<detail::TokenTrie>();
  for (std::int32_t id = 0; id < vocab.size(); ++id) {
    TokenType const type = vocab.type(id);
    bool const on_request = type == TokenType::control || type == TokenType::unknown;
    if ((!on_request && type != TokenType::user_defined) || vocab.text(id).empty()) continue;
    trie->insert(vocab.text(id), id, on_request);
    if (!vocab.blank_is_u2581() || on_request) continue;
    // Converters write the blanks of user-defined tokens one way or the other, and a text may hold both.
    trie->insert(detail::replace_all(vocab.text(id), detail::u2581, " "), id, on_request);
    trie->insert(detail::replace_all(vocab.text(id), " ", detail::u2581), id, on_request);
  }
  return trie;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 2);
  if (options.add_special && vocab_->add_bos()) ids.push_back(bos());
  bool after_special = true;
  std::size_t done = 0;
  auto const encode_until = [&](std::size_t end) {
    if (end == done) return;
    model_->encode(text.substr(done, end - done), after_special, ids);
    after_special = false;
  };
  for (std::size_t at = 0; at < text.size();) {
    auto const match = specials_->longest(text, at, options.parse_special);
    if (match.bytes == 0) {
      ++at;
      continue;
    }
    encode_until(at);
    ids.push_back(match.id);
    after_special = true;
    done = at += match.bytes;
  }
  encode_until(text.size());
  if (options.add_special && vocab_->add_eos()) ids.push_back(eos());
  return ids;
}

void Tokenizer::append(std::int32_t id, DecodeOptions options, std::string& bytes) const {
  switch (vocab_->type(id)) {
    case TokenType::control:
    case TokenType::unknown:
      if (options.show_special) bytes += vocab_->text(id);
      return;
    case TokenType::user_defined:
      bytes += vocab_->blank_is_u2581() ? detail::replace_all(vocab_->text(id), detail::u2581, " ") : std::string(vocab_->text(id));
      return;
    case TokenType::normal:
    case TokenType::unused:
    case TokenType::byte: model_->append_bytes(id, bytes); return;
  }
}

std::string Tokenizer::decode(std::span<std::int32_t const> ids, DecodeOptions options) const {
  std::string bytes;
  bool blank_expected = vocab_->add_space_prefix();
  for (std::int32_t const id : ids) {
    std::size_t const before = bytes.size();
    append(id, options, bytes);
    TokenType const type = vocab_->type(id);
    if (type == TokenType::control || type == TokenType::unknown) continue;
    if (blank_expected && bytes.size() > before && bytes[before] == ' ') bytes.erase(before, 1);
    blank_expected = false;
  }
  return bytes;
}

std::string Tokenizer::decode(std::int32_t id, DecodeOptions options) const {
  std::string bytes;
  append(id, options, bytes);
  return bytes;
}

std::string StreamDecoder::push(std::int32_t id) {
  pending_ += tokenizer_.decode(id, options_);
  std::string ready = std::move(pending_);
  std::size_t const rest = unfinished_utf8_bytes(ready);
  pending_.assign(ready, ready.size() - rest, rest);
  ready.resize(ready.size() - rest);
  return ready;
}

Tokenizer make_tokenizer(VocabData const& data) {
  if (data.model == "gpt2") {
    auto vocab = std::make_shared<Vocab const>(data);
    return {vocab, BytePairModel(vocab, data)};
  }
  if (data.model == "llama") {
    auto vocab = std::make_shared<Vocab const>(data);
    return {vocab, SentencePieceModel(vocab, data)};
  }
  throw Error(Errc::unsupported,
              concat("the tokeniser model ", detail::printable(data.model), " is not known, only \"gpt2\" and \"llama\" are"));
}

VocabData vocab_from_gguf(GgufFile const& file) {
  VocabData data;
  data.model = file.require<std::string_view>("tokenizer.ggml.model");
  data.pre = file.get_or<std::string_view>("tokenizer.ggml.pre", "");
  data.tokens = file.require<std::vector<std::string_view>>("tokenizer.ggml.tokens");
  data.scores = file.get_or<std::vector<float>>("tokenizer.ggml.scores", {});
  data.types = file.get_or<std::vector<std::int32_t>>("tokenizer.ggml.token_type", {});
  data.merges = file.get_or<std::vector<std::string_view>>("tokenizer.ggml.merges", {});
  auto const id = [&](std::string_view key) {
    auto const value = file.get<std::int64_t>(key);
    if (value && *value > 0x7fffffff) throw Error(Errc::bad_file, concat("metadata key \"", key, "\" is ", *value, ", no token id"));
    return value ? std::int32_t(*value < 0 ? -1 : *value) : -1;
  };
  data.bos = id("tokenizer.ggml.bos_token_id");
  data.eos = id("tokenizer.ggml.eos_token_id");
  data.eot = id("tokenizer.ggml.eot_token_id");
  data.eom = id("tokenizer.ggml.eom_token_id");
  data.unk = id("tokenizer.ggml.unknown_token_id");
  data.pad = id("tokenizer.ggml.padding_token_id");
  data.add_bos = file.get<bool>("tokenizer.ggml.add_bos_token");
  data.add_eos = file.get<bool>("tokenizer.ggml.add_eos_token");
  data.add_space_prefix = file.get<bool>("tokenizer.ggml.add_space_prefix");
  return data;
}

Tokenizer make_tokenizer(GgufFile const& file) { return make_tokenizer(vocab_from_gguf(file)); }

}  // namespace tiered
