/// One pass of a vision encoder: patches of whole frames, in the order in which their rows go.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/core/ids.hpp"
#include "tiered/vision/patch_grid.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered {

/// Rows are those of window_order(): so both the patches of a window and those of a frame are neighbours, and so are a token's.
struct VisionBlock {
  std::int64_t first_patch = 0;       ///< number of the first, among all that were given
  std::vector<std::int32_t> tokens;   ///< [n_rows / rows_per_token]: which of the block's tokens each is
  std::vector<PatchPlace> places;     ///< [n_rows]
  std::vector<Range> frames;          ///< [n_rows]: the rows of the row's frame
  std::vector<Range> windows;         ///< [n_rows]: of its window; of the frame where there are none
  std::vector<PatchGrid> grids;       ///< with t == 1: the block's frames
  std::vector<std::int32_t> grid_of;  ///< [n_rows]: which of these the row is of

  std::int64_t n_rows() const { return std::int64_t(places.size()); }
  /// Of row i, among all patches that were given.
  std::int64_t patch_of(std::int64_t row, std::int32_t per_token) const {
    return first_patch + std::int64_t{tokens[std::size_t(row / per_token)]} * per_token + row % per_token;
  }
};

/// Cuts frames of images and videos into blocks of at most `most_patches` patches. Frames are never cut: those of more are blocks of their
/// own.
inline std::vector<VisionBlock> vision_blocks(VisionConfig const& config, std::span<PatchGrid const> grids, std::int64_t most_patches) {
  std::vector<VisionBlock> blocks;
  std::int64_t first = 0, n = 0;
  for (PatchGrid const& g : grids) {
    check_grid(g, config.merge_size);
    for (std::int64_t t = 0; t < g.t; ++t, first += g.frame_patches()) {
      if (blocks.empty() || n + g.frame_patches() > most_patches) {
        blocks.emplace_back().first_patch = first;
        n = 0;
      }
      blocks.back().grids.push_back({1, g.h, g.w});
      n += g.frame_patches();
    }
  }
  return blocks;
}

/// Fills in the rows of a block that has its grids.
inline void order_rows(VisionConfig const& config, VisionBlock& block) {
  std::int32_t const merge = config.merge_size, per_token = merge * merge;
  WindowOrder order = window_order(block.grids, merge, config.window_tokens());
  block.tokens = std::move(order.tokens);
  std::int64_t end = 0;
  for (PatchGrid const& g : block.grids) {
    std::int64_t const begin = end;
    end += g.frame_patches();
    for (std::int64_t row = begin; row < end; ++row) {
      std::int64_t const patch = std::int64_t{block.tokens[std::size_t(row / per_token)]} * per_token + row % per_token;
      block.places.push_back(patch_place(g, merge, patch - begin));
      block.frames.push_back({std::int32_t(begin), std::int32_t(end)});
      block.grid_of.push_back(std::int32_t(&g - block.grids.data()));
    }
  }
  for (std::size_t w = 0; w + 1 < order.begins.size(); ++w)
    block.windows.insert(block.windows.end(), std::size_t(order.begins[w + 1] - order.begins[w]),
                         Range{order.begins[w], order.begins[w + 1]});
}

}  // namespace tiered
