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

/// A cyclic scan over more than a cache holds hits nothing if all of it goes through all of the cache. So one part keeps what it has, and
/// the rest passes through the other: enough to keep the link busy while a layer's attention computes, a quarter of a small cache.
inline constexpr std::size_t most_flow_bytes = 512 * MiB;
/// Copied and computed together: large enough for the link's full rate and few launches, a part of the flow so that copies and compute
/// overlap.
inline constexpr std::size_t most_window_bytes = 192 * MiB;

constexpr std::size_t flow_bytes(std::size_t cache_bytes, std::size_t largest_expert_bytes) {
  return std::min(cache_bytes, std::max(std::min(cache_bytes / 4, most_flow_bytes), largest_expert_bytes));
}
constexpr std::size_t flow_window_bytes(std::size_t flow) { return std::min(flow / 3, most_window_bytes); }

/// What the device takes for a layer's windows of rows beside the products: launches, and looking through all slots for those of a window's
/// experts. From whole prompts on an H200 whose windows held one expert: 0.17 ms each for 1024 rows of 8 experts, 0.21 for 2048. That a
/// few windows are free is assumed, not measured: they compute while the next ones cross.
inline double windows_s(double n_windows, double n_rows, double used_per_row) {
  constexpr double n_free = 16;
  return std::max(n_windows - n_free, 0.0) * (130e-6 + 5e-9 * n_rows * used_per_row);
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
