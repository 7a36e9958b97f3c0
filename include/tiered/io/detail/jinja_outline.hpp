/// A chat template in one spelling, so that templates that differ only in how they are written compare equal.
#pragma once

#include <cctype>
#include <cstddef>
#include <string>
#include <string_view>

namespace tiered::detail {

/// Rewrites Jinja source: `{%tag%}` with single blanks between words, `{{name}}` for a variable, and all fixed text, quoted or not, as
/// the plain text that comes out. x['name'] becomes x.name; sums fall apart into their parts; blanks go where HF transformers' settings
/// (trim_blocks, lstrip_blocks) and `-` take them away. Anything it does not understand stays as it is, and then matches nothing.
class JinjaOutline {
 public:
  static std::string of(std::string_view source) {
    if (source.ends_with('\n')) source.remove_suffix(1);  // Jinja drops one line end at the end
    JinjaOutline outline(source);
    outline.run();
    return std::move(outline.out_);
  }

 private:
  explicit JinjaOutline(std::string_view source) : source_(source) {}

  static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
  static bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

  void run() {
    while (at_ < source_.size()) {
      std::size_t open = source_.find('{', at_);
      while (open != std::string_view::npos && open + 1 < source_.size() &&
             std::string_view("{%#").find(source_[open + 1]) == std::string_view::npos) {
        open = source_.find('{', open + 1);
      }
      if (open == std::string_view::npos || open + 1 >= source_.size()) {
        data(source_.substr(at_), '\0', false);
        return;
      }
      char const kind = source_[open + 1];
      bool const minus = open + 2 < source_.size() && source_[open + 2] == '-';
      data(source_.substr(at_, open - at_), kind, minus);
      at_ = open + (minus ? 3 : 2);
      tag(kind);
    }
  }

  /// Text between tags; `next` is the kind of the tag behind it.
  void data(std::string_view text, char next, bool next_minus) {
    bool line_starts = at_ == 0;
    if (strip_left_) {
      while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    } else if (after_block_ && text.starts_with('\n')) {
      text.remove_prefix(1);
      line_starts = true;
    }
    if (next_minus) {
      while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
    } else if (next == '%' || next == '#') {
      std::size_t end = text.size();
      while (end > 0 && (text[end - 1] == ' ' || text[end - 1] == '\t')) --end;
      if (end > 0 ? text[end - 1] == '\n' : line_starts) text = text.substr(0, end);
    }
    out_ += text;
  }

  void tag(char kind) {
    std::string_view const close = kind == '{' ? "}}" : kind == '%' ? "%}" : "#}";
    std::size_t end = at_;
    char quote = '\0';
    for (; end < source_.size(); ++end) {
      char const c = source_[end];
      if (kind != '#' && quote != '\0') {
        if (c == '\\') {
          ++end;
        } else if (c == quote) {
          quote = '\0';
        }
      } else if (kind != '#' && (c == '\'' || c == '"')) {
        quote = c;
      } else if (source_.substr(end, 2) == close) {
        break;
      }
    }
    if (end >= source_.size()) {  // never closed: no shape holds this
      out_ += "{%unclosed";
      at_ = source_.size();
      return;
    }
    std::string_view body = source_.substr(at_, end - at_);
    at_ = end + 2;
    strip_left_ = body.ends_with('-');
    after_block_ = kind != '{';
    if (strip_left_) body.remove_suffix(1);
    if (kind == '%') out_ += "{%" + words(body) + "%}";
    if (kind == '{') output(body);
  }

  /// Reads a quoted text at `i`, which then stands behind it.
  static std::string quoted(std::string_view text, std::size_t& i) {
    std::string value;
    char const quote = text[i++];
    for (; i < text.size() && text[i] != quote; ++i) {
      if (text[i] != '\\' || i + 1 == text.size()) {
        value += text[i];
        continue;
      }
      char const escaped = text[++i];
      value += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped == 'r' ? '\r' : escaped;
    }
    if (i < text.size()) ++i;
    return value;
  }

  /// The words of an expression or a statement with single blanks between them.
  static std::string words(std::string_view text) {
    std::string out;
    auto const separate = [&] {
      if (!out.empty()) out += ' ';
    };
    for (std::size_t i = 0; i < text.size();) {
      char const c = text[i];
      if (is_space(c)) {
        ++i;
      } else if (c == '\'' || c == '"') {
        separate();
        out += '\'' + quoted(text, i) + '\'';
      } else if (is_word(c)) {
        separate();
        name(text, i, out);
      } else {
        separate();
        out += c;
        ++i;
        if (i < text.size() && text[i] == '=' && (c == '=' || c == '!' || c == '<' || c == '>')) out += text[i++];
      }
    }
    return out;
  }

  /// A name with its attributes and indices: message['role'] is message.role, messages[0] stays.
  static void name(std::string_view text, std::size_t& i, std::string& out) {
    while (i < text.size()) {
      if (is_word(text[i]) || text[i] == '.') {
        out += text[i++];
        continue;
      }
      if (text[i] != '[' || i + 1 == text.size()) return;
      std::size_t j = i + 1;
      if (text[j] == '\'' || text[j] == '"') {
        std::string const key = quoted(text, j);
        if (j >= text.size() || text[j] != ']') return;
        out += '.' + key;
      } else {
        while (j < text.size() && std::isdigit(static_cast<unsigned char>(text[j])) != 0) ++j;
        if (j >= text.size() || text[j] != ']') return;
        out += std::string(text.substr(i, j + 1 - i));
      }
      i = j + 1;
    }
  }

  /// `{{ 'a' + b }}` is the text a and the variable b; any other expression stays one.
  void output(std::string_view body) {
    std::string parts;
    bool want_operand = true;
    for (std::size_t i = 0; i < body.size();) {
      char const c = body[i];
      if (is_space(c)) {
        ++i;
      } else if (want_operand && (c == '\'' || c == '"')) {
        parts += quoted(body, i);
        want_operand = false;
      } else if (want_operand && is_word(c)) {
        std::string variable;
        name(body, i, variable);
        parts += "{{" + variable + "}}";
        want_operand = false;
      } else if (!want_operand && (c == '+' || c == '~')) {
        ++i;
        want_operand = true;
      } else {
        out_ += "{{" + words(body) + "}}";
        return;
      }
    }
    out_ += want_operand ? "{{" + words(body) + "}}" : parts;
  }

  std::string_view source_;
  std::string out_;
  std::size_t at_ = 0;
  bool strip_left_ = false, after_block_ = false;
};

}  // namespace tiered::detail
