// PreadSource beyond the conformance suite: what open() refuses, and a failure among many pieces.
#include <cstddef>
#include <filesystem>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/io/pread_source.hpp"

using tiered::Errc;
using tiered::PreadSource;
using tiered_test::error_of;

TEST_CASE("PreadSource::open refuses what MmapFile::open refuses") {
  tiered_test::TempDir const dir;
  CHECK(error_of([&] { PreadSource::open(dir / "none"); }).code == Errc::not_found);
  CHECK(error_of([&] { PreadSource::open(dir / ""); }).says("is a directory"));
  CHECK(error_of([&] { PreadSource::open(dir.write("empty", {})); }).code == Errc::bad_file);
  CHECK(error_of([&] { PreadSource::open(dir / "none", {.n_threads = 0}); }).code == Errc::precondition);
  CHECK(error_of([&] { PreadSource::open(dir / "none", {.piece_bytes = 0}); }).code == Errc::precondition);
}

TEST_CASE("A short read in any piece is an Error of the whole read, and the source stays usable") {
  tiered_test::TempDir const dir;
  std::vector<std::byte> const bytes(64 * 100, std::byte{7});
  PreadSource source = PreadSource::open(dir.write("a", bytes), {.n_threads = 4, .piece_bytes = 100});
  std::filesystem::resize_file(dir / "a", 3050);
  std::vector<std::byte> dst(bytes.size());
  auto const cut = error_of([&] { source.read_at(0, dst); });
  CHECK(cut.code == Errc::io);
  CHECK(cut.says("cut"));
  PreadSource const moved = std::move(source);
  std::vector<std::byte> front(3050);
  moved.read_at(0, front);
  CHECK(front == std::vector<std::byte>(3050, std::byte{7}));
}
