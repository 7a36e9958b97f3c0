/// Cuts a chat template into tokens, with the treatment of blanks that Hugging Face transformers asks of Jinja2.
#pragma once

#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_text.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/detail/printable.hpp"
#include "tiered/io/utf8.hpp"

namespace tiered::detail::jinja {

enum class TokenKind : std::uint8_t { data, output_begin, output_end, block_begin, block_end, name, string, integer, real, op, end };

struct Token {
  TokenKind kind;
  std::uint32_t line;
  std::string text;  ///< of data, names, operators; strings without quotes and escapes
  std::int64_t integer = 0;
  double real = 0;

  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
};

/// trim_blocks (a line end behind a block or a comment goes), lstrip_blocks (so do blanks between the start of a line and one),
/// `-` and `+`, and one line end at the end of the source goes.
class Lexer {
 public:
  /// Errors  unsupported, with the line.
  static std::vector<Token> tokens_of(std::string_view source) {
    Lexer lexer(source);
    lexer.run();
    return std::move(lexer.tokens_);
  }

 private:
  explicit Lexer(std::string_view source) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      bool const carriage = source[i] == '\r';
      if (carriage && i + 1 < source.size() && source[i + 1] == '\n') continue;
      source_ += carriage ? '\n' : source[i];
    }
    if (source_.ends_with('\n')) source_.pop_back();
    rest_ = source_;
  }

  [[noreturn]] void refuse(std::string const& what) const { fail(concat("line ", line_, ": ", what)); }
  void add(TokenKind kind, std::string text = {}) { tokens_.push_back({kind, line_, std::move(text)}); }
  /// Moves on by `n` bytes, which it returns.
  std::string_view take(std::size_t n) {
    std::string_view const taken = rest_.substr(0, n);
    for (char const c : taken) line_ += c == '\n';
    if (!taken.empty()) line_starts_ = taken.back() == '\n';
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::size_t n_spaces(std::size_t at) const {
    std::size_t end = at;
    while (end < rest_.size() && is_space(read_utf8(rest_, end).code_point)) end += read_utf8(rest_, end).length;
    return end - at;
  }

  void run() {
    while (!rest_.empty()) {
      std::size_t open = 0;
      while ((open = rest_.find('{', open)) != std::string_view::npos) {
        char const next = open + 1 < rest_.size() ? rest_[open + 1] : '\0';
        if (next == '{' || next == '%' || next == '#') break;
        ++open;
      }
      if (open == std::string_view::npos) {
        data(rest_.size(), '\0', '\0');
        break;
      }
      char const kind = rest_[open + 1];
      char const sign = open + 2 < rest_.size() ? rest_[open + 2] : '\0';
      std::string_view const tag = rest_.substr(open);
      std::size_t const raw = kind == '%' ? raw_begin_bytes(tag) : 0;
      data(open, kind, sign);
      if (raw != 0) {
        take(raw);
        raw_block();
      } else if (kind == '#') {
        comment();
      } else {
        take(sign == '-' || sign == '+' ? 3 : 2);
        add(kind == '{' ? TokenKind::output_begin : TokenKind::block_begin);
        inside(kind);
      }
    }
    add(TokenKind::end);
  }

  /// The text before a tag of that kind and sign.
  void data(std::size_t bytes, char kind, char sign) {
    std::string_view text = rest_.substr(0, bytes);
    if (sign == '-') {
      text = strip(text, nullptr, false, true);
    } else if (sign != '+' && (kind == '%' || kind == '#')) {
      std::size_t const line_start = text.rfind('\n') + 1;  // 0 where there is none
      if ((line_start > 0 || line_starts_) && strip(text.substr(line_start), nullptr, true, false).empty())
        text = text.substr(0, line_start);
    }
    if (!text.empty()) add(TokenKind::data, std::string(text));
    take(bytes);
  }

  /// Bytes of `{% raw %}` at the start of `tag`, with the blanks behind a `-`; 0 where something else is there.
  std::size_t raw_begin_bytes(std::string_view tag) const {
    std::size_t const before = rest_.size() - tag.size();
    std::size_t at = 2;
    if (at < tag.size() && (tag[at] == '-' || tag[at] == '+')) ++at;
    at += n_spaces(before + at);
    if (tag.substr(at, 3) != "raw") return 0;
    at += 3;
    at += n_spaces(before + at);
    if (tag.substr(at, 2) == "%}") return at + 2;
    return tag.substr(at, 3) == "-%}" ? at + 3 + n_spaces(before + at + 3) : 0;
  }

  void raw_block() {
    for (std::size_t open = rest_.find("{%"); open != std::string_view::npos; open = rest_.find("{%", open + 2)) {
      std::size_t at = open + 2;
      char const sign = at < rest_.size() ? rest_[at] : '\0';
      if (sign == '-' || sign == '+') ++at;
      at += n_spaces(at);
      if (rest_.substr(at, 6) != "endraw") continue;
      at += 6;
      at += n_spaces(at);
      std::size_t const end = close_bytes(at, '%');
      if (end == 0) continue;
      data(open, '%', sign);
      take(at - open + end);
      return;
    }
    refuse("{% raw %} without {% endraw %}");
  }

  /// Bytes of the closing of a block or a comment at `at`, with what it swallows; 0 where there is none.
  std::size_t close_bytes(std::size_t at, char kind) const {
    std::string_view const text = rest_.substr(at);
    char const plain[] = {kind, '}', '\0'};
    if (text.starts_with(plain)) return text.size() > 2 && text[2] == '\n' ? 3 : 2;
    if (text.size() < 3 || text.substr(1, 2) != plain) return 0;
    return text[0] == '+' ? 3 : text[0] == '-' ? 3 + n_spaces(at + 3) : 0;
  }

  void comment() {
    std::size_t const begin = rest_.size() > 2 && (rest_[2] == '-' || rest_[2] == '+') ? 3 : 2;
    std::size_t at = rest_.find("#}", begin);
    if (at == std::string_view::npos) refuse("a comment without #}");
    if (at > begin && (rest_[at - 1] == '-' || rest_[at - 1] == '+')) --at;
    take(at + close_bytes(at, '#'));
  }

  /// Everything up to the end of an output or a block; brackets hide it.
  void inside(char kind) {
    std::string open;
    for (;;) {
      take(n_spaces(0));
      if (rest_.empty()) refuse(kind == '{' ? "{{ without }}" : "{% without %}");
      if (open.empty() && close(kind)) return;
      char const c = rest_[0];
      if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
        number();
      } else if (is_word(c)) {
        std::size_t end = 0;
        while (end < rest_.size() && is_word(rest_[end])) ++end;
        std::uint32_t const line = line_;
        tokens_.push_back({TokenKind::name, line, std::string(take(end))});
      } else if (c == '\'' || c == '"') {
        string(c);
      } else {
        operation(open);
      }
    }
  }
  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || static_cast<unsigned char>(c) >= 0x80;
  }

  bool close(char kind) {
    std::size_t bytes = 0;
    if (kind == '%') {
      bytes = close_bytes(0, '%');
    } else if (rest_.starts_with("}}")) {
      bytes = 2;
    } else if (rest_.starts_with("-}}")) {
      bytes = 3 + n_spaces(3);
    }
    if (bytes == 0) return false;
    add(kind == '%' ? TokenKind::block_end : TokenKind::output_end);
    take(bytes);
    return true;
  }

  void operation(std::string& open) {
    static constexpr std::string_view doubles[] = {"//", "**", "==", "!=", ">=", "<="};
    std::size_t bytes = 1;
    for (std::string_view const each : doubles) {
      if (rest_.starts_with(each)) bytes = 2;
    }
    char const c = rest_[0];
    if (bytes == 1 && std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      refuse(concat("unexpected character ", printable(rest_.substr(0, 1))));
    }
    if (bytes == 1 && (c == '(' || c == '[' || c == '{')) open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (bytes == 1 && (c == ')' || c == ']' || c == '}')) {
      if (open.empty() || open.back() != c) refuse(concat("unexpected '", c, "'"));
      open.pop_back();
    }
    add(TokenKind::op, std::string(rest_.substr(0, bytes)));
    take(bytes);
  }

  void number() {
    std::size_t end = 0;
    std::string digits;
    auto const run = [&](auto const& is_digit) {
      std::size_t const begin = end;
      while (end < rest_.size() &&
             (is_digit(rest_[end]) || (rest_[end] == '_' && end > begin && end + 1 < rest_.size() && is_digit(rest_[end + 1])))) {
        if (rest_[end] != '_') digits += rest_[end];
        ++end;
      }
      return end > begin;
    };
    auto const is_decimal = [](char c) { return c >= '0' && c <= '9'; };
    int base = 10;
    if (rest_[0] == '0' && rest_.size() > 2)
      base = (rest_[1] | 32) == 'x' ? 16 : (rest_[1] | 32) == 'o' ? 8 : (rest_[1] | 32) == 'b' ? 2 : 10;
    Token token{TokenKind::integer, line_, {}};
    if (base != 10) {
      end = 2;
      run([](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; });
    } else {
      run(is_decimal);
      // x.0.1 is an index of an index.
      bool const may_be_real = tokens_.empty() || !tokens_.back().is(TokenKind::op, ".");
      if (may_be_real && end + 1 < rest_.size() && rest_[end] == '.' && is_decimal(rest_[end + 1])) {
        digits += '.';
        ++end;
        run(is_decimal);
        token.kind = TokenKind::real;
      }
      if (may_be_real && end + 1 < rest_.size() && (rest_[end] | 32) == 'e') {
        std::size_t const sign = rest_[end + 1] == '+' || rest_[end + 1] == '-' ? 1 : 0;
        if (end + 1 + sign < rest_.size() && is_decimal(rest_[end + 1 + sign])) {
          digits += 'e';
          if (rest_[end + 1] == '-') digits += '-';
          end += 1 + sign;
          run(is_decimal);
          token.kind = TokenKind::real;
        }
      }
    }
    char const* const last = digits.data() + digits.size();
    auto const result = token.kind == TokenKind::real ? std::from_chars(digits.data(), last, token.real)
                                                      : std::from_chars(digits.data(), last, token.integer, base);
    if (result.ec != std::errc() || result.ptr != last)
      refuse(concat("the number ", printable(rest_.substr(0, end)), " is out of range here"));
    tokens_.push_back(std::move(token));
    take(end);
  }

  void string(char quote) {
    Token token{TokenKind::string, line_, {}};
    std::size_t at = 1;
    while (at < rest_.size() && rest_[at] != quote) {
      if (rest_[at] != '\\') {
        token.text += rest_[at++];
      } else {
        at = escape(at + 1, token.text);
      }
    }
    if (at >= rest_.size()) refuse("a string without its closing quote");
    tokens_.push_back(std::move(token));
    take(at + 1);
  }

  /// Python's escapes; `at` is behind the backslash. Returns where the text goes on.
  std::size_t escape(std::size_t at, std::string& out) const {
    if (at >= rest_.size()) refuse("a string without its closing quote");
    static constexpr std::string_view names = "\\'\"abfnrtv", values = "\\'\"\a\b\f\n\r\t\v";
    char const c = rest_[at];
    if (std::size_t const known = names.find(c); known != std::string_view::npos) {
      out += values[known];
      return at + 1;
    }
    std::size_t const digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    std::uint32_t code = 0;
    if (digits != 0) {
      std::string_view const hex = rest_.substr(at + 1, digits);
      auto const result = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
      bool const whole = hex.size() == digits && result.ptr == hex.data() + digits;
      if (!whole || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) refuse(concat("the escape \\", c, printable(hex)));
      append_utf8(out, code);
      return at + 1 + digits;
    }
    if (c >= '0' && c <= '7') {
      std::size_t end = at;
      while (end < rest_.size() && end < at + 3 && rest_[end] >= '0' && rest_[end] <= '7')
        code = code * 8 + std::uint32_t(rest_[end++] - '0');
      append_utf8(out, code);
      return end;
    }
    if (c == 'N') refuse("the escape \\N");
    if (c == '\n') return at + 1;
    out += '\\';
    return at;
  }

  std::string source_;
  std::string_view rest_;
  std::vector<Token> tokens_;
  std::uint32_t line_ = 1;
  bool line_starts_ = true;  // what was taken last ended a line
};

}  // namespace tiered::detail::jinja
