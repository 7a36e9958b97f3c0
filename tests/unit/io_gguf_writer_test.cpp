// GgufWriter: what it refuses, that set() replaces, that files equal memory and nothing is left after a failure.
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <sys/resource.h>

#include "catch.hpp"
#include "error_of.hpp"
#include "gguf_bytes.hpp"
#include "temp_dir.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/io/gguf_writer.hpp"

using tiered::DType;
using tiered::Errc;
using tiered::GgufFile;
using tiered::GgufWriter;
using tiered::Shape;
using namespace tiered_test;

namespace {

/// While it lives, files of this process cannot grow above a size.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(::rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    ::rlimit const limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(FileSizeLimit const&) = delete;
  FileSizeLimit& operator=(FileSizeLimit const&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  ::rlimit before_{};
};

}  // namespace

TEST_CASE("set() keeps the place of a key and replaces type and value") {
  GgufWriter writer;
  writer.set("a", 1);
  writer.set("b", 2);
  writer.set("a", "text");
  auto const bytes = writer.to_bytes();
  GgufFile const file = GgufFile::parse(bytes);
  REQUIRE(file.metadata().size() == 2);
  CHECK(file.metadata()[0].key() == "a");
  CHECK(file.metadata()[0].as<std::string>() == "text");
}

TEST_CASE("A file on disk equals the bytes in memory, whatever the alignment") {
  TempDir const dir;
  for (std::uint64_t const alignment : {8u, 24u, 32u, 4096u}) {
    auto const writer = small_writer({.alignment = alignment});
    writer.write(dir / "a.gguf");
    GgufFile const file = GgufFile::open(dir / "a.gguf");
    auto const mapped = file.mapping(0)->bytes();
    CHECK(writer.to_bytes() == FileBytes(mapped.begin(), mapped.end()));
    CHECK(file.alignment() == alignment);
    CHECK(file.total_bytes() % alignment == 0);
  }
}

TEST_CASE("What no reader would take is refused when it is added") {
  GgufWriter writer = small_writer();
  std::vector<float> const six(6);
  auto const refused = [&](std::string_view name, DType dtype, Shape const& shape) {
    auto const thrown = error_of([&] { writer.add_tensor(name, dtype, shape, six); });
    return thrown.code == Errc::precondition && thrown.says("GgufWriter");
  };
  CHECK(refused("t", DType::f32, Shape(2, 2)));
  CHECK(refused("t", DType::f32, Shape(0)));
  CHECK(refused("t", DType::q8_0, Shape(6)));
  CHECK(refused("t", DType::act_q8, Shape(32)));
  CHECK(refused("t", DType(4), Shape(6)));
  CHECK(refused("", DType::f32, Shape(6)));
  CHECK(refused(std::string(1025, 'n'), DType::f32, Shape(6)));
  CHECK(refused("tensor.a", DType::f32, Shape(6)));
  CHECK(error_of([&] { writer.add_tensor("t", DType::f32, Shape(2, 2), six); }).says("\"t\"", "16 bytes, got 24"));
  CHECK(error_of([&] { writer.set("", 1); }).code == Errc::precondition);
  CHECK(error_of([&] { writer.set(std::string(65536, 'k'), 1); }).code == Errc::precondition);
  CHECK(error_of([] { GgufWriter({.version = 1}); }).code == Errc::precondition);
  CHECK(error_of([] { GgufWriter({.alignment = 12}); }).code == Errc::precondition);
  CHECK(error_of([] { GgufWriter({.alignment = 0}); }).code == Errc::precondition);
  CHECK(writer.to_bytes() == small_writer().to_bytes());  // nothing of that stuck
}

TEST_CASE("A failed write says why and leaves nothing behind") {
  TempDir const dir;
  auto const no_folder = error_of([&] { small_writer().write(dir / "none/a.gguf"); });
  CHECK(no_folder.code == Errc::io);
  CHECK(no_folder.says("none/a.gguf", "cannot be created"));
  CHECK(error_of([&] { small_writer().write_split(dir / "a", 0); }).code == Errc::precondition);

  FileSizeLimit const limit(200);
  auto const full = error_of([&] { small_writer().write(dir / "full.gguf"); });
  CHECK(full.code == Errc::io);
  CHECK(full.says("full.gguf", "cannot be written", "File too large"));
  CHECK_FALSE(std::filesystem::exists(dir / "full.gguf"));

  std::filesystem::create_symlink("elsewhere", dir / "link.gguf");
  CHECK(error_of([&] { small_writer().write(dir / "link.gguf"); }).code == Errc::io);
  CHECK(std::filesystem::is_symlink(dir / "link.gguf"));  // a link, like a device, is never removed
}
