#include "tiered/io/detail/jinja_json.hpp"

#include <string>
#include <string_view>

#include "catch.hpp"
#include "error_of.hpp"

using namespace tiered::detail::jinja;
using tiered_test::error_of;

namespace {

std::string again(std::string_view json, JsonStyle const& style = {}) {
  Runtime rt{Limits{}};
  return JsonWriter::write(rt, JsonReader::read(rt, json), style);
}

}  // namespace

TEST_CASE("JSON comes back as json.dumps writes it") {
  CHECK(again(R"( {"a":[1,-2,1.5,1e3,true,false,null],"b":{},"c":[],"a\n":"\u00e9\ud83d\ude00\/\b\u0001"} )") ==
        "{\"a\": [1, -2, 1.5, 1000.0, true, false, null], \"b\": {}, \"c\": [], \"a\\n\": \"é😀/\\b\\u0001\"}");
  CHECK(again(R"({"a": 1, "b": 2, "a": 3})") == R"({"a": 3, "b": 2})");
  JsonStyle style;
  style.ascii = true;
  CHECK(again("\"é😀\"", style) == "\"\\u00e9\\ud83d\\ude00\"");
  CHECK(again("\"~\x7f\"", style) == "\"~\\u007f\"");
  CHECK(again("\"~\x7f\"") == "\"~\x7f\"");
}

TEST_CASE("what is no JSON is refused with its place") {
  for (char const* const json : {"",        " ",      "{",   "[",    "[1",        "[1,",     "{\"a\"",
                                 "{\"a\":", "{a: 1}", "\"",  "\"\\", "\"\\u12\"", "\"\\x\"", "\"\\ud800\"",
                                 "nul",     "1 2",    "--1", "1.",   ".5",        "1.e1",    "99999999999999999999",
                                 "[1 2]",   "'a'"}) {
    INFO(json);
    auto const thrown = error_of([&] { again(json); });
    CHECK(thrown.code == tiered::Errc::precondition);
    CHECK(thrown.says("at byte "));
  }
  CHECK(error_of([] { again(std::string(200, '[')); }).code == tiered::Errc::precondition);
}

TEST_CASE("halves of surrogate pairs that make none are refused") {
  for (char const* const json : {R"("\ud800\u0041")", R"("\ud83d\ud83d")", R"("\udc00\ud800")", R"("\ud83d\u")", R"("\ud83d")"}) {
    INFO(json);
    CHECK(error_of([&] { again(json); }).code == tiered::Errc::precondition);
  }
  CHECK(again(R"("\ud800\udc00\udbff\udfff")") == "\"\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"");
}
