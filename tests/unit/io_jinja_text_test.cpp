#include "tiered/io/detail/jinja_text.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

using namespace tiered::detail::jinja;

TEST_CASE("case maps both ways, or not at all") {
  for (char32_t c = 0; c < 0x10000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    char32_t const lower = to_lower(c), upper = to_upper(c);
    INFO(std::uint32_t(c));
    CHECK((to_lower(lower) == lower && to_upper(upper) == upper));
    if (lower != c) CHECK(to_upper(lower) == c);
  }
  CHECK(in_case("Straße ΑΣΑ Ёж ՀԱՅ \xff", Case::lower) == "straße ασα ёж հայ \xff");
}

TEST_CASE("slices take the positions that Python takes") {
  auto const positions = [](std::size_t n, std::vector<std::int64_t> const& start, std::vector<std::int64_t> const& stop,
                            std::int64_t step) {
    return slice_positions(n, start.empty() ? nullptr : start.data(), stop.empty() ? nullptr : stop.data(), step);
  };
  using P = std::vector<std::size_t>;
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max(), least = std::numeric_limits<std::int64_t>::min();
  CHECK(positions(5, {}, {}, 1) == P{0, 1, 2, 3, 4});
  CHECK(positions(5, {}, {}, -2) == P{4, 2, 0});
  CHECK(positions(5, {-2}, {}, 1) == P{3, 4});
  CHECK(positions(5, {1}, {-1}, 1) == P{1, 2, 3});
  CHECK(positions(5, {-9}, {9}, 3) == P{0, 3});
  CHECK(positions(5, {9}, {-9}, -3) == P{4, 1});
  CHECK(positions(5, {3}, {3}, 1).empty());
  CHECK(positions(0, {}, {}, -1).empty());
  CHECK(positions(5, {}, {}, huge) == P{0});
  CHECK(positions(5, {}, {}, least) == P{4});
  CHECK(positions(5, {least}, {huge}, 2) == P{0, 2, 4});
  CHECK(positions(5, {huge}, {least}, -2) == P{4, 2, 0});
}

TEST_CASE("positions are characters, and broken bytes count as one each") {
  CHECK(n_characters("aé日😀") == 4);
  CHECK(n_characters("\xff\xe6\x97") == 3);
  CHECK(character_starts("é日") == std::vector<std::size_t>{0, 2, 5});
  CHECK(strip("\xe3\x80\x80 a\xc2\xa0", nullptr, true, true) == "a");
  std::string_view const set = "é";
  CHECK(strip("éaé", &set, true, true) == "a");
  CHECK(strip("\xa9 a\xc3", nullptr, true, true) == "\xa9 a\xc3");
}

TEST_CASE("numbers and texts print as in Python") {
  CHECK(python_float(0.1) == "0.1");
  CHECK(python_float(1e15) == "1000000000000000.0");
  CHECK(python_float(1e16) == "1e+16");
  CHECK(python_float(1e-4) == "0.0001");
  CHECK(python_float(1.5e-5) == "1.5e-05");
  CHECK(python_float(-0.0) == "-0.0");
  CHECK(python_float(std::numeric_limits<double>::infinity()) == "inf");
  CHECK(python_repr("it's") == "\"it's\"");
  CHECK(python_repr("both ' and \"") == "'both \\' and \"'");
  CHECK(python_repr("\x7f\xc2\xa0\xe2\x80\xa8é") == "'\\x7f\\xa0\\u2028é'");
}
