/// Makes GGUF files with the shapes and types of real models and random weights, at the speed of memory: put them on tmpfs.
///
/// Random weights alone would make an easy workload of the wrong kind: each block adds more to the rows than the embedding holds, so all
/// tokens grow alike and find the same few experts, which flatters every cache. So embeddings have unit variance, what a block adds is
/// small, weights have mean 0, and what tokens have in common is chosen (ids.hpp). There is no tokeniser: prompts are token ids.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "random_weights.hpp"
#include "synthetic_models.hpp"
#include "tiered/core/units.hpp"
#include "tiered/io/chat_template.hpp"
#include "tiered/io/gguf_writer.hpp"
#include "tiered/io/utf8.hpp"

namespace bench {
namespace detail {

/// A new file that is removed again unless keep() was called. Several threads may write.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)), file_(::open(path_.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644)) {
    if (file_ < 0) fail("cannot be created");
  }
  NewFile(NewFile const&) = delete;
  NewFile& operator=(NewFile const&) = delete;
  ~NewFile() {
    if (file_ < 0) return;
    ::close(file_);
    std::remove(path_.c_str());
  }
  void resize(std::uint64_t bytes) {
    if (::ftruncate(file_, ::off_t(bytes)) != 0) fail("cannot be made as large as the model");
  }
  void write(std::uint64_t at, std::byte const* from, std::size_t bytes) {
    while (bytes > 0) {
      ::ssize_t const n = ::pwrite(file_, from, bytes, ::off_t(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("cannot be written");
      from += n, at += std::uint64_t(n), bytes -= std::size_t(n);
    }
  }
  void keep() {
    if (::close(std::exchange(file_, -1)) != 0) fail("cannot be written");
  }

 private:
  [[noreturn]] void fail(char const* what) const {
    throw tiered::Error(tiered::Errc::io, tiered::concat(path_, ": ", what, ": ", tiered::detail::errno_text(errno)));
  }
  std::string path_;
  int file_;
};

inline std::size_t tensor_bytes(SyntheticTensor const& t) {
  std::uint64_t bytes = 0;
  tiered::expects(tiered::checked_bytes(t.shape, t.dtype, bytes), "synthetic tensors have whole blocks");
  return std::size_t(bytes);
}

class Metadata {
 public:
  template <class T>
  void set(std::string const& key, T const& value) {
    tiered::detail::append_string(bytes_, key);
    tiered::detail::append_number(bytes_, std::uint32_t(tiered::detail::gguf_type_of<T>()));
    tiered::detail::append_value(bytes_, value);
    ++n_;
  }
  std::uint64_t size() const { return n_; }
  std::vector<std::byte> const& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  std::uint64_t n_ = 0;
};

/// A vocabulary of bytes and of a conversation's marks, so that tiered-run takes the file: what a vision-language model is tried with.
template <class Writer>
void set_vocabulary(Writer& out) {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  char32_t next = 256;  // GPT-2's letters for bytes that cannot be seen
  for (char32_t byte = 0; byte < 256; ++byte) {
    bool const visible = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    tokens.emplace_back();
    tiered::append_utf8(tokens.back(), visible ? byte : next++);
    types.push_back(1);
  }
  for (char const* const mark :
       {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"}) {
    tokens.emplace_back(mark);
    types.push_back(3);
  }
  out.set("tokenizer.ggml.model", std::string("gpt2"));
  out.set("tokenizer.ggml.pre", std::string("qwen2"));
  out.set("tokenizer.ggml.tokens", tokens);
  out.set("tokenizer.ggml.token_type", types);
  out.set("tokenizer.ggml.eos_token_id", std::uint32_t{258});
  out.set("tokenizer.chat_template", std::string(tiered::builtin_chat_template("chatml")));
}

inline Metadata metadata_of(SyntheticModel const& m, Routing routing) {
  Metadata out;
  std::string const arch(m.architecture), prefix = arch + '.';
  out.set("general.architecture", arch);
  out.set("general.name", "synthetic " + std::string(m.name));
  out.set("general.alignment", std::uint32_t(tiered::detail::gguf_default_alignment));
  out.set(routing_key, std::string(name(routing)));
  auto const number = [&](char const* key, std::int32_t value) { out.set(prefix + key, std::uint32_t(value)); };
  number("block_count", m.n_layers);
  number("context_length", m.max_seq_len);
  number("embedding_length", m.dim);
  number("feed_forward_length", m.hidden_dim);
  number("attention.head_count", m.n_heads);
  number("attention.head_count_kv", m.n_kv_heads);
  number("attention.key_length", m.head_dim);
  number("attention.value_length", m.head_dim);
  number("rope.dimension_count", m.head_dim);
  number("vocab_size", m.vocab_size);
  out.set(prefix + "rope.freq_base", m.rope_theta);
  if (m.rope_sections[0] > 0)
    out.set(prefix + "rope.dimension_sections", std::vector<std::int32_t>(m.rope_sections.begin(), m.rope_sections.end()));
  out.set(prefix + "attention.layer_norm_rms_epsilon", m.norm_eps);
  if (m.n_experts > 0) {
    number("expert_count", m.n_experts);
    number("expert_used_count", m.n_experts_used);
    number("expert_feed_forward_length", m.expert_dim);
  }
  if (m.rope_sections[0] > 0)
    set_vocabulary(out);
  else
    out.set("tokenizer.ggml.model", std::string("none"));
  return out;
}

/// Where each tensor begins, counted from the first one's begin; behind the last one: the end.
inline std::vector<std::uint64_t> offsets_of(std::vector<SyntheticTensor> const& tensors) {
  std::vector<std::uint64_t> offsets{0};
  for (SyntheticTensor const& t : tensors)
    offsets.push_back(tiered::detail::align_up(offsets.back() + tensor_bytes(t), tiered::detail::gguf_default_alignment));
  return offsets;
}

/// The writer of the library wants all bytes at once, which here are more than memory has.
inline std::vector<std::byte> header_of(Metadata const& metadata, std::vector<SyntheticTensor> const& tensors,
                                        std::vector<std::uint64_t> const& offsets) {
  using namespace tiered::detail;
  std::vector<std::byte> out;
  append_bytes(out, "GGUF", 4);
  append_number(out, std::uint32_t{3});
  append_number(out, std::uint64_t(tensors.size()));
  append_number(out, metadata.size());
  append_bytes(out, metadata.bytes().data(), metadata.bytes().size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SyntheticTensor const& t = tensors[i];
    append_string(out, t.name);
    append_number(out, std::uint32_t(t.shape.rank));
    for (int d = t.shape.rank; d-- > 0;) append_number(out, std::uint64_t(t.shape[d]));  // innermost first
    append_number(out, std::uint32_t(t.dtype));
    append_number(out, offsets[i]);
  }
  out.resize(std::size_t(align_up(out.size(), gguf_default_alignment)));
  return out;
}

/// Blocks that tensors of one kind take their bytes from, over and over.
class Pools {
 public:
  Pools(std::int32_t n_layers, Routing routing, std::uint64_t seed, int n_threads)
      : n_layers_(n_layers), routing_(routing), seed_(seed), n_threads_(n_threads) {}

  std::vector<std::byte> const& of(SyntheticTensor const& t) {
    // What a layer adds has this share of the embedding's deviation when all are added up.
    constexpr float residual = 0.7f;
    float deviation = 1 / std::sqrt(float(t.inputs > 0 ? t.inputs : t.shape.cols()));
    if (t.fill == Fill::residual_weights) deviation *= residual / std::sqrt(2.0f * float(n_layers_));
    auto const [at, is_new] = pools_.try_emplace({t.dtype, t.fill, deviation});
    if (is_new) at->second = make(t, deviation);
    return at->second;
  }

 private:
  std::vector<std::byte> make(SyntheticTensor const& t, float deviation) {
    std::uint64_t const seed = part_seed(seed_, pools_.size());
    if (t.fill == Fill::ones) {
      std::vector<float> const ones(std::size_t(t.shape.cols()), 1.0f);
      auto const bytes = std::as_bytes(std::span(ones));
      return {bytes.begin(), bytes.end()};
    }
    if (t.fill == Fill::embedding) {
      std::size_t const n_rows = std::min(std::size_t(t.shape.rows()), std::size_t{256} * topic_period);  // whole periods of topics
      return embedding_rows(t.dtype, std::int32_t(t.shape.cols()), n_rows, routing_, seed, n_threads_);
    }
    // 13: so that tensors of a power of two do not meet the same blocks at the same places.
    std::size_t const most = 48 * tiered::MiB, block = tiered::block_bytes(t.dtype);
    return random_weights(t.dtype, deviation, std::min(most, tensor_bytes(t)) / block + 13, seed, n_threads_);
  }

  std::int32_t n_layers_;
  Routing routing_;
  std::uint64_t seed_;
  int n_threads_;
  std::map<std::tuple<tiered::DType, Fill, float>, std::vector<std::byte>> pools_;
};

/// Bytes of a file that repeat a pool from some place in it.
struct Stretch {
  std::uint64_t at = 0;
  std::size_t bytes = 0;
  std::vector<std::byte> const* pool = nullptr;
  std::size_t from = 0;

  void write(NewFile& file) const {
    for (std::size_t done = 0, source = from % pool->size(); done < bytes; source = 0) {
      std::size_t const n = std::min(bytes - done, pool->size() - source);
      file.write(at + done, pool->data() + source, n);
      done += n;
    }
  }
};

/// Replaces the file. Returns its size.
inline std::uint64_t make_file(std::string const& path, Metadata const& metadata, std::vector<SyntheticTensor> const& tensors, Pools& pools,
                               int n_threads, std::uint64_t seed) {
  std::vector<std::uint64_t> const offsets = offsets_of(tensors);
  std::vector<std::byte> const header = header_of(metadata, tensors, offsets);
  NewFile file(path);
  file.resize(header.size() + offsets.back());
  file.write(0, header.data(), header.size());
  tiered::SplitMix64 random(seed);
  std::vector<Stretch> stretches;
  constexpr std::size_t most = 16 * tiered::MiB;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    SyntheticTensor const& t = tensors[i];
    std::vector<std::byte> const& pool = pools.of(t);
    std::size_t const bytes = tensor_bytes(t), block = tiered::block_bytes(t.dtype);
    bool const from_begin = t.fill == Fill::embedding || t.fill == Fill::ones;
    std::size_t const from = from_begin ? 0 : std::size_t(random.below(pool.size() / block)) * block;
    for (std::size_t done = 0; done < bytes; done += most)
      stretches.push_back({header.size() + offsets[i] + done, std::min(most, bytes - done), &pool, from + done});
  }
  in_parallel(n_threads, stretches.size(), [&](std::size_t i) { stretches[i].write(file); });
  file.keep();
  return header.size() + offsets.back();
}

}  // namespace detail

/// Replaces the file. Returns its size. The same bytes for a seed with any number of threads.
/// Errors  Errc::io with the system's reason; then no file is left.
inline std::uint64_t make_synthetic(SyntheticModel const& model, std::string const& path, Routing routing, int n_threads,
                                    std::uint64_t seed = 7) {
  detail::Pools pools(model.n_layers, routing, seed, n_threads);
  return detail::make_file(path, detail::metadata_of(model, routing), tensors_of(model), pools, n_threads, seed);
}

}  // namespace bench
