/// Which rows a tile of a product reads and writes, dense or grouped by expert. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {

/// y[y row, r] = bias[r] + factor of x row * sum_k x[x row, k] * w[r, k] for all rows of a dense product, or of a list of slots.
struct TileArgs {
  void const* w = nullptr;         ///< [rows, dim], where dense
  void const* x = nullptr;         ///< rows of activations
  float const* factors = nullptr;  ///< of rows of x, or null: ones
  float const* bias = nullptr;
  float* y = nullptr;
  ExpertGroup const* groups = nullptr;  ///< null: dense
  std::int32_t const* slots = nullptr;
  std::int64_t y_stride = 0;
  std::int32_t n_groups = 0, n_rows = 0, n_used = 1;  ///< n_rows: tokens, or slots of all groups
  std::int32_t rows = 0, dim = 0;
  ExpertMatrix matrix = ExpertMatrix::gate;
  bool x_by_place = false, y_by_slot = false;
  bool add = false;  ///< to what is in y, once the rest is done
  float* y_up = nullptr;
  PlacePiece piece;
};

inline TileArgs tile_args(MatmulArgs const& a, DType activation, bool add) {
  TileArgs t;
  t.add = add;
  t.w = a.w, t.x = a.x, t.bias = a.bias, t.y = a.y, t.y_stride = a.y_stride;
  t.n_rows = a.n_tokens, t.rows = a.rows, t.dim = a.dim;
  if (activation == DType::act_f16_rows)
    t.factors = reinterpret_cast<float const*>(static_cast<std::byte const*>(a.x) +
                                               act_factors_offset(std::uint64_t(a.n_tokens), std::uint64_t(a.dim)));
  return t;
}

inline TileArgs tile_args(GroupedMatmulArgs const& a, DType activation) {
  TileArgs t;
  t.x = a.x, t.y = a.y, t.y_stride = a.y_stride, t.groups = a.groups, t.slots = a.slots;
  t.n_groups = a.n_groups, t.n_rows = a.n_slots, t.n_used = a.n_used, t.rows = a.rows, t.dim = a.dim;
  t.matrix = a.matrix, t.x_by_place = a.x_by_place, t.y_by_slot = a.y_by_slot, t.y_up = a.y_up, t.piece = a.piece;
  std::int32_t const x_rows = a.x_by_place ? a.n_slots : a.n_tokens;
  if (activation == DType::act_f16_rows)
    t.factors = reinterpret_cast<float const*>(static_cast<std::byte const*>(a.x) +
                                               act_factors_offset(std::uint64_t(x_rows), std::uint64_t(a.dim)));
  return t;
}

/// At most so many tiles of rows there are, however they are spread over the groups.
inline std::int64_t max_tiles(TileArgs const& a, int tile) {
  if (a.groups == nullptr) return ceil_div(a.n_rows, tile);
  return a.n_rows / tile + min_of(a.n_groups, a.n_rows);  // each group that is not empty has one tile that is not full
}

/// Tiles of rows of weights, `tile` rows each: those of up behind those of gate where both are made.
TIERED_HD inline int row_tiles(TileArgs const& a, int tile) { return ceil_div(a.rows, tile) * (a.y_up != nullptr ? 2 : 1); }

/// The places [first, first + n) of a tile, the weights they meet, and where the product goes; n == 0: there is no such tile.
struct Tile {
  std::uint8_t const* w = nullptr;
  float* y = nullptr;
  std::int32_t first = 0, n = 0;
  std::int32_t origin = 0;  ///< of places, where rows of x or y are counted by them
};

__device__ inline Tile dense_tile(TileArgs const& a, int index, int tile) {
  return {static_cast<std::uint8_t const*>(a.w), a.y, index * tile, min_of(tile, a.n_rows - index * tile)};
}

/// The places [first, first + n) of a group.
struct GroupPlaces {
  std::int32_t first, n;
};
__device__ inline GroupPlaces group_places(TileArgs const& a, int group) {
  if (a.piece.begins == nullptr) return {a.groups[group].first, a.groups[group].n};
  std::int32_t const first = max_of(a.piece.begins[group], a.piece.begin()), end = min_of(a.piece.begins[group + 1], a.piece.end());
  return {first, max_of(end - first, 0)};
}

/// Tile number `index` of all groups' tiles, group after group. Every warp finds it for itself, four groups a lane at a time. `up`: of
/// y_up, instead of `matrix`.
__device__ inline Tile grouped_tile(TileArgs const& a, int index, int tile, bool up) {
  int const lane = int(threadIdx.x) % warp_size;
  for (int base = 0; base < a.n_groups; base += 4 * warp_size) {
    int const own = base + lane * 4;
    int tiles[4], sum = 0;
    for (int i = 0; i < 4; ++i) {
      tiles[i] = own + i < a.n_groups ? ceil_div(group_places(a, own + i).n, tile) : 0;
      sum += tiles[i];
    }
    int end = sum;  // of this lane's tiles and those of all before
    for (int step = 1; step < warp_size; step *= 2) {
      int const other = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += other;
    }
    int const total = __shfl_sync(~0u, end, warp_size - 1);
    if (index < total) {
      int part = index - (end - sum), group = own;
      int const owner = __ffs(int(__ballot_sync(~0u, part >= 0 && part < sum))) - 1;
      for (int i = 0; i < 3 && part >= tiles[i]; ++i) {
        part -= tiles[i];
        ++group;
      }
      group = __shfl_sync(~0u, group, owner);
      part = __shfl_sync(~0u, part, owner);
      ExpertGroup const& found = a.groups[group];
      GroupPlaces const places = group_places(a, group);
      ExpertMatrix const matrix = up ? ExpertMatrix::up : a.matrix;
      void const* const w = matrix == ExpertMatrix::gate ? found.gate : matrix == ExpertMatrix::up ? found.up : found.down;
      return {static_cast<std::uint8_t const*>(w), up ? a.y_up : a.y, places.first + part * tile, min_of(tile, places.n - part * tile),
              a.piece.begins != nullptr ? a.piece.begin() : 0};
    }
    index -= total;
  }
  return {};
}

/// The rows of a tile, in shared memory.
template <int tile>
struct TileRows {
  std::uint8_t const* x[tile];  ///< where the tile has no more rows, any that can be read
  std::int32_t y[tile];
  float factor[tile];

  /// By all threads of the block; a barrier must follow. x_stride: bytes from row to row of x.
  __device__ void fill(TileArgs const& a, Tile const& t, std::int64_t x_stride) {
    for (int i = int(threadIdx.x); i < tile; i += int(blockDim.x)) {
      bool const valid = i < t.n;
      int const place = valid ? t.first + i : t.first;
      int const slot = a.groups != nullptr && (!a.x_by_place || a.y_by_slot) ? a.slots[place] : place;
      int const row = a.groups == nullptr || a.x_by_place ? place - t.origin : slot / a.n_used;
      x[i] = static_cast<std::uint8_t const*>(a.x) + row * x_stride;
      y[i] = a.y_by_slot ? slot : place - t.origin;
      factor[i] = valid && a.factors != nullptr ? a.factors[row] : 1.0f;
    }
  }
};

}  // namespace tiered::cuda
