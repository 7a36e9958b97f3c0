/// Reads the fixtures of tests/data/golden and tests/data/real (formats: the README.md beside them).
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#ifndef TIERED_TEST_DATA
#define TIERED_TEST_DATA "tests/data"
#endif

namespace tiered_test {

static_assert(std::endian::native == std::endian::little, "the fixtures are little-endian");

/// What transformers computed for one tiny file: a prompt and its greedy continuation, and the logits after every token.
struct GoldenFixture {
  std::uint32_t vocab_size = 0;
  std::uint32_t prompt_size = 0;
  std::uint32_t steps = 0;           ///< length of the greedy continuation
  float logit_range = 0;             ///< largest minus smallest logit of the whole fixture
  float least_margin = 0;            ///< smallest of `margins`
  std::vector<std::int32_t> tokens;  ///< prompt, then continuation: prompt_size + steps ids
  std::vector<float> margins;        ///< [steps] best minus second logit where continuation token i was chosen
  std::vector<float> logits;         ///< [prompt_size + steps, vocab_size], row i: after tokens[0..i]

  /// Row of `vocab_size` logits after tokens[0..position].
  float const* row(std::size_t position) const { return logits.data() + position * vocab_size; }
  std::vector<std::int32_t> prompt() const { return {tokens.begin(), tokens.begin() + prompt_size}; }
  std::vector<std::int32_t> continuation() const { return {tokens.begin() + prompt_size, tokens.end()}; }
};

/// What transformers computed for one real file over a fixed text, teacher-forced, in float32.
struct RealFixture {
  double perplexity = 0;                ///< exp of the mean of -next_log_prob over all positions but the last
  std::vector<std::int32_t> tokens;     ///< the text, with the file's own vocabulary (and its BOS where it wants one)
  std::vector<std::int32_t> top_token;  ///< [tokens] id of the best logit after tokens[0..i]
  std::vector<float> top_logit;         ///< [tokens] its logit
  std::vector<float> second_logit;      ///< [tokens] the next best logit; the difference says how near a tie it was
  std::vector<float> next_log_prob;     ///< [tokens] log probability of tokens[i + 1]; 0 in the last place
};

/// What transformers computed for rows of tokens and vectors, as of a text with an image and a video in it.
struct VisionFixture {
  std::uint32_t vocab_size = 0, n_planes = 0, n_vectors = 0, width = 0;
  float logit_range = 0;
  std::vector<std::int32_t> tokens;     ///< [n_rows], -1 where the next vector stands
  std::vector<std::int32_t> positions;  ///< [3, n_rows] of the rotary embedding
  std::vector<float> vectors;           ///< [n_planes, n_vectors, width]
  std::vector<float> logits;            ///< [n_rows, vocab_size], row i: after rows 0..i
};

namespace fixture_detail {

/// Takes values from a file read whole; throws std::runtime_error naming the file when it is too short.
class Bytes {
 public:
  explicit Bytes(std::string const& path) : path_(path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open fixture " + path);
    data_.assign(std::istreambuf_iterator<char>(in), {});
  }

  template <class T>
  T value() {
    return array<T>(1)[0];
  }

  template <class T>
  std::vector<T> array(std::size_t count) {
    if (count > (data_.size() - next_) / sizeof(T)) throw std::runtime_error("fixture too short: " + path_);
    std::vector<T> out(count);
    if (count > 0) std::memcpy(out.data(), data_.data() + next_, count * sizeof(T));
    next_ += count * sizeof(T);
    return out;
  }

  void expect_magic(char const* magic) {
    std::vector<char> const found = array<char>(4);
    if (std::memcmp(found.data(), magic, 4) != 0 || value<std::uint32_t>() != 1) {
      throw std::runtime_error("not a version 1 fixture of this kind: " + path_);
    }
  }

  void expect_end() const {
    if (next_ != data_.size()) throw std::runtime_error("fixture too long: " + path_);
  }

 private:
  std::string path_;
  std::vector<char> data_;
  std::size_t next_ = 0;
};

}  // namespace fixture_detail

/// Reads a `.golden` file. Throws std::runtime_error when it is missing or malformed.
inline GoldenFixture read_golden(std::string const& path) {
  fixture_detail::Bytes in(path);
  in.expect_magic("TGLD");
  GoldenFixture f;
  f.vocab_size = in.value<std::uint32_t>();
  f.prompt_size = in.value<std::uint32_t>();
  f.steps = in.value<std::uint32_t>();
  in.value<std::uint32_t>();  // reserved
  f.logit_range = in.value<float>();
  f.least_margin = in.value<float>();
  std::size_t const count = std::size_t{f.prompt_size} + f.steps;
  f.tokens = in.array<std::int32_t>(count);
  f.margins = in.array<float>(f.steps);
  f.logits = in.array<float>(count * f.vocab_size);
  in.expect_end();
  return f;
}

/// Reads a `.vision` file. Throws std::runtime_error when it is missing or malformed.
inline VisionFixture read_vision(std::string const& path) {
  fixture_detail::Bytes in(path);
  in.expect_magic("TVIS");
  VisionFixture f;
  f.vocab_size = in.value<std::uint32_t>();
  std::size_t const n_rows = in.value<std::uint32_t>();
  f.n_planes = in.value<std::uint32_t>();
  f.n_vectors = in.value<std::uint32_t>();
  f.width = in.value<std::uint32_t>();
  f.logit_range = in.value<float>();
  f.tokens = in.array<std::int32_t>(n_rows);
  f.positions = in.array<std::int32_t>(3 * n_rows);
  f.vectors = in.array<float>(std::size_t{f.n_planes} * f.n_vectors * f.width);
  f.logits = in.array<float>(n_rows * f.vocab_size);
  in.expect_end();
  return f;
}

/// Reads a `.real` file. Throws std::runtime_error when it is missing or malformed.
inline RealFixture read_real(std::string const& path) {
  fixture_detail::Bytes in(path);
  in.expect_magic("TREL");
  std::uint32_t const count = in.value<std::uint32_t>();
  in.value<std::uint32_t>();  // reserved
  RealFixture f;
  f.perplexity = in.value<double>();
  f.tokens = in.array<std::int32_t>(count);
  f.top_token = in.array<std::int32_t>(count);
  f.top_logit = in.array<float>(count);
  f.second_logit = in.array<float>(count);
  f.next_log_prob = in.array<float>(count);
  in.expect_end();
  return f;
}

/// Path of a file in tests/data/golden, such as "llama.f32.gguf".
inline std::string golden_path(std::string const& name) { return std::string(TIERED_TEST_DATA "/golden/") + name; }

/// Path of a file in tests/data/real, such as "gemma3.real" or "text.txt".
inline std::string real_path(std::string const& name) { return std::string(TIERED_TEST_DATA "/real/") + name; }

/// One tiny model file and the fixture that its logits must meet.
struct GoldenCase {
  char const* gguf;          ///< file name in tests/data/golden
  char const* fixture;       ///< likewise
  char const* architecture;  ///< general.architecture
  bool exact;                ///< F32 and F16 files: the 1e-4 bound applies; else weights are quantised
};

/// Every file that must agree with its fixture (minitron.wrong_permutation.gguf must not, and is not listed).
inline std::vector<GoldenCase> golden_cases() {
  return {
      {"llama.f32.gguf", "llama.golden", "llama", true},
      {"llama.f16.gguf", "llama.golden", "llama", true},
      {"llama.mixed.gguf", "llama.mixed.golden", "llama", false},
      {"llama_tied.f32.gguf", "llama_tied.golden", "llama", true},
      {"llama_tied.mixed.gguf", "llama_tied.mixed.golden", "llama", false},
      {"llama3_rope.f32.gguf", "llama3_rope.golden", "llama", true},
      {"llama3_rope.mixed.gguf", "llama3_rope.mixed.golden", "llama", false},
      {"mistral.f32.gguf", "mistral.golden", "llama", true},
      {"mistral.mixed.gguf", "mistral.mixed.golden", "llama", false},
      {"minitron.f32.gguf", "minitron.golden", "llama", true},
      {"minitron.mixed.gguf", "minitron.mixed.golden", "llama", false},
      {"llama_k.mixed.gguf", "llama_k.mixed.golden", "llama", false},
      {"qwen2.f32.gguf", "qwen2.golden", "qwen2", true},
      {"qwen2.f16.gguf", "qwen2.golden", "qwen2", true},
      {"qwen2.mixed.gguf", "qwen2.mixed.golden", "qwen2", false},
      {"qwen3.f32.gguf", "qwen3.golden", "qwen3", true},
      {"qwen3.f16.gguf", "qwen3.golden", "qwen3", true},
      {"qwen3.mixed.gguf", "qwen3.mixed.golden", "qwen3", false},
      {"qwen3moe.f32.gguf", "qwen3moe.golden", "qwen3moe", true},
      {"qwen3moe.f16.gguf", "qwen3moe.golden", "qwen3moe", true},
      {"qwen3moe.mixed.gguf", "qwen3moe.mixed.golden", "qwen3moe", false},
      {"qwen3moe_k.mixed.gguf", "qwen3moe_k.mixed.golden", "qwen3moe", false},
      {"qwen2vl.f32.gguf", "qwen2vl.golden", "qwen2vl", true},
      {"qwen3vl.f32.gguf", "qwen3vl.golden", "qwen3vl", true},
      {"gemma3.f32.gguf", "gemma3.golden", "gemma3", true},
      {"gemma3.f16.gguf", "gemma3.golden", "gemma3", true},
      {"gemma3.mixed.gguf", "gemma3.mixed.golden", "gemma3", false},
  };
}

}  // namespace tiered_test
