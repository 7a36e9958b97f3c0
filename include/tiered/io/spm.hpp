/// SentencePiece's BPE, the tokeniser of Llama 2, Mistral, Phi-3 and Gemma.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/detail/flat_map.hpp"
#include "tiered/io/detail/pair_queue.hpp"
#include "tiered/io/utf8.hpp"
#include "tiered/io/vocab.hpp"

namespace tiered {
namespace detail {

inline constexpr std::string_view u2581 = "\xe2\x96\x81";  // what SentencePiece writes for a blank

inline std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

/// The byte that "<0x0A>" stands for, or -1.
constexpr int byte_of_token(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int value = 0;
  for (char const c : text.substr(3, 2)) {
    int const digit = c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return -1;
    value = value * 16 + digit;
  }
  return value;
}

}  // namespace detail

/// Characters are joined, neighbour with neighbour, to the piece of the highest score until no two make a piece
/// (google/sentencepiece, model type BPE). Blanks count as U+2581; what has no piece is spelled in byte tokens.
class SentencePieceModel {
 public:
  /// Errors  bad_file where the scores are missing.
  SentencePieceModel(std::shared_ptr<Vocab const> vocab, VocabData const& data);

  /// Appends the ids of plain text, any bytes. At the start and after a special token (`after_special`) a blank is put in front where
  /// the vocabulary says so. A character without piece or byte tokens gives `unk`, or nothing where there is none.
  void encode(std::string_view text, bool after_special, std::vector<std::int32_t>& ids) const;
  /// Appends the bytes that a normal, unused or byte token stands for.
  void append_bytes(std::int32_t id, std::string& bytes) const;

 private:
  struct Symbol {
    std::uint32_t begin = 0, bytes = 0;  // in Scratch::text; 0 bytes: joined to its left neighbour
    std::int32_t prev = -1, next = -1;   // -1: none
  };
  struct Pair {  // two neighbours that make a piece
    float score = 0;
    std::int32_t left = -1;
    std::uint32_t bytes = 0;  // of both; differs once one of them was joined elsewhere
    bool operator<(Pair const& other) const { return score > other.score || (score == other.score && left < other.left); }
  };
  struct Scratch {
    std::string text;
    std::vector<Symbol> symbols;
    detail::PairQueue<Pair> queue;
    detail::FlatMap cuts;  // id of an unused piece -> bytes of the left one of the two that it was last seen as
  };

  static constexpr std::string_view blank = detail::u2581;
  /// The piece's id where the algorithm may make it: control, unknown and byte tokens only look like text.
  std::int32_t piece(std::string_view text) const {
    if (text.size() > longest_piece_) return -1;
    std::int32_t const id = vocab_->find(text);
    if (id < 0) return -1;
    return is_text(vocab_->type(id)) ? id : -1;
  }
  static bool is_text(TokenType type) { return type == TokenType::normal || type == TokenType::user_defined || type == TokenType::unused; }
  void encode_words(Scratch& scratch, std::vector<std::int32_t>& ids) const;
  void encode_word(Scratch& scratch, std::size_t begin, std::size_t end, std::vector<std::int32_t>& ids) const;
  bool pair_at(Scratch& scratch, std::int32_t left, Pair& pair) const;
  void join_pairs(Scratch& scratch) const;
  void emit(Scratch const& scratch, std::string_view text, std::vector<std::int32_t>& ids) const;

  std::shared_ptr<Vocab const> vocab_;
  std::array<std::int32_t, 256> byte_ids_{};
  std::size_t longest_piece_ = 0;
  bool has_unused_ = false;
  bool words_are_separate_ = true;  // no piece has a blank after another character, so words cannot influence each other
};

inline SentencePieceModel::SentencePieceModel(std::shared_ptr<Vocab const> vocab, VocabData const& data) : vocab_(std::move(vocab)) {
  if (data.scores.empty()) throw Error(Errc::bad_file, "a SentencePiece vocabulary needs scores, and the file has none");
  byte_ids_.fill(vocab_->unk());
  for (std::int32_t id = 0; id < vocab_->size(); ++id) {
    std::string_view const text = vocab_->text(id);
    TokenType const type = vocab_->type(id);
    if (type == TokenType::byte) {
      if (int const byte = detail::byte_of_token(text); byte >= 0) byte_ids_[std::size_t(byte)] = id;
    }
    if (type == TokenType::unused) {
      has_unused_ = true;
      words_are_separate_ = false;  // through Scratch::cuts
    }
    if (vocab_->score(id) != vocab_->score(id)) throw Error(Errc::bad_file, concat("the score of token ", id, " is not a number"));
    if (!is_text(type)) continue;
    longest_piece_ = std::max(longest_piece_, text.size());
    for (std::size_t at = text.find(blank, 1); at != std::string_view::npos; at = text.find(blank, at + 1)) {
      if (at < blank.size() || text.substr(at - blank.size(), blank.size()) != blank) words_are_separate_ = false;
    }
  }
}

inline void SentencePieceModel::encode(std::string_view text, bool after_special, std::vector<std::int32_t>& ids) const {
  if (text.empty()) return;
  expects(text.size() < 0x7fffffff / blank.size() - 1, "SentencePieceModel::encode: a text has less than 700 MB");
  Scratch scratch;
  if (after_special && vocab_->add_space_prefix()) scratch.text = blank;
  scratch.text += detail::replace_all(text, " ", blank);
  encode_words(scratch, ids);
}

/// Word by word where that gives the same: a short heap stays in the cache.
inline void SentencePieceModel::encode_words(Scratch& scratch, std::vector<std::int32_t>& ids) const {
  std::string_view const text = scratch.text;
  std::size_t begin = 0;
  while (words_are_separate_ && begin < text.size()) {
    std::size_t at = begin;
    while (text.substr(at, blank.size()) == blank) at += blank.size();  // blanks in front belong to the word
    std::size_t const end = std::min(text.find(blank, at), text.size());
    encode_word(scratch, begin, end, ids);
    begin = end;
  }
  if (begin < text.size()) encode_word(scratch, begin, text.size(), ids);
}

inline void SentencePieceModel::encode_word(Scratch& scratch, std::size_t begin, std::size_t end, std::vector<std::int32_t>& ids) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  std::string_view const text = std::string_view(scratch.text).substr(0, end);
  for (std::size_t at = begin; at < end;) {
    std::uint32_t const bytes = read_utf8(text, at).length;
    auto const i = std::int32_t(symbols.size());
    symbols.push_back({std::uint32_t(at), bytes, i - 1, i + 1});
    at += bytes;
  }
  symbols.back().next = -1;
  join_pairs(scratch);
  for (std::int32_t at = 0; at >= 0; at = symbols[std::size_t(at)].next) {
    Symbol const& symbol = symbols[std::size_t(at)];
    emit(scratch, text.substr(symbol.begin, symbol.bytes), ids);
  }
}

/// The pair of the symbol at `left` and its right neighbour, if there is one and they make a piece.
inline bool SentencePieceModel::pair_at(Scratch& scratch, std::int32_t left, Pair& pair) const {
  if (left < 0) return false;
  Symbol const& symbol = scratch.symbols[std::size_t(left)];
  if (symbol.next < 0) return false;
  std::uint32_t const bytes = symbol.bytes + scratch.symbols[std::size_t(symbol.next)].bytes;
  std::string_view const text = std::string_view(scratch.text).substr(symbol.begin, bytes);
  std::int32_t const id = piece(text);
  if (id < 0) return false;
  if (has_unused_ && vocab_->type(id) == TokenType::unused) scratch.cuts.set(std::uint64_t(id), symbol.bytes);
  pair = {vocab_->score(id), left, bytes};
  return true;
}

/// O(n log n) in the length of the word. Pairs that no longer stand there are skipped when they come up.
inline void SentencePieceModel::join_pairs(Scratch& scratch) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  Pair pair;
  queue.clear();
  for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (pair_at(scratch, std::int32_t(i), pair)) queue.add(pair);
  }
  queue.start();
  while (!queue.empty()) {
    pair = queue.pop();
    std::int32_t const at = pair.left;
    Symbol& left = symbols[std::size_t(at)];
    if (left.bytes == 0 || left.next < 0) continue;
    Symbol& right = symbols[std::size_t(left.next)];
    if (left.bytes + right.bytes != pair.bytes) continue;
    left.bytes = pair.bytes;
    right.bytes = 0;
    left.next = right.next;
    if (left.next >= 0) symbols[std::size_t(left.next)].prev = at;
    for (std::int32_t const i : {left.prev, at}) {
      if (pair_at(scratch, i, pair)) queue.push(pair);
    }
  }
}

/// One finished symbol. An unused piece falls back into the two it was joined from, and so on.
inline void SentencePieceModel::emit(Scratch const& scratch, std::string_view text, std::vector<std::int32_t>& ids) const {
  std::int32_t const whole = piece(text);
  if (whole >= 0 && vocab_->type(whole) != TokenType::unused) {
    ids.push_back(whole);
    return;
  }
  std::vector<std::string_view> pending{text};
  while (!pending.empty()) {
    std::string_view const part = pending.back();
    pending.pop_back();
    std::int32_t const id = piece(part);
    if (id >= 0 && vocab_->type(id) == TokenType::unused) {
      if (std::uint64_t const* const cut = scratch.cuts.find(std::uint64_t(id))) {
        pending.push_back(part.substr(std::size_t(*cut)));
        pending.push_back(part.substr(0, std::size_t(*cut)));
        continue;
      }
    }
    if (id >= 0) {
      ids.push_back(id);
      continue;
    }
    bool is_unknown = false;
    for (char const c : part) {
      std::int32_t const byte_id = byte_ids_[static_cast<unsigned char>(c)];
      if (byte_id < 0 || (byte_id == vocab_->unk() && std::exchange(is_unknown, true))) continue;
      ids.push_back(byte_id);
    }
  }
}

inline void SentencePieceModel::append_bytes(std::int32_t id, std::string& bytes) const {
  std::string_view const text = vocab_->text(id);
  if (vocab_->type(id) == TokenType::byte) {
    if (int const byte = detail::byte_of_token(text); byte >= 0) {
      bytes += static_cast<char>(byte);
      return;
    }
  }
  bytes += detail::replace_all(text, blank, " ");
}

}  // namespace tiered
