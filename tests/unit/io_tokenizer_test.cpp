#include "tiered/io/tokenizer.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_bytes.hpp"
#include "tiered/io/bpe.hpp"
#include "tiered/io/spm.hpp"
#include "tiered/io/utf8.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;
using tiered_test::error_of;

namespace {

using Ids = std::vector<std::int32_t>;

/// Owns the texts that a VocabData refers to.
struct OwnedVocab {
  std::vector<std::string> tokens, merges;
  VocabData data;
  VocabData const& borrow() {
    data.tokens.assign(tokens.begin(), tokens.end());
    data.merges.assign(merges.begin(), merges.end());
    return data;
  }
  std::int32_t add(std::string text, TokenType type = TokenType::normal, float score = 0) {
    tokens.push_back(std::move(text));
    data.types.push_back(std::int32_t(type));
    if (data.model == "llama") data.scores.push_back(score);
    return std::int32_t(tokens.size()) - 1;
  }
};

std::string alphabet_text(std::string_view bytes) {
  std::string text;
  for (char const c : bytes) append_utf8(text, detail::byte_alphabet.character[static_cast<unsigned char>(c)]);
  return text;
}

/// All 256 bytes as tokens 0 to 255, then what the merges make, in their order.
OwnedVocab bpe_vocab(std::vector<std::pair<std::string, std::string>> const& merges, std::string_view pre = "gpt-2") {
  OwnedVocab vocab;
  vocab.data.model = "gpt2";
  vocab.data.pre = pre;
  for (int b = 0; b < 256; ++b) vocab.add(alphabet_text(std::string(1, static_cast<char>(b))));
  for (auto const& [left, right] : merges) {
    vocab.merges.push_back(alphabet_text(left) + ' ' + alphabet_text(right));
    vocab.add(alphabet_text(left + right));
  }
  return vocab;
}

/// Bytes as tokens 3 to 258, behind unk, bos and eos; then characters and pieces.
OwnedVocab spm_vocab(std::vector<std::pair<std::string, float>> const& pieces) {
  OwnedVocab vocab;
  vocab.data.model = "llama";
  vocab.add("<unk>", TokenType::unknown);
  vocab.add("<s>", TokenType::control);
  vocab.add("</s>", TokenType::control);
  static constexpr char digits[] = "0123456789ABCDEF";
  for (std::size_t b = 0; b < 256; ++b) vocab.add(std::string("<0x") + digits[b >> 4] + digits[b & 15] + '>', TokenType::byte);
  for (auto const& [text, score] : pieces) vocab.add(text, TokenType::normal, score);
  return vocab;
}

/// Tokens of an encoding as text, with | between.
std::string pieces(Tokenizer const& tokenizer, std::string_view text, EncodeOptions options = {.add_special = false}) {
  std::string joined;
  for (std::int32_t const id : tokenizer.encode(text, options)) {
    joined += joined.empty() ? "" : "|";
    joined += tokenizer.token_text(id);
  }
  return joined;
}

std::string words(std::string_view pre, std::string_view text) {
  std::vector<std::string_view> split;
  detail::WordSplitter(*find_pre_tokenizer(pre)).split(text, split);
  std::string joined;
  for (std::string_view const word : split) {
    joined += joined.empty() ? "" : "|";
    joined += word;
  }
  return joined;
}

bool is_between_characters(std::string_view text, std::size_t offset) {
  std::size_t at = 0;
  while (at < offset) at += read_utf8(text, at).length;
  return at == offset;
}

std::string random_bytes(SplitMix64& random, std::size_t n) {
  std::string bytes;
  while (bytes.size() < n) bytes += static_cast<char>(random.below(256));
  return bytes;
}

}  // namespace

TEST_CASE("read_utf8 takes exactly what Unicode allows") {
  for (char32_t c : {0x0u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu, 0x10000u, 0x10ffffu}) {
    std::string text;
    append_utf8(text, c);
    Utf8Char const read = read_utf8(text, 0);
    CHECK(read.valid);
    CHECK(read.code_point == c);
    CHECK(read.length == text.size());
    for (std::size_t n = 1; n < text.size(); ++n) {
      CHECK_FALSE(read_utf8(text.substr(0, n), 0).valid);
      CHECK(unfinished_utf8_bytes(text.substr(0, n)) == n);
    }
    CHECK(unfinished_utf8_bytes(text) == 0);
  }
  for (char const* const bad : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                                "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe4\x41\x41", "\xf0\x9f\x98\x41"}) {
    INFO(detail::printable(bad));
    Utf8Char const read = read_utf8(bad, 0);
    CHECK_FALSE(read.valid);
    CHECK(read.length == 1);
    CHECK(read.code_point == 0xfffd);
    CHECK(valid_utf8_bytes(bad, 0) == 0);
  }
  CHECK(unfinished_utf8_bytes("a\xe0\x80") == 0);  // no character begins so
  CHECK(unfinished_utf8_bytes("\x80\x80\x80\x80") == 0);
  CHECK(valid_utf8_bytes("a\xc3\xa9\xffz", 0) == 3);
}

TEST_CASE("FlatMap finds what was inserted and nothing else") {
  detail::FlatMap map;
  CHECK(map.find(1) == nullptr);
  std::map<std::uint64_t, std::uint64_t> expected;
  SplitMix64 random(5);
  for (int i = 0; i < 5000; ++i) {
    std::uint64_t const key = random.below(4000) << (random.below(2) * 32);
    CHECK(map.insert(key, std::uint64_t(i)) == expected.emplace(key, std::uint64_t(i)).second);
  }
  CHECK(map.size() == expected.size());
  for (std::uint64_t key = 0; key < 4000; ++key) {
    auto const it = expected.find(key);
    auto const* const found = map.find(key);
    REQUIRE((found != nullptr) == (it != expected.end()));
    if (found != nullptr) REQUIRE(*found == it->second);
  }
}

TEST_CASE("PairQueue gives the least first, whenever it came") {
  detail::PairQueue<int> queue;
  SplitMix64 random(9);
  std::multimap<int, int> left;
  for (int i = 0; i < 200; ++i) {
    int const value = int(random.below(100));
    queue.add(value);
    left.emplace(value, 0);
  }
  queue.start();
  while (!left.empty()) {
    REQUIRE(queue.pop() == left.begin()->first);
    left.erase(left.begin());
    if (random.below(3) == 0) {
      int const value = int(random.below(150));
      queue.push(value);
      left.emplace(value, 0);
    }
  }
  CHECK(queue.empty());
}

TEST_CASE("pre-tokenisers cut words as their patterns say") {
  CHECK(words("gpt-2", "Hello world  it's 123!\n\n x") == "Hello| world| | it|'s| 123|!|\n\n| x");
  CHECK(words("llama-bpe", "IT'S 12345,\n\nok") == "IT|'S| |123|45|,\n\n|ok");
  CHECK(words("qwen2", "IT'S 123") == "IT|'S| |1|2|3");
  CHECK(words("deepseek-r1-qwen", "IT'S 123") == words("qwen2", "IT'S 123"));
  CHECK(words("smollm", "a 12b") == "a| |1|2|b");
  CHECK(words("deepseek-llm", "ab  中文 x \n") == "ab|  |中文| x| |\n");
  CHECK(words("default", "a+b 1234") == "a|+|b| |123|4");
  CHECK(words("tekken", "HelloWorld ABCdef 12") == "Hello|World| ABCdef| |1|2");
  // White_Space and nothing else: U+180E is a format character, U+0085 a blank.
  CHECK(words("gpt-2", "a\u180e\u180eb") == "a|\u180e\u180e|b");
  CHECK(words("gpt-2", "a\u0085\u0085b") == "a|\u0085|\u0085|b");
  // Bytes that are no UTF-8 stand alone, run by run.
  CHECK(words("gpt-2",
              "ab\xff\xfe"
              "cd\xc3") == "ab|\xff\xfe|cd|\xc3");
}

TEST_CASE("every pre-tokeniser compiles, keeps all bytes, and gives the same without JIT") {
  SplitMix64 random(3);
  for (PreTokenizer const& pre : detail::pre_tokenizers) {
    INFO(std::string(pre.name));
    detail::WordSplitter const fast(pre), slow(pre, false);
    for (int round = 0; round < 40; ++round) {
      std::string text = random_bytes(random, std::size_t(round));
      for (int i = 0; i < round; ++i) append_utf8(text, char32_t(random.below(0x3100)));
      std::vector<std::string_view> a, b;
      fast.split(text, a);
      slow.split(text, b);
      CHECK(a == b);
      std::string joined;
      for (std::string_view const word : a) joined += word;
      CHECK(joined == text);
    }
    std::string const long_run = "x" + std::string(100000, ' ') + "y";
    std::vector<std::string_view> a, b;
    fast.split(long_run, a);
    slow.split(long_run, b);  // PCRE2's default match limit is lower than this
    CHECK(a == b);
  }
}

TEST_CASE("byte pairs are joined in the order of the merges, leftmost first") {
  auto vocab = bpe_vocab({{"a", "b"}, {"b", "c"}, {"ab", "c"}, {"a", "a"}, {"aa", "a"}, {" ", "a"}});
  Tokenizer const tokenizer = make_tokenizer(vocab.borrow());
  CHECK(pieces(tokenizer, "abc") == "abc");
  CHECK(pieces(tokenizer, "bcabc") == "bc|abc");
  CHECK(pieces(tokenizer, "aaaa") == "aa|aa");
  CHECK(pieces(tokenizer, "aaaaa") == "aa|aaa");
  CHECK(pieces(tokenizer, "b a") == "b|Ġa");
  CHECK(pieces(tokenizer, "é") == "Ã|©");
  CHECK(tokenizer.encode("").empty());
}

TEST_CASE("joining with a queue equals joining step by step") {
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::string> texts{"a", "b", "c"};
  SplitMix64 random(11);
  for (int i = 0; i < 60; ++i) {
    std::string const left = texts[random.below(texts.size())], right = texts[random.below(texts.size())];
    if (left.size() + right.size() > 8 || std::find(texts.begin(), texts.end(), left + right) != texts.end()) continue;
    merges.emplace_back(left, right);
    texts.push_back(left + right);
  }
  REQUIRE(merges.size() > 20);
  auto vocab = bpe_vocab(merges);
  Tokenizer const tokenizer = make_tokenizer(vocab.borrow());
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> symbols;
    std::string text;
    for (std::uint64_t n = random.below(60) + 1; n > 0; --n) text += static_cast<char>('a' + random.below(3));
    for (char const c : text) symbols.emplace_back(1, c);
    for (;;) {  // the definition: the best-ranked pair, of equal ones the leftmost
      std::size_t best = merges.size(), where = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        auto const it = std::find(merges.begin(), merges.end(), std::pair(symbols[i], symbols[i + 1]));
        if (std::size_t(it - merges.begin()) < best) best = std::size_t(it - merges.begin()), where = i;
      }
      if (best == merges.size()) break;
      symbols[where] += symbols[where + 1];
      symbols.erase(symbols.begin() + std::ptrdiff_t(where) + 1);
    }
    std::string expected;
    for (std::string const& symbol : symbols) expected += (expected.empty() ? "" : "|") + symbol;
    REQUIRE(pieces(tokenizer, text) == expected);
  }
}

TEST_CASE("llama-bpe takes a word that is a token without merging") {
  auto vocab = bpe_vocab({{"a", "b"}}, "llama-bpe");
  vocab.add("xyz");  // no merges lead there
  CHECK(pieces(make_tokenizer(vocab.borrow()), "xyz") == "xyz");
  vocab.data.pre = "qwen2";
  CHECK(pieces(make_tokenizer(vocab.borrow()), "xyz") == "x|y|z");
}

TEST_CASE("control tokens are parsed on request, user-defined ones always, the longest first") {
  auto vocab = bpe_vocab({});
  vocab.add("<|im_end|>", TokenType::control);
  vocab.add("<|im_end|>>", TokenType::control);
  vocab.add("<x>", TokenType::user_defined);
  Tokenizer const tokenizer = make_tokenizer(vocab.borrow());
  EncodeOptions const parse{.add_special = false, .parse_special = true};
  CHECK(pieces(tokenizer, "a<|im_end|>b", parse) == "a|<|im_end|>|b");
  CHECK(pieces(tokenizer, "<|im_end|>>", parse) == "<|im_end|>>");
  CHECK(pieces(tokenizer, "<|im_end|", parse) == "<|||i|m|_|e|n|d||");
  CHECK(pieces(tokenizer, "a<|im_end|>") == "a|<|||i|m|_|e|n|d|||>");
  CHECK(pieces(tokenizer, "a<x><x>") == "a|<x>|<x>");
  // A control token decodes to nothing unless asked for.
  Ids const ids = tokenizer.encode("a<|im_end|><x>", parse);
  CHECK(tokenizer.decode(ids) == "a<x>");
  CHECK(tokenizer.decode(ids, {.show_special = true}) == "a<|im_end|><x>");
}

TEST_CASE("bos and eos are added where the file says so") {
  auto vocab = bpe_vocab({});
  std::int32_t const bos = vocab.add("<bos>", TokenType::control), eos = vocab.add("<eos>", TokenType::control);
  std::int32_t const a = 'a';
  CHECK(make_tokenizer(vocab.borrow()).encode("a") == Ids{a});
  CHECK(make_tokenizer(vocab.borrow()).bos() == -1);
  vocab.data.bos = bos, vocab.data.eos = eos;
  CHECK(make_tokenizer(vocab.borrow()).encode("a") == Ids{a});
  vocab.data.add_bos = true;
  CHECK(make_tokenizer(vocab.borrow()).encode("a") == Ids{bos, a});
  vocab.data.add_eos = true;
  CHECK(make_tokenizer(vocab.borrow()).encode("a") == Ids{bos, a, eos});
  CHECK(make_tokenizer(vocab.borrow()).encode("") == Ids{bos, eos});
  CHECK(make_tokenizer(vocab.borrow()).encode("a", {.add_special = false}) == Ids{a});
  // Llama 3's files do not say; its tokeniser always does.
  vocab.data.add_bos.reset(), vocab.data.add_eos.reset();
  vocab.data.pre = "llama-bpe";
  CHECK(make_tokenizer(vocab.borrow()).encode("a") == Ids{bos, a});
  vocab.data.add_bos = false;
  CHECK(make_tokenizer(vocab.borrow()).encode("a") == Ids{a});
}

TEST_CASE("SentencePiece joins by score, leftmost first, and spells the rest in bytes") {
  auto vocab =
      spm_vocab({{"▁", -10}, {"a", -11}, {"b", -12}, {"c", -13}, {"ab", -3}, {"bc", -2}, {"▁a", -4}, {"▁ab", -5}, {"cc", -6}, {"é", -7}});
  Tokenizer const tokenizer = make_tokenizer(vocab.borrow());
  CHECK(pieces(tokenizer, "abc") == "▁a|bc");
  CHECK(pieces(tokenizer, "ab") == "▁ab");
  CHECK(pieces(tokenizer, " ab") == "▁|▁ab");
  CHECK(pieces(tokenizer, "ccc") == "▁|cc|c");
  CHECK(pieces(tokenizer, "é") == "▁|é");
  CHECK(pieces(tokenizer, "ü\n") == "▁|<0xC3>|<0xBC>|<0x0A>");
  CHECK(pieces(tokenizer, "\xff") == "▁|<0xFF>");
  CHECK(tokenizer.encode("", {}) == Ids{1});
  CHECK(tokenizer.encode("ab", {})[0] == 1);
  // Pieces that only look like text are never made of text.
  CHECK(pieces(tokenizer, "<s>") == "▁|<0x3C>|<0x73>|<0x3E>");
  CHECK(pieces(tokenizer, "<s>ab", {.add_special = false, .parse_special = true}) == "<s>|▁ab");
  vocab.data.add_space_prefix = false;
  CHECK(pieces(make_tokenizer(vocab.borrow()), "ab c") == "ab|▁|c");
}

TEST_CASE("an unused SentencePiece token falls back into its parts") {
  auto vocab = spm_vocab({{"a", -9}, {"b", -9}, {"c", -9}, {"ab", -1}});
  std::int32_t const abc = vocab.add("abc", TokenType::unused, -2);
  vocab.add("abcabc", TokenType::unused, -3);
  vocab.data.add_space_prefix = false;
  CHECK(pieces(make_tokenizer(vocab.borrow()), "abc") == "ab|c");
  CHECK(pieces(make_tokenizer(vocab.borrow()), "abcabc") == "ab|c|ab|c");
  vocab.data.types[std::size_t(abc)] = std::int32_t(TokenType::normal);
  CHECK(pieces(make_tokenizer(vocab.borrow()), "abcabc") == "abc|abc");
}

TEST_CASE("a SentencePiece vocabulary without byte tokens uses unk, once for a character") {
  OwnedVocab vocab;
  vocab.data.model = "llama";
  vocab.add("<unk>", TokenType::unknown);
  vocab.add("a");
  vocab.data.add_space_prefix = false, vocab.data.add_bos = false;
  CHECK(make_tokenizer(vocab.borrow()).encode("a中a") == Ids{1, 0, 1});
}

TEST_CASE("pieces with blanks inside are found across words") {
  auto vocab = spm_vocab({{"▁", -10}, {"a", -11}, {"b", -12}, {"a▁", -1}, {"a▁b", -2}});
  vocab.data.add_space_prefix = false;
  CHECK(pieces(make_tokenizer(vocab.borrow()), "a b a") == "a▁b|▁|a");
}

TEST_CASE("the blank that SentencePiece puts in front is taken away from a whole text only") {
  auto vocab = spm_vocab({{"▁", -10}, {"a", -11}, {"▁a", -4}});
  Tokenizer const tokenizer = make_tokenizer(vocab.borrow());
  for (char const* const text : {"", "a", " a", "  a a", "\n", "a\xff"}) {
    CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
  }
  std::int32_t const piece = tokenizer.vocab().find("▁a");
  CHECK(tokenizer.decode(piece) == " a");
  CHECK(tokenizer.decode(Ids{1, piece, piece}) == "a a");
  StreamDecoder stream(tokenizer);
  CHECK(stream.push(piece) == " a");
}

TEST_CASE("user-defined SentencePiece tokens hold blanks in either spelling") {
  for (char const* const spelled : {"  ", "▁▁"}) {
    auto vocab = spm_vocab({{"▁", -10}, {"a", -11}});
    std::int32_t const two = vocab.add(spelled, TokenType::user_defined);
    vocab.data.add_space_prefix = false, vocab.data.add_bos = false;
    Tokenizer const tokenizer = make_tokenizer(vocab.borrow());
    CHECK(tokenizer.encode("  a").at(0) == two);
    CHECK(tokenizer.encode("▁▁a").at(0) == two);
    CHECK(tokenizer.decode(two) == "  ");
  }
}

TEST_CASE("any bytes survive the round trip, and a stream never cuts a character") {
  auto bpe = bpe_vocab({{"\xe4", "\xb8"}, {" ", "a"}, {"\x9f\x98", "\x80"}});
  auto spm = spm_vocab({{"▁", -10}, {"a", -11}, {"中", -12}, {"▁a", -1}});
  SplitMix64 random(17);
  for (Tokenizer const& tokenizer : {make_tokenizer(bpe.borrow()), make_tokenizer(spm.borrow())}) {
    for (int round = 0; round < 300; ++round) {
      std::string text;
      for (std::uint64_t n = random.below(20); n > 0; --n) {
        if (random.below(3) == 0) {
          text += random_bytes(random, 1 + std::size_t(random.below(3)));
        } else {
          append_utf8(text, random.below(2) == 0 ? char32_t(0x1f600 + random.below(50)) : char32_t(0x4e00 + random.below(100)));
        }
      }
      if (text.find("▁") != std::string::npos) continue;
      Ids const ids = tokenizer.encode(text);
      REQUIRE(tokenizer.decode(ids) == text);
      if (tokenizer.vocab().add_space_prefix() && !text.empty()) text.insert(0, 1, ' ');
      StreamDecoder stream(tokenizer);
      std::string streamed;
      for (std::int32_t const id : ids) {
        streamed += stream.push(id);
        REQUIRE(is_between_characters(text, streamed.size()));
      }
      streamed += stream.finish();
      REQUIRE(streamed == text);
      CHECK(stream.finish().empty());
    }
  }
}

TEST_CASE("a byte without a token is unk, or nothing") {
  OwnedVocab vocab;
  vocab.data.model = "gpt2";
  vocab.data.pre = "gpt-2";
  vocab.add("a");
  std::int32_t const unk = vocab.add("<unk>", TokenType::unknown);
  CHECK(make_tokenizer(vocab.borrow()).encode("ab") == Ids{0});
  vocab.data.unk = unk;
  CHECK(make_tokenizer(vocab.borrow()).encode("ab") == Ids{0, unk});
}

TEST_CASE("ends of generation are found by id and by text") {
  auto vocab = bpe_vocab({});
  std::int32_t const endoftext = vocab.add("<|endoftext|>", TokenType::control);
  std::int32_t const im_end = vocab.add("<|im_end|>", TokenType::normal);  // files with wrong types exist
  std::int32_t const tag = vocab.add("</s>", TokenType::user_defined);     // an HTML tag
  std::int32_t const other = vocab.add("<|other|>", TokenType::control);
  {
    Tokenizer const tokenizer = make_tokenizer(vocab.borrow());
    CHECK(tokenizer.eos() == -1);
    CHECK(tokenizer.eot() == im_end);
    CHECK(tokenizer.is_end_of_generation(endoftext));
    CHECK(tokenizer.is_end_of_generation(im_end));
    CHECK(tokenizer.vocab().type(im_end) == TokenType::control);
    CHECK_FALSE(tokenizer.is_end_of_generation(tag));
    CHECK_FALSE(tokenizer.is_end_of_generation(other));
    CHECK_FALSE(tokenizer.is_end_of_generation(-1));
    CHECK_FALSE(tokenizer.is_end_of_generation(1 << 30));
  }
  vocab.data.eos = other, vocab.data.eot = endoftext;
  Tokenizer const tokenizer = make_tokenizer(vocab.borrow());
  CHECK(tokenizer.eot() == endoftext);
  CHECK(tokenizer.is_end_of_generation(other));
  // In this family <|end|> closes a part of an answer, not the answer.
  auto harmony = bpe_vocab({});
  std::int32_t const end = harmony.add("<|end|>", TokenType::control);
  CHECK(make_tokenizer(harmony.borrow()).is_end_of_generation(end));
  std::int32_t const back = harmony.add("<|return|>", TokenType::control);
  harmony.add("<|call|>", TokenType::control);
  CHECK_FALSE(make_tokenizer(harmony.borrow()).is_end_of_generation(end));
  CHECK(make_tokenizer(harmony.borrow()).is_end_of_generation(back));
}

TEST_CASE("vocabularies that contradict themselves are refused with the numbers") {
  auto const refusal = [](auto change, OwnedVocab vocab) {
    vocab.borrow();
    change(vocab.data);
    return error_of([&] { make_tokenizer(vocab.data); });
  };
  auto const bpe = [&](auto change) { return refusal(change, bpe_vocab({{"a", "b"}})); };
  auto const spm = [&](auto change) { return refusal(change, spm_vocab({{"a", -1.f}})); };
  CHECK(bpe([](VocabData&) {}).code == std::nullopt);
  CHECK(bpe([](VocabData& d) { d.tokens.clear(); }).code == Errc::bad_file);
  CHECK(bpe([](VocabData& d) { d.scores = {1, 2}; }).says("257 tokens", "2 scores"));
  CHECK(bpe([](VocabData& d) { d.types.pop_back(); }).says("257 tokens", "256 token types"));
  CHECK(bpe([](VocabData& d) { d.eos = 257; }).says("eos_token_id", "257"));
  CHECK(bpe([](VocabData& d) { d.add_bos = true; }).code == Errc::bad_file);
  CHECK(bpe([](VocabData& d) { d.add_eos = true; }).code == Errc::bad_file);
  CHECK(bpe([](VocabData& d) { d.merges[0] = "ab"; }).says("merge 0", "\"ab\""));
  CHECK(bpe([](VocabData& d) { d.merges[0] = "a "; }).code == Errc::bad_file);
  CHECK(bpe([](VocabData& d) { d.merges[0] = "x nothing-of-the-kind"; }).code == std::nullopt);
  CHECK(spm([](VocabData& d) { d.scores.clear(); }).code == Errc::bad_file);
  CHECK(spm([](VocabData& d) { d.scores[5] = std::numeric_limits<float>::quiet_NaN(); }).says("token 5"));

  auto const unknown = bpe([](VocabData& d) { d.pre = "no-such-pre"; });
  CHECK(unknown.code == Errc::unsupported);
  CHECK(unknown.says("\"no-such-pre\""));
  auto const model = bpe([](VocabData& d) { d.model = "bert"; });
  CHECK(model.code == Errc::unsupported);
  CHECK(model.says("\"bert\""));
  CHECK(bpe([](VocabData& d) { d.pre = ""; }).code == std::nullopt);  // older files do not say: "default"

  auto good = bpe_vocab({});
  Tokenizer const tokenizer = make_tokenizer(good.borrow());
  CHECK(error_of([&] { tokenizer.decode(256); }).says("256"));
  CHECK(error_of([&] { tokenizer.decode(-1); }).code == Errc::precondition);
  CHECK(error_of([&] { tokenizer.token_text(999); }).code == Errc::precondition);
}

TEST_CASE("a tokeniser outlives the file it came from") {
  tiered_test::FileBytes bytes;
  {
    auto writer = tiered_test::small_writer();
    auto vocab = bpe_vocab({{"a", "b"}});
    writer.set("tokenizer.ggml.model", "gpt2");
    writer.set("tokenizer.ggml.pre", "qwen2");
    writer.set("tokenizer.ggml.tokens", vocab.tokens);
    writer.set("tokenizer.ggml.merges", vocab.merges);
    writer.set("tokenizer.ggml.token_type", vocab.data.types);
    writer.set("tokenizer.ggml.eos_token_id", std::uint32_t{7});
    writer.set("tokenizer.ggml.bos_token_id", std::uint32_t{8});
    writer.set("tokenizer.ggml.add_bos_token", true);
    bytes = writer.to_bytes();
  }
  Tokenizer const tokenizer = make_tokenizer(GgufFile::parse(bytes));
  std::fill(bytes.begin(), bytes.end(), std::byte{0});
  CHECK(tokenizer.encode("ab") == Ids{8, 256});
  CHECK(tokenizer.eos() == 7);
  CHECK(tokenizer.size() == 257);
  CHECK(tokenizer.token_text(256) == "ab");

  auto writer = tiered_test::small_writer();
  auto const no_vocabulary = writer.to_bytes();
  auto const thrown = error_of([&] { make_tokenizer(GgufFile::parse(no_vocabulary)); });
  CHECK(thrown.code == Errc::not_found);
  CHECK(thrown.says("tokenizer.ggml.model"));
}

namespace {

/// Every byte is its own number.
struct BytesModel {
  void encode(std::string_view text, bool, std::vector<std::int32_t>& ids) const {
    for (char const c : text) ids.push_back(static_cast<unsigned char>(c));
  }
  void append_bytes(std::int32_t id, std::string& bytes) const { bytes += static_cast<char>(id); }
};
static_assert(SubwordModel<BytesModel>);

}  // namespace

TEST_CASE("a Tokenizer takes a model of one's own") {
  auto data = bpe_vocab({});
  data.add("<end>", TokenType::control);
  Tokenizer const tokenizer(std::make_shared<Vocab const>(data.borrow()), BytesModel{});
  Ids const ids = tokenizer.encode("hi<end>", {.parse_special = true});
  CHECK(ids == Ids{'h', 'i', 256});
  CHECK(tokenizer.decode(ids) == "hi");
}
