/// Names out of a file, made safe for messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tiered::detail {

/// In quotes, with every byte that is not printable ASCII as \xNN, cut after `limit` bytes: a hostile name cannot upset a terminal.
inline std::string printable(std::string_view text, std::size_t limit = 80) {
  static constexpr char digits[] = "0123456789abcdef";
  std::string out = "\"";
  for (char const c : text.substr(0, limit)) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      auto const byte = static_cast<unsigned char>(c);
      out += "\\x";
      out += digits[byte >> 4];
      out += digits[byte & 15];
    }
  }
  out += text.size() > limit ? "...\"" : "\"";
  return out;
}

}  // namespace tiered::detail
