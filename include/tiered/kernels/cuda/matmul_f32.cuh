/// Products of f32 weights, exact but for f32 sums: routers, mostly, of few rows. [device-visible]
///
/// A block makes 32 tokens times 32 rows. Its eight warps share the elements of each stage, so that small products fill the device;
/// their sums are added in the order of the warps.
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"
#include "tiered/kernels/cuda/tile_rows.cuh"

namespace tiered::cuda {
namespace detail {

struct F32Stage {
  static constexpr int tile = 32, elems = 64, stride = elems + 4;  ///< eight rows begin in different banks
  float x[tile][stride], w[tile][stride];
};

/// Elements [k, k + F32Stage::elems) of 32 rows; rows and elements that there are not are zeros. from(i): row i, or null; row 0 there is.
template <class From>
__device__ __forceinline__ void fetch_f32(float (&to)[F32Stage::tile][F32Stage::stride], int k, int dim, bool aligned, From from) {
  if (aligned) {
    for (int i = int(threadIdx.x); i < F32Stage::tile * F32Stage::elems / 4; i += int(blockDim.x)) {
      int const row = i / (F32Stage::elems / 4), at = i % (F32Stage::elems / 4) * 4;
      float const* const p = from(row);
      bool const valid = p != nullptr && k + at < dim;
      copy_16(shared_address(&to[row][at]), valid ? p + k + at : from(0), valid ? 16 : 0);
    }
  } else {
    for (int i = int(threadIdx.x); i < F32Stage::tile * F32Stage::elems; i += int(blockDim.x)) {
      int const row = i / F32Stage::elems, at = i % F32Stage::elems;
      float const* const p = from(row);
      to[row][at] = p != nullptr && k + at < dim ? p[k + at] : 0.0f;
    }
  }
}

/// Adds elements [first, first + 8) of a stage to sums of tokens column + 4 i and rows line + 8 i.
__device__ __forceinline__ void multiply_f32(F32Stage const& stage, int first, int column, int line, float (&sums)[8][4]) {
#pragma unroll
  for (int k = first; k < first + 8; k += 4) {
    float4 b[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) b[r] = *reinterpret_cast<float4 const*>(&stage.w[line + r * 8][k]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float4 const v = *reinterpret_cast<float4 const*>(&stage.x[column + i * 4][k]);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        sums[i][r] = fmaf(v.x, b[r].x, sums[i][r]);
        sums[i][r] = fmaf(v.y, b[r].y, sums[i][r]);
        sums[i][r] = fmaf(v.z, b[r].z, sums[i][r]);
        sums[i][r] = fmaf(v.w, b[r].w, sums[i][r]);
      }
    }
  }
}

}  // namespace detail

/// F is F32: a template, as headers of several sources must have it. Grid: tiles of 32 rows of weights, then of tokens. 256 threads.
template <class F>
__global__ void __launch_bounds__(256) f32_matmul_kernel(TileArgs const a) {
  using Stage = detail::F32Stage;
  constexpr int tile = Stage::tile;
  union Shared {
    Stage stages[2];
    float sums[8][tile][tile];  ///< of a warp: [token][row]
  };
  __shared__ __align__(16) Shared shared;
  __shared__ TileRows<tile> rows;
  wait_for_previous();
  let_next_start();
  int const n_row_tiles = row_tiles(a, tile), index = int(blockIdx.x) / n_row_tiles, row_tile = int(blockIdx.x) % n_row_tiles;
  bool const up = a.y_up != nullptr && row_tile >= n_row_tiles / 2;
  int const first_row = (up ? row_tile - n_row_tiles / 2 : row_tile) * tile;
  Tile const t = a.groups == nullptr ? dense_tile(a, index, tile) : grouped_tile(a, index, tile, up);
  if (t.n == 0) return;
  rows.fill(a, t, std::int64_t(a.dim) * 4);
  __syncthreads();

  float const* const w = reinterpret_cast<float const*>(t.w);
  bool const aligned = a.dim % 4 == 0 && (std::uintptr_t(w) & 15u) == 0 && (std::uintptr_t(a.x) & 15u) == 0;
  auto const fetch = [&](int stage) {
    int const k = stage * Stage::elems;
    detail::fetch_f32(shared.stages[stage % 2].x, k, a.dim, aligned,
                      [&](int i) { return i < t.n ? reinterpret_cast<float const*>(rows.x[i]) : nullptr; });
    detail::fetch_f32(shared.stages[stage % 2].w, k, a.dim, aligned,
                      [&](int i) { return first_row + i < a.rows ? w + std::int64_t(first_row + i) * a.dim : nullptr; });
  };
  int const lane = int(threadIdx.x) % warp_size, warp = int(threadIdx.x) / warp_size, column = lane / 8, line = lane % 8;
  float sums[8][4] = {};  // tokens column + 4 i, rows line + 8 i
  int const n_stages = ceil_div(a.dim, Stage::elems);
  fetch(0);
  commit_copies();
#pragma unroll 1
  for (int s = 0; s < n_stages; ++s) {
    if (s + 1 < n_stages) fetch(s + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    detail::multiply_f32(shared.stages[s % 2], warp * 8, column, line, sums);
    __syncthreads();
  }
  for (int i = 0; i < 8; ++i)
    for (int r = 0; r < 4; ++r) shared.sums[warp][column + i * 4][line + r * 8] = sums[i][r];
  __syncthreads();
  for (int i = int(threadIdx.x); i < tile * tile; i += int(blockDim.x)) {
    int const token = i / tile, row = i % tile;
    if (token >= t.n || first_row + row >= a.rows) continue;
    float sum = 0;
    for (int part = 0; part < 8; ++part) sum += shared.sums[part][token][row];
    float const bias = a.bias != nullptr ? a.bias[first_row + row] : 0.0f;
    float* const y = t.y + rows.y[token] * a.y_stride + first_row + row;
    *y = a.add ? *y + (sum + bias) : sum + bias;
  }
}

template <class F>
int launch_f32_matmul(TileArgs const& a, CudaQueue const& queue) {
  std::int64_t const n_tiles = row_tiles(a, detail::F32Stage::tile) * max_tiles(a, detail::F32Stage::tile);
  return launch_kernel(&f32_matmul_kernel<F>, dim3(unsigned(n_tiles)), dim3(256), 0, queue, a);
}

}  // namespace tiered::cuda
