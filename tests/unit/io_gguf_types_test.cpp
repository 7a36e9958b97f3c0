// GgufValue: every type, every conversion, and what does not convert.
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/gguf_writer.hpp"

using tiered::Errc;
using tiered::GgufFile;
using tiered::GgufType;
using tiered::GgufValue;
using tiered_test::error_of;

namespace {

/// A file with one key, "k", kept alive beside its value.
struct OneValue {
  template <class T>
  explicit OneValue(T const& value) {
    tiered::GgufWriter writer;
    writer.set("k", value);
    bytes = writer.to_bytes();
    file.emplace(GgufFile::parse(bytes));
  }
  GgufValue const& operator*() const { return *file->find("k"); }
  std::vector<std::byte> bytes;
  std::optional<GgufFile> file;
};

template <class Stored>
void check_integer(GgufType type) {
  CHECK((*OneValue(Stored{7})).type() == type);
  for (Stored const value : {std::numeric_limits<Stored>::min(), Stored{0}, Stored{100}, std::numeric_limits<Stored>::max()}) {
    OneValue const one(value);
    CHECK((*one).as<Stored>() == value);
    CHECK((*one).as<double>() == double(value));
    if (value >= 0) CHECK((*one).as<std::uint64_t>() == std::uint64_t(value));
    if (value < 0) CHECK(error_of([&] { (*one).as<std::uint64_t>(); }).says("\"k\"", tiered::name(type), "not negative"));
  }
}

}  // namespace

TEST_CASE("Integers of every width convert to every width that holds them") {
  check_integer<std::uint8_t>(GgufType::u8);
  check_integer<std::int8_t>(GgufType::i8);
  check_integer<std::uint16_t>(GgufType::u16);
  check_integer<std::int16_t>(GgufType::i16);
  check_integer<std::uint32_t>(GgufType::u32);
  check_integer<std::int32_t>(GgufType::i32);
  check_integer<std::uint64_t>(GgufType::u64);
  check_integer<std::int64_t>(GgufType::i64);
}

TEST_CASE("Integers that do not fit are refused with key, type and value") {
  auto const narrow = error_of([] { (*OneValue(std::uint32_t{256})).as<std::uint8_t>(); });
  CHECK(narrow.code == Errc::bad_file);
  CHECK(narrow.says("\"k\"", "u32 256", "at most 8 bits"));
  CHECK((*OneValue(std::uint32_t{255})).as<std::uint8_t>() == 255);
  CHECK((*OneValue(std::int64_t{-128})).as<std::int8_t>() == -128);
  CHECK(error_of([] { (*OneValue(std::int64_t{-129})).as<std::int8_t>(); }).says("-129"));
  CHECK(error_of([] { (*OneValue(std::uint64_t{1} << 63)).as<std::int64_t>(); }).code == Errc::bad_file);
  CHECK(error_of([] { (*OneValue(2.0f)).as<int>(); }).says("f32 2", "integer"));
  CHECK(error_of([] { (*OneValue(true)).as<int>(); }).says("bool true"));
  CHECK(error_of([] { (*OneValue("7")).as<int>(); }).says("string \"7\""));
}

TEST_CASE("Floats come from f32, f64 and integers") {
  CHECK((*OneValue(0.1f)).as<float>() == 0.1f);
  CHECK((*OneValue(0.1f)).as<double>() == double(0.1f));
  CHECK((*OneValue(0.1)).as<double>() == 0.1);
  CHECK((*OneValue(0.1)).as<float>() == 0.1f);
  CHECK((*OneValue(std::int8_t{-3})).as<float>() == -3.0f);
  CHECK(std::isinf((*OneValue(std::numeric_limits<double>::infinity())).as<float>()));
  CHECK(std::isnan((*OneValue(std::numeric_limits<double>::quiet_NaN())).as<float>()));
  for (double const big : {1e39, -1e39}) CHECK(error_of([&] { (*OneValue(big)).as<float>(); }).says("f64", "range of f32"));
  CHECK(error_of([] { (*OneValue("0.1")).as<float>(); }).says("a number"));
}

TEST_CASE("Bools and strings convert to themselves only") {
  CHECK((*OneValue(true)).as<bool>());
  CHECK_FALSE((*OneValue(false)).as<bool>());
  CHECK(error_of([] { (*OneValue(1)).as<bool>(); }).says("i32 1", "bool"));
  CHECK((*OneValue("text")).as<std::string>() == "text");
  CHECK((*OneValue(std::string("a\0b", 3))).as<std::string_view>().size() == 3);
  CHECK((*OneValue("")).as<std::string_view>().empty());
  CHECK(error_of([] { (*OneValue(1)).as<std::string>(); }).says("string"));
}

TEST_CASE("Arrays: whole, by element, nested, empty") {
  std::vector<std::string> const words{"one", "", "three"};
  OneValue const strings(words);
  CHECK((*strings).type() == GgufType::array);
  CHECK((*strings).element_type() == GgufType::string);
  CHECK((*strings).size() == 3);
  CHECK((*strings).as<std::vector<std::string>>() == words);
  CHECK((*strings).as<std::vector<std::string_view>>()[2] == "three");
  CHECK((*strings)[2].as<std::string_view>() == "three");
  CHECK((*strings)[2].key() == "k");

  OneValue const numbers(std::vector<std::int16_t>{1, -2, 300});
  CHECK((*numbers).as<std::vector<int>>() == std::vector<int>{1, -2, 300});
  CHECK((*numbers).as<std::vector<float>>() == std::vector<float>{1, -2, 300});
  CHECK((*numbers)[1].as<int>() == -2);
  CHECK(error_of([&] { (*numbers).as<std::vector<unsigned>>(); }).says("i16 -2"));
  CHECK(error_of([&] { (*numbers)[3]; }).code == Errc::precondition);
  CHECK(error_of([&] { (*numbers).as<int>(); }).says("array of 3 i16"));

  OneValue const flags(std::vector<bool>{true, false});
  CHECK((*flags).as<std::vector<bool>>() == std::vector<bool>{true, false});

  std::vector<std::vector<std::string>> const table{{"a", "bc"}, {}, {"def"}};
  OneValue const nested(table);
  CHECK((*nested).element_type() == GgufType::array);
  CHECK((*nested).as<std::vector<std::vector<std::string>>>() == table);
  CHECK((*nested)[2][0].as<std::string>() == "def");
  CHECK((*nested).as<std::vector<GgufValue>>()[0].size() == 2);

  OneValue const none(std::vector<double>{});
  CHECK((*none).as<std::vector<double>>().empty());
  CHECK((*none).element_type() == GgufType::f64);

  OneValue const scalar(3);
  CHECK(error_of([&] { (void)(*scalar).size(); }).says("i32 3", "an array"));
  CHECK(error_of([&] { (*scalar).as<std::vector<int>>(); }).code == Errc::bad_file);
}

TEST_CASE("Values describe themselves, with nothing that could upset a terminal") {
  CHECK((*OneValue(std::uint8_t{65})).describe() == "u8 65");
  CHECK((*OneValue(std::int8_t{-65})).describe() == "i8 -65");
  CHECK((*OneValue(0.5)).describe() == "f64 0.5");
  CHECK((*OneValue(false)).describe() == "bool false");
  CHECK((*OneValue("a\x1b[31m\"\xff")).describe() == "string \"a\\x1b[31m\\\"\\xff\"");
  CHECK((*OneValue(std::string(200, 'x'))).describe().size() < 100);
  CHECK((*OneValue(std::vector<std::string>(4))).describe() == "array of 4 string");
}
