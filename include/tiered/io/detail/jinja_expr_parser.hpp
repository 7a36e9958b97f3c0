/// Makes trees of the expressions in a chat template: Jinja2's grammar.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_ast.hpp"
#include "tiered/io/detail/jinja_lexer.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/detail/printable.hpp"

namespace tiered::detail::jinja {

inline constexpr int max_parse_depth = 100, max_expr_depth = 250;

/// Whether a name is that of a filter or of a test.
using KnowsName = bool (*)(std::string_view name);

/// Expressions, as jinja2/parser.py orders them, loosest first.
class ExprParser {
 public:
  ExprParser(std::vector<Token> tokens, KnowsName knows_filter, KnowsName knows_test)
      : tokens_(std::move(tokens)), knows_filter_(knows_filter), knows_test_(knows_test) {}

 protected:
  struct Deeper {
    explicit Deeper(ExprParser& p) : parser(p) {
      if (++parser.depth_ > max_parse_depth) parser.refuse(concat("nested more than ", max_parse_depth, " deep"));
    }
    ~Deeper() { --parser.depth_; }
    Deeper(Deeper const&) = delete;
    Deeper& operator=(Deeper const&) = delete;
    ExprParser& parser;
  };

  Token const& here() const { return tokens_[at_]; }
  Token const& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token const& advance() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool at_op(std::string_view op) const { return here().is(TokenKind::op, op); }
  bool at_name(std::string_view name) const { return here().is(TokenKind::name, name); }
  bool skip_op(std::string_view op) { return at_op(op) && (advance(), true); }
  bool skip_name(std::string_view name) { return at_name(name) && (advance(), true); }
  [[noreturn]] void refuse(std::string const& what) const { refuse_at(here().line, what); }
  [[noreturn]] static void refuse_at(std::uint32_t line, std::string const& what) { fail(concat("line ", line, ": ", what)); }
  [[noreturn]] void unexpected(std::string_view wanted) const { refuse(concat("expected ", wanted, ", found ", shown(here()))); }
  static std::string shown(Token const& token) {
    switch (token.kind) {
      case TokenKind::end: return "the end of the template";
      case TokenKind::block_end: return "%}";
      case TokenKind::output_end: return "}}";
      case TokenKind::integer:
      case TokenKind::real: return "a number";
      default: return printable(token.text, 40);
    }
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) unexpected(printable(op));
  }
  std::string expect_name() {
    if (here().kind != TokenKind::name) unexpected("a name");
    return advance().text;
  }

  template <class... Children>
  ExprPtr make(ExprKind kind, std::uint32_t line, std::string text, Children... children) {
    auto node = std::make_unique<Expr>(Expr{kind, line, std::move(text)});
    (add(*node, std::move(children)), ...);
    return node;
  }
  /// A chain such as a + b + c... is as deep as it is long.
  void add(Expr& parent, ExprPtr child) {
    if (child != nullptr) parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > max_expr_depth) refuse_at(parent.line, concat("an expression of more than ", max_expr_depth, " parts"));
    parent.children.push_back(std::move(child));
  }
  ExprPtr constant(std::uint32_t line, Value value) {
    ExprPtr node = make(ExprKind::constant, line, {});
    node->constant = std::move(value);
    return node;
  }

  ExprPtr expression(bool with_condition = true) {
    Deeper const deeper(*this);
    if (!with_condition) return any_of();
    std::size_t const n_unknown = unknown_.size();
    ExprPtr node = any_of();
    while (at_name("if")) {
      std::uint32_t const line = advance().line;
      ExprPtr test = any_of();
      ExprPtr otherwise = skip_name("else") ? expression() : nullptr;
      node = make(ExprKind::condition, line, {}, std::move(node), std::move(test), std::move(otherwise));
      unknown_.resize(n_unknown);  // Jinja2 asks for filters inside conditions only when they run
    }
    return node;
  }

  ExprPtr any_of() {
    ExprPtr left = all_of();
    while (at_name("or")) {
      std::uint32_t const line = advance().line;
      left = make(ExprKind::binary, line, "or", std::move(left), all_of());
    }
    return left;
  }
  ExprPtr all_of() {
    ExprPtr left = negation();
    while (at_name("and")) {
      std::uint32_t const line = advance().line;
      left = make(ExprKind::binary, line, "and", std::move(left), negation());
    }
    return left;
  }
  ExprPtr negation() {
    if (!at_name("not")) return comparison();
    Deeper const deeper(*this);
    std::uint32_t const line = advance().line;
    return make(ExprKind::unary, line, "not", negation());
  }
  ExprPtr comparison() {
    ExprPtr first = sum();
    ExprPtr chain;
    for (;;) {
      std::string op;
      for (std::string_view const each : {"==", "!=", "<", "<=", ">", ">="}) {
        if (at_op(each)) op = each;
      }
      if (at_name("in")) op = "in";
      if (at_name("not") && ahead().is(TokenKind::name, "in")) {
        advance();
        op = "not in";
      }
      if (op.empty()) return chain != nullptr ? std::move(chain) : std::move(first);
      std::uint32_t const line = advance().line;
      if (chain == nullptr) chain = make(ExprKind::compare, line, {}, std::move(first));
      chain->names.push_back(op);
      add(*chain, sum());
    }
  }

  using Level = ExprPtr (ExprParser::*)();
  ExprPtr left_chain(std::initializer_list<std::string_view> ops, Level next) {
    ExprPtr left = (this->*next)();
    for (;;) {
      auto const op = std::find_if(ops.begin(), ops.end(), [&](std::string_view each) { return at_op(each); });
      if (op == ops.end()) return left;
      std::uint32_t const line = advance().line;
      left = make(ExprKind::binary, line, std::string(*op), std::move(left), (this->*next)());
    }
  }
  ExprPtr sum() { return left_chain({"+", "-"}, &ExprParser::joined); }
  ExprPtr joined() {
    ExprPtr first = product();
    if (!at_op("~")) return first;
    ExprPtr node = make(ExprKind::concat, here().line, {}, std::move(first));
    while (skip_op("~")) add(*node, product());
    return node;
  }
  ExprPtr product() { return left_chain({"*", "/", "//", "%"}, &ExprParser::power); }
  ExprPtr power() { return left_chain({"**"}, &ExprParser::filtered_unary); }
  ExprPtr filtered_unary() { return unary(true); }

  ExprPtr unary(bool with_filters) {
    Deeper const deeper(*this);
    ExprPtr node;
    if (at_op("-") || at_op("+")) {
      Token const& sign = advance();
      node = make(ExprKind::unary, sign.line, sign.text, unary(false));
    } else {
      node = primary();
    }
    node = postfix(std::move(node));
    return with_filters ? filters_and_tests(std::move(node)) : std::move(node);
  }

  ExprPtr primary() {
    Token const& token = here();
    switch (token.kind) {
      case TokenKind::name: advance(); return name_or_literal(token);
      case TokenKind::integer: advance(); return constant(token.line, integer(token.integer));
      case TokenKind::real: advance(); return constant(token.line, real(token.real));
      case TokenKind::string: {
        std::string bytes;
        while (here().kind == TokenKind::string) bytes += advance().text;
        return constant(token.line, text(std::move(bytes)));
      }
      default: break;
    }
    if (skip_op("(")) {
      ExprPtr node = tuple_or_one(true);
      expect_op(")");
      return node;
    }
    if (at_op("[")) return list_literal();
    if (at_op("{")) return dict_literal();
    unexpected("an expression");
  }
  ExprPtr name_or_literal(Token const& token) {
    if (token.text == "true" || token.text == "True") return constant(token.line, boolean(true));
    if (token.text == "false" || token.text == "False") return constant(token.line, boolean(false));
    if (token.text == "none" || token.text == "None") return constant(token.line, none());
    mentioned_.push_back(token.text);
    return make(ExprKind::name, token.line, token.text);
  }
  ExprPtr list_literal() {
    ExprPtr node = make(ExprKind::list, advance().line, {});
    while (!skip_op("]")) {
      if (!node->children.empty()) expect_op(",");
      if (skip_op("]")) break;
      add(*node, expression());
    }
    return node;
  }
  ExprPtr dict_literal() {
    ExprPtr node = make(ExprKind::dict, advance().line, {});
    while (!skip_op("}")) {
      if (!node->children.empty()) expect_op(",");
      if (skip_op("}")) break;
      add(*node, expression());
      expect_op(":");
      add(*node, expression());
    }
    return node;
  }

  /// `a` is itself, `a, b` and `a,` are tuples; () only in brackets. Ends where a tag does, or at the name `until`.
  ExprPtr tuple_or_one(bool in_brackets = false, bool with_condition = true, std::string_view until = {}) {
    std::uint32_t const line = here().line;
    std::vector<ExprPtr> parts;
    bool is_tuple = false;
    for (;;) {
      bool const over =
          here().kind == TokenKind::output_end || here().kind == TokenKind::block_end || at_op(")") || (!until.empty() && at_name(until));
      if (over) break;
      parts.push_back(expression(with_condition));
      if (!at_op(",")) break;
      is_tuple = true;
      advance();
    }
    if (!is_tuple && !parts.empty()) return std::move(parts.front());
    if (!is_tuple && !in_brackets) unexpected("an expression");
    ExprPtr node = make(ExprKind::tuple, line, {});
    for (ExprPtr& part : parts) add(*node, std::move(part));
    return node;
  }

  ExprPtr postfix(ExprPtr node) {
    for (;;) {
      if (at_op("(")) {
        node = call(std::move(node));
      } else if (at_op("[")) {
        node = subscript(std::move(node));
      } else if (at_op(".")) {
        std::uint32_t const line = advance().line;
        if (here().kind == TokenKind::integer) {
          ExprPtr index = constant(line, integer(advance().integer));
          node = make(ExprKind::item, line, {}, std::move(node), std::move(index));
        } else {
          std::string attribute = expect_name();
          node = make(ExprKind::attribute, line, std::move(attribute), std::move(node));
        }
      } else {
        return node;
      }
    }
  }
  ExprPtr subscript(ExprPtr node) {
    std::uint32_t const line = advance().line;
    ExprPtr first;
    if (!at_op(":")) {
      first = expression();
      if (skip_op("]")) return make(ExprKind::item, line, {}, std::move(node), std::move(first));
      if (!at_op(":")) unexpected("] or :");
    }
    ExprPtr bounds[3] = {std::move(first), nullptr, nullptr};
    for (int i = 1; i < 3 && skip_op(":"); ++i) {
      if (!at_op(":") && !at_op("]")) bounds[i] = expression();
    }
    expect_op("]");
    return make(ExprKind::slice, line, {}, std::move(node), std::move(bounds[0]), std::move(bounds[1]), std::move(bounds[2]));
  }
  ExprPtr call(ExprPtr node) {
    ExprPtr result = make(ExprKind::call, here().line, {}, std::move(node));
    arguments(*result);
    return result;
  }
  void arguments(Expr& node) {
    expect_op("(");
    for (bool first = true; !skip_op(")"); first = false) {
      if (!first) expect_op(",");
      if (skip_op(")")) return;
      bool const after_star = node.star != nullptr || node.double_star != nullptr;
      if (skip_op("*")) {
        if (after_star) refuse("arguments behind *");
        node.star = expression();
      } else if (skip_op("**")) {
        if (node.double_star != nullptr) refuse("** twice");
        node.double_star = expression();
      } else if (here().kind == TokenKind::name && ahead().is(TokenKind::op, "=")) {
        node.names.push_back(advance().text);
        advance();
        add(node, expression());
      } else {
        if (after_star || !node.names.empty()) refuse("a positional argument behind a named one");
        add(node, expression());
      }
    }
  }

  ExprPtr filters_and_tests(ExprPtr node) {
    for (;;) {
      if (at_op("|")) {
        node = filters(std::move(node));
      } else if (at_name("is")) {
        node = test(std::move(node));
      } else if (at_op("(")) {
        node = call(std::move(node));
      } else {
        return node;
      }
    }
  }
  /// One filter or more; the first | may have been read, as in {% filter x|y %}.
  ExprPtr filters(ExprPtr node, bool first_read = false) {
    while (first_read || skip_op("|")) {
      first_read = false;
      std::uint32_t const line = here().line;
      std::string name = expect_name();
      note_unknown(knows_filter_, name, line, "filter");
      ExprPtr filter = make(ExprKind::filter, line, std::move(name), std::move(node));
      if (at_op("(")) arguments(*filter);
      node = std::move(filter);
    }
    return node;
  }
  ExprPtr test(ExprPtr node) {
    advance();
    bool const negated = skip_name("not");
    std::uint32_t const line = here().line;
    std::string name = expect_name();
    note_unknown(knows_test_, name, line, "test");
    ExprPtr result = make(ExprKind::test, line, std::move(name), std::move(node));
    TokenKind const kind = here().kind;
    bool const ends = at_name("else") || at_name("or") || at_name("and");
    if (at_op("(")) {
      arguments(*result);
    } else if (!ends && (kind == TokenKind::name || kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real ||
                         at_op("[") || at_op("{"))) {
      if (at_name("is")) refuse("tests cannot be chained with is");
      ExprPtr operand = primary();
      add(*result, postfix(std::move(operand)));
    }
    return negated ? make(ExprKind::unary, line, "not", std::move(result)) : std::move(result);
  }

  struct Unknown {
    std::uint32_t line;
    std::string what;
  };
  void note_unknown(KnowsName knows, std::string const& name, std::uint32_t line, std::string_view what) {
    if (!soft_ && !knows(name)) unknown_.push_back({line, concat("the ", what, " ", printable(name, 40), " is not known")});
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  KnowsName knows_filter_, knows_test_;
  std::vector<Unknown> unknown_{};
  std::vector<std::string> mentioned_{};  // names so far
  bool soft_ = false;                     // inside a condition: unknown filters are refused when they run
  int depth_ = 0;
};

}  // namespace tiered::detail::jinja
