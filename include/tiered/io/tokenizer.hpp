/// Text to token ids and back, by what a GGUF file says; no tokenizer.json is needed.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/io/gguf.hpp"
#include "tiered/io/vocab.hpp"

namespace tiered {
namespace detail {
class TokenTrie;
}

/// The algorithm inside a Tokenizer, which deals with special tokens itself. Both functions append; any thread may call them.
///
/// | expression                              | result | meaning                                                                     |
/// |-----------------------------------------|--------|-----------------------------------------------------------------------------|
/// | `m.encode(text, after_special, ids)`    | void   | ids of plain text, any bytes; `after_special`: it begins a text or follows a
/// special token | | `m.append_bytes(id, bytes)`             | void   | what a token of type normal, unused or byte stands for |
template <class M>
concept SubwordModel = std::movable<M> &&
    requires(M const& m, std::string_view text, bool after_special, std::vector<std::int32_t>& ids, std::int32_t id, std::string& bytes) {
  { m.encode(text, after_special, ids) } -> std::same_as<void>;
  { m.append_bytes(id, bytes) } -> std::same_as<void>;
};

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
  std::string decode(std::int32_t id, DecodeOptions options = {}) const;
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

/// Turns tokens into text as they come. What push() returns never ends inside a character that may still be completed; bytes that
/// are no UTF-8 at all pass through. The tokens continue a text (a prompt), so no leading blank is taken away.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, DecodeOptions options = {}) : tokenizer_(std::move(tokenizer)), options_(options) {}

  std::string push(std::int32_t id);
  /// What is left of a character that was never completed; the decoder can be used for another text then.
  std::string finish() { return std::exchange(pending_, {}); }

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string pending_;
};

/// Errors  unsupported, naming the model or the pre-tokeniser; bad_file where the data contradict each other.
Tokenizer make_tokenizer(VocabData const& data);

/// The views in it are into the file's metadata: use it while a copy of `file` lives.
/// Errors  not_found where the file has no vocabulary; bad_file where a key has a wrong type.
VocabData vocab_from_gguf(GgufFile const& file);

Tokenizer make_tokenizer(GgufFile const& file);

}  // namespace tiered
