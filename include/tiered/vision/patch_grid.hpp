/// Where the patches of an image or a video lie: their order, their windows, and what of a table of positions each one gets.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/core/text.hpp"

namespace tiered {

/// In patches: image_grid_thw and video_grid_thw; h and w are multiples of VisionConfig::merge_size. Patches come by t; in a frame, squares
/// of merge x merge patches row by row, and in a square, its patches row by row. So a token's patches are neighbours.
struct PatchGrid {
  std::int64_t t = 0, h = 0, w = 0;  ///< a step of t is VisionConfig::temporal_size frames, here called a frame
  std::int64_t frame_patches() const { return h * w; }
  std::int64_t n_patches() const { return t * h * w; }
  /// Of the text model's sequence.
  std::int64_t n_tokens(int merge_size) const { return n_patches() / (std::int64_t{merge_size} * merge_size); }
  friend bool operator==(PatchGrid const&, PatchGrid const&) = default;
};

inline constexpr std::int64_t max_patch_side = 1 << 20;  ///< of t, h and w: far beyond any image or video; their product fits 63 bits

/// Errors  Errc::precondition where it is not as described there.
inline void check_grid(PatchGrid const& g, std::int32_t merge) {
  bool const sides_fit = g.t > 0 && g.h > 0 && g.w > 0 && g.t <= max_patch_side && g.h <= max_patch_side && g.w <= max_patch_side;
  if (!sides_fit || g.h % merge != 0 || g.w % merge != 0) {
    throw Error(Errc::precondition,
                concat(g.t, " x ", g.h, " x ", g.w, " patches, of which squares of ", merge, " x ", merge, " become tokens"));
  }
}

struct PatchPlace {
  std::int32_t row = 0, col = 0;
};
/// Of the patch at `index` of its frame.
inline PatchPlace patch_place(PatchGrid const& g, std::int32_t merge, std::int64_t index) {
  std::int64_t const square = index / (merge * merge), within = index % (merge * merge), per_row = g.w / merge;
  return {std::int32_t(square / per_row * merge + within / merge), std::int32_t(square % per_row * merge + within % merge)};
}
/// The inverse.
inline std::int64_t patch_index(PatchGrid const& g, std::int32_t merge, PatchPlace at) {
  std::int64_t const square = std::int64_t{at.row / merge} * (g.w / merge) + at.col / merge;
  return square * merge * merge + at.row % merge * merge + at.col % merge;
}

/// A rectangle of patches of one frame that attend to each other.
struct PatchWindow {
  std::int64_t frame = 0;
  Range rows, cols;
};
/// Frame after frame, row after row of windows, `side` tokens square each, the last ones smaller; with side 0 a frame is one window.
inline std::vector<PatchWindow> patch_windows(PatchGrid const& g, std::int32_t merge, std::int32_t side) {
  auto const h = std::int32_t(g.h), w = std::int32_t(g.w), high = side > 0 ? side * merge : h, wide = side > 0 ? side * merge : w;
  std::vector<PatchWindow> out;
  for (std::int64_t frame = 0; frame < g.t; ++frame) {
    for (std::int32_t row = 0; row < h; row += high) {
      for (std::int32_t col = 0; col < w; col += wide) {
        out.push_back({frame, {row, (std::min)(row + high, h)}, {col, (std::min)(col + wide, w)}});
      }
    }
  }
  return out;
}

/// Tokens in the order in which windows are walked, so that each window's patches are neighbours.
struct WindowOrder {
  std::vector<std::int32_t> tokens;  ///< [n_tokens]: the token at each place
  std::vector<std::int32_t> begins;  ///< [n_windows + 1], in patches
};
/// Of several images or videos one after another.
inline WindowOrder window_order(std::span<PatchGrid const> grids, std::int32_t merge, std::int32_t side) {
  WindowOrder out;
  out.begins.push_back(0);
  std::int64_t first = 0;  // token of the frame
  for (PatchGrid const& g : grids) {
    std::int64_t const per_frame = g.frame_patches() / (merge * merge);
    for (PatchWindow const& w : patch_windows(g, merge, side)) {
      for (std::int32_t row = w.rows.begin; row < w.rows.end; row += merge) {
        for (std::int32_t col = w.cols.begin; col < w.cols.end; col += merge) {
          out.tokens.push_back(std::int32_t(first + w.frame * per_frame + patch_index(g, merge, {row, col}) / (merge * merge)));
        }
      }
      out.begins.push_back(std::int32_t(out.tokens.size()) * merge * merge);
    }
    first += per_frame * g.t;
  }
  return out;
}

/// Two neighbours of a table's axis and the share of each.
struct AxisTaps {
  std::int32_t index[2] = {0, 0};
  float share[2] = {1, 0};
};
/// Linear interpolation of an axis of `side` entries to `size` places of which this is the `at`-th, first on first and last on last.
inline AxisTaps axis_taps(std::int64_t at, std::int64_t size, std::int32_t side) {
  float const source = float(at) * float(side - 1) / float((std::max)(size - 1, std::int64_t{1})), below = std::floor(source);
  auto const first = std::int32_t(below);
  return {{first, (std::min)(first + 1, side - 1)}, {1 - (source - below), source - below}};
}

}  // namespace tiered
