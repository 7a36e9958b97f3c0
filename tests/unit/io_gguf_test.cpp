// GgufFile on whole files: what a good file holds, agreement with the Python package, and lookups.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "cached_file.hpp"
#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_bytes.hpp"
#include "temp_dir.hpp"
#include "tiered/io/gguf.hpp"

using tiered::DType;
using tiered::Errc;
using tiered::GgufFile;
using tiered::GgufType;
using tiered::GgufValue;
using tiered::Shape;
using tiered_test::error_of;
using tiered_test::FileBytes;
using tiered_test::small_writer;
using tiered_test::TempDir;

namespace {

std::string const data_folder = TIERED_TEST_DATA "/gguf/";

std::uint64_t fnv1a(std::span<std::byte const> bytes, std::uint64_t value = 0xcbf29ce484222325u) {
  for (std::byte const b : bytes) value = (value ^ std::uint64_t(b)) * 0x100000001b3u;
  return value;
}

template <class T>
void append_to(FileBytes& out, GgufValue const& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    auto const text = value.as<T>();
    auto const* const at = reinterpret_cast<std::byte const*>(text.data());
    out.insert(out.end(), at, at + text.size());
    out.push_back(std::byte{0});
  } else {
    T const number = value.as<T>();
    auto const* const at = reinterpret_cast<std::byte const*>(&number);
    out.insert(out.end(), at, at + sizeof number);
  }
}

FileBytes stored(GgufValue const& value) {
  FileBytes out;
  switch (value.type()) {
    case GgufType::u8: append_to<std::uint8_t>(out, value); break;
    case GgufType::i8: append_to<std::int8_t>(out, value); break;
    case GgufType::u16: append_to<std::uint16_t>(out, value); break;
    case GgufType::i16: append_to<std::int16_t>(out, value); break;
    case GgufType::u32: append_to<std::uint32_t>(out, value); break;
    case GgufType::i32: append_to<std::int32_t>(out, value); break;
    case GgufType::u64: append_to<std::uint64_t>(out, value); break;
    case GgufType::i64: append_to<std::int64_t>(out, value); break;
    case GgufType::f32: append_to<float>(out, value); break;
    case GgufType::f64: append_to<double>(out, value); break;
    case GgufType::boolean: append_to<bool>(out, value); break;
    case GgufType::string: append_to<std::string_view>(out, value); break;
    case GgufType::array:
      for (GgufValue const& element : value.as<std::vector<GgufValue>>()) {
        FileBytes const more = stored(element);
        out.insert(out.end(), more.begin(), more.end());
      }
      break;
  }
  return out;
}

std::string hex(std::uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

/// The lines that make_gguf.py --model writes.
std::string describe(GgufFile const& file) {
  std::ostringstream out;
  for (GgufValue const& value : file.metadata()) {
    out << value.key() << ' ' << name(value.type());
    if (value.is_array()) out << ' ' << value.size() << ' ' << name(value.element_type());
    out << ' ' << hex(fnv1a(stored(value))) << '\n';
  }
  for (tiered::GgufTensor const& t : file.tensors()) {
    out << t.name << ' ' << name(t.dtype) << ' ';
    for (int i = 0; i < t.shape.rank; ++i) out << (i > 0 ? "x" : "") << t.shape[i];
    std::size_t const end = std::min<std::size_t>(64, t.data.size());
    out << ' ' << t.file_offset << ' ' << t.bytes << ' ' << hex(fnv1a(t.data.last(end), fnv1a(t.data.first(end)))) << '\n';
  }
  return out.str();
}

std::vector<float> floats(tiered::GgufTensor const& tensor) {
  std::vector<float> values(tensor.data.size() / sizeof(float));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

}  // namespace

TEST_CASE("A good file gives its metadata and tensors, from a path and from memory") {
  for (std::uint32_t const version : {2u, 3u}) {
    TempDir const dir;
    auto const writer = small_writer({.version = version});
    auto const bytes = writer.to_bytes();
    std::filesystem::path const path = dir.write("a.gguf", bytes);
    for (GgufFile const& file : {GgufFile::open(path), GgufFile::parse(bytes)}) {
      CHECK(file.version() == version);
      CHECK(file.alignment() == 32);
      CHECK(file.total_bytes() == bytes.size());
      CHECK(file.n_parts() == 1);
      REQUIRE(file.metadata().size() == 4);
      CHECK(file.metadata()[1].key() == "llama.block_count");
      REQUIRE(file.tensors().size() == 2);
      tiered::GgufTensor const& a = file.tensors()[0];
      CHECK(a.name == "tensor.a");
      CHECK(a.dtype == DType::f32);
      CHECK(a.shape == Shape(2, 3));
      CHECK(a.bytes == 24);
      CHECK(a.part == 0);
      CHECK(floats(a) == std::vector<float>{1, 2, 3, 4, 5, 6});
      tiered::GgufTensor const& b = file.require_tensor("tensor.b");
      CHECK(b.dtype == DType::q8_0);
      CHECK(b.raw_type == 8);
      CHECK(b.shape == Shape(64));
      CHECK(b.data.size() == 68);
      CHECK(b.data[67] == std::byte{0x11});
      CHECK(b.file_offset % 32 == 0);
      CHECK(std::equal(b.data.begin(), b.data.end(), bytes.begin() + std::ptrdiff_t(b.file_offset)));
    }
    CHECK(GgufFile::open(path).path() == path.string());
    CHECK(GgufFile::open(path).part_path(0) == path.string());
    REQUIRE(GgufFile::open(path).mapping(0) != nullptr);
    CHECK(GgufFile::parse(bytes).mapping(0) == nullptr);
  }
}

TEST_CASE("Keys and tensors are found by name, or named in the error") {
  auto const bytes = small_writer().to_bytes();
  GgufFile const file = GgufFile::parse(bytes);
  CHECK(file.require<int>("llama.block_count") == 2);
  CHECK(file.get<bool>("flag") == true);
  CHECK(file.get<int>("none") == std::nullopt);
  CHECK(file.get_or<int>("none", 7) == 7);
  CHECK(file.get_or<int>("llama.block_count", 7) == 2);
  CHECK(file.get_or<std::string>("none", "x") == "x");
  CHECK(file.require<std::vector<std::string>>("words").size() == 3);
  CHECK(file.find("none") == nullptr);
  CHECK(file.find("") == nullptr);
  CHECK(file.find_tensor("tensor.c") == nullptr);

  auto const no_key = error_of([&] { file.require<int>("none\n"); });
  CHECK(no_key.code == Errc::not_found);
  CHECK(no_key.says("memory", "\"none\\x0a\""));
  // Of the wrong type: an error, not a fallback.
  CHECK(error_of([&] { file.get_or<int>("words", 7); }).says("\"words\"", "array of 3 string"));
  CHECK(error_of([&] { file.get<int>("flag"); }).code == Errc::bad_file);
  auto const no_tensor = error_of([&] { (void)file.require_tensor("tensor.c"); });
  CHECK(no_tensor.code == Errc::not_found);
  CHECK(no_tensor.says("\"tensor.c\""));
}

TEST_CASE("Copies share one state that outlives the first, and the file's name") {
  TempDir const dir;
  std::optional<GgufFile> first(GgufFile::open(dir.write("a.gguf", small_writer().to_bytes())));
  GgufFile const copy = *first;
  auto const data = first->tensors()[0].data;
  first.reset();
  std::filesystem::remove(dir / "a.gguf");
  CHECK(copy.tensors()[0].data.data() == data.data());
  CHECK(floats(copy.tensors()[0])[5] == 6);
  CHECK(copy.require<std::string_view>("general.architecture") == "llama");
}

TEST_CASE("A file that is cut while open keeps its metadata, and check_sizes says so") {
  TempDir const dir;
  GgufFile const file = GgufFile::open(dir.write("a.gguf", small_writer().to_bytes()));
  file.check_sizes();
  std::filesystem::resize_file(dir / "a.gguf", 10);
  CHECK(file.require<std::vector<std::string>>("words")[2] == "three");
  auto const cut = error_of([&] { file.check_sizes(); });
  CHECK(cut.code == Errc::io);
  CHECK(cut.says("a.gguf", "10 now"));
}

TEST_CASE("Other alignments, ranks and a file without tensors") {
  auto const bytes = small_writer({.alignment = 64}).to_bytes();
  GgufFile const file = GgufFile::parse(bytes);
  CHECK(file.alignment() == 64);
  for (auto const& t : file.tensors()) CHECK(t.file_offset % 64 == 0);

  tiered::GgufWriter ranks({.alignment = 8});
  std::vector<float> const one{1}, many(2 * 3 * 4 * 5);
  ranks.add_tensor("rank0", DType::f32, Shape(), one);
  ranks.add_tensor("rank4", DType::f32, Shape(2, 3, 4, 5), many);
  auto const rank_bytes = ranks.to_bytes();
  GgufFile const ranked = GgufFile::parse(rank_bytes);
  CHECK(ranked.tensors()[0].shape.rank == 0);
  CHECK(ranked.tensors()[0].bytes == 4);
  CHECK(ranked.tensors()[1].shape == Shape(2, 3, 4, 5));

  auto const empty_bytes = tiered::GgufWriter().to_bytes();
  GgufFile const empty = GgufFile::parse(empty_bytes);
  CHECK(empty.tensors().empty());
  CHECK(empty.metadata().empty());
  CHECK(empty.find("x") == nullptr);
}

TEST_CASE("Every tensor type of the format is known by name and size") {
  for (std::uint32_t number = 0; number < tiered::n_file_dtypes; ++number) {
    auto const info = tiered::dtype_info(DType(number));
    if (info.name == nullptr) continue;
    tiered::GgufWriter writer;
    FileBytes const data(info.block_bytes * 6);
    writer.add_tensor("t", DType(number), Shape(2, 3 * std::int64_t(info.block_elems)), data);
    auto const bytes = writer.to_bytes();
    GgufFile const file = GgufFile::parse(bytes);
    CHECK(file.tensors()[0].dtype == DType(number));
    CHECK(file.tensors()[0].bytes == data.size());
  }
}

TEST_CASE("Keys and names may hold any bytes") {
  tiered::GgufWriter writer;
  std::string const key("\xff\0\x1b", 3);
  writer.set(key, 1);
  std::vector<float> const one{1};
  writer.add_tensor("\x80\n", DType::f32, Shape(1), one);
  auto const bytes = writer.to_bytes();
  GgufFile const file = GgufFile::parse(bytes);
  CHECK(file.require<int>(key) == 1);
  CHECK(file.find_tensor("\x80\n") != nullptr);
  CHECK(error_of([&] { file.require<bool>(key); }).says("\"\\xff\\x00\\x1b\""));
}

TEST_CASE("A file that Python's gguf wrote: every type, and the same bytes from our writer") {
  GgufFile const file = GgufFile::open(data_folder + "python.gguf");
  CHECK(file.require<std::uint8_t>("t.u8") == 200);
  CHECK(file.require<std::int8_t>("t.i8") == -100);
  CHECK(file.require<std::uint64_t>("t.u64") == (std::uint64_t{1} << 63) + 1);
  CHECK(file.require<std::string>("t.string") == "gr\u00fc\u00dfe");
  CHECK(file.require<std::vector<std::string>>("t.strings") == std::vector<std::string>{"a", "", "ccc"});
  CHECK(file.require_tensor("f32").shape == Shape(2, 3, 64));
  CHECK(floats(file.require_tensor("f32"))[65] == 65 / 8.0f - 20);
  CHECK(file.require_tensor("f16").dtype == DType::f16);
  CHECK(file.require_tensor("q8_0").dtype == DType::q8_0);
  CHECK(file.require_tensor("q4_1").shape == Shape(3, 64));
  CHECK(file.require_tensor("odd").data[4] == std::byte{4});

  tiered::GgufWriter writer;
  writer.set("general.architecture", "llama");
  writer.set("t.u8", std::uint8_t{200});
  writer.set("t.i8", std::int8_t{-100});
  writer.set("t.u16", std::uint16_t{60000});
  writer.set("t.i16", std::int16_t{-30000});
  writer.set("t.u32", std::uint32_t{4000000000u});
  writer.set("t.i32", std::int32_t{-2000000000});
  writer.set("t.f32", 1.5f);
  writer.set("t.bool", true);
  writer.set("t.string", "gr\u00fc\u00dfe");
  writer.set("t.u64", (std::uint64_t{1} << 63) + 1);
  writer.set("t.i64", -(std::int64_t{1} << 62));
  writer.set("t.f64", 0.1);
  writer.set("t.ints", std::vector<std::int32_t>{1, -2, 3});
  writer.set("t.floats", std::vector<float>{0.5f, -0.25f});
  writer.set("t.strings", std::vector<std::string>{"a", "", "ccc"});
  writer.set("t.bools", std::vector<bool>{true, false});
  for (auto const& t : file.tensors()) writer.add_tensor(t.name, t.dtype, t.shape, t.data);
  auto const* const mapped = file.mapping(0);
  CHECK(writer.to_bytes() == FileBytes(mapped->bytes().begin(), mapped->bytes().end()));
}

TEST_CASE("A real model: the same keys, values, tensors, offsets and bytes as Python's gguf reads") {
  auto const model = tiered_test::cached_file("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (!model) return;
  std::ifstream stream(data_folder + "SmolLM2-135M-Instruct.Q4_1.txt");
  std::string const expected{std::istreambuf_iterator<char>(stream), {}};
  REQUIRE(expected.size() > 10000);
  std::string const found = describe(GgufFile::open(*model));
  auto const differ = std::mismatch(expected.begin(), expected.end(), found.begin(), found.end());
  INFO("first difference: " << std::string(differ.second, std::min(differ.second + 100, found.end())));
  CHECK(found == expected);
}
