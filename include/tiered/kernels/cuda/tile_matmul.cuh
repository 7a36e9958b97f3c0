/// Products of many rows on tensor cores, weights decoded on the way: dense, or grouped by expert. [device-visible]
///
/// A block makes 32 rows of weights for each of its warps, times `tile_tokens` tokens. Activations arrive in stages of 64 elements
/// (rows of 128 bytes, their eight 16-byte parts permuted by the row's number, so that ldmatrix meets no bank twice). Weights arrive as
/// they lie in the file, 16 bytes aligned as memory is; a row begins somewhere in its first 16. Each warp decodes its own rows straight
/// into operands, once for all tokens.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/cuda/gemm_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"
#include "tiered/kernels/cuda/tile_decode.cuh"
#include "tiered/kernels/cuda/tile_decode_k.cuh"
#include "tiered/kernels/cuda/tile_rows.cuh"

namespace tiered::cuda {

inline constexpr int stage_elems = 64, stage_bytes = 128, warp_rows = 32;

/// A stretch of a row of weights in shared memory: whole blocks, a multiple of stage_elems.
template <class F>
struct Stretch {
  static constexpr bool is_float = F::block_elems == 1;
  static constexpr int elems = is_float ? stage_elems : F::block_elems == 256 ? 256 : 128;
  static constexpr int bytes = elems / F::block_elems * F::block_bytes;
  static constexpr int parts = (15 + bytes + 15) / 16;  ///< 16-byte parts of memory it can touch
  static constexpr int stride = (parts | 1) * 16;       ///< odd: eight rows begin in different banks
  static constexpr int stages = elems / stage_elems;    ///< of activations that it meets
  static constexpr int buffers = stages == 1 ? tile_stages : 2;
  // A stretch is fetched with the first stage that it meets, into the buffer of the one that was multiplied before that fetch.
  static_assert(tile_stages < (buffers - 1) * stages + 2);
};

template <class F, int tile_tokens>
constexpr std::size_t tile_shared_bytes(int n_warps) {
  return std::size_t(tile_stages) * tile_tokens * stage_bytes +
         std::size_t(Stretch<F>::buffers * n_warps * warp_rows) * Stretch<F>::stride + sizeof(TileRows<tile_tokens>);
}

namespace detail {

/// Elements of 16-bit weights as TileDecoder gives them; those from n_left on are zeros. paired: p is a multiple of 4.
__device__ __forceinline__ void load_floats(std::uint8_t const* p, int j, int n_left, bool paired, Pairs& out) {
  p += j * 4;
  if (paired && n_left >= 32) {
    for (int i = 0; i < 4; ++i) out[i] = *reinterpret_cast<std::uint32_t const*>(p + i * 16);
    return;
  }
  for (int i = 0; i < 4; ++i) {
    int const k = i * 8 + j * 2;
    std::uint32_t const first = load_u16(p + i * 16),
                        second = load_u16(p + i * 16 + 2);  // garbage past the row's end, not past the buffer's
    out[i] = (k < n_left ? first : 0u) | (k + 1 < n_left ? second << 16 : 0u);
  }
}

/// What the threads of a block share while they make one tile.
template <class F, int tile_tokens>
struct TileWork {
  using S = Stretch<F>;
  static constexpr int group_tokens = tile_tokens >= 64 ? 32 : 16;  ///< skipped together where there are none
  static constexpr int x_bytes = tile_tokens * stage_bytes;

  TileArgs const& a;
  std::uint8_t* x_shared;  ///< [tile_stages][tile_tokens][stage_bytes]
  std::uint8_t* w_shared;  ///< [buffers][n_rows][stride]
  TileRows<tile_tokens>* rows;
  Tile tile;
  int first_row, n_rows;  ///< of weights
  std::uint32_t row_bytes;
  int lane, warp;
  std::uint32_t begins[4];  ///< of this lane's rows 8 i + lane / 4 of its warp: their address, modulo 16

  __device__ TileWork(TileArgs const& args, std::uint8_t* shared, int row_tile)
      : a(args),
        x_shared(shared),
        w_shared(shared + tile_stages * x_bytes),
        lane(int(threadIdx.x) % warp_size),
        warp(int(threadIdx.x) / warp_size) {
    n_rows = int(blockDim.x);  // 32 a warp
    first_row = row_tile * n_rows;
    row_bytes = std::uint32_t(a.dim / F::block_elems) * F::block_bytes;
    rows = reinterpret_cast<TileRows<tile_tokens>*>(w_shared + S::buffers * n_rows * S::stride);
  }

  __device__ void set_tile(Tile const& t) {
    tile = t;
    for (int i = 0; i < 4; ++i) begins[i] = (std::uint32_t(std::uintptr_t(t.w)) + std::uint32_t(first_row + row_of(i)) * row_bytes) & 15u;
  }
  __device__ int row_of(int i) const { return warp * warp_rows + i * 8 + lane / 4; }

  __device__ void fetch_weights(int stretch) const {
    std::uint32_t const to = shared_address(w_shared) + std::uint32_t(stretch % S::buffers * n_rows * S::stride);
    std::uint32_t const begin = std::uint32_t(stretch * S::bytes), n = min_of(std::uint32_t(S::bytes), row_bytes - begin);
    std::uint8_t const* const end = tile.w + std::uint64_t(a.rows) * row_bytes;
    for (int i = int(threadIdx.x); i < n_rows * S::parts; i += n_rows) {
      int const row = i / S::parts, part = i % S::parts;
      if (first_row + row >= a.rows) break;
      std::uint8_t const* const p = tile.w + std::uint64_t(first_row + row) * row_bytes + begin;
      std::uint8_t const* const from = p - (std::uintptr_t(p) & 15u) + part * 16;
      if (from < p + n) copy_16(to + std::uint32_t(row * S::stride + part * 16), from, end - from < 16 ? int(end - from) : 16);
    }
  }

  __device__ void fetch_activations(int stage) const {
    int const part = int(threadIdx.x) % 8;
    std::uint32_t const to = shared_address(x_shared) + std::uint32_t(stage % tile_stages * x_bytes);
    std::int64_t const offset = std::int64_t(stage) * stage_bytes + part * 16;
#pragma unroll 2
    for (int token = int(threadIdx.x) / 8; token < tile_tokens; token += n_rows / 8)
      copy_16(to + std::uint32_t(token * stage_bytes + ((part ^ (token & 7)) << 4)), rows->x[token] + offset, token < tile.n ? 16 : 0);
  }

  /// What stage `stage` needs and does not have yet.
  __device__ void fetch(int stage) const {
    fetch_activations(stage);
    if (stage > 0 && stage % S::stages == 0) fetch_weights(stage / S::stages);
  }

  /// Operands of elements [k, k + 32) of this warp's rows: a[16 elements][16 rows].
  __device__ __forceinline__ void decode(int k, std::uint32_t (&operand)[2][2][4]) const {
    int const stretch = k / S::elems, inside = k % S::elems;
    std::uint8_t const* const base = w_shared + stretch % S::buffers * n_rows * S::stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      std::uint8_t const* p = base + row_of(i) * S::stride + ((begins[i] + std::uint32_t(stretch * S::bytes)) & 15u);
      Pairs pairs;
      if constexpr (S::is_float) {
        bool const paired = (row_bytes & 3u) == 0 && (std::uintptr_t(tile.w) & 3u) == 0;
        load_floats(p + inside * 2, lane % 4, a.dim - k, paired, pairs);
      } else {
        p += inside / F::block_elems * F::block_bytes;
        TileDecoder<F>::decode(p, inside % F::block_elems / 32, lane % 4, pairs);
      }
      operand[0][i / 2][i % 2] = pairs[0];
      operand[0][i / 2][i % 2 + 2] = pairs[1];
      operand[1][i / 2][i % 2] = pairs[2];
      operand[1][i / 2][i % 2 + 2] = pairs[3];
    }
  }

  __device__ __forceinline__ void multiply(int stage, float (&sums)[2][tile_tokens / 8][4]) const {
    // Lanes 8 i .. 8 i + 7 name rows of matrix i: tokens 0..7 and their next 8 elements, then tokens 8..15.
    std::uint32_t const x =
        shared_address(x_shared) + std::uint32_t(stage % tile_stages * x_bytes + (lane / 16 * 8 + lane % 8) * stage_bytes);
#pragma unroll 1
    for (int chunk = 0; chunk < 2; ++chunk) {
      int const k = stage * stage_elems + chunk * 32;
      if (k >= a.dim) return;
      std::uint32_t operand[2][2][4];
      decode(k, operand);
#pragma unroll
      for (int first = 0; first < tile_tokens; first += group_tokens) {
        if (first >= tile.n) break;
        std::uint32_t b[2][group_tokens / 16][4];
#pragma unroll
        for (int step = 0; step < 2; ++step) {
          std::uint32_t const part = std::uint32_t((chunk * 4 + step * 2 + lane / 8 % 2) ^ (lane % 8)) << 4;
#pragma unroll
          for (int i = 0; i < group_tokens / 16; ++i) load_matrices(b[step][i], x + std::uint32_t((first + i * 16) * stage_bytes) + part);
        }
#pragma unroll
        for (int step = 0; step < 2; ++step)
#pragma unroll
          for (int i = 0; i < group_tokens / 8; ++i)
#pragma unroll
            for (int m = 0; m < 2; ++m) {
              std::uint32_t const(&pair)[4] = b[step][i / 2];
              float(&sum)[4] = sums[m][first / 8 + i];
              if constexpr (is_bf16_product<F>) {
                multiply_bf16(sum, operand[step][m], pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
              } else {
                multiply_f16(sum, operand[step][m], pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
              }
            }
      }
    }
  }

  __device__ __forceinline__ void store(float const (&sums)[2][tile_tokens / 8][4]) const {
    float bias[4];
    for (int i = 0; i < 4; ++i) bias[i] = a.bias != nullptr && first_row + row_of(i) < a.rows ? a.bias[first_row + row_of(i)] : 0.0f;
#pragma unroll
    for (int group = 0; group < tile_tokens / 8; ++group) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        int const token = group * 8 + lane % 4 * 2 + e;
        if (token >= tile.n) continue;
        float* const y = tile.y + rows->y[token] * a.y_stride + first_row;
        float const factor = rows->factor[token];
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first_row + row_of(i) < a.rows) {
            float const value = sums[i / 2][group][i % 2 * 2 + e] * factor + bias[i];
            y[row_of(i)] = a.add ? y[row_of(i)] + value : value;
          }
      }
    }
  }
};

}  // namespace detail

/// Grid: tiles of rows of weights, then of tokens. Up to 256 threads.
template <class F, int tile_tokens>
__global__ void __launch_bounds__(256) tile_matmul_kernel(TileArgs const a) {
  extern __shared__ __align__(128) std::uint8_t tile_shared[];
  int const n_row_tiles = row_tiles(a, int(blockDim.x)), token_tile = int(blockIdx.x) / n_row_tiles;
  int row_tile = int(blockIdx.x) % n_row_tiles;
  bool const up = a.y_up != nullptr && row_tile >= n_row_tiles / 2;
  if (up) row_tile -= n_row_tiles / 2;
  detail::TileWork<F, tile_tokens> work(a, tile_shared, row_tile);
  if (a.groups == nullptr) {
    work.set_tile(dense_tile(a, token_tile, tile_tokens));
    work.fetch_weights(0);  // depends on no kernel
  }
  wait_for_previous();
  let_next_start();
  if (a.groups != nullptr) {
    Tile const tile = grouped_tile(a, token_tile, tile_tokens, up);
    if (tile.n == 0) return;
    work.set_tile(tile);
    work.fetch_weights(0);
  }
  work.rows->fill(a, work.tile, std::int64_t(act_row_elems(std::uint64_t(a.dim))) * 2);
  __syncthreads();

  int const n_stages = ceil_div(a.dim, stage_elems);
  for (int stage = 0; stage < tile_stages - 1; ++stage) {
    if (stage < n_stages) work.fetch(stage);
    commit_copies();
  }
  float sums[2][tile_tokens / 8][4] = {};
#pragma unroll 1
  for (int stage = 0; stage < n_stages; ++stage) {
    wait_copies<tile_stages - 2>();
    __syncthreads();  // everyone's copies have arrived, and everyone is done with what the next fetch overwrites
    if (stage + tile_stages - 1 < n_stages) work.fetch(stage + tile_stages - 1);
    commit_copies();
    work.multiply(stage, sums);
  }
  work.store(sums);
}

/// Enqueues a product in tiles of `tile_tokens`.
template <class F, int tile_tokens>
int launch_tiles(TileArgs const& a, int n_warps, CudaQueue const& queue) {
  constexpr auto kernel = &tile_matmul_kernel<F, tile_tokens>;
  int const limit = shared_bytes_limit(queue.capability);
  while (n_warps > 1 && tile_shared_bytes<F, tile_tokens>(n_warps) > std::size_t(limit)) n_warps /= 2;
  std::int64_t const n_tiles = row_tiles(a, n_warps * warp_rows) * max_tiles(a, tile_tokens);
  return launch_kernel(kernel, dim3(unsigned(n_tiles)), dim3(unsigned(n_warps * warp_rows)), tile_shared_bytes<F, tile_tokens>(n_warps),
                       queue, a);
}

/// Loads the kernels of all choices: which of them rows take depends on matrices, and one that is loaded later takes VRAM that nobody has
/// counted.
template <class F>
int load_tiles(CudaQueue const& queue) {
  int const limit = shared_bytes_limit(queue.capability);
  int status = allow_shared_memory<&tile_matmul_kernel<F, 32>>(limit, queue);
  if (status == 0) status = allow_shared_memory<&tile_matmul_kernel<F, 64>>(limit, queue);
  if (status == 0) status = allow_shared_memory<&tile_matmul_kernel<F, 96>>(limit, queue);
  if (status == 0) status = allow_shared_memory<&tile_matmul_kernel<F, 128>>(limit, queue);
  return status;
}

/// Enqueues a product in tiles of the given choice.
template <class F>
int launch_tiles(TileArgs const& a, TileChoice choice, CudaQueue const& queue) {
  if (int const status = load_tiles<F>(queue); status != 0) return status;
  if (choice.tokens == 32) return launch_tiles<F, 32>(a, choice.warps, queue);
  if (choice.tokens == 64) return launch_tiles<F, 64>(a, choice.warps, queue);
  if (choice.tokens == 96) return launch_tiles<F, 96>(a, choice.warps, queue);
  return launch_tiles<F, 128>(a, choice.warps, queue);
}

}  // namespace tiered::cuda
