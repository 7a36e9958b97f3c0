// MmapFile and MemorySource beyond the conformance suite: what open() refuses and why, files cut while open, moves.
#include <cstddef>
#include <filesystem>
#include <utility>
#include <vector>

#include <sys/stat.h>

#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/io/source.hpp"

using tiered::Errc;
using tiered::MmapFile;
using tiered_test::error_of;
using tiered_test::TempDir;

namespace {

std::vector<std::byte> counting(std::size_t n) {
  std::vector<std::byte> bytes(n);
  for (std::size_t i = 0; i < n; ++i) bytes[i] = std::byte(i * 7 % 251);
  return bytes;
}

}  // namespace

TEST_CASE("MmapFile::open says what is wrong") {
  TempDir const dir;
  auto const missing = error_of([&] { MmapFile::open(dir / "none"); });
  CHECK(missing.code == Errc::not_found);
  CHECK(missing.says("none", "no such file"));
  CHECK(error_of([&] { MmapFile::open(dir.write("file", counting(3)) + "/below"); }).code == Errc::not_found);

  auto const directory = error_of([&] { MmapFile::open(dir / ""); });
  CHECK(directory.code == Errc::io);
  CHECK(directory.says("is a directory"));

  auto const empty = error_of([&] { MmapFile::open(dir.write("empty", {})); });
  CHECK(empty.code == Errc::bad_file);
  CHECK(empty.says("empty", "0 bytes"));

  std::filesystem::create_symlink("loop", dir / "loop");
  auto const loop = error_of([&] { MmapFile::open(dir / "loop"); });
  CHECK(loop.code == Errc::io);
  CHECK(loop.says("cannot be opened", "symbolic links"));  // the system's own words

  REQUIRE(::mkfifo((dir / "fifo").c_str(), 0600) == 0);
  auto const fifo = error_of([&] { MmapFile::open(dir / "fifo"); });  // and does not wait for a writer
  CHECK(fifo.code == Errc::io);
  CHECK(fifo.says("not a regular file"));
}

TEST_CASE("MmapFile maps the bytes of the file and survives moves") {
  TempDir const dir;
  auto const bytes = counting(10000);
  MmapFile file = MmapFile::open(dir.write("a", bytes));
  CHECK(file.path() == dir / "a");
  std::byte const* const where = file.bytes().data();
  MmapFile moved = std::move(file);
  CHECK(moved.bytes().data() == where);
  CHECK(std::vector(moved.bytes().begin(), moved.bytes().end()) == bytes);
  CHECK(file.bytes().empty());  // NOLINT: a moved-from file is documented to be empty

  auto const others = counting(5);
  MmapFile other = MmapFile::open(dir.write("b", others));
  other = std::move(moved);
  CHECK(other.path() == dir / "a");
  CHECK(other.bytes().data() == where);
}

TEST_CASE("MmapFile advice takes any part of the mapping and nothing else") {
  TempDir const dir;
  auto const bytes = counting(20000);
  MmapFile const file = MmapFile::open(dir.write("a", bytes));
  file.advise_willneed(file.bytes());
  file.advise_willneed(file.bytes().subspan(5000, 3));
  file.advise_willneed(file.bytes().subspan(20000));
  file.advise_willneed(bytes);  // not of this mapping
  file.advise_read_once(0, 20000);
  CHECK(file.bytes()[19999] == bytes[19999]);
}

TEST_CASE("A file cut after it was opened gives an Error by read_at, and its new size") {
  TempDir const dir;
  MmapFile const file = MmapFile::open(dir.write("a", counting(10000)));
  CHECK(file.current_size_bytes() == 10000);
  std::filesystem::resize_file(dir / "a", 4000);
  CHECK(file.current_size_bytes() == 4000);
  CHECK(file.size_bytes() == 10000);
  std::vector<std::byte> dst(100);
  file.read_at(3900, dst);
  auto const cut = error_of([&] { file.read_at(3950, dst); });
  CHECK(cut.code == Errc::io);
  CHECK(cut.says("read 50 of 100 bytes at offset 3950", "10000", "cut"));
}

TEST_CASE("MmapFile::page_in makes a part resident, and says where a file was cut") {
  TempDir const dir;
  MmapFile const file = MmapFile::open(dir.write("a", counting(100000)));
  file.page_in(file.bytes());
  file.page_in(file.bytes().subspan(8192, 5));
  file.page_in({});
  std::filesystem::resize_file(dir / "a", 4096);
  auto const cut = error_of([&] { file.page_in(file.bytes()); });
  CHECK(cut.code == Errc::io);
  CHECK(cut.says("100000 bytes at offset 0", "has 4096 bytes", "had 100000"));
  file.page_in(file.bytes().first(4096));
}
