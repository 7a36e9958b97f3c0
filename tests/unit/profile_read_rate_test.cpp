#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "catch.hpp"
#include "tiered/kernels/cpu/table.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/profile/detail/read_bytes.hpp"
#include "tiered/profile/read_rate.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;

namespace {

std::uint64_t folded(std::span<std::byte const> bytes) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) sum ^= std::uint64_t(bytes[i]) << (i % 8 * 8);
  return sum;
}

}  // namespace

TEST_CASE("reading at every width meets every byte, and nothing else") {
  std::vector<std::byte> bytes(5000);
  SplitMix64 random(7);
  for (std::byte& b : bytes) b = std::byte(random.next());
  for (Isa const isa : all_isas) {
    if (!available(isa)) continue;
    detail::ReadBytes const read = detail::widest_reader(isa);
    for (std::size_t n : {0, 1, 7, 8, 63, 64, 65, 255, 256, 257, 511, 1024, 4099}) {
      for (std::size_t offset : {0, 1, 32}) {
        INFO(name(isa) << ", " << n << " bytes from " << offset);
        // A block of its own size, so that the address sanitizer sees what lies beyond.
        std::vector<std::byte> const part(bytes.begin() + std::ptrdiff_t(offset), bytes.begin() + std::ptrdiff_t(offset + n));
        CHECK(read(part.data(), n) == folded(part));
        CHECK(read(bytes.data() + offset, n) == folded(part));
      }
    }
  }
}

TEST_CASE("a read rate is of what there is to read") {
  Team team(2);
  CHECK(read_rate(team, {}) == 0);
  std::vector<std::byte> const a(300'001, std::byte{1}), b(5, std::byte{2});
  std::vector<std::span<std::byte const>> const regions = {a, {}, b};
  CHECK(read_rate(team, regions, 0.001) > 0);
  std::vector<std::span<std::byte const>> const nothing = {{}, {}};
  CHECK(read_rate(team, nothing) == 0);
}
