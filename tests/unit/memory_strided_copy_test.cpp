// Pieces of a transfer as few copies of equal rows: the same bytes to the same places, whatever the order and the cuts.
#include <algorithm>
#include <cstring>
#include <vector>

#include "catch.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/memory/strided_copy.hpp"

using namespace tiered;

namespace {

constexpr std::size_t no_limit = ~std::size_t{0} >> 1;

struct Memory {
  std::vector<std::byte> src, dst;
  explicit Memory(std::size_t n) : src(n), dst(n, std::byte{0xee}) {
    SplitMix64 random(n);
    for (std::byte& b : src) b = std::byte(random.below(256));
  }
};

void run(StridedCopy const& c) {
  for (std::size_t r = 0; r < c.n_rows; ++r) std::memcpy(c.dst + r * c.dst_stride, c.src + r * c.src_stride, c.row_bytes);
}

}  // namespace

TEST_CASE("experts that lie tensor by tensor in a file and expert by expert in VRAM are one copy a tensor") {
  constexpr std::size_t n_experts = 8, bytes = 100, n_tensors = 3, slot = 512;
  Memory m(n_experts * slot);
  std::vector<CopyPiece> pieces;
  for (std::size_t e = 0; e < n_experts; ++e) {
    for (std::size_t t = 0; t < n_tensors; ++t)
      pieces.push_back({m.dst.data() + e * slot + t * 128, m.src.data() + (t * n_experts + e) * bytes, bytes});
  }
  std::vector<StridedCopy> const copies = merge_pieces(pieces, no_limit, no_limit);
  REQUIRE(copies.size() == n_tensors);
  CHECK(copies[1] == StridedCopy{m.dst.data() + 128, m.src.data() + n_experts * bytes, bytes, n_experts, slot, bytes});
  CHECK(merge_pieces(pieces, 4 * bytes, no_limit).size() == 2 * n_tensors);
  CHECK(merge_pieces(pieces, no_limit, slot).size() == n_tensors * n_experts);  // strides are below
}

TEST_CASE("pieces that touch on both sides are one row, and long rows are cut") {
  Memory m(1000);
  std::vector<CopyPiece> const pieces{{m.dst.data() + 300, m.src.data() + 300, 200},
                                      {m.dst.data(), m.src.data(), 100},
                                      {m.dst.data() + 100, m.src.data() + 100, 200},
                                      {nullptr, nullptr, 0}};
  CHECK(merge_pieces(pieces, no_limit, no_limit) == std::vector{StridedCopy{m.dst.data(), m.src.data(), 500, 1, 500, 500}});
  std::size_t sum = 0;
  for (StridedCopy const& c : merge_pieces(pieces, 150, no_limit)) {
    CHECK(c.bytes() <= 150);
    sum += c.bytes();
  }
  CHECK(sum == 500);
  CHECK(merge_pieces({}, 1, 1).empty());
}

TEST_CASE("whatever the pieces, their bytes come to where they belong, and none elsewhere") {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SplitMix64 random(seed);
    INFO("seed " << seed);
    Memory m(4096);
    std::vector<std::byte> expected = m.dst;
    std::vector<std::size_t> places;  // of 64 bytes, in a random order on the other side
    for (std::size_t i = 0; i < 64; ++i) places.push_back(i);
    if (random.below(2) == 0) {
      for (std::size_t i = 63; i > 0; --i) std::swap(places[i], places[random.below(i + 1)]);
    }
    std::vector<CopyPiece> pieces;
    std::size_t const common = 1 + random.below(64);
    for (std::size_t i = 0; i < 64; ++i) {
      if (random.below(4) == 0) continue;
      std::size_t const bytes = random.below(3) == 0 ? 1 + random.below(64) : common;
      pieces.push_back({m.dst.data() + places[i] * 64, m.src.data() + i * 64, bytes});
      std::memcpy(expected.data() + places[i] * 64, m.src.data() + i * 64, bytes);
    }
    std::size_t const most_bytes = 1 + random.below(2000), most_stride = 1 + random.below(1000);
    for (StridedCopy const& c : merge_pieces(pieces, most_bytes, most_stride)) {
      CHECK(c.bytes() <= most_bytes);
      if (c.n_rows > 1) CHECK(std::max(c.dst_stride, c.src_stride) < most_stride);
      CHECK(std::min(c.dst_stride, c.src_stride) >= c.row_bytes);
      run(c);
    }
    CHECK(m.dst == expected);
  }
}
