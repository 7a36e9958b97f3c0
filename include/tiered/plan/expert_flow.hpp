/// When a block of rows uses all experts of a layer, and how much of a cache experts then pass through: for plans and for who runs them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiered/core/units.hpp"
#include "tiered/plan/cost.hpp"

namespace tiered {

/// From this expected share of a layer's experts on, all are brought ahead of the router: what it does not choose crosses in vain.
inline constexpr double whole_layer_share = 0.9;
/// Routing is skewed: n rows use about as many experts as this share of them would, were they routed independently and alike.
inline constexpr double independent_rows_share = 0.2;

/// Of 128 experts, 8 a row: from 180 rows on.
inline bool uses_whole_layer(Shard const& expert, std::int32_t n_rows) {
  return use_probability(expert, std::int32_t(independent_rows_share * double(n_rows))) >= whole_layer_share;
}

/// Where whole layers come in windows, so many rows have room for their slots of experts at once: no more than are few enough for single
/// experts, or as many as make a window's piece worth its launches.
inline constexpr std::int32_t least_piece_rows = 512;
inline std::int32_t rows_beside_windows(double use_probability_of_a_row, std::int32_t n_rows) {
  Shard expert{};
  expert.use_probability = use_probability_of_a_row;
  std::int32_t rows = std::min(n_rows, least_piece_rows);
  while (rows < n_rows && !uses_whole_layer(expert, rows + 1)) rows = std::min(n_rows, rows * 2);
  return rows;
}

/// A cyclic scan over more than a cache holds hits nothing if all of it goes through all of the cache. So one part keeps what it has, and
/// the rest passes through the other: enough to keep the link busy while a layer's attention computes, a quarter of a small cache.
inline constexpr std::size_t most_flow_bytes = 512 * MiB;
/// Where a cache is small beside all that passes (`all_bytes`, if that is known), its hits are worth less than a link that never waits:
/// attention and router of 8192 rows take 2.4 ms a layer, in which 120 MB cross. So it keeps nothing, rather than give up this part of what
/// passes.
inline constexpr std::size_t least_flow_bytes = 192 * MiB;
inline constexpr std::size_t least_flow_part = 64;
/// Copied and computed together: long enough for the link's full rate and few launches (20 us pass between copies of windows: 8 MB cross
/// at 42 GB/s in all, 16 MB at 50), a third of the flow at most so that copies and compute overlap, and no longer than that needs: of
/// shorter ones more are under way to the next layer, and less is left to compute when the last has come.
inline constexpr std::size_t long_window_bytes = 32 * MiB, most_window_bytes = 192 * MiB;

constexpr std::size_t flow_bytes(std::size_t cache_bytes, std::size_t largest_expert_bytes, std::size_t all_bytes = 0) {
  std::size_t const part = std::max(std::min(cache_bytes / 4, most_flow_bytes), std::min(all_bytes / least_flow_part, least_flow_bytes));
  return std::min(cache_bytes, std::max(part, largest_expert_bytes));
}
constexpr std::size_t flow_window_bytes(std::size_t flow) {
  return std::min(std::min(flow / 3, most_window_bytes), std::max(flow / 6, long_window_bytes));
}

/// What the device takes for a layer's windows of rows beside the products: launches, multiprocessors that wait for the last tiles, and
/// pieces that turn out to be empty. Slots are grouped once a layer, which is taken to cost what a few windows do: they compute while the
/// next ones cross. Assumed, not measured: four launches a piece of 3 us each, of which a window has one that is full and a few that are
/// not; and 20 us for multiprocessors that are idle while products of 3 experts by 256 rows end. It does not depend on the rows: windows
/// are those of a whole block, whatever RowLimits::experts says.
constexpr double windows_s(double n_windows) {
  constexpr double n_free = 4;
  return std::max(n_windows - n_free, 0.0) * 40e-6;
}

/// Fewer rows at once may be few rows to a device, which knows another way for those.
inline constexpr std::int32_t least_window_rows = 64;

/// Of many rows, what is computed away from home comes back slot by slot, in pieces of a few KB: each as long as one of 64 KiB took.
inline constexpr double slot_back_s = 4e-6;
inline constexpr std::int32_t most_summed_away = 16;  ///< rows; fewer come back as one sum a row
inline double slots_back_s(double n_rows, double used_per_row) {
  return n_rows > most_summed_away ? n_rows * used_per_row * slot_back_s : 0;
}

}  // namespace tiered
