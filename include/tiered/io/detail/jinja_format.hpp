/// str.format and the formats of % in chat templates, as Python writes them; independent of the C locale.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_operators.hpp"
#include "tiered/io/detail/jinja_text.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/detail/printable.hpp"

namespace tiered::detail::jinja {

inline constexpr int max_format_width = 1000;  ///< of a number, and of its precision

/// Digits of a finite number, with its sign; precision in [0, max_format_width].
inline std::string real_digits(double d, std::chars_format notation, int precision) {
  std::string digits(std::size_t(max_format_width) + 330, '\0');  // 309 digits before the point, sign, exponent
  auto const result = std::to_chars(digits.data(), digits.data() + digits.size(), d, notation, precision);
  if (result.ec != std::errc()) fail(concat("a number with ", precision, " digits"));
  digits.resize(std::size_t(result.ptr - digits.data()));
  return digits;
}

/// str.format without conversions and specifications.
inline std::string format(Runtime& rt, std::string_view pattern, Arguments const& args) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    char const c = pattern[at];
    if (c != '{' && c != '}') {
      out += c;
      continue;
    }
    if (at + 1 < pattern.size() && pattern[at + 1] == c) {
      out += c;
      ++at;
      continue;
    }
    std::size_t const end = pattern.find('}', at);
    if (c == '}' || end == std::string_view::npos) fail("a single bracket in the pattern of format()");
    std::string_view const field = pattern.substr(at + 1, end - at - 1);
    at = end;
    std::size_t index = 0;
    auto const number = std::from_chars(field.data(), field.data() + field.size(), index);
    Value const* value = nullptr;
    if (field.empty() || (number.ec == std::errc() && number.ptr == field.data() + field.size())) {
      if (field.empty()) index = next++;
      if (index < args.positional.size()) value = &args.positional[index];
    } else {
      for (auto const& [name, each] : args.named) {
        if (name == field) value = &each;
      }
    }
    if (value == nullptr) fail(concat("format() has nothing for {", printable(field, 40), "}"));
    out += to_text(rt, *value);
    rt.charge_bytes(out.size());
  }
  return out;
}

/// What stands between % and the letter.
struct NumberFormat {
  bool left = false, plus = false, blank = false, alternate = false, zeros = false;
  int width = 0, precision = -1;  ///< -1: none is given

  /// Errors  unsupported where width or precision are over max_format_width.
  static NumberFormat parse(std::string_view spec) {
    NumberFormat f;
    for (; !spec.empty() && std::string_view("-+ #0").find(spec[0]) != std::string_view::npos; spec.remove_prefix(1)) {
      (spec[0] == '-' ? f.left : spec[0] == '+' ? f.plus : spec[0] == ' ' ? f.blank : spec[0] == '#' ? f.alternate : f.zeros) = true;
    }
    f.width = number(spec);
    if (!spec.empty()) {  // a point
      spec.remove_prefix(1);
      f.precision = number(spec);
    }
    return f;
  }
  /// Digits behind sign and prefix, filled up to the width.
  std::string padded(bool negative, std::string_view prefix, std::string_view digits) const {
    std::string const front = concat(negative ? "-" : plus ? "+" : blank ? " " : "", prefix);
    std::size_t const length = front.size() + digits.size();
    std::string const fill(std::size_t(width) > length ? std::size_t(width) - length : 0, zeros && !left ? '0' : ' ');
    return left ? concat(front, digits, fill) : zeros ? concat(front, fill, digits) : concat(fill, front, digits);
  }

 private:
  /// Takes the digits at the front; none are 0.
  static int number(std::string_view& spec) {
    int n = 0;
    auto const result = std::from_chars(spec.data(), spec.data() + spec.size(), n);
    if (result.ec == std::errc::result_out_of_range || n > max_format_width)
      fail(concat("a number formatted to more than ", max_format_width, " characters"));
    spec.remove_prefix(std::size_t(result.ptr - spec.data()));
    return n;
  }
};

inline std::string formatted_integer(NumberFormat const& f, int base, std::int64_t i) {
  char buffer[24];
  std::uint64_t const magnitude = i < 0 ? 0 - std::uint64_t(i) : std::uint64_t(i);
  std::string digits(buffer, std::to_chars(buffer, buffer + sizeof buffer, magnitude, base).ptr);
  if (f.precision > int(digits.size())) digits.insert(0, std::size_t(f.precision) - digits.size(), '0');
  return f.padded(i < 0, f.alternate && base == 16 ? "0x" : "", digits);
}
inline std::string formatted_real(NumberFormat const& f, char kind, double d) {
  if (is_nan(d)) return f.padded(false, "", "nan");
  if (!is_finite(d)) return f.padded(d < 0, "", "inf");
  auto const notation = kind == 'f' ? std::chars_format::fixed : kind == 'e' ? std::chars_format::scientific : std::chars_format::general;
  std::string const digits = real_digits(d, notation, f.precision < 0 ? 6 : f.precision);
  bool const negative = digits[0] == '-';  // -0 too
  return f.padded(negative, "", std::string_view(digits).substr(negative ? 1 : 0));
}

inline std::string formatted_number(char kind, std::string_view spec, Value const& value) {
  std::int64_t i = 0;
  double d = 0;
  NumberFormat const f = NumberFormat::parse(spec);
  if ((kind == 'd' || kind == 'i' || kind == 'x') && value.integer(i)) return formatted_integer(f, kind == 'x' ? 16 : 10, i);
  if ((kind == 'f' || kind == 'e' || kind == 'g') && !f.alternate && value.real(d)) return formatted_real(f, kind, d);
  fail(concat("the format ", printable(concat("%", spec, kind), 40), " for ", type_name(value)));
}

/// pattern % values: %s %r %d %i %x %f %e %g %%, with flags, width and precision of numbers; '#' of integers only.
inline std::string percent_format(Runtime& rt, std::string_view pattern, std::vector<Value> const& values) {
  std::string out;
  std::size_t next = 0;
  for (std::size_t at = 0; at < pattern.size(); ++at) {
    if (pattern[at] != '%') {
      out += pattern[at];
      continue;
    }
    std::size_t end = pattern.find_first_not_of("-+ #0", at + 1);
    end = pattern.find_first_not_of("0123456789", end);
    if (end < pattern.size() && pattern[end] == '.') end = pattern.find_first_not_of("0123456789", end + 1);
    if (end == std::string_view::npos) fail("an unfinished % in a format");
    std::string_view const spec = pattern.substr(at + 1, end - at - 1);
    char const kind = pattern[end];
    at = end;
    if (kind == '%') {
      out += '%';
      continue;
    }
    if (next >= values.size()) fail("not enough values for a format");
    Value const& value = values[next++];
    if (kind == 'r' && spec.empty()) {
      append_repr(rt, out, value);
    } else {
      out += kind == 's' && spec.empty() ? to_text(rt, value) : formatted_number(kind, spec, value);
    }
    rt.charge_bytes(out.size());
  }
  if (next < values.size()) fail("too many values for a format");
  return out;
}

}  // namespace tiered::detail::jinja
