// Split files: found from any part, checked against each other, missing parts named.
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_bytes.hpp"
#include "temp_dir.hpp"
#include "tiered/io/gguf.hpp"

using tiered::DType;
using tiered::Errc;
using tiered::GgufFile;
using tiered::Shape;
using namespace tiered_test;

namespace {

FileBytes contents(std::string const& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string const text{std::istreambuf_iterator<char>(stream), {}};
  FileBytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

std::vector<std::string> write_three(TempDir const& dir) { return small_writer().write_split(dir / "model", 3); }

void overwrite(TempDir const& dir, std::string const& path, FileBytes const& bytes) {
  dir.write(std::filesystem::path(path).filename().string(), bytes);
}

}  // namespace

TEST_CASE("Names of parts") {
  using tiered::detail::parse_split_path;
  auto const name = parse_split_path("dir/model-00002-of-00005.gguf");
  REQUIRE(name);
  CHECK(name->prefix == "dir/model");
  CHECK(name->place.number == 1);
  CHECK(name->place.count == 5);
  CHECK(tiered::detail::split_path("dir/model", name->place) == "dir/model-00002-of-00005.gguf");
  CHECK(parse_split_path("-00001-of-00001.gguf"));
  for (char const* no : {"", "model.gguf", "m-00000-of-00005.gguf", "m-00006-of-00005.gguf", "m-0001-of-00005.gguf", "m-00001-of-00005.ggu",
                         "m-00001-of-00005.gguf.part", "m-0000x-of-00005.gguf", "m-00001-oF-00005.gguf", "m_00001-of-00005.gguf"}) {
    CHECK_FALSE(parse_split_path(no));
  }
}

TEST_CASE("A split file is found from any of its parts") {
  TempDir const dir;
  auto const whole_bytes = small_writer().to_bytes();
  GgufFile const whole = GgufFile::parse(whole_bytes);
  auto const paths = write_three(dir);
  REQUIRE(paths == std::vector<std::string>{dir / "model-00001-of-00003.gguf", dir / "model-00002-of-00003.gguf",
                                            dir / "model-00003-of-00003.gguf"});
  for (std::string const& path : paths) {
    GgufFile const file = GgufFile::open(path);
    CHECK(file.path() == path);
    REQUIRE(file.n_parts() == 3);
    CHECK(file.require<int>("llama.block_count") == 2);  // metadata of the first part, whichever was named
    REQUIRE(file.tensors().size() == 2);
    std::uint64_t bytes = 0;
    for (int part = 0; part < 3; ++part) {
      CHECK(file.part_path(part) == paths[std::size_t(part)]);
      CHECK(file.mapping(part)->path() == paths[std::size_t(part)]);
      bytes += std::filesystem::file_size(paths[std::size_t(part)]);
    }
    CHECK(file.total_bytes() == bytes);
    for (std::size_t i = 0; i < 2; ++i) {
      auto const& tensor = file.tensors()[i];
      CHECK(tensor.name == whole.tensors()[i].name);
      CHECK(tensor.part == int(i) + 1);  // two tensors over three parts: the first part holds metadata only
      CHECK(tensor.data.data() == file.mapping(tensor.part)->bytes().data() + tensor.file_offset);
      CHECK(std::equal(tensor.data.begin(), tensor.data.end(), whole.tensors()[i].data.begin(), whole.tensors()[i].data.end()));
    }
  }
}

TEST_CASE("A split file that Python's gguf wrote") {
  GgufFile const file = GgufFile::open(TIERED_TEST_DATA "/gguf/python_split-00002-of-00003.gguf");
  CHECK(file.n_parts() == 3);
  CHECK(file.require<int>("llama.block_count") == 5);
  REQUIRE(file.tensors().size() == 5);
  for (std::size_t i = 0; i < 5; ++i) {
    auto const& tensor = file.tensors()[i];
    CHECK(tensor.name == "blk." + std::to_string(i));
    CHECK(tensor.part == int(i) / 2);
    CHECK(tensor.shape == Shape(2, 4));
    float value = -1;
    std::memcpy(&value, tensor.data.data() + 28, 4);
    CHECK(value == float(i));
  }
}

TEST_CASE("A missing part is named") {
  for (std::size_t missing = 1; missing < 3; ++missing) {
    TempDir const dir;
    auto const paths = write_three(dir);
    std::filesystem::remove(paths[missing]);
    auto const thrown = error_of([&] { GgufFile::open(paths[0]); });
    CHECK(thrown.code == Errc::not_found);
    CHECK(thrown.says("part " + std::to_string(missing + 1) + " of 3 is missing", paths[missing]));
  }
  TempDir const dir;
  auto const paths = write_three(dir);
  std::filesystem::remove(paths[0]);
  CHECK(error_of([&] { GgufFile::open(paths[2]); }).says("part 1 of 3 is missing", paths[0]));
}

TEST_CASE("A damaged part is named") {
  TempDir const dir;
  auto const paths = write_three(dir);
  FileBytes const second = contents(paths[1]);
  overwrite(dir, paths[1], FileBytes(second.begin(), second.end() - 40));
  auto const thrown = error_of([&] { GgufFile::open(paths[0]); });
  CHECK(thrown.code == Errc::bad_file);
  CHECK(thrown.says(paths[1], "truncated"));
}

TEST_CASE("Parts that do not belong together are refused") {
  TempDir const dir;
  auto const paths = write_three(dir);
  FileBytes const first = contents(paths[0]), second = contents(paths[1]), third = contents(paths[2]);
  auto const refused = [&](auto const&... parts) {
    auto const thrown = error_of([&] { GgufFile::open(paths[0]); });
    INFO(thrown.message);
    CHECK(thrown.code == Errc::bad_file);
    CHECK(thrown.says(parts...));
    overwrite(dir, paths[0], first);
    overwrite(dir, paths[1], second);
    overwrite(dir, paths[2], third);
  };
  overwrite(dir, paths[1], third);
  refused(paths[1], "its name says part 2 of 3", "split.no 2");
  overwrite(dir, paths[2], with_number(third, "split.count", 4, std::uint16_t{4}));
  refused(paths[2], "split.count 4");
  overwrite(dir, paths[1], small_writer().to_bytes());  // a whole file in the place of a part
  refused(paths[1], "split.no none");
  overwrite(dir, paths[0], with_number(first, "split.tensors.count", 4, std::int32_t{3}));
  refused(paths[0], "split.tensors.count is 3", "2 tensors");
  overwrite(dir, paths[2], with_text(third, "tensor.b", "tensor.a"));
  refused("\"tensor.a\" twice");
  overwrite(dir, paths[0], with_number(first, "split.no", 4, std::uint16_t{3}));
  refused("split.count 3", "split.no 3");
  overwrite(dir, paths[0], with_text(first, "split.no", "split.xx"));
  refused("no split.no");
  CHECK(GgufFile::open(paths[0]).n_parts() == 3);
}

TEST_CASE("A part needs its name, and a name needs its metadata") {
  TempDir const dir;
  auto const paths = write_three(dir);
  auto const renamed = error_of([&] { GgufFile::open(dir.write("renamed.gguf", contents(paths[1]))); });
  CHECK(renamed.code == Errc::bad_file);
  CHECK(renamed.says("renamed.gguf", "part 2 of 3", "NAME-00002-of-00003.gguf"));

  auto const no_keys = error_of([&] { GgufFile::open(dir.write("other-00001-of-00002.gguf", small_writer().to_bytes())); });
  CHECK(no_keys.code == Errc::bad_file);
  CHECK(no_keys.says("one of 2 parts", "no split.count"));
  CHECK(GgufFile::open(dir.write("other-00001-of-00001.gguf", small_writer().to_bytes())).n_parts() == 1);

  FileBytes const part = contents(paths[0]);
  CHECK(error_of([&] { GgufFile::parse(part); }).code == Errc::unsupported);

  FileBytes joined = part;
  for (std::size_t i = 1; i < 3; ++i) {
    FileBytes const more = contents(paths[i]);
    joined.insert(joined.end(), more.begin(), more.end());
  }
  CHECK(error_of([&] { GgufFile::open(dir.write("joined.gguf", joined)); }).says("joined.gguf", "not joined with cat"));
}

TEST_CASE("A split file of one part is a whole file") {
  TempDir const dir;
  auto const paths = small_writer().write_split(dir / "one", 1);
  CHECK(GgufFile::open(paths.at(0)).tensors().size() == 2);
}
