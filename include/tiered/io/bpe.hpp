/// Byte-level byte pair encoding, the tokeniser of GPT-2, Llama 3, Qwen, SmolLM and DeepSeek. The only header that includes PCRE2.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#ifndef PCRE2_CODE_UNIT_WIDTH
#define PCRE2_CODE_UNIT_WIDTH 8
#endif
#include <pcre2.h>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/flat_map.hpp"
#include "tiered/io/detail/pair_queue.hpp"
#include "tiered/io/detail/printable.hpp"
#include "tiered/io/pre_tokenizer.hpp"
#include "tiered/io/utf8.hpp"
#include "tiered/io/vocab.hpp"

namespace tiered {
namespace detail {

/// `\s` of the published patterns is White_Space. PCRE2's own takes U+180E too, and before 10.40 it does not know \p{White_Space}.
inline std::string spell_out_blanks(std::string_view pattern) {
  static constexpr std::string_view blanks = R"(\t-\r\x{85}\p{Z})";
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    char const c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      char const escaped = pattern[++i];
      if (escaped == 's') {
        out += in_class ? std::string(blanks) : concat('[', blanks, ']');
      } else if (escaped == 'S' && !in_class) {
        out += concat("[^", blanks, ']');
      } else {
        out += c, out += escaped;
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

/// One compiled pattern. Matching is const: any number of threads may do it, each with match data of its own.
class Regex {
 public:
  struct FreeMatch {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  using Match = std::unique_ptr<pcre2_match_data, FreeMatch>;

  /// `use_jit`: off for tests of the interpreter, which is what runs where a system forbids writable code.
  explicit Regex(std::string_view pattern, bool use_jit = true) {
    std::string const text = spell_out_blanks(pattern);
    int error = 0;
    PCRE2_SIZE where = 0;
    std::uint32_t const options = PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY | PCRE2_NO_AUTO_CAPTURE;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &where, nullptr));
    if (!code_)
      throw Error(Errc::unsupported, concat("PCRE2 refuses the pattern ", printable(text, 200), " at ", where, ": error ", error));
    if (use_jit) pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE);
    limits_.reset(pcre2_match_context_create(nullptr));
    if (!limits_) throw Error(Errc::out_of_memory, "PCRE2 has no memory for a match context");
    // The limits guard against patterns of strangers. Ours walk a long run of characters once, which takes a step for each.
    pcre2_set_match_limit(limits_.get(), 0xffffffffu);
    pcre2_set_heap_limit(limits_.get(), 0xffffffffu);
  }

  static Match new_match() {
    Match match(pcre2_match_data_create(1, nullptr));
    if (!match) throw Error(Errc::out_of_memory, "PCRE2 has no memory for match data");
    return match;
  }

  /// The first match at or after `from`, as offsets in `text` (valid UTF-8); false where there is none.
  bool find(std::string_view text, std::size_t from, pcre2_match_data* match, std::size_t& begin, std::size_t& end) const {
    int const n =
        pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from, PCRE2_NO_UTF_CHECK, match, limits_.get());
    if (n == PCRE2_ERROR_NOMATCH) return false;
    if (n < 0) throw Error(Errc::unsupported, concat("PCRE2 gave up on ", text.size(), " bytes of text at ", from, ": error ", n));
    PCRE2_SIZE const* const range = pcre2_get_ovector_pointer(match);
    begin = range[0], end = range[1];
    return true;
  }

 private:
  struct FreeCode {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  };
  struct FreeContext {
    void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  };
  std::unique_ptr<pcre2_code, FreeCode> code_;
  std::unique_ptr<pcre2_match_context, FreeContext> limits_;
};

/// Cuts text into words by the patterns of a PreTokenizer. Bytes that are not UTF-8 are words of their own, run by run.
class WordSplitter {
 public:
  explicit WordSplitter(PreTokenizer const& pre, bool use_jit = true) {
    for (std::string_view const pattern : pre.patterns) patterns_.emplace_back(pattern, use_jit);
  }

  /// Replaces `words` by pieces of `text` in order; together they are all of it.
  void split(std::string_view text, std::vector<std::string_view>& words) const {
    words.clear();
    split_at_invalid(text, words);
    Regex::Match const match = Regex::new_match();
    std::vector<std::string_view> pieces;
    for (Regex const& pattern : patterns_) {
      std::swap(words, pieces);
      words.clear();
      for (std::string_view const piece : pieces) isolate(pattern, piece, match.get(), words);
    }
  }

 private:
  static void split_at_invalid(std::string_view text, std::vector<std::string_view>& pieces) {
    for (std::size_t at = 0; at < text.size();) {
      std::size_t n = valid_utf8_bytes(text, at);
      if (n == 0) {
        while (at + n < text.size() && !read_utf8(text, at + n).valid) ++n;
      }
      pieces.push_back(text.substr(at, n));
      at += n;
    }
  }
  static void isolate(Regex const& pattern, std::string_view piece, pcre2_match_data* match, std::vector<std::string_view>& out) {
    if (!read_utf8(piece, 0).valid) {
      out.push_back(piece);
      return;
    }
    std::size_t done = 0, begin = 0, end = 0;
    while (done < piece.size() && pattern.find(piece, done, match, begin, end)) {
      if (end == begin) break;  // no pattern of ours matches nothing
      if (begin > done) out.push_back(piece.substr(done, begin - done));
      out.push_back(piece.substr(begin, end - begin));
      done = end;
    }
    if (done < piece.size()) out.push_back(piece.substr(done));
  }

  std::vector<Regex> patterns_;
};

/// GPT-2's way to write bytes as printable characters: what is printable in Latin-1 stands for itself, the others for U+0100 and up.
struct ByteAlphabet {
  std::array<char16_t, 256> character{};
  std::array<std::int16_t, 0x144> byte{};  // by character; -1: no byte

  constexpr ByteAlphabet() {
    for (std::int16_t& b : byte) b = -1;
    char16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      bool const printable = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      character[std::size_t(b)] = printable ? char16_t(b) : next++;
      byte[character[std::size_t(b)]] = std::int16_t(b);
    }
  }
};
inline constexpr ByteAlphabet byte_alphabet{};

}  // namespace detail

/// Words by regular expressions, then, inside each word, the best-ranked pair of neighbours is joined until none is left.
class BytePairModel {
 public:
  /// Errors  unsupported for a pre-tokeniser that is not known, by name; bad_file for merges that are not two texts.
  BytePairModel(std::shared_ptr<Vocab const> vocab, VocabData const& data) : BytePairModel(std::move(vocab), data, require_pre(data.pre)) {}

  /// Appends the ids of plain text, any bytes. A byte that has no token gives `unk` where the vocabulary has one, otherwise nothing:
  /// some vocabularies lack control characters, and bytes that no valid UTF-8 contains.
  void encode(std::string_view text, bool after_special, std::vector<std::int32_t>& ids) const;
  /// Appends the bytes that a normal token stands for.
  void append_bytes(std::int32_t id, std::string& bytes) const;

 private:
  struct Symbol {
    std::int32_t id = -1;
    std::int32_t prev = -1, next = -1;  // -1: none
  };
  struct Pair {               // two neighbours that may be joined
    std::uint64_t order = 0;  // rank, then position of the left one
    std::int32_t left = -1, right = -1;
    bool operator<(Pair const& other) const { return order < other.order; }
  };
  struct Scratch {
    std::vector<Symbol> symbols;
    detail::PairQueue<Pair> queue;
    std::string word;
  };

  BytePairModel(std::shared_ptr<Vocab const> vocab, VocabData const& data, PreTokenizer const& pre);
  static PreTokenizer const& require_pre(std::string_view name) {
    PreTokenizer const* const pre = find_pre_tokenizer(name);
    if (pre == nullptr) throw Error(Errc::unsupported, concat("the pre-tokeniser ", detail::printable(name), " is not known"));
    return *pre;
  }
  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return std::uint64_t(std::uint32_t(left)) << 32 | std::uint32_t(right);
  }
  void encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void join_pairs(Scratch& scratch) const;
  bool pair_at(std::vector<Symbol> const& symbols, std::int32_t left, Pair& pair) const;
  std::int32_t whole_word(std::string_view word, Scratch& scratch) const;

  std::shared_ptr<Vocab const> vocab_;
  detail::WordSplitter splitter_;
  std::array<std::int32_t, 256> byte_ids_{};
  detail::FlatMap merges_;             // (left id, right id) -> rank
  std::vector<std::int32_t> results_;  // by rank: id of both; walked nearly in order, so it is cheaper than a value in the map
  bool ignore_merges_;
};

inline BytePairModel::BytePairModel(std::shared_ptr<Vocab const> vocab, VocabData const& data, PreTokenizer const& pre)
    : vocab_(std::move(vocab)), splitter_(pre), ignore_merges_(pre.ignore_merges) {
  std::string text;
  for (std::size_t b = 0; b < 256; ++b) {
    text.clear();
    append_utf8(text, detail::byte_alphabet.character[b]);
    byte_ids_[b] = vocab_->find(text);
    if (byte_ids_[b] < 0 && vocab_->unk() >= 0 && vocab_->type(vocab_->unk()) == TokenType::unknown) byte_ids_[b] = vocab_->unk();
  }
  merges_.reserve(data.merges.size());
  results_.reserve(data.merges.size());
  for (std::size_t rank = 0; rank < data.merges.size(); ++rank) {
    std::string_view const merge = data.merges[rank];
    std::size_t const blank = merge.find(' ', 1);
    if (blank == std::string_view::npos || blank + 1 == merge.size()) {
      throw Error(Errc::bad_file, concat("merge ", rank, " is not two texts: ", detail::printable(merge)));
    }
    std::string_view const left = merge.substr(0, blank), right = merge.substr(blank + 1);
    text.assign(left).append(right);
    std::int32_t const left_id = vocab_->find(left), right_id = vocab_->find(right), id = vocab_->find(text);
    results_.push_back(id);
    if (left_id >= 0 && right_id >= 0 && id >= 0) merges_.insert(key(left_id, right_id), rank);  // others can never be used
  }
}

inline void BytePairModel::encode(std::string_view text, bool, std::vector<std::int32_t>& ids) const {
  expects(text.size() < 0x7fffffff, "BytePairModel::encode: a text has at most 2^31 - 2 bytes");
  std::vector<std::string_view> words;
  splitter_.split(text, words);
  Scratch scratch;
  for (std::string_view const word : words) encode_word(word, scratch, ids);
}

inline std::int32_t BytePairModel::whole_word(std::string_view word, Scratch& scratch) const {
  scratch.word.clear();
  for (char const c : word) append_utf8(scratch.word, detail::byte_alphabet.character[static_cast<unsigned char>(c)]);
  return vocab_->find(scratch.word);
}

inline void BytePairModel::encode_word(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (ignore_merges_) {
    if (std::int32_t const id = whole_word(word, scratch); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  for (char const c : word) {
    std::int32_t const id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0) continue;
    auto const at = std::int32_t(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  join_pairs(scratch);
  for (std::int32_t at = 0; at >= 0; at = symbols[std::size_t(at)].next) ids.push_back(symbols[std::size_t(at)].id);
}

/// The pair of the symbol at `left` and its right neighbour, if there is one and they can be joined.
inline bool BytePairModel::pair_at(std::vector<Symbol> const& symbols, std::int32_t left, Pair& pair) const {
  if (left < 0) return false;
  Symbol const& symbol = symbols[std::size_t(left)];
  if (symbol.next < 0) return false;
  std::int32_t const right_id = symbols[std::size_t(symbol.next)].id;
  std::uint64_t const* const rank = merges_.find(key(symbol.id, right_id));
  if (rank == nullptr) return false;
  pair = {*rank << 32 | std::uint32_t(left), symbol.id, right_id};
  return true;
}

/// O(n log n) in the length of the word. Pairs that no longer stand there are skipped when they come up.
inline void BytePairModel::join_pairs(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  Pair pair;
  queue.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (pair_at(symbols, std::int32_t(i), pair)) queue.add(pair);
  }
  queue.start();
  while (!queue.empty()) {
    pair = queue.pop();
    auto const at = std::int32_t(std::uint32_t(pair.order));
    Symbol& left = symbols[std::size_t(at)];
    if (left.id != pair.left || left.next < 0) continue;
    Symbol& right = symbols[std::size_t(left.next)];
    if (right.id != pair.right) continue;
    left.id = results_[std::size_t(pair.order >> 32)];
    right.id = -1;  // no longer a symbol
    left.next = right.next;
    if (left.next >= 0) symbols[std::size_t(left.next)].prev = at;
    for (std::int32_t const i : {left.prev, at}) {
      if (pair_at(symbols, i, pair)) queue.push(pair);
    }
  }
}

inline void BytePairModel::append_bytes(std::int32_t id, std::string& bytes) const {
  std::string_view const text = vocab_->text(id);
  std::size_t const before = bytes.size();
  for (std::size_t at = 0; at < text.size();) {
    Utf8Char const c = read_utf8(text, at);
    int const byte = c.valid && c.code_point < detail::byte_alphabet.byte.size() ? detail::byte_alphabet.byte[c.code_point] : -1;
    if (byte < 0) {  // a token outside the alphabet: its text is meant as it is
      bytes.resize(before);
      bytes += text;
      return;
    }
    bytes += static_cast<char>(byte);
    at += c.length;
  }
}

}  // namespace tiered
