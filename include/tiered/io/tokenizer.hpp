/// Text to token ids and back, by what a GGUF file says; no tokenizer.json is needed.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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
#include "tiered/io/utf8.hpp"
#include "tiered/io/vocab.hpp"

namespace tiered {

/// The algorithm inside a Tokenizer, which deals with special tokens itself. Both functions append; any thread may call them.
///
/// | expression                              | result | meaning                                                                     |
/// |-----------------------------------------|--------|-----------------------------------------------------------------------------|
/// | `m.encode(text, after_special, ids)`    | void   | ids of plain text, any bytes; `after_special`: a text begins, or a special token
/// came before | | `m.append_bytes(id, bytes)`             | void   | what a token of type normal, unused or byte stands for |
template <class M>
concept SubwordModel = std::movable<M> &&
    requires(M const& m, std::string_view text, bool after_special, std::vector<std::int32_t>& ids, std::int32_t id, std::string& bytes) {
  { m.encode(text, after_special, ids) } -> std::same_as<void>;
  { m.append_bytes(id, bytes) } -> std::same_as<void>;
};
static_assert(SubwordModel<BytePairModel> && SubwordModel<SentencePieceModel>);

struct EncodeOptions {
  bool add_special = true;     ///< put bos in front and eos behind, where the vocabulary says so
  bool parse_special = false;  ///< "<|im_end|>" in the text is that token. Not for text of strangers: it could end their turn
};
struct DecodeOptions {
  bool show_special = false;  ///< control and unknown tokens give their text instead of nothing
};

/// A vocabulary and an algorithm, which may be your own SubwordModel. Immutable and free of the file that it came from; copies share
/// their state; any thread may use it.
class Tokenizer {
 public:
  template <SubwordModel M>
  Tokenizer(std::shared_ptr<Vocab const> vocab, M model)
      : vocab_(std::move(vocab)), model_(std::make_shared<Holder<M> const>(std::move(model))), specials_(find_specials(*vocab_)) {}

  /// User-defined tokens are found in any text, control tokens if options.parse_special; of several at one place the longest counts.
  /// Any bytes are taken. decode() gives them back, but for bytes without a token (see BytePairModel::encode), U+2581 in a
  /// SentencePiece text, which is a blank there, and the blank that such a vocabulary puts behind special tokens.
  std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  /// The bytes of one token, which may be part of a character: print them through a StreamDecoder.
  /// Errors  precondition for an id outside [0, size()).
  std::string decode(std::int32_t id, DecodeOptions options = {}) const {
    std::string bytes;
    append(id, options, bytes);
    return bytes;
  }
  /// The text of a whole sequence: where the vocabulary puts a blank in front of a text, that blank is taken away.
  std::string decode(std::span<std::int32_t const> ids, DecodeOptions options = {}) const;

  /// Ids, or -1.
  std::int32_t bos() const { return vocab_->bos(); }
  std::int32_t eos() const { return vocab_->eos(); }
  std::int32_t eot() const { return vocab_->eot(); }
  /// eos, eot, and whatever else is known to end an answer.
  bool is_end_of_generation(std::int32_t id) const { return vocab_->is_end_of_generation(id); }
  std::int32_t size() const { return vocab_->size(); }
  /// The token as the file spells it.
  std::string_view token_text(std::int32_t id) const { return vocab_->text(id); }
  Vocab const& vocab() const { return *vocab_; }

 private:
  struct Model {
    virtual ~Model() = default;
    virtual void encode(std::string_view text, bool after_special, std::vector<std::int32_t>& ids) const = 0;
    virtual void append_bytes(std::int32_t id, std::string& bytes) const = 0;
  };
  template <class M>
  struct Holder final : Model {
    explicit Holder(M m) : model(std::move(m)) {}
    void encode(std::string_view text, bool after_special, std::vector<std::int32_t>& ids) const override {
      model.encode(text, after_special, ids);
    }
    void append_bytes(std::int32_t id, std::string& bytes) const override { model.append_bytes(id, bytes); }
    M model;
  };
  static std::shared_ptr<detail::TokenTrie const> find_specials(Vocab const& vocab);
  void append(std::int32_t id, DecodeOptions options, std::string& bytes) const;

  std::shared_ptr<Vocab const> vocab_;
  std::shared_ptr<Model const> model_;
  std::shared_ptr<detail::TokenTrie const> specials_;
};

inline std::shared_ptr<detail::TokenTrie const> Tokenizer::find_specials(Vocab const& vocab) {
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

inline std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
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

inline void Tokenizer::append(std::int32_t id, DecodeOptions options, std::string& bytes) const {
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

inline std::string Tokenizer::decode(std::span<std::int32_t const> ids, DecodeOptions options) const {
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

/// Turns tokens into text as they come. What push() returns never ends inside a character that may still be completed; bytes that
/// are no UTF-8 at all pass through. The tokens continue a text (a prompt), so no leading blank is taken away.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, DecodeOptions options = {}) : tokenizer_(std::move(tokenizer)), options_(options) {}

  std::string push(std::int32_t id) {
    pending_ += tokenizer_.decode(id, options_);
    std::string ready = std::move(pending_);
    std::size_t const rest = unfinished_utf8_bytes(ready);
    pending_.assign(ready, ready.size() - rest, rest);
    ready.resize(ready.size() - rest);
    return ready;
  }
  /// What is left of a character that was never completed; the decoder can be used for another text then.
  std::string finish() { return std::exchange(pending_, {}); }

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string pending_;
};

/// Errors  unsupported, naming the model or the pre-tokeniser; bad_file where the data contradict each other.
inline Tokenizer make_tokenizer(VocabData const& data) {
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

/// The views in it are into the file's metadata: use it while a copy of `file` lives.
/// Errors  not_found where the file has no vocabulary; bad_file where a key has a wrong type.
inline VocabData vocab_from_gguf(GgufFile const& file) {
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

inline Tokenizer make_tokenizer(GgufFile const& file) { return make_tokenizer(vocab_from_gguf(file)); }

}  // namespace tiered
