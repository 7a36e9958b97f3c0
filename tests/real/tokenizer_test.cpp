// Vocabularies of real models against Hugging Face tokenizers and sentencepiece: tests/data/tokenizer/make_tokenizer.py.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cached_file.hpp"
#include "catch.hpp"
#include "tiered/io/tokenizer.hpp"
#include "tiered/io/utf8.hpp"
#include "tiered/sim/split_mix.hpp"

namespace {

using Ids = std::vector<std::int32_t>;

struct Case {
  char const* name;  // of the .ids file
  char const* pre;   // pre-tokeniser, where it is not the file's own
  char const* file;  // in the cache
  bool every_byte;   // each byte has a token of its own, so any bytes survive the round trip
};
constexpr char const* smollm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr Case cases[] = {
    {"gpt-2", nullptr, "vocab/ggml-vocab-gpt-2.gguf", true},
    {"llama-bpe", nullptr, "vocab/ggml-vocab-llama-bpe.gguf", true},
    {"qwen2", nullptr, "vocab/ggml-vocab-qwen2.gguf", true},
    {"qwen35", nullptr, "vocab/ggml-vocab-qwen35.gguf", true},
    {"deepseek-llm", nullptr, "vocab/ggml-vocab-deepseek-llm.gguf", false},
    {"deepseek-coder", nullptr, "vocab/ggml-vocab-deepseek-coder.gguf", false},
    {"mpt", nullptr, "vocab/ggml-vocab-mpt.gguf", false},
    {"starcoder", nullptr, "vocab/ggml-vocab-starcoder.gguf", false},
    {"refact", nullptr, "vocab/ggml-vocab-refact.gguf", false},
    {"command-r", nullptr, "vocab/ggml-vocab-command-r.gguf", true},
    {"smollm", nullptr, smollm2, false},
    {"deepseek-r1-qwen", "deepseek-r1-qwen", "vocab/ggml-vocab-qwen2.gguf", true},
    {"default", "default", "vocab/ggml-vocab-gpt-2.gguf", true},
    {"gpt-4o", "gpt-4o", "vocab/ggml-vocab-llama-bpe.gguf", true},
    {"tekken", "tekken", "vocab/ggml-vocab-llama-bpe.gguf", true},
    {"deepseek-v3", "deepseek-v3", "vocab/ggml-vocab-llama-bpe.gguf", true},
    {"llama-spm", nullptr, "vocab/ggml-vocab-llama-spm.gguf", true},
    {"llama-spm-unused", nullptr, "vocab/ggml-vocab-llama-spm.gguf", true},
    {"phi-3", nullptr, "vocab/ggml-vocab-phi-3.gguf", true},
    {"gemma3", nullptr, "gemma-3-270m-q4_k_m.gguf", true},
};

std::string read_file(std::filesystem::path const& path) {
  std::ifstream stream(path, std::ios::binary);
  REQUIRE(stream);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Reads the fixture's little-endian parts one after another.
class Reader {
 public:
  explicit Reader(std::string const& name) : bytes_(read_file(std::filesystem::path(TIERED_TEST_DATA) / "tokenizer" / name)) {}
  template <class T>
  T number() {
    T value{};
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(take(number<std::uint32_t>())); }
  Ids ids() {
    Ids result(number<std::uint32_t>());
    for (std::int32_t& id : result) id = number<std::int32_t>();
    return result;
  }

 private:
  std::string_view take(std::size_t n) {
    REQUIRE(bytes_.size() - at_ >= n);
    at_ += n;
    return std::string_view(bytes_).substr(at_ - n, n);
  }
  std::string bytes_;
  std::size_t at_ = 0;
};

std::vector<std::string> const& texts() {
  static std::vector<std::string> const all = [] {
    Reader reader("texts.bin");
    std::vector<std::string> result(reader.number<std::uint32_t>());
    for (std::string& text : result) text = reader.text();
    return result;
  }();
  return all;
}

std::uint64_t fnv1a(Ids const& ids) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::int32_t const id : ids) {
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (std::uint32_t(id) >> shift & 0xff)) * 0x100000001b3u;
  }
  return hash;
}

tiered::Tokenizer load(Case const& c, std::string const& path) {
  auto const file = tiered::GgufFile::open(path);
  tiered::VocabData data = tiered::vocab_from_gguf(file);
  if (c.pre != nullptr) data.pre = c.pre;
  for (std::size_t id = 259; std::string_view(c.name) == "llama-spm-unused" && id < 29871; ++id) {
    if (id % 7 == 3) data.types[id] = std::int32_t(tiered::TokenType::unused);
  }
  return tiered::make_tokenizer(data);
}

std::string random_bytes(std::size_t n, std::uint64_t seed) {
  tiered::SplitMix64 random(seed);
  std::string bytes;
  while (bytes.size() < n) bytes += static_cast<char>(random.below(256));
  return bytes;
}

}  // namespace

TEST_CASE("ids equal those of Hugging Face tokenizers and sentencepiece") {
  REQUIRE(texts().size() >= 2000);
  for (Case const& c : cases) {
    auto const path = tiered_test::cached_file(c.file);
    if (!path) continue;
    INFO(c.name);
    tiered::Tokenizer const tokenizer = load(c, *path);
    Reader expected(std::string(c.name) + ".ids");
    REQUIRE(expected.number<std::uint32_t>() == texts().size());
    std::vector<std::uint64_t> hashes(texts().size());
    for (std::uint64_t& hash : hashes) hash = expected.number<std::uint64_t>();
    for (auto n = expected.number<std::uint32_t>(); n > 0; --n) {
      std::string const& text = texts().at(expected.number<std::uint32_t>());
      INFO(text);
      CHECK(tokenizer.encode(text, {.add_special = false}) == expected.ids());
    }
    int n_different = 0;
    for (std::size_t i = 0; i < texts().size(); ++i) {
      if (fnv1a(tokenizer.encode(texts()[i], {.add_special = false})) == hashes[i]) continue;
      if (++n_different <= 10) UNSCOPED_INFO("text " << i << ": " << tiered::detail::printable(texts()[i], 200));
    }
    CHECK(n_different == 0);
    for (auto n = expected.number<std::uint32_t>(); n > 0; --n) {
      std::string const text = expected.text();
      INFO(text);
      CHECK(tokenizer.encode(text, {.add_special = false, .parse_special = true}) == expected.ids());
    }
  }
}

TEST_CASE("what is encoded decodes to the same bytes, at once and token by token") {
  for (Case const& c : cases) {
    auto const path = tiered_test::cached_file(c.file);
    if (!path) continue;
    INFO(c.name);
    tiered::Tokenizer const tokenizer = load(c, *path);
    std::vector<std::string> inputs;
    // SmolLM2 has no tokens for 21 bytes, some of them ASCII control characters.
    if (c.file != smollm2) inputs.assign(texts().begin(), texts().end());
    if (c.every_byte) {
      for (std::uint64_t seed = 0; seed < 200; ++seed) inputs.push_back(random_bytes(1 + std::size_t(seed), seed));
      for (int byte = 0; byte < 256; ++byte) inputs.push_back(std::string(1, static_cast<char>(byte)));
      inputs.push_back("caf\xc3\xa9 \xc3 \xff\xfe end\xe4\xb8");
    }
    for (std::string text : inputs) {
      if (tokenizer.vocab().blank_is_u2581() && text.find("▁") != std::string::npos) continue;
      INFO(tiered::detail::printable(text, 200));
      Ids const ids = tokenizer.encode(text, {.add_special = false});
      REQUIRE(tokenizer.decode(ids) == text);
      tiered::StreamDecoder stream(tokenizer);
      std::string streamed;
      for (std::int32_t const id : ids) streamed += stream.push(id);
      streamed += stream.finish();
      if (tokenizer.vocab().add_space_prefix() && !text.empty()) text.insert(0, 1, ' ');
      REQUIRE(streamed == text);
    }
  }
}

// The texts and ids that come with the vocabularies: an independent second opinion.
TEST_CASE("ids equal those that lie beside the vocabularies") {
  for (Case const& c : cases) {
    if (c.pre != nullptr || !std::string_view(c.file).starts_with("vocab/") || std::string_view(c.name) == "llama-spm-unused") continue;
    auto const path = tiered_test::cached_file(c.file);
    if (!path) continue;
    INFO(c.name);
    tiered::Tokenizer const tokenizer = load(c, *path);
    std::string const all = read_file(*path + ".inp");
    std::istringstream lines(read_file(*path + ".out"));
    static constexpr std::string_view separator = "\n__ggml_vocab_test__\n";
    int n = 0;
    std::string line;
    for (std::size_t at = 0; std::getline(lines, line); ++n) {
      std::istringstream numbers(line);
      Ids const expected{std::istream_iterator<std::int32_t>(numbers), {}};
      std::size_t const end = std::min(all.find(separator, at), all.size());
      std::string const text = all.substr(at, end - at);
      INFO(text);
      CHECK(tokenizer.encode(text, {.add_special = false}) == expected);
      at = std::min(end + separator.size(), all.size());
    }
    CHECK(n >= 40);
  }
}

TEST_CASE("tokens with a meaning are found by id and by name") {
  struct Expected {
    char const* file;
    std::int32_t bos, eos, eot;
    Ids ends;
    Ids hello;  // encode("Hello") with the special tokens around it, but for Hello itself: first id, or none
  };
  Expected const all[] = {
      {"vocab/ggml-vocab-gpt-2.gguf", 50256, 50256, 50256, {50256}, {}},
      {"vocab/ggml-vocab-llama-bpe.gguf", 128000, 128001, 128009, {128001, 128009}, {128000}},
      {"vocab/ggml-vocab-qwen2.gguf", 151643, 151643, 151645, {151643, 151645}, {}},
      {"vocab/ggml-vocab-llama-spm.gguf", 1, 2, -1, {2}, {1}},
      {"vocab/ggml-vocab-phi-3.gguf", 1, 32000, 32007, {32000, 32007}, {1}},
      {"vocab/ggml-vocab-deepseek-llm.gguf", 100000, 100001, 100001, {100001}, {100000}},
      {smollm2, 1, 2, 2, {0, 2}, {}},
      {"gemma-3-270m-q4_k_m.gguf", 2, 1, 106, {1, 106}, {2}},
  };
  for (Expected const& e : all) {
    auto const path = tiered_test::cached_file(e.file);
    if (!path) continue;
    INFO(e.file);
    auto const tokenizer = tiered::make_tokenizer(tiered::GgufFile::open(*path));
    CHECK(tokenizer.bos() == e.bos);
    CHECK(tokenizer.eos() == e.eos);
    CHECK(tokenizer.eot() == e.eot);
    auto const ends = tokenizer.vocab().end_of_generation();
    CHECK(Ids(ends.begin(), ends.end()) == e.ends);
    Ids with = e.hello;
    Ids const without = tokenizer.encode("Hello", {.add_special = false});
    with.insert(with.end(), without.begin(), without.end());
    CHECK(tokenizer.encode("Hello") == with);
  }
}

// No clock: a quadratic step takes minutes for these, and the test then runs into CTest's limit.
TEST_CASE("a megabyte is one step for the tokeniser, whatever it consists of") {
  std::size_t const n = std::size_t{1} << 20;
  auto const repeat = [&](std::string_view part) {
    std::string text;
    while (text.size() < n) text += part;
    return text;
  };
  std::string letters;
  tiered::SplitMix64 random(1);
  while (letters.size() < n) letters += static_cast<char>('a' + random.below(26));
  std::array const inputs{repeat("a"),
                          repeat("A"),
                          repeat(" ") + "x",
                          repeat("\n") + "x",
                          repeat("1"),
                          repeat("<"),
                          repeat("中"),
                          repeat("😀"),
                          repeat("\xff"),
                          repeat("e\u0301"),
                          repeat(" \n") + "x",
                          repeat("'s"),
                          repeat("\u3000") + "中",
                          letters,
                          random_bytes(n, 2),
                          repeat("The quick brown fox, 1234 times. ")};
  for (char const* const name : {"llama-bpe", "qwen2", "deepseek-llm", "default", "tekken", "gpt-4o", "smollm", "llama-spm", "gemma3"}) {
    Case const& c =
        *std::find_if(std::begin(cases), std::end(cases), [&](Case const& each) { return std::string_view(each.name) == name; });
    auto const path = tiered_test::cached_file(c.file);
    if (!path) continue;
    INFO(c.name);
    tiered::Tokenizer const tokenizer = load(c, *path);
    for (std::string const& text : inputs) {
      INFO(tiered::detail::printable(text, 20));
      auto const ids = tokenizer.encode(text, {.parse_special = true});
      bool const has_u2581 = tokenizer.vocab().blank_is_u2581() && text.find("▁") != std::string::npos;
      bool const exact = !has_u2581 && (c.every_byte || tiered::valid_utf8_bytes(text, 0) == text.size());
      if (exact) CHECK((tokenizer.decode(ids) == text));
    }
  }
}
