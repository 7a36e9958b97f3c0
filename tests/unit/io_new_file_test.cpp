// A new file is there whole or not at all.
#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/stat.h>

#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/io/detail/new_file.hpp"

using namespace tiered;
using tiered::detail::NewFile;
using tiered_test::error_of;
using tiered_test::TempDir;

namespace {

std::string content(std::string const& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
std::span<std::byte const> bytes(std::string_view text) { return std::as_bytes(std::span(text)); }
std::ptrdiff_t n_files(std::string const& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

}  // namespace

TEST_CASE("a file takes the place of the old one when it is published, whatever the sizes of its pieces") {
  TempDir const dir;
  std::string const path = dir.write("a", bytes("old"));
  std::string expected;
  NewFile file(path);
  for (std::size_t const n :
       {std::size_t{1}, std::size_t{0}, (std::size_t{1} << 20) - 1, std::size_t{2}, std::size_t{3} << 20, std::size_t{7}}) {
    std::string const piece(n, char('a' + expected.size() % 26));
    file.write(bytes(piece));
    expected += piece;
    CHECK(content(path) == "old");
  }
  file.publish();
  CHECK(content(path) == expected);
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0600);
  CHECK(n_files(dir / "") == 1);
}

TEST_CASE("a file that is not published leaves nothing, and the old one as it was") {
  TempDir const dir;
  std::string const path = dir.write("a", bytes("old"));
  {
    NewFile file(path);
    file.write(bytes("new"));
    CHECK(n_files(dir / "") == 2);
  }
  CHECK(content(path) == "old");
  CHECK(n_files(dir / "") == 1);
}

TEST_CASE("files that cannot be made or replaced are named, with the reason") {
  TempDir const dir;
  auto const no_folder = error_of([&] { NewFile(dir / "none/a"); });
  CHECK(no_folder.code == Errc::io);
  CHECK(no_folder.says("none/a: cannot be created", "No such file"));
  std::filesystem::create_directory(dir / "folder");
  auto const folder = error_of([&] {
    NewFile file(dir / "folder");
    file.write(bytes("a"));
    file.publish();
  });
  CHECK(folder.code == Errc::io);
  CHECK(folder.says("folder: cannot be replaced", "directory"));
  CHECK(n_files(dir / "") == 1);
}
