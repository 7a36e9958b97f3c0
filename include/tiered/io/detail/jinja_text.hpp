/// Python's text functions on UTF-8: positions are characters, blanks and case are Unicode's.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/io/detail/jinja_math.hpp"
#include "tiered/io/utf8.hpp"

namespace tiered::detail::jinja {

/// str.isspace().
constexpr bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/// Bytes that are no UTF-8 count as a character each.
inline std::size_t n_characters(std::string_view s) {
  std::size_t n = 0;
  for (std::size_t at = 0; at < s.size(); at += read_utf8(s, at).length) ++n;
  return n;
}
/// Where each character begins, and the end.
inline std::vector<std::size_t> character_starts(std::string_view s) {
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < s.size(); at += read_utf8(s, at).length) starts.push_back(at);
  starts.push_back(s.size());
  return starts;
}
/// Start of the character that ends at `end` > 0.
inline std::size_t previous_character(std::string_view s, std::size_t end) {
  for (std::size_t n = 1; n <= 4 && n <= end; ++n) {
    Utf8Char const c = read_utf8(s.substr(0, end), end - n);
    if (c.valid && c.length == n) return end - n;
  }
  return end - 1;
}

inline bool holds_character(std::string_view set, std::string_view character) { return set.find(character) != std::string_view::npos; }

/// str.strip(chars): blanks where `chars` is null.
inline std::string_view strip(std::string_view s, std::string_view const* chars, bool left, bool right) {
  auto const drops = [&](std::size_t at, std::size_t length) {
    return chars != nullptr ? holds_character(*chars, s.substr(at, length)) : is_space(read_utf8(s, at).code_point);
  };
  while (left && !s.empty()) {
    std::size_t const length = read_utf8(s, 0).length;
    if (!drops(0, length)) break;
    s.remove_prefix(length);
  }
  while (right && !s.empty()) {
    std::size_t const at = previous_character(s, s.size());
    if (!drops(at, s.size() - at)) break;
    s = s.substr(0, at);
  }
  return s;
}

/// str.split(): runs of blanks separate; at most `max_splits` times where that is >= 0.
inline std::vector<std::string_view> split_blanks(std::string_view s, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (s = strip(s, nullptr, true, false); !s.empty(); s = strip(s, nullptr, true, false)) {
    if (max_splits >= 0 && parts.size() == std::size_t(max_splits)) {
      parts.push_back(s);
      break;
    }
    std::size_t end = 0;
    while (end < s.size() && !is_space(read_utf8(s, end).code_point)) end += read_utf8(s, end).length;
    parts.push_back(s.substr(0, end));
    s.remove_prefix(end);
  }
  return parts;
}
inline std::vector<std::string_view> rsplit_blanks(std::string_view s, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  for (s = strip(s, nullptr, false, true); !s.empty(); s = strip(s, nullptr, false, true)) {
    if (max_splits >= 0 && parts.size() == std::size_t(max_splits)) {
      parts.push_back(s);
      break;
    }
    std::size_t begin = s.size();
    while (begin > 0) {
      std::size_t const at = previous_character(s, begin);
      if (is_space(read_utf8(s, at).code_point)) break;
      begin = at;
    }
    parts.push_back(s.substr(begin));
    s = s.substr(0, begin);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}
/// `separator` is not empty.
inline std::vector<std::string_view> split(std::string_view s, std::string_view separator, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  std::size_t at = 0;
  while (max_splits < 0 || parts.size() < std::size_t(max_splits)) {
    std::size_t const next = s.find(separator, at);
    if (next == std::string_view::npos) break;
    parts.push_back(s.substr(at, next - at));
    at = next + separator.size();
  }
  parts.push_back(s.substr(at));
  return parts;
}
inline std::vector<std::string_view> rsplit(std::string_view s, std::string_view separator, std::int64_t max_splits) {
  std::vector<std::string_view> parts;
  while (max_splits < 0 || parts.size() < std::size_t(max_splits)) {
    std::size_t const at = s.rfind(separator);
    if (at == std::string_view::npos) break;
    parts.push_back(s.substr(at + separator.size()));
    s = s.substr(0, at);
  }
  parts.push_back(s);
  std::reverse(parts.begin(), parts.end());
  return parts;
}

/// str.splitlines().
inline std::vector<std::string_view> split_lines(std::string_view s) {
  std::vector<std::string_view> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < s.size();) {
    Utf8Char const c = read_utf8(s, at);
    char32_t const p = c.code_point;
    bool const ends = (p >= 10 && p <= 13) || (p >= 0x1c && p <= 0x1e) || p == 0x85 || p == 0x2028 || p == 0x2029;
    std::size_t next = at + c.length;
    if (ends) {
      lines.push_back(s.substr(begin, at - begin));
      if (p == '\r' && next < s.size() && s[next] == '\n') ++next;
      begin = next;
    }
    at = next;
  }
  if (begin < s.size()) lines.push_back(s.substr(begin));
  return lines;
}

/// str.replace(): an empty `from` stands before every character and at the end. `max` < 0: all.
inline std::string replaced(std::string_view s, std::string_view from, std::string_view to, std::int64_t max) {
  std::string out;
  std::size_t at = 0;
  for (std::int64_t n = 0; max < 0 || n < max; ++n) {
    if (from.empty()) {
      if (at > s.size()) break;
      out += to;
      if (at == s.size()) return out;
      std::size_t const length = read_utf8(s, at).length;
      out += s.substr(at, length);
      at += length;
      continue;
    }
    std::size_t const next = s.find(from, at);
    if (next == std::string_view::npos) break;
    out += s.substr(at, next - at);
    out += to;
    at = next + from.size();
  }
  out += s.substr(std::min(at, s.size()));
  return out;
}

/// Simple case mappings of Latin, Greek, Cyrillic and Armenian; other scripts with case keep theirs, and a sigma
/// that ends a word becomes one like any other.
constexpr char32_t to_lower(char32_t c) {
  if (c < 0x80) return c >= 'A' && c <= 'Z' ? c + 32 : c;
  if ((c >= 0xc0 && c <= 0xde && c != 0xd7) || (c >= 0x391 && c <= 0x3ab && c != 0x3a2) || (c >= 0x410 && c <= 0x42f)) return c + 32;
  if (c == 0x130) return c;
  if ((c >= 0x100 && c <= 0x137) || (c >= 0x14a && c <= 0x177) || (c >= 0x460 && c <= 0x481) || (c >= 0x48a && c <= 0x4bf) ||
      (c >= 0x4d0 && c <= 0x52f) || (c >= 0x1e00 && c <= 0x1e95) || (c >= 0x1ea0 && c <= 0x1eff)) {
    return c | 1;
  }
  if ((c >= 0x139 && c <= 0x148) || (c >= 0x179 && c <= 0x17e)) return c + (c & 1);
  if (c == 0x178) return 0xff;
  if (c >= 0x400 && c <= 0x40f) return c + 80;
  if (c >= 0x531 && c <= 0x556) return c + 48;
  if (c == 0x386) return 0x3ac;
  if (c >= 0x388 && c <= 0x38a) return c + 37;
  if (c == 0x38c) return 0x3cc;
  if (c == 0x38e || c == 0x38f) return c + 63;
  if (c >= 0xff21 && c <= 0xff3a) return c + 32;
  return c;
}
constexpr char32_t to_upper(char32_t c) {
  if (c < 0x80) return c >= 'a' && c <= 'z' ? c - 32 : c;
  if (c == 0xb5) return 0x39c;
  if (c == 0xff) return 0x178;
  if (c == 0x131) return 'I';
  if (c == 0x3c2) return 0x3a3;
  char32_t const below[] = {c - 1, c - 32, c - 37, c - 48, c - 63, c - 64, c - 80};
  for (char32_t const candidate : below) {
    if (candidate < c && to_lower(candidate) == c && candidate != c) return candidate;
  }
  return c == 0x3ac ? 0x386 : c;
}

enum class Case { lower, upper };
inline std::string in_case(std::string_view s, Case wanted) {
  std::string out;
  for (std::size_t at = 0; at < s.size();) {
    Utf8Char const c = read_utf8(s, at);
    if (!c.valid) {
      out += s[at];
    } else if (wanted == Case::upper && c.code_point == 0xdf) {
      out += "SS";
    } else {
      append_utf8(out, wanted == Case::upper ? to_upper(c.code_point) : to_lower(c.code_point));
    }
    at += c.length;
  }
  return out;
}
/// Caseless letters (CJK) count as neither.
inline bool has_case(char32_t c) { return to_lower(c) != c || to_upper(c) != c || c == 0xdf; }
/// str.isupper(), str.islower().
inline bool is_all(std::string_view s, Case wanted) {
  bool any = false;
  for (std::size_t at = 0; at < s.size(); at += read_utf8(s, at).length) {
    char32_t const c = read_utf8(s, at).code_point;
    if (!has_case(c)) continue;
    if ((wanted == Case::upper ? to_upper(c) : to_lower(c)) != c || (c == 0xdf && wanted == Case::upper)) return false;
    any = true;
  }
  return any;
}
inline std::string capitalized(std::string_view s) {
  std::size_t const first = s.empty() ? 0 : read_utf8(s, 0).length;
  return in_case(s.substr(0, first), Case::upper) + in_case(s.substr(first), Case::lower);
}
/// str.title(): a word begins behind anything without case.
inline std::string titled(std::string_view s) {
  std::string out;
  bool inside = false;
  for (std::size_t at = 0; at < s.size();) {
    Utf8Char const c = read_utf8(s, at);
    out += in_case(s.substr(at, c.length), inside ? Case::lower : Case::upper);
    inside = has_case(c.code_point);
    at += c.length;
  }
  return out;
}

/// repr(float): the shortest digits that give the number back, exponents below 1e-4 and from 1e16 on.
inline std::string python_float(double d) {
  if (is_nan(d)) return "nan";
  if (!is_finite(d)) return d < 0 ? "-inf" : "inf";
  char buffer[64];
  auto const result = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::scientific);
  std::string_view const all(buffer, std::size_t(result.ptr - buffer));
  std::size_t const e = all.find('e');
  int exponent = 0;
  std::string_view power = all.substr(e + 1);
  if (power.starts_with('+')) power.remove_prefix(1);
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (exponent < -4 || exponent >= 16) return std::string(all);
  auto const fixed = std::to_chars(buffer, buffer + sizeof buffer, d, std::chars_format::fixed);
  std::string out(buffer, fixed.ptr);
  return out.find('.') == std::string::npos ? out + ".0" : out;
}

/// What repr() writes as it is, by the ranges of Unicode 15 that are large or common; unassigned characters are not told apart.
constexpr bool is_printable(char32_t c) {
  if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad) return false;
  if (c < 0x600) return true;
  if (c <= 0x605 || c == 0x61c || c == 0x6dd || c == 0x70f || c == 0x1680 || c == 0x180e) return false;
  if ((c >= 0x2000 && c <= 0x200f) || (c >= 0x2028 && c <= 0x202f) || (c >= 0x205f && c <= 0x206f) || c == 0x3000) return false;
  if ((c >= 0xd800 && c <= 0xf8ff) || c == 0xfeff || (c >= 0xfff0 && c <= 0xfffb) || (c & 0xfffe) == 0xfffe) return false;
  return c < 0xe0000;
}

inline void append_hex(std::string& out, char32_t c, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) out += "0123456789abcdef"[c >> shift & 15];
}
/// repr(str).
inline std::string python_repr(std::string_view s) {
  char const quote = s.find('\'') != std::string_view::npos && s.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < s.size();) {
    Utf8Char const c = read_utf8(s, at);
    char32_t const p = c.code_point;
    if (p == char32_t(quote) || p == '\\') {
      out += '\\';
      out += char(p);
    } else if (p == '\n' || p == '\r' || p == '\t') {
      out += p == '\n' ? "\\n" : p == '\r' ? "\\r" : "\\t";
    } else if (!c.valid || is_printable(p)) {
      out += s.substr(at, c.length);
    } else {
      out += p < 0x100 ? "\\x" : p < 0x10000 ? "\\u" : "\\U";
      append_hex(out, p, p < 0x100 ? 2 : p < 0x10000 ? 4 : 8);
    }
    at += c.length;
  }
  return out + quote;
}

/// markupsafe.escape().
inline std::string html_escaped(std::string_view s) {
  std::string out;
  for (char const c : s) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

/// slice.indices(n): the positions that [start:stop:step] takes of n. Missing bounds are null; step != 0.
inline std::vector<std::size_t> slice_positions(std::size_t n, std::int64_t const* start, std::int64_t const* stop, std::int64_t step) {
  auto const length = std::int64_t(n);
  auto const clamp = [&](std::int64_t i) {
    if (i < 0) i = i < -length ? -1 : i + length;
    return step < 0 ? std::clamp<std::int64_t>(i, -1, length - 1) : std::clamp<std::int64_t>(i, 0, length);
  };
  // Negative bounds below -n are "before the first": -1 going down, 0 going up.
  std::int64_t const first = start != nullptr ? clamp(*start) : step < 0 ? length - 1 : 0;
  std::int64_t const last = stop != nullptr ? clamp(*stop) : step < 0 ? -1 : length;
  std::vector<std::size_t> positions;
  for (std::int64_t i = first; step > 0 ? i < last : i > last;) {
    positions.push_back(std::size_t(i));
    if (step > 0 ? step >= last - i : step <= last - i) break;  // also what would overflow
    i += step;
  }
  return positions;
}

}  // namespace tiered::detail::jinja
