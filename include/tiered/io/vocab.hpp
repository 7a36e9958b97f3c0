/// The token table of a model: texts, types, scores, and which tokens mean something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"

namespace tiered {

/// The numbers are those of tokenizer.ggml.token_type (ggml-org/ggml, docs/gguf.md).
enum class TokenType : std::uint8_t {
  normal = 1,
  unknown = 2,       ///< stands for text that has no token
  control = 3,       ///< structure, not text: recognised in a text only where the caller asks, decodes to nothing
  user_defined = 4,  ///< text that is always one token, wherever it stands
  unused = 5,        ///< takes part in SentencePiece's merges, but is cut up again
  byte = 6,          ///< "<0x0A>"
};

/// What a file says about its tokeniser, borrowed from it; see vocab_from_gguf().
struct VocabData {
  std::string_view model;                ///< "gpt2": byte-level BPE; "llama": SentencePiece
  std::string_view pre;                  ///< name of the pre-tokeniser of a "gpt2" model; empty: not given
  std::vector<std::string_view> tokens;  ///< by id
  std::vector<float> scores;             ///< by id, or empty
  std::vector<std::int32_t> types;       ///< TokenType by id, or empty: all normal
  std::vector<std::string_view> merges;  ///< "left right", best first
  std::int32_t bos = -1, eos = -1, eot = -1, eom = -1, unk = -1, pad = -1;  ///< -1: not given
  std::optional<bool> add_bos{}, add_eos{}, add_space_prefix{};
};

/// Owns its texts; immutable, so any thread may use it.
class Vocab {
 public:
  /// Errors  bad_file where sizes, types or ids contradict each other.
  explicit Vocab(VocabData const& data);

  std::int32_t size() const { return std::int32_t(types_.size()); }
  bool contains(std::int32_t id) const { return id >= 0 && id < size(); }
  /// As in the file: byte-level BPE writes a blank as U+0120, SentencePiece as U+2581.
  /// Errors  precondition for an id outside [0, size()); so do the two below.
  std::string_view text(std::int32_t id) const {
    check(id);
    return std::string_view(texts_).substr(begins_[std::size_t(id)], begins_[std::size_t(id) + 1] - begins_[std::size_t(id)]);
  }
  TokenType type(std::int32_t id) const { return check(id), types_[std::size_t(id)]; }
  float score(std::int32_t id) const { return check(id), scores_.empty() ? 0.f : scores_[std::size_t(id)]; }
  /// The first token with this text, or -1.
  std::int32_t find(std::string_view text) const;

  /// Ids, or -1. `eot` ends a turn of a chat; where the file does not name it, it is found by its usual texts.
  std::int32_t bos() const { return bos_; }
  std::int32_t eos() const { return eos_; }
  std::int32_t eot() const { return eot_; }
  std::int32_t unk() const { return unk_; }
  std::int32_t pad() const { return pad_; }
  /// In ascending order: eos, eot, and what else is known to end an answer, by text.
  std::span<std::int32_t const> end_of_generation() const { return ends_; }
  bool is_end_of_generation(std::int32_t id) const;

  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }
  bool add_space_prefix() const { return add_space_prefix_; }
  /// Blanks in texts of tokens are U+2581, and U+2581 in a text is a blank: the rule of SentencePiece.
  bool blank_is_u2581() const { return blank_is_u2581_; }

 private:
  void check(std::int32_t id) const {
    if (!contains(id)) throw Error(Errc::precondition, concat("token ", id, " is not in a vocabulary of ", size()));
  }
  void take_table(VocabData const& data);
  void build_index();
  void take_ids(VocabData const& data);
  void find_ends(std::int32_t eom);
  struct Slot {
    std::int32_t id = -1;    // -1: free
    std::uint32_t hash = 0;  // the high half: spares most comparisons of texts
  };
  std::size_t slot(std::string_view text, std::size_t hash) const;

  std::string texts_;                  // one after another
  std::vector<std::uint32_t> begins_;  // size() + 1
  std::vector<TokenType> types_;
  std::vector<float> scores_;
  std::vector<Slot> index_;  // at most half full
  std::vector<std::int32_t> ends_;
  std::int32_t bos_ = -1, eos_ = -1, eot_ = -1, unk_ = -1, pad_ = -1;
  bool add_bos_ = false, add_eos_ = false, add_space_prefix_ = false, blank_is_u2581_ = false;
};

}  // namespace tiered
