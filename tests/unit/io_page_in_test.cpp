// page_in(): everything is read, progress and cancelling, errors of files that were cut; PiecewiseRead's pieces.
#include "tiered/io/page_in.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/io/gguf_writer.hpp"

using namespace tiered;
using tiered_test::error_of;
using tiered_test::TempDir;

namespace {

/// A file with one tensor of n floats.
std::string write_model(TempDir const& dir, std::size_t n) {
  std::vector<float> const values(n, 1.5f);
  GgufWriter writer;
  writer.set("general.architecture", "none");
  writer.add_tensor("t", DType::f32, Shape(std::int64_t(n)), values);
  writer.write(dir / "model.gguf");
  return dir / "model.gguf";
}

struct Watcher {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> seen;
  std::size_t cancel_after = std::size_t(-1);
  std::thread::id thread = std::this_thread::get_id();
  bool elsewhere = false;

  ReadOptions options(int n_threads) {
    ReadOptions o;
    o.n_threads = n_threads;
    o.progress = [](void* self, std::uint64_t done, std::uint64_t total) {
      auto& w = *static_cast<Watcher*>(self);
      w.elsewhere |= std::this_thread::get_id() != w.thread;
      w.seen.emplace_back(done, total);
    };
    o.cancelled = [](void* self) { return static_cast<Watcher*>(self)->seen.size() >= static_cast<Watcher*>(self)->cancel_after; };
    o.context = this;
    return o;
  }
};

}  // namespace

TEST_CASE("page_in brings every page into memory and tells how far it is") {
  TempDir const dir;
  GgufFile const file = GgufFile::open(write_model(dir, 10 * MiB + 12345));
  for (int const n_threads : {1, 3}) {
    Watcher watcher;
    REQUIRE(page_in(file, watcher.options(n_threads)));
    CHECK_FALSE(watcher.elsewhere);
    REQUIRE(watcher.seen.size() >= 2);
    CHECK(watcher.seen.front().first == 0);
    CHECK(watcher.seen.back().first == file.total_bytes());
    for (std::size_t i = 0; i < watcher.seen.size(); ++i) {
      CHECK(watcher.seen[i].second == file.total_bytes());
      if (i > 0) CHECK(watcher.seen[i].first >= watcher.seen[i - 1].first);
    }
  }
  auto const all = file.mapping(0)->bytes();
  std::vector<unsigned char> resident((all.size() + 4095) / 4096);
  REQUIRE(::mincore(const_cast<std::byte*>(all.data()), all.size(), resident.data()) == 0);
  std::size_t n_resident = 0;
  for (unsigned char const page : resident) n_resident += page & 1u;
  CHECK(n_resident == resident.size());
}

TEST_CASE("page_in can be cancelled between pieces, and passes on what a watcher throws") {
  TempDir const dir;
  GgufFile const file = GgufFile::open(write_model(dir, 12 * MiB));
  for (std::size_t const after : {0, 1, 2}) {
    Watcher watcher;
    watcher.cancel_after = after;
    int const n_threads = after < 2 ? 2 : 1;  // of two, the other may read all: then there are two reports
    auto const thrown = error_of([&] { page_in(file, watcher.options(n_threads)); });
    CHECK(thrown.code == Errc::cancelled);
    CHECK(thrown.says("of " + format_bytes(file.total_bytes())));
    CHECK(watcher.seen.size() == after);
  }
  ReadOptions options;
  options.progress = [](void*, std::uint64_t, std::uint64_t) { throw std::runtime_error("no screen"); };
  CHECK_THROWS_AS(page_in(file, options), std::runtime_error);
  options = {};
  options.n_threads = 0;
  auto const none = error_of([&] { page_in(file, options); });
  CHECK(none.code == Errc::precondition);
  CHECK(none.says("n_threads is 0"));
}

TEST_CASE("page_in of a file that was cut is an error, of bytes in memory nothing") {
  TempDir const dir;
  std::string const path = write_model(dir, MiB);
  GgufFile const file = GgufFile::open(path);
  std::filesystem::resize_file(path, MiB);
  CHECK(error_of([&] { page_in(file); }).code == Errc::io);

  MmapFile const& mapping = *file.mapping(0);  // cut between the question and the read
  auto const cut = error_of([&] { mapping.page_in(mapping.bytes()); });
  CHECK(cut.code == Errc::io);
  CHECK(cut.says("model.gguf", std::to_string(MiB), std::to_string(mapping.size_bytes())));
  mapping.page_in(mapping.bytes().first(MiB));
  mapping.page_in({});

  GgufWriter writer;
  writer.set("general.architecture", "none");
  auto const bytes = writer.to_bytes();
  CHECK_FALSE(page_in(GgufFile::parse(bytes)));
}

TEST_CASE("a read is cut into pieces that are each read once; the first error ends it") {
  for (int const n_threads : {1, 4}) {
    ReadOptions options;
    options.n_threads = n_threads;
    std::uint64_t const bytes = detail::read_piece_bytes * 9 + 7;
    std::vector<std::atomic<int>> counts(10);
    std::atomic<std::uint64_t> sum{0};
    detail::PiecewiseRead(options, 0, bytes).run(bytes, [&](std::uint64_t begin, std::size_t size) {
      ++counts[std::size_t(begin / detail::read_piece_bytes)];
      sum += size;
    });
    for (auto const& count : counts) CHECK(count == 1);
    CHECK(sum == bytes);

    std::atomic<int> n_begun{0};
    auto const thrown = error_of([&] {
      detail::PiecewiseRead(options, 0, bytes).run(bytes, [&](std::uint64_t begin, std::size_t) {
        ++n_begun;
        if (begin == 0) throw Error(Errc::io, "first piece");
      });
    });
    CHECK(thrown.says("first piece"));
    if (n_threads == 1) CHECK(n_begun == 1);
  }
}
