/// GGUF files in memory for tests: a small good one, and ways to damage it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/io/gguf_writer.hpp"

namespace tiered_test {

using FileBytes = std::vector<std::byte>;

/// Two tensors ("a" [2, 3] f32, "b" [64] q8_0) and a few keys.
inline tiered::GgufWriter small_writer(tiered::GgufWriter::Options options = {}) {
  static std::vector<float> const a{1, 2, 3, 4, 5, 6};
  static FileBytes const b(2 * 34, std::byte{0x11});
  tiered::GgufWriter writer(options);
  writer.set("general.architecture", "llama");
  writer.set("llama.block_count", std::uint32_t{2});
  writer.set("flag", true);
  writer.set("words", std::vector<std::string>{"one", "two", "three"});
  writer.add_tensor("tensor.a", tiered::DType::f32, tiered::Shape(2, 3), a);
  writer.add_tensor("tensor.b", tiered::DType::q8_0, tiered::Shape(64), b);
  return writer;
}

/// Where the first `text` begins in `file`.
inline std::size_t find_text(FileBytes const& file, std::string_view text) {
  auto const* const wanted = reinterpret_cast<std::byte const*>(text.data());
  auto const at = std::search(file.begin(), file.end(), wanted, wanted + text.size());
  if (at == file.end()) throw std::runtime_error("no such text in the file");
  return std::size_t(at - file.begin());
}

/// A copy with `value` written at `offset`.
template <class T>
FileBytes with_number(FileBytes file, std::size_t offset, T value) {
  std::memcpy(file.data() + offset, &value, sizeof value);
  return file;
}
/// A copy with `value` written `skip` bytes behind the first `text`.
template <class T>
FileBytes with_number(FileBytes file, std::string_view text, std::size_t skip, T value) {
  std::size_t const at = find_text(file, text) + text.size() + skip;
  return with_number(std::move(file), at, value);
}
/// A copy with the first `from` replaced by `to`, which has the same length.
inline FileBytes with_text(FileBytes file, std::string_view from, std::string_view to) {
  std::size_t const at = find_text(file, from);
  std::memcpy(file.data() + at, to.data(), from.size());
  return file;
}

}  // namespace tiered_test
