// Any bytes are a good GGUF file or a typed error; a good one keeps the promises of gguf.hpp.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "tiered/io/gguf.hpp"

namespace {

using tiered::GgufFile;
using tiered::GgufTensor;
using tiered::GgufType;
using tiered::GgufValue;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Reads every byte that the value stands for; returns something that depends on them.
std::size_t visit(GgufValue const& value) {
  std::size_t sum = value.describe().size();
  if (!value.is_array()) {
    if (value.type() == GgufType::string) {
      for (char const c : value.as<std::string_view>()) sum += static_cast<unsigned char>(c);
    }
    return sum;
  }
  auto const elements = value.as<std::vector<GgufValue>>();
  require(elements.size() == value.size());
  for (GgufValue const& element : elements) sum += visit(element);
  if (!elements.empty()) sum += visit(value[elements.size() - 1]);
  return sum;
}

/// Conversions throw Error or succeed.
template <class T>
void convert(GgufValue const& value) {
  try {
    (void)value.as<T>();
  } catch (tiered::Error const&) {
  }
}

void check_tensors(GgufFile const& file, std::span<std::byte const> bytes) {
  std::vector<GgufTensor const*> order;
  for (GgufTensor const& t : file.tensors()) {
    require(file.find_tensor(t.name) == &t);
    require(t.data.size() == t.bytes && t.bytes > 0 && std::uint32_t(t.dtype) == t.raw_type);
    require(t.data.data() >= bytes.data() && t.data.data() + t.data.size() <= bytes.data() + bytes.size());
    require(t.data.data() == bytes.data() + t.file_offset);
    std::uint64_t expected = 0;
    require(checked_bytes(t.shape, t.dtype, expected) && expected == t.bytes);
    order.push_back(&t);
  }
  std::sort(order.begin(), order.end(), [](auto const* a, auto const* b) { return a->file_offset < b->file_offset; });
  for (std::size_t i = 1; i < order.size(); ++i) require(order[i - 1]->file_offset + order[i - 1]->bytes <= order[i]->file_offset);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  auto const bytes = std::as_bytes(std::span(data, size));
  try {
    GgufFile const file = GgufFile::parse(bytes);
    volatile std::size_t sum = 0;
    for (GgufValue const& value : file.metadata()) {
      require(file.find(value.key()) == &value);
      sum = sum + visit(value);
      convert<std::uint8_t>(value);
      convert<std::int64_t>(value);
      convert<float>(value);
      convert<bool>(value);
      convert<std::vector<std::string_view>>(value);
      convert<std::vector<std::vector<std::int32_t>>>(value);
    }
    check_tensors(file, bytes);
  } catch (tiered::Error const& error) {
    std::string_view const message = error.what();
    require(std::all_of(message.begin(), message.end(), [](char c) { return c >= 0x20 && c < 0x7f; }));
  }
  return 0;
}
