/// Formats of numbers: what Python 3.11 writes, whatever the C locale.
#include "tiered/io/detail/jinja_format.hpp"

#include <clocale>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"

using namespace tiered::detail::jinja;
using tiered_test::error_of;

namespace {

std::string formatted(std::string_view pattern, std::vector<Value> const& values) {
  Runtime rt{Limits{}};
  return percent_format(rt, pattern, values);
}

}  // namespace

TEST_CASE("integers with flags, width and precision are those of Python") {
  auto const is = [](std::string_view pattern, std::int64_t i) { return formatted(pattern, {integer(i)}); };
  CHECK(is("%d|%%", 3) == "3|%");
  CHECK(is("% d", 3) == " 3");
  CHECK(is("%+d", 3) == "+3");
  CHECK(is("%+ 05d", 3) == "+0003");
  CHECK(is("%05d", -42) == "-0042");
  CHECK(is("%-5i|", 3) == "3    |");
  CHECK(is("%-05d|", 3) == "3    |");
  CHECK(is("%5.3d|", 7) == "  007|");
  CHECK(is("%05.3d|", 7) == "00007|");
  CHECK(is("%.0d", 7) == "7");
  CHECK(is("%x", 255) == "ff");
  CHECK(is("%x", -255) == "-ff");
  CHECK(is("%+x", 255) == "+ff");
  CHECK(is("%#08x", 255) == "0x0000ff");
  CHECK(is("%.5x", 255) == "000ff");
  CHECK(is("%d", std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
  CHECK(is("%1000d", 1).size() == 1000);
  CHECK(formatted("%d %d", {boolean(true), integer(2)}) == "1 2");
}

TEST_CASE("floats with flags, width and precision are those of Python") {
  double const inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  auto const is = [](std::string_view pattern, double d) { return formatted(pattern, {real(d)}); };
  CHECK(is("%05.1f", 3.14159) == "003.1");
  CHECK(is("%+05.1f", 3.14) == "+03.1");
  CHECK(is("%06.2f", -1.5) == "-01.50");
  CHECK(is("%-8.2f|", 3.14159) == "3.14    |");
  CHECK(is("% .1f", 2.25) == " 2.2");
  CHECK(is("%.0f", 0.5) == "0");
  CHECK(is("%.f", 2.5) == "2");
  CHECK(is("%f", -0.0) == "-0.000000");
  CHECK(is("%.3f", 1e22) == "10000000000000000000000.000");
  CHECK(is("%e", 12345.678) == "1.234568e+04");
  CHECK(is("%.0e", 12345.678) == "1e+04");
  CHECK(is("%e", 0.0) == "0.000000e+00");
  CHECK(is("%.1e", 1e-300) == "1.0e-300");
  CHECK(is("%g", 1e-5) == "1e-05");
  CHECK(is("%g", 123456789.0) == "1.23457e+08");
  CHECK(is("%g", 100000.0) == "100000");
  CHECK(is("%.0g", 123.0) == "1e+02");
  CHECK(is("%.3g", 0.0001234) == "0.000123");
  CHECK(is("%g", -0.0) == "-0");
  CHECK(is("%05f", inf) == "00inf");
  CHECK(is("%05f", -inf) == "-0inf");
  CHECK(is("%+f", nan) == "+nan");
  CHECK(is("%.1000f", std::numeric_limits<double>::max()).size() == 309 + 1 + 1000);
  CHECK(formatted("%.2f", {integer(3)}) == "3.00");
}

TEST_CASE("a comma of the C locale is none of a template's") {
  std::string const before = std::setlocale(LC_NUMERIC, nullptr);
  for (char const* const name : {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE"}) {
    if (std::setlocale(LC_NUMERIC, name) != nullptr) break;
  }
  std::string const half = formatted("%.1f", {real(0.5)});
  std::setlocale(LC_NUMERIC, before.c_str());
  CHECK(half == "0.5");
}

TEST_CASE("formats that are not written are refused by name") {
  auto const refusal = [](std::string_view pattern, Value const& value) { return error_of([&] { formatted(pattern, {value}); }); };
  for (char const* const pattern : {"%1001d", "%.1001f", "%99999999999999999999d", "%5.99999999999999999999f"}) {
    INFO(pattern);
    CHECK(refusal(pattern, integer(1)).code == tiered::Errc::unsupported);
    CHECK(refusal(pattern, integer(1)).says("1000"));
  }
  CHECK(refusal("%5s", text("a")).says("%5s", "str"));
  CHECK(refusal("%c", integer(65)).says("%c"));
  CHECK(refusal("%d", real(1.5)).says("%d", "float"));
  CHECK(refusal("%#.1f", real(1.5)).says("%#.1f"));
  CHECK(refusal("%*d", integer(1)).says("%*"));
  CHECK(refusal("%(a)s", integer(1)).says("%("));
  CHECK(refusal("%5", integer(1)).says("unfinished"));
  CHECK(refusal("%", integer(1)).says("unfinished"));
  CHECK(refusal("%d %d", integer(1)).says("not enough"));
  CHECK(refusal("d", integer(1)).says("too many"));
}
