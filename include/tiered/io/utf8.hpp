/// UTF-8 that may be broken: reading, writing, and not cutting characters.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tiered {

/// One step through a text. Not valid: `length` is 1 and `code_point` U+FFFD, so that a loop over any bytes ends.
struct Utf8Char {
  char32_t code_point = 0xfffd;
  std::uint32_t length = 1;
  bool valid = false;
};

namespace detail {

/// Length that a first byte announces; 0 for a byte that starts nothing (Unicode 15, table 3-7).
constexpr std::uint32_t utf8_length(unsigned char first) {
  return first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
}

/// Second bytes are narrowed after E0, ED, F0 and F4: no overlong forms, no surrogates, nothing above U+10FFFF.
constexpr bool utf8_second_ok(unsigned char first, unsigned char second) {
  if ((second & 0xc0) != 0x80) return false;
  switch (first) {
    case 0xe0: return second >= 0xa0;
    case 0xed: return second < 0xa0;
    case 0xf0: return second >= 0x90;
    case 0xf4: return second < 0x90;
    default: return true;
  }
}

}  // namespace detail

/// Reads the character at `offset` < text.size().
constexpr Utf8Char read_utf8(std::string_view text, std::size_t offset) {
  auto const byte = [&](std::size_t i) { return static_cast<unsigned char>(text[offset + i]); };
  unsigned char const first = byte(0);
  if (first < 0x80) return {first, 1, true};
  std::uint32_t const length = detail::utf8_length(first);
  if (length == 0 || text.size() - offset < length || !detail::utf8_second_ok(first, byte(1))) return {};
  char32_t code_point = first & (0x7fu >> length);
  for (std::uint32_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code_point = code_point << 6 | (byte(i) & 0x3fu);
  }
  return {code_point, length, true};
}

/// Bytes from `offset` on that are valid UTF-8.
constexpr std::size_t valid_utf8_bytes(std::string_view text, std::size_t offset) {
  std::size_t end = offset;
  while (end < text.size()) {
    Utf8Char const c = read_utf8(text, end);
    if (!c.valid) break;
    end += c.length;
  }
  return end - offset;
}

/// Bytes at the end of `text` (0 to 3) that begin a character whose other bytes may still come.
constexpr std::size_t unfinished_utf8_bytes(std::string_view text) {
  for (std::size_t n = 1; n <= 3 && n <= text.size(); ++n) {
    std::size_t const start = text.size() - n;
    auto const first = static_cast<unsigned char>(text[start]);
    if ((first & 0xc0) == 0x80) continue;  // in the middle of one: look further back
    bool const open = detail::utf8_length(first) > n;
    return open && (n == 1 || detail::utf8_second_ok(first, static_cast<unsigned char>(text[start + 1]))) ? n : 0;
  }
  return 0;
}

/// `code_point` <= U+10FFFF.
inline void append_utf8(std::string& out, char32_t code_point) {
  auto const tail = [&](int shift) { out += static_cast<char>(0x80 | (code_point >> shift & 0x3f)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xc0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xe0 | code_point >> 12);
    tail(6), tail(0);
  } else {
    out += static_cast<char>(0xf0 | code_point >> 18);
    tail(12), tail(6), tail(0);
  }
}

}  // namespace tiered
