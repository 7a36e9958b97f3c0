#include "tiered/io/detail/jinja_lexer.hpp"

#include <string>
#include <string_view>

#include "catch.hpp"
#include "error_of.hpp"

using namespace tiered::detail::jinja;
using tiered_test::error_of;

namespace {

/// Tokens as text: data in quotes, tags by their brackets, the rest as it is.
std::string shown(std::string_view source) {
  std::string out;
  for (Token const& token : Lexer::tokens_of(source)) {
    switch (token.kind) {
      case TokenKind::data: out += '"' + token.text + '"'; break;
      case TokenKind::output_begin: out += "{{"; break;
      case TokenKind::output_end: out += "}}"; break;
      case TokenKind::block_begin: out += "{%"; break;
      case TokenKind::block_end: out += "%}"; break;
      case TokenKind::integer: out += " i" + std::to_string(token.integer); break;
      case TokenKind::real: out += " r" + std::to_string(token.real); break;
      case TokenKind::string: out += " '" + token.text + "'"; break;
      case TokenKind::name:
      case TokenKind::op: out += " " + token.text; break;
      case TokenKind::end: break;
    }
  }
  return out;
}

}  // namespace

TEST_CASE("blanks around tags go as transformers asks Jinja to do it") {
  CHECK(shown("a\n  {% x %}\n b") == "\"a\n\"{% x%}\" b\"");
  CHECK(shown("a  {% x %}  \nb") == "\"a  \"{% x%}\"  \nb\"");
  CHECK(shown("  {{ x }}\n b") == "\"  \"{{ x}}\"\n b\"");
  CHECK(shown("a \n {%- x -%} \n b") == "\"a\"{% x%}\"b\"");
  CHECK(shown("a\n {%+ x +%}\nb") == "\"a\n \"{% x%}\"\nb\"");
  CHECK(shown("a {#- c -#} b\n {# d #}\ne\n") == "\"a\"\"b\n\"\"e\"");
  CHECK(shown("{%- raw -%} {{ x }} {%- endraw -%} b") == "\"{{ x }}\"\"b\"");
  CHECK(shown("a\n\n") == "\"a\n\"");
  CHECK(shown("a\r\nb\rc") == "\"a\nb\nc\"");
  CHECK(shown("\xc2\xa0{%- x -%}\xe3\x80\x80") == "{% x%}");
}

TEST_CASE("numbers, strings and operators are Python's") {
  CHECK(shown("{{ 1_0 0x1f 1.5 1e3 x.0.1 }}") == "{{ i10 i31 r1.500000 r1000.000000 x . i0 . i1}}");
  CHECK(shown("{{ a//b**c!=d }}") == "{{ a // b ** c != d}}");
  CHECK(shown("{{ {'}}': '%}'} }}") == "{{ { '}}' : '%}' }}}");
  CHECK(shown(R"({{ '\n\x41\u00e9\U0001F600\101\q\'' }})") ==
        "{{ '\nA\xc3\xa9\xf0\x9f\x98\x80"
        "A\\q''}}");
}

TEST_CASE("what is not closed is refused with its line") {
  for (char const* const source :
       {"\n{{ x", "\n{% x", "\n{# x", "\n{% raw %}", "\n{{ 'x", "\n{{ 'x\\", "\n{{ ) }}", "\n{{ (] }}", "\n{{ ? }}",
        "\n{{ 99999999999999999999 }}", "\n{{ '\\ud800' }}", "\n{{ '\\N{DASH}' }}", "\n{{-", "\n{%-"}) {
    INFO(source);
    CHECK(error_of([&] { Lexer::tokens_of(source); }).says("line 2: "));
  }
  for (char const* const source : {"{", "}", "}}", "%}", "#}", "{ {", "a{"}) CHECK(shown(source) == '"' + std::string(source) + '"');
}
