// Files that are damaged, cut, joined or of another kind: each rule of gguf.hpp with a file that breaks it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_bytes.hpp"
#include "temp_dir.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/sim/split_mix.hpp"

using tiered::DType;
using tiered::Errc;
using tiered::GgufFile;
using tiered::Shape;
using namespace tiered_test;

namespace {

Thrown parsing(FileBytes const& bytes) {
  return error_of([&] { GgufFile::parse(bytes); });
}

FileBytes text_file(std::string const& text) {
  FileBytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

/// Header offsets of the format: magic, version, n_tensors, n_values.
constexpr std::size_t version_at = 4, n_tensors_at = 8, n_values_at = 16;
/// Behind a tensor's name: rank, sizes, type, offset.
constexpr std::size_t rank_at = 0, sizes_at = 4;
constexpr std::size_t type_at(std::size_t rank) { return 4 + 8 * rank; }
constexpr std::size_t offset_at(std::size_t rank) { return 8 + 8 * rank; }

FileBytes const small = small_writer().to_bytes();

}  // namespace

TEST_CASE("Files of another kind are named as such") {
  TempDir const dir;
  CHECK(error_of([&] { GgufFile::open(dir / "none.gguf"); }).code == Errc::not_found);
  CHECK(error_of([&] { GgufFile::open(dir / ""); }).says("is a directory"));
  CHECK(error_of([&] { GgufFile::open(dir.write("empty.gguf", {})); }).says("empty.gguf", "empty"));
  CHECK(parsing({}).says("empty"));
  auto const text = error_of([&] { GgufFile::open(dir.write("page.gguf", text_file("<!DOCTYPE html>"))); });
  CHECK(text.code == Errc::bad_file);
  CHECK(text.says("page.gguf", "not a GGUF file", "\"<!DO\""));
  CHECK(parsing(text_file("GG")).says("not a GGUF file", "\"GG\""));
  CHECK(parsing(text_file("version https://git-lfs")).says("Git LFS pointer"));
  CHECK(parsing(text_file("tjgg............")).says("older than GGUF"));
  CHECK(parsing(text_file("PK\3\4............")).says("zip"));
}

TEST_CASE("Versions 2 and 3 only; big-endian files are recognised") {
  for (std::uint32_t const version : {0u, 1u, 4u, 1000u}) {
    auto const thrown = parsing(with_number(small, version_at, version));
    CHECK(thrown.code == Errc::unsupported);
    CHECK(thrown.says("version " + std::to_string(version), "2 and 3"));
  }
  for (std::uint32_t const version : {0x02000000u, 0x03000000u}) {
    auto const thrown = parsing(with_number(small, version_at, version));
    CHECK(thrown.code == Errc::unsupported);
    CHECK(thrown.says("big-endian"));
  }
}

TEST_CASE("Counts that no file of this size can hold are refused before anything is allocated") {
  for (std::uint64_t const count : {std::uint64_t{1000}, std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    for (std::size_t const at : {n_tensors_at, n_values_at}) {
      auto const thrown = parsing(with_number(small, at, count));
      CHECK(thrown.code == Errc::bad_file);
      CHECK(thrown.says(std::to_string(count)));
    }
  }
}

TEST_CASE("Metadata: lengths, types, duplicates, bools, depth") {
  auto const bad = [](FileBytes const& bytes, auto const&... parts) {
    auto const thrown = parsing(bytes);
    INFO(thrown.message);
    CHECK(thrown.code == Errc::bad_file);
    CHECK(thrown.says(parts...));
  };
  std::size_t const first_key = 24;
  bad(with_number(small, first_key, std::uint64_t{0}), "metadata key 0 at byte 24 has 0 bytes");
  bad(with_number(small, first_key, std::uint64_t{1} << 50), "truncated or damaged", "byte 32 needs 1125899906842624 bytes");
  bad(with_number(small, first_key, ~std::uint64_t{0}), "truncated or damaged");
  bad(with_number(small, "llama.block_count", 0, std::uint32_t{13}), "\"llama.block_count\"", "type 13");
  bad(with_number(small, "general.architecture", 4, std::uint64_t{1} << 32), "string value", "4294967296 bytes");
  bad(with_number(small, "flag", 4, std::uint8_t{2}), "\"flag\"", "bool of value 2");
  bad(with_number(small, "words", 4, std::uint32_t{99}), "\"words\"", "array of type 99");
  bad(with_number(small, "words", 8, std::uint64_t{1} << 61), "\"words\"", "array of 2305843009213693952 string");
  bad(with_number(small, "words", 8, std::uint64_t{20}), "truncated or damaged");  // the fourth length is read out of what follows

  tiered::GgufWriter twice;
  twice.set("key1", 1);
  twice.set("key2", 2);
  bad(with_text(twice.to_bytes(), "key2", "key1"), "\"key1\"", "twice");

  tiered::GgufWriter bools;
  bools.set("b", std::vector<bool>{true, true, true});
  bad(with_number(bools.to_bytes(), "b", 4 + 12 + 2, std::uint8_t{7}), "bool of value 7");

  tiered::GgufWriter deep;
  std::vector<std::vector<std::vector<std::vector<std::vector<std::vector<std::vector<std::vector<std::vector<int>>>>>>>>> nine(1);
  nine[0].resize(1);
  nine[0][0].resize(1);
  nine[0][0][0].resize(1);
  nine[0][0][0][0].resize(1);
  nine[0][0][0][0][0].resize(1);
  nine[0][0][0][0][0][0].resize(1);
  nine[0][0][0][0][0][0][0].resize(1);
  deep.set("deep", nine);
  bad(deep.to_bytes(), "\"deep\"", "deeper than 8");
  deep.set("deep", nine[0]);
  auto const eight = deep.to_bytes();
  CHECK(GgufFile::parse(eight).find("deep")->size() == 1);
}

TEST_CASE("general.alignment is a multiple of 8 in reason") {
  FileBytes const aligned = small_writer({.alignment = 64}).to_bytes();
  for (std::uint32_t const alignment : {0u, 1u, 4u, 12u, 1u << 21}) {
    auto const thrown = parsing(with_number(aligned, "general.alignment", 4, alignment));
    CHECK(thrown.code == Errc::bad_file);
    CHECK(thrown.says("general.alignment is " + std::to_string(alignment)));
  }
  auto const wrong_type = parsing(with_number(aligned, "general.alignment", 0, std::uint32_t{6}));
  CHECK(wrong_type.says("general.alignment", "f32", "integer"));
}

TEST_CASE("Tensor descriptions: names, ranks, sizes, types, rows") {
  auto const refused = [](Errc code, FileBytes const& bytes, auto const&... parts) {
    auto const thrown = parsing(bytes);
    INFO(thrown.message);
    CHECK(thrown.code == code);
    CHECK(thrown.says(parts...));
  };
  Errc const bad = Errc::bad_file;
  std::size_t const name_at = find_text(small, "tensor.a") - 8;
  refused(bad, with_number(small, name_at, std::uint64_t{0}), "the name of tensor 0", "has 0 bytes");
  refused(bad, with_text(small, "tensor.b", "tensor.a"), "\"tensor.a\" twice");
  refused(bad, with_number(small, "tensor.a", rank_at, std::uint32_t{5}), "\"tensor.a\" has rank 5");
  refused(bad, with_number(small, "tensor.a", sizes_at, std::uint64_t{0}), "\"tensor.a\" has size 0 in dimension 0");
  refused(bad, with_number(small, "tensor.a", sizes_at, std::uint64_t{1} << 63), "9223372036854775808 in dimension 0");
  refused(bad, with_number(small, "tensor.a", sizes_at, std::uint64_t{1} << 62), "\"tensor.a\"", "overflows");
  refused(bad, with_number(small, "tensor.b", sizes_at, std::uint64_t{48}), "\"tensor.b\" has rows of 48 elements", "q8_0 blocks of 32");
  refused(Errc::unsupported, with_number(small, "tensor.a", type_at(2), std::uint32_t{42}), "\"tensor.a\"", "number 42");
  refused(Errc::unsupported, with_number(small, "tensor.a", type_at(2), std::uint32_t{256}), "\"tensor.a\"",
          "number 256");  // ours, not a file's
  for (std::uint32_t const removed : {4u, 5u, 31u, 32u, 33u, 36u, 37u, 38u}) {
    refused(Errc::unsupported, with_number(small, "tensor.a", type_at(2), removed), "\"tensor.a\"", "number " + std::to_string(removed),
            "removed");
  }
  std::string const long_name(1025, 'n');
  FileBytes with_long;
  {
    tiered::GgufWriter writer;
    std::vector<float> const one{1};
    writer.add_tensor(long_name.substr(1), DType::f32, Shape(1), one);
    with_long = writer.to_bytes();
  }
  CHECK(GgufFile::parse(with_long).tensors()[0].name.size() == 1024);
  refused(bad, with_number(with_long, 24, std::uint64_t{1025}), "has 1025 bytes");
}

TEST_CASE("Tensor ranges: aligned, apart, inside the file") {
  auto const bad = [](FileBytes const& bytes, auto const&... parts) {
    auto const thrown = parsing(bytes);
    INFO(thrown.message);
    CHECK(thrown.code == Errc::bad_file);
    CHECK(thrown.says(parts...));
  };
  bad(with_number(small, "tensor.b", offset_at(1), std::uint64_t{33}), "\"tensor.b\" has offset 33", "alignment 32");
  bad(with_number(small, "tensor.b", offset_at(1), std::uint64_t{0}), "begins at byte", "inside tensor");
  bad(with_number(small, "tensor.b", offset_at(1), std::uint64_t{64}), "truncated: tensor \"tensor.b\"",
      "the file has " + std::to_string(small.size()));
  bad(with_number(small, "tensor.b", offset_at(1), ~std::uint64_t{31}), "\"tensor.b\"", "which no file can have");
  bad(with_number(small, "tensor.b", offset_at(1), std::uint64_t{1} << 62), "truncated: tensor \"tensor.b\"");
  bad(with_number(small, "tensor.a", sizes_at, std::uint64_t{6}), "\"tensor.b\" begins", "inside tensor \"tensor.a\"");  // 48 bytes now
  // A gap between tensors is allowed, and so is any order.
  auto const swapped =
      with_number(with_number(small, "tensor.a", offset_at(2), std::uint64_t{96}), "tensor.b", offset_at(1), std::uint64_t{0});
  CHECK(GgufFile::parse(swapped).require_tensor("tensor.a").file_offset > GgufFile::parse(swapped).require_tensor("tensor.b").file_offset);
}

TEST_CASE("A copy cut at any length is a typed error that names the byte") {
  std::uint64_t const data_end = GgufFile::parse(small).require_tensor("tensor.b").file_offset + 68;
  REQUIRE(small.size() > data_end);
  for (std::size_t n = 0; n < small.size(); ++n) {
    FileBytes const cut(small.begin(), small.begin() + std::ptrdiff_t(n));
    auto const thrown = parsing(cut);
    INFO(n << " bytes: " << thrown.message);
    if (n >= data_end) {
      CHECK_FALSE(thrown.code.has_value());  // only the padding behind the last tensor is gone
    } else {
      CHECK(thrown.code == Errc::bad_file);
      if (n >= 4) CHECK(thrown.says("truncated"));
      if (n >= 24) CHECK(thrown.says(std::to_string(n)));
    }
  }
}

TEST_CASE("A damaged length does not make a large file's weights be read as header") {
  TempDir const dir;
  std::string const path = dir.write("large.gguf", with_number(small, "general.architecture", 4, std::uint64_t{3} << 30));
  std::filesystem::resize_file(path, std::uint64_t{4} << 30);  // a hole: takes no space
  auto const thrown = error_of([&] { GgufFile::open(path); });
  CHECK(thrown.code == Errc::bad_file);
  CHECK(thrown.says("string value", "3221225472 bytes", "a header has at most"));
}

TEST_CASE("Bytes behind the last tensor are refused, joined files by name") {
  for (std::size_t const n : {1u, 31u, 5000u}) {
    FileBytes longer = small;
    longer.insert(longer.end(), n, std::byte{0});
    auto const thrown = parsing(longer);
    CHECK(thrown.code == Errc::bad_file);
    CHECK(thrown.says("bytes behind its last tensor"));
    CHECK_FALSE(thrown.says("cat"));
  }
  std::uint64_t const data_end = GgufFile::parse(small).require_tensor("tensor.b").file_offset + 68;
  for (std::size_t const end : {std::size_t(data_end), small.size()}) {  // with and without the last padding
    FileBytes joined(small.begin(), small.begin() + std::ptrdiff_t(end));
    joined.insert(joined.end(), small.begin(), small.end());
    CHECK(parsing(joined).says("another GGUF file begins there", "cat"));
  }
  FileBytes header_only = tiered::GgufWriter().to_bytes();
  header_only.resize(header_only.size() + 1);
  CHECK(parsing(header_only).says("behind"));
}

TEST_CASE("Any byte changed to anything gives a file or a typed error") {
  tiered::SplitMix64 random(3);
  int n_errors = 0;
  for (int round = 0; round < 20000; ++round) {
    FileBytes damaged = small;
    for (std::uint64_t n = 1 + random.below(3); n > 0; --n) damaged[random.below(damaged.size())] = std::byte(random.next());
    auto const thrown = error_of([&] {
      GgufFile const file = GgufFile::parse(damaged);
      for (auto const& value : file.metadata()) (void)value.describe();
    });
    n_errors += thrown.code.has_value();
  }
  CHECK(n_errors > 5000);
}
