/// Makes the tree of a chat template from its tokens: Jinja2's statements without inheritance and includes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/io/detail/jinja_ast.hpp"
#include "tiered/io/detail/jinja_expr_parser.hpp"
#include "tiered/io/detail/jinja_lexer.hpp"
#include "tiered/io/detail/jinja_value.hpp"
#include "tiered/io/detail/printable.hpp"

namespace tiered::detail::jinja {

inline constexpr std::size_t max_template_bytes = std::size_t{1} << 20;

class Parser : ExprParser {
 public:
  /// Errors  unsupported, with the line and what is wrong or not supported there.
  static std::vector<Statement> parse(std::string_view source, KnowsName knows_filter, KnowsName knows_test) {
    if (source.size() > max_template_bytes) fail(concat("a template of ", source.size(), " bytes; ", max_template_bytes, " are supported"));
    Parser parser(Lexer::tokens_of(source), knows_filter, knows_test);
    std::vector<Statement> statements = parser.body({});
    if (!parser.unknown_.empty()) refuse_at(parser.unknown_.front().line, parser.unknown_.front().what);
    return statements;
  }

 private:
  using ExprParser::ExprParser;
  using Names = std::initializer_list<std::string_view>;

  /// Statements up to a tag with one of these names, whose name is then the next token; up to the end where there are none.
  std::vector<Statement> body(Names ends) {
    Deeper const deeper(*this);
    std::vector<Statement> statements;
    for (;;) {
      Token const& token = advance();
      switch (token.kind) {
        case TokenKind::data: statements.push_back({StatementKind::data, token.line, token.text}); break;
        case TokenKind::output_begin: {
          Statement& output = statements.emplace_back(Statement{StatementKind::output, token.line});
          output.exprs.push_back(tuple_or_one());
          if (here().kind != TokenKind::output_end) unexpected("}}");
          advance();
          break;
        }
        case TokenKind::block_begin: {
          if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return at_name(end); })) return statements;
          statements.push_back(statement());
          end_of_tag();
          break;
        }
        default:
          if (ends.size() != 0) refuse_at(token.line, concat("the template ends without {% ", *(ends.end() - 1), " %}"));
          return statements;
      }
    }
  }
  /// Ends the tag and reads a body; `soft`: see soft_. The name of the tag that ends it is the next token.
  std::vector<Statement> block(Names ends, bool soft, int loops) {
    skip_op(":");
    end_of_tag();
    bool const soft_before = std::exchange(soft_, soft);
    int const loops_before = std::exchange(loops_, loops);
    std::vector<Statement> statements = body(ends);
    soft_ = soft_before;
    loops_ = loops_before;
    return statements;
  }
  void end_of_tag() {
    if (here().kind != TokenKind::block_end) unexpected("%}");
    advance();
  }

  Statement statement() {
    std::uint32_t const line = here().line;
    if (here().kind != TokenKind::name) unexpected("the name of a statement");
    std::string const name = advance().text;
    if (name == "if") return conditional(line);
    if (name == "for") return loop(line);
    if (name == "set") return set(line);
    if (name == "macro") return macro(line);
    if (name == "call") return call_block(line);
    if (name == "filter") return filter_block(line);
    if (name == "with") return with(line);
    if (name == "generation") return scope(line, "endgeneration");
    if (name == "break" || name == "continue") {
      if (loops_ == 0) refuse_at(line, concat("{% ", name, " %} outside of a loop"));
      return {name == "break" ? StatementKind::break_ : StatementKind::continue_, line};
    }
    refuse_at(line, concat("the statement {% ", printable(name, 40), " %} is not supported"));
  }

  Statement conditional(std::uint32_t line) {
    Statement result{StatementKind::conditional, line};
    for (bool more = true; more;) {
      bool const soft_before = std::exchange(soft_, true);
      result.exprs.push_back(tuple_or_one(false, false));
      soft_ = soft_before;
      result.bodies.push_back(block({"elif", "else", "endif"}, true, loops_));
      std::string const end = advance().text;
      if (end == "else") {
        result.bodies.push_back(block({"endif"}, true, loops_));
        advance();
      }
      more = end == "elif";
    }
    return result;
  }

  Statement loop(std::uint32_t line) {
    Statement result{StatementKind::loop, line};
    result.exprs.push_back(target("in", false));
    if (!skip_name("in")) unexpected("in");
    result.exprs.push_back(tuple_or_one(false, false, "recursive"));
    result.exprs.push_back(skip_name("if") ? expression() : nullptr);
    result.recursive = skip_name("recursive");
    result.bodies.push_back(block({"else", "endfor"}, false, loops_ + 1));
    if (advance().text == "else") {
      result.bodies.push_back(block({"endfor"}, false, loops_));
      advance();
    }
    return result;
  }

  Statement set(std::uint32_t line) {
    Statement result{StatementKind::set, line};
    result.exprs.push_back(target({}, true));
    if (skip_op("=")) {
      result.exprs.push_back(tuple_or_one());
      return result;
    }
    result.kind = StatementKind::set_block;
    result.exprs.push_back(at_op("|") ? filters(nullptr) : nullptr);
    result.bodies.push_back(block({"endset"}, false, 0));
    advance();
    return result;
  }

  Statement macro(std::uint32_t line) {
    Statement result{StatementKind::macro, line, expect_name()};
    parameters(result);
    macro_body(result, "endmacro");
    return result;
  }
  Statement call_block(std::uint32_t line) {
    Statement result{StatementKind::call_block, line};
    if (at_op("(")) parameters(result);
    result.exprs.push_back(expression());
    if (result.exprs[0]->kind != ExprKind::call) refuse_at(line, "{% call %} needs a call");
    macro_body(result, "endcall");
    return result;
  }
  void parameters(Statement& result) {
    expect_op("(");
    while (!skip_op(")")) {
      if (!result.names.empty()) expect_op(",");
      result.names.push_back(expect_name());
      if (skip_op("=")) {
        result.defaults.push_back(expression());
      } else if (!result.defaults.empty()) {
        refuse("a parameter without a default behind one that has one");
      }
    }
  }
  void macro_body(Statement& result, std::string_view end) {
    std::size_t const n_before = mentioned_.size();
    result.bodies.push_back(block({end}, false, 0));
    advance();
    for (std::string const& name : std::span(mentioned_).subspan(n_before)) {
      result.takes_varargs = result.takes_varargs || name == "varargs";
      result.takes_kwargs = result.takes_kwargs || name == "kwargs";
      result.takes_caller = result.takes_caller || name == "caller";
    }
  }

  Statement filter_block(std::uint32_t line) {
    Statement result{StatementKind::filter_block, line};
    result.exprs.push_back(filters(nullptr, true));
    result.bodies.push_back(block({"endfilter"}, false, 0));
    advance();
    return result;
  }
  Statement with(std::uint32_t line) {
    Statement result{StatementKind::scope, line};
    while (here().kind != TokenKind::block_end) {
      if (!result.exprs.empty()) expect_op(",");
      result.exprs.push_back(target({}, false));
      expect_op("=");
      result.exprs.push_back(expression());
    }
    result.bodies.push_back(block({"endwith"}, false, loops_));
    advance();
    return result;
  }
  /// Text of the assistant, for training: here it is a body like any other.
  Statement scope(std::uint32_t line, std::string_view end) {
    Statement result{StatementKind::scope, line};
    result.bodies.push_back(block({end}, false, 0));
    advance();
    return result;
  }

  /// A name, a tuple of names, or, where allowed, an attribute of a namespace.
  ExprPtr target(std::string_view until, bool with_attributes) {
    ExprPtr first = one_target(with_attributes);
    if (!at_op(",")) return first;
    std::uint32_t const line = first->line;
    ExprPtr node = make(ExprKind::tuple, line, {}, std::move(first));
    while (skip_op(",")) {
      if ((!until.empty() && at_name(until)) || here().kind == TokenKind::block_end || at_op("=")) break;
      add(*node, one_target(with_attributes));
    }
    return node;
  }
  ExprPtr one_target(bool with_attributes) {
    Deeper const deeper(*this);
    if (skip_op("(")) {
      ExprPtr inner = target({}, with_attributes);
      expect_op(")");
      return inner;
    }
    Token const& token = here();
    std::string const name = expect_name();
    ExprPtr node = name_or_literal(token);
    if (node->kind == ExprKind::constant) refuse_at(token.line, concat("cannot assign to ", name));
    if (!with_attributes || !skip_op(".")) return node;
    std::string attribute = expect_name();
    return make(ExprKind::attribute, token.line, std::move(attribute), std::move(node));
  }

  int loops_ = 0;
};

}  // namespace tiered::detail::jinja
