// Every ByteSource against the contract in io/source.hpp.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "temp_dir.hpp"
#include "tiered/io/pread_source.hpp"
#include "tiered/io/source.hpp"
#include "tiered/sim/split_mix.hpp"

namespace {

std::vector<std::byte> random_bytes(std::size_t n) {
  tiered::SplitMix64 random(7);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = std::byte(random.next());
  return bytes;
}

template <class Source>
bool reads_right(Source const& source, std::vector<std::byte> const& expected, std::uint64_t seed) {
  tiered::SplitMix64 random(seed);
  for (int i = 0; i < 200; ++i) {
    std::uint64_t const offset = random.below(expected.size() + 1), bytes = random.below(expected.size() - offset + 1);
    std::vector<std::byte> dst(std::size_t(bytes) + 2, std::byte{0xa5});
    source.read_at(offset, std::span(dst).subspan(1, std::size_t(bytes)));
    bool const same = std::equal(dst.begin() + 1, dst.end() - 1, expected.begin() + std::ptrdiff_t(offset));
    if (!same || dst.front() != std::byte{0xa5} || dst.back() != std::byte{0xa5}) return false;
  }
  return true;
}

template <tiered::ByteSource Source>
void check_byte_source(Source const& source, std::vector<std::byte> const& expected) {
  std::uint64_t const size = expected.size();
  CHECK(source.size_bytes() == size);
  CHECK(reads_right(source, expected, 1));
  source.read_at(size, {});  // nothing, at the very end

  std::vector<std::byte> dst(2);
  constexpr std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  for (std::uint64_t const offset : {size - 1, size, size + 1, last - 1, last}) {
    auto const thrown = tiered_test::error_of([&] { source.read_at(offset, dst); });
    CHECK(thrown.code == tiered::Errc::io);
    CHECK(thrown.says("2 bytes at offset"));
  }
  CHECK(tiered_test::error_of([&] { source.read_at(size + 1, {}); }).code == tiered::Errc::io);

  bool right[4] = {};
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) threads.emplace_back([&, i] { right[i] = reads_right(source, expected, 10 + i); });
  for (std::thread& thread : threads) thread.join();
  CHECK((right[0] && right[1] && right[2] && right[3]));
}

}  // namespace

TEST_CASE("MemorySource is a ByteSource") {
  auto const bytes = random_bytes(5000);
  check_byte_source(tiered::MemorySource(bytes), bytes);
}

TEST_CASE("MmapFile is a ByteSource") {
  tiered_test::TempDir const dir;
  auto const bytes = random_bytes(50001);
  check_byte_source(tiered::MmapFile::open(dir.write("a", bytes)), bytes);
}

TEST_CASE("PreadSource is a ByteSource, whatever its pieces") {
  tiered_test::TempDir const dir;
  auto const bytes = random_bytes(50001);
  std::string const path = dir.write("a", bytes);
  check_byte_source(tiered::PreadSource::open(path), bytes);
  check_byte_source(tiered::PreadSource::open(path, {.n_threads = 3, .piece_bytes = 1000}), bytes);
  check_byte_source(tiered::PreadSource::open(path, {.n_threads = 1, .piece_bytes = 50001}), bytes);
}
