/// JSON as values of a chat template: reading what callers give, writing as Python's json.dumps does.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_math.hpp"
#include "tiered/io/detail/jinja_operators.hpp"
#include "tiered/io/detail/jinja_text.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/utf8.hpp"

namespace tiered::detail::jinja {

class JsonReader {
 public:
  /// One JSON value and nothing else.  Errors  precondition, with the offset.
  static Value read(Runtime& rt, std::string_view json) {
    JsonReader reader(rt, json);
    Value value = reader.value(0);
    reader.blanks();
    if (reader.at_ != json.size()) reader.refuse("text behind the value");
    return value;
  }

 private:
  JsonReader(Runtime& rt, std::string_view json) : rt_(rt), json_(json) {}
  [[noreturn]] void refuse(std::string_view what) const { throw Error(Errc::precondition, concat("not JSON at byte ", at_, ": ", what)); }
  char peek() const { return at_ < json_.size() ? json_[at_] : '\0'; }
  void blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\n' || peek() == '\r') ++at_;
  }
  bool skip(char c) {
    blanks();
    return peek() == c && at_ < json_.size() && (++at_, true);
  }
  void expect(char c) {
    if (!skip(c)) refuse(concat("expected ", c));
  }
  bool skip_word(std::string_view word) { return json_.substr(at_).starts_with(word) && (at_ += word.size(), true); }

  Value value(int depth) {
    if (depth >= max_value_depth) refuse("nested too deep");
    rt_.charge();
    blanks();
    if (peek() == '{') return object(depth);
    if (peek() == '[') return array(depth);
    if (peek() == '"') return text(string());
    if (skip_word("true")) return boolean(true);
    if (skip_word("false")) return boolean(false);
    if (skip_word("null")) return none();
    return number();
  }
  Value object(int depth) {
    std::vector<std::pair<Value, Value>> items;
    expect('{');
    while (!skip('}')) {
      if (!items.empty()) expect(',');
      blanks();
      std::string key = string();
      expect(':');
      put(rt_, items, text(std::move(key)), value(depth + 1));
    }
    return dict(std::move(items));
  }
  Value array(int depth) {
    std::vector<Value> items;
    expect('[');
    while (!skip(']')) {
      if (!items.empty()) expect(',');
      items.push_back(value(depth + 1));
    }
    return list(std::move(items));
  }
  Value number() {
    std::size_t const begin = at_;
    while (at_ < json_.size() && std::string_view("+-.0123456789eE").find(json_[at_]) != std::string_view::npos) ++at_;
    std::string_view const digits = json_.substr(begin, at_ - begin);
    char const* const last = digits.data() + digits.size();
    std::int64_t i = 0;
    double d = 0;
    auto const is_digit = [&](std::size_t k) { return k < digits.size() && digits[k] >= '0' && digits[k] <= '9'; };
    std::size_t const point = digits.find('.');
    if (point != std::string_view::npos && (point == 0 || !is_digit(point - 1) || !is_digit(point + 1))) refuse("expected a number");
    bool const whole = digits.find_first_of(".eE") == std::string_view::npos;
    auto const result = whole ? std::from_chars(digits.data(), last, i) : std::from_chars(digits.data(), last, d);
    if (digits.empty() || result.ec != std::errc() || result.ptr != last) refuse("expected a value");
    return whole ? integer(i) : real(d);
  }
  std::uint32_t hex4() {
    std::uint32_t code = 0;
    std::string_view const digits = json_.substr(at_, 4);
    auto const result = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || result.ptr != digits.data() + 4) refuse("expected four hexadecimal digits");
    at_ += 4;
    return code;
  }
  std::string string() {
    if (peek() != '"') refuse("expected \"");
    std::string out;
    for (++at_; peek() != '"' || at_ >= json_.size();) {
      if (at_ >= json_.size()) refuse("expected \"");
      char const c = json_[at_++];
      if (c != '\\') {
        out += c;
        continue;
      }
      static constexpr std::string_view names = "\"\\/bfnrt", values = "\"\\/\b\f\n\r\t";
      char const escaped = peek();
      ++at_;
      if (std::size_t const known = names.find(escaped); known != std::string_view::npos) {
        out += values[known];
      } else if (escaped == 'u') {
        std::uint32_t code = hex4();
        if (code >= 0xd800 && code < 0xdc00 && skip_word("\\u")) {
          std::uint32_t const low = hex4();
          if (low >= 0xdc00 && low < 0xe000) code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        if (code >= 0xd800 && code < 0xe000) refuse("half of a surrogate pair");
        append_utf8(out, code);
      } else {
        refuse("unknown escape");
      }
    }
    ++at_;
    rt_.charge_bytes(out.size());
    return out;
  }

  Runtime& rt_;
  std::string_view json_;
  std::size_t at_ = 0;
};

struct JsonStyle {
  bool ascii = false, sorted = false, lines = false;
  std::string indent{};  ///< of one level, where there are lines
  std::string between_items = ", ", after_key = ": ";
};

class JsonWriter {
 public:
  static std::string write(Runtime& rt, Value const& v, JsonStyle const& style) {
    JsonWriter writer(rt, style);
    writer.value(v, 0);
    return std::move(writer.out_);
  }

 private:
  JsonWriter(Runtime& rt, JsonStyle const& style) : rt_(rt), style_(style) {}

  void value(Value const& v, int level) {
    rt_.charge();
    if (out_.size() > rt_.limits().output_bytes) fail("a JSON text is too long");
    if (auto const* const t = v.text()) {
      string(*t);
    } else if (auto const* const l = v.list(); l != nullptr && l->is_plain()) {
      sequence('[', ']', l->items.size(), level, [&](std::size_t n) { value(l->items[n], level + 1); });
    } else if (auto const* const m = v.dict()) {
      std::vector<std::pair<Value, Value>> sorted;
      if (style_.sorted) {
        rt_.charge_items(m->items.size());
        sorted = m->items;
        std::stable_sort(sorted.begin(), sorted.end(), [&](auto const& a, auto const& b) { return less(rt_, a.first, b.first); });
      }
      auto const& items = style_.sorted ? sorted : m->items;
      sequence('{', '}', items.size(), level, [&](std::size_t n) {
        key(items[n].first);
        out_ += style_.after_key;
        value(items[n].second, level + 1);
      });
    } else {
      out_ += plain(v);
    }
  }
  template <class Each>
  void sequence(char open, char close, std::size_t n, int level, Each const& each) {
    out_ += open;
    for (std::size_t k = 0; k < n; ++k) {
      if (k != 0) out_ += style_.between_items;
      new_line(level + 1);
      each(k);
    }
    if (n != 0) new_line(level);
    out_ += close;
  }
  void new_line(int level) {
    if (!style_.lines) return;
    rt_.charge_bytes(1 + style_.indent.size() * std::size_t(level));
    out_ += '\n';
    for (int k = 0; k < level; ++k) out_ += style_.indent;
  }
  static std::string plain(Value const& v) {
    if (v.is<None>()) return "null";
    if (auto const* const b = v.get<bool>()) return *b ? "true" : "false";
    if (auto const* const i = v.get<std::int64_t>()) return std::to_string(*i);
    if (auto const* const d = v.get<double>()) {
      return is_nan(*d) ? "NaN" : !is_finite(*d) ? (*d < 0 ? "-Infinity" : "Infinity") : python_float(*d);
    }
    fail(concat("a value of type ", type_name(v), " is no JSON"));
  }
  void key(Value const& v) {
    if (auto const* const t = v.text()) return string(*t);
    if (v.list() != nullptr) fail("a tuple is no key of JSON");
    string(plain(v));
  }
  void string(std::string_view s) {
    rt_.charge_bytes(s.size());
    static constexpr std::string_view names = "\"\\bfnrt", values = "\"\\\b\f\n\r\t";
    out_ += '"';
    for (std::size_t at = 0; at < s.size();) {
      Utf8Char const c = read_utf8(s, at);
      std::size_t const escape = values.find(s[at]);
      if (escape != std::string_view::npos) {
        out_ += '\\';
        out_ += names[escape];
      } else if (c.code_point < 0x20 || (style_.ascii && c.code_point >= 0x7f)) {
        char32_t const p = c.code_point;
        auto const unit = [&](char32_t u) {
          out_ += "\\u";
          append_hex(out_, u, 4);
        };
        if (p >= 0x10000) {
          unit(0xd800 + ((p - 0x10000) >> 10));
          unit(0xdc00 + ((p - 0x10000) & 0x3ff));
        } else {
          unit(p);
        }
      } else {
        out_ += s.substr(at, c.length);
      }
      at += c.length;
    }
    out_ += '"';
  }

  Runtime& rt_;
  JsonStyle const& style_;
  std::string out_;
};

}  // namespace tiered::detail::jinja
