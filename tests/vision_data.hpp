/// Fixtures of tests/data/vision, and what their tests share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace tiered_test {

/// Reads a fixture of little-endian numbers from front to back.
class FixtureReader {
 public:
  explicit FixtureReader(std::string const& name) {
    std::ifstream stream(TIERED_TEST_DATA "/vision/" + name, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    if (bytes_.empty()) throw std::runtime_error("no fixture " + name);
  }
  bool at_end() const { return at_ == bytes_.size(); }
  std::string bytes(std::size_t n) {
    if (n > bytes_.size() - at_) throw std::runtime_error("a fixture ends early");
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, bytes(sizeof value).data(), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> numbers(std::size_t n) {
    std::vector<T> values(n);
    std::string const raw = bytes(n * sizeof(T));
    std::memcpy(values.data(), raw.data(), raw.size());
    return values;
  }

 private:
  std::string bytes_;
  std::size_t at_ = 0;
};

struct ImageCase {
  std::string name, file;
  std::uint32_t width, height;
  std::vector<std::uint8_t> rgb;
};

inline std::vector<ImageCase> image_cases() {
  FixtureReader in("images.bin");
  std::vector<ImageCase> cases;
  while (!in.at_end()) {
    ImageCase c;
    c.name = in.bytes(in.number<std::uint32_t>());
    c.file = in.bytes(in.number<std::uint32_t>());
    c.width = in.number<std::uint32_t>();
    c.height = in.number<std::uint32_t>();
    c.rgb = in.numbers<std::uint8_t>(std::size_t{c.width} * c.height * 3);
    cases.push_back(std::move(c));
  }
  return cases;
}

inline std::span<std::byte const> bytes_of(std::string const& text) { return std::as_bytes(std::span(text)); }

/// zlib's crc32().
inline std::uint32_t crc32(std::span<std::byte const> bytes) {
  std::uint32_t table[256];
  for (std::uint32_t i = 0; i < 256; ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xedb88320u : 0);
  }
  std::uint32_t crc = 0xffffffffu;
  for (std::byte const b : bytes) crc = crc >> 8 ^ table[(crc ^ std::uint32_t(b)) & 255];
  return ~crc;
}

}  // namespace tiered_test
