// Rows of a pass of a vision encoder: whole frames, windows and tokens side by side, every patch once.
#include <algorithm>
#include <set>
#include <vector>

#include "catch.hpp"
#include "error_of.hpp"
#include "tiered/core/split_mix.hpp"
#include "tiered/vision/vision_block.hpp"

using namespace tiered;
using namespace tiered_test;

namespace {

VisionConfig config_with(std::int32_t window_size) {
  VisionConfig c;
  c.patch_size = 7;
  c.merge_size = 2;
  c.window_size = window_size;
  return c;
}

}  // namespace

TEST_CASE("frames are cut into blocks by order, none in two, each as large as may be") {
  std::vector<PatchGrid> const grids{{3, 4, 6}, {1, 10, 10}, {2, 2, 2}};
  std::vector<VisionBlock> const blocks = vision_blocks(config_with(0), grids, 60);
  std::vector<std::vector<std::int64_t>> sizes;
  for (VisionBlock const& b : blocks) {
    sizes.emplace_back();
    for (PatchGrid const& g : b.grids) {
      CHECK(g.t == 1);
      sizes.back().push_back(g.n_patches());
    }
  }
  CHECK(sizes == std::vector<std::vector<std::int64_t>>{{24, 24}, {24}, {100}, {4, 4}});
  CHECK(blocks[1].first_patch == 48);
  CHECK(blocks[2].first_patch == 72);
  CHECK(blocks[3].first_patch == 172);
  CHECK(vision_blocks(config_with(0), {}, 60).empty());
  PatchGrid const odd{1, 3, 4};
  CHECK(error_of([&] { vision_blocks(config_with(0), {&odd, 1}, 60); }).code == Errc::precondition);
}

TEST_CASE("rows: every patch once, at its place, among those of its window and its frame") {
  SplitMix64 random(5);
  for (int i = 0; i < 200; ++i) {
    VisionConfig const config = config_with(i % 3 == 0 ? 0 : 28);
    std::vector<PatchGrid> grids;
    for (std::uint64_t k = random.below(3) + 1; k > 0; --k)
      grids.push_back({1 + std::int64_t(random.below(3)), 2 + 2 * std::int64_t(random.below(8)), 2 + 2 * std::int64_t(random.below(8))});
    std::int64_t first = 0;
    for (VisionBlock& block : vision_blocks(config, grids, 150)) {
      CHECK(block.first_patch == first);
      order_rows(config, block);
      std::int64_t const n = block.n_rows();
      REQUIRE(std::int64_t(block.frames.size()) == n);
      REQUIRE(std::int64_t(block.windows.size()) == n);
      REQUIRE(std::int64_t(block.grid_of.size()) == n);
      std::vector<std::int64_t> begins;  // of the block's frames
      std::int64_t all = 0;
      for (PatchGrid const& g : block.grids) {
        begins.push_back(all);
        all += g.n_patches();
      }
      REQUIRE(all == n);
      std::set<std::int64_t> patches;
      for (std::int64_t row = 0; row < n; ++row) {
        std::size_t const r = std::size_t(row), frame = std::size_t(block.grid_of[r]);
        PatchGrid const& g = block.grids[frame];
        std::int64_t const patch = block.patch_of(row, 4);
        patches.insert(patch);
        PatchPlace const at = block.places[r];
        CHECK(patch == first + begins[frame] + patch_index(g, 2, at));
        CHECK(block.frames[r] == Range{std::int32_t(begins[frame]), std::int32_t(begins[frame] + g.n_patches())});
        Range const window = block.windows[r];
        CHECK((window.begin <= row && row < window.end));
        if (config.window_size == 0) {
          CHECK(window == block.frames[r]);
          continue;
        }
        // Windows of 2 x 2 tokens, so 4 x 4 patches.
        std::int64_t const high = std::min<std::int64_t>(4, g.h - at.row / 4 * 4), wide = std::min<std::int64_t>(4, g.w - at.col / 4 * 4);
        CHECK(window.size() == high * wide);
        for (std::int32_t other = window.begin; other < window.end; ++other) {
          PatchPlace const place = block.places[std::size_t(other)];
          CHECK((block.grid_of[std::size_t(other)] == block.grid_of[r] && place.row / 4 == at.row / 4 && place.col / 4 == at.col / 4));
        }
      }
      CHECK(std::int64_t(patches.size()) == n);
      CHECK((*patches.begin() == first && *patches.rbegin() == first + n - 1));
      first += n;
    }
  }
}
