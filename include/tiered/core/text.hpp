/// Text for messages, out of strings and numbers, without a formatting library.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

namespace tiered {
namespace detail {

inline void append(std::string& out, std::string_view text) { out += text; }
inline void append(std::string& out, char const* text) { out += text != nullptr ? text : "?"; }
inline void append(std::string& out, char c) { out += c; }
template <std::same_as<bool> Bool>  // a template, or string literals would prefer it
void append(std::string& out, Bool value) {
  out += value ? "true" : "false";
}
template <class T>
requires((std::integral<T> || std::floating_point<T>)&&!std::same_as<T, bool> && !std::same_as<T, char>) void append(std::string& out,
                                                                                                                     T value) {
  char digits[64];
  std::to_chars_result result{};
  if constexpr (std::integral<T>) {
    result = std::to_chars(digits, digits + sizeof digits, value);
  } else {
    result = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::general, 6);
  }
  out.append(digits, result.ptr);
}

}  // namespace detail

/// The parts one after another: concat("layer ", 3, " of ", n).
template <class... Parts>
std::string concat(Parts const&... parts) {
  std::string out;
  (detail::append(out, parts), ...);
  return out;
}

}  // namespace tiered
