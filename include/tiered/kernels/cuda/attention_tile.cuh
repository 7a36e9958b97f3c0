/// Tiles of keys and values in shared memory as binary16, whatever the cache holds, and what products are made of. [device-visible]
#pragma once

#include <cstdint>
#include <type_traits>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/attention_parts.cuh"
#include "tiered/kernels/cuda/mma.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {
namespace detail {

/// 2^x; flushes subnormals.
__device__ __forceinline__ float power_of_2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Four signed bytes to binary16, each times the factor of which `scale` holds two: rounded once.
__device__ __forceinline__ uint2 scaled_bytes(std::uint32_t bytes, std::uint32_t scale) {
  std::uint32_t const shifted = bytes ^ 0x80808080u;  // + 128; behind 0x64 it is the binary16 of 1024 + that
  uint2 pairs{__byte_perm(shifted, 0x64646464u, 0x4140), __byte_perm(shifted, 0x64646464u, 0x4342)};
  asm("{sub.f16x2 %0, %0, %2; mul.f16x2 %0, %0, %3; sub.f16x2 %1, %1, %2; mul.f16x2 %1, %1, %3;}"
      : "+r"(pairs.x), "+r"(pairs.y)
      : "r"(0x64806480u), "r"(scale));
  return pairs;
}

/// n_rows positions of one head, which lie one after another in a page, as rows of tile_dim(head_dim) + 8 halves, zeros from head_dim on;
/// moved by n_threads threads.
///
/// `over_link`: some of it comes from the host's memory, where small requests cost as much as large ones. So everything is copied as it
/// lies, a line of 128 bytes to a line of shared memory, and padded there. Measured on a PCIe 5 link of 55 GB/s, 16384 positions: binary16
/// copied to padded rows 29 GB/s, q8_0, which is copied as it lies, 50.
template <class KV, int head_dim, int n_rows, int n_threads, bool over_link = false>
struct Tile {
  static constexpr bool packed = over_link || std::is_same_v<KV, Q8_0>;  ///< goes through shared memory as it lies in the cache
  static constexpr int stride = tile_dim(head_dim) + 8, row_chunks = tile_dim(head_dim) / 8;
  static constexpr bool padded = tile_dim(head_dim) != head_dim;
  static constexpr int row_bytes = int(kv_row_bytes(KV::dtype, head_dim));
  static constexpr int tile_bytes = n_rows * stride * 2, raw_bytes = n_rows * row_bytes;
  static constexpr int n_chunks = n_rows * row_chunks / n_threads;  ///< of 16 bytes, for each thread
  static constexpr int line = 128;
  static constexpr bool shifts = over_link && raw_bytes % line != 0;  ///< not every tile begins at a line
  static constexpr int copied_bytes = !packed ? tile_bytes : !shifts ? raw_bytes : (raw_bytes + line - 16 + line - 1) / line * line;
  static_assert(raw_bytes % 16 == 0 && n_rows * row_chunks % n_threads == 0 && head_dim % 8 == 0);

  /// How far behind a line what begins `offset` bytes into a page does, there and in shared memory.
  __device__ __forceinline__ static int shift_of(std::int64_t offset) { return shifts ? int(offset % line) : 0; }

  /// A chunk of the tile.
  struct Place {
    int row, column;
    __device__ __forceinline__ std::uint32_t offset() const { return std::uint32_t(row * stride + column * 8) * 2; }
    /// Whether something belongs there, of which rows [rows) are.
    __device__ __forceinline__ bool is_in(Range rows) const {
      return row >= rows.begin && row < rows.end && (!padded || column < head_dim / 8);
    }
  };
  /// Chunk k of a thread. Places that differ by a constant are computed so: registers are short.
  __device__ __forceinline__ static Place place(int thread, int k) {
    if constexpr (n_threads % row_chunks == 0) {
      return {thread / row_chunks + k * (n_threads / row_chunks), thread % row_chunks};
    } else {
      return {(thread + k * n_threads) / row_chunks, (thread + k * n_threads) % row_chunks};
    }
  }

  /// Begins to copy rows [rows.begin, rows.end) of those that begin at `from` to `to`: the tile, all other rows zeros, or, where packed,
  /// the raw bytes, `shift` behind `to`. Nothing else is read.
  __device__ __forceinline__ static void fetch(std::uint32_t to, std::byte const* from, Range rows, int thread, int shift = 0) {
    if constexpr (packed) {
      int const begin = rows.begin * row_bytes / 16, end = (rows.end * row_bytes + 15) / 16;
      int const first = shifts ? (begin * 16 + shift) / line * (line / 16) - shift / 16 : begin;  // threads share whole lines
      for (int i = first + thread; i < end; i += n_threads) {
        if (!shifts || i >= begin) copy_16(to + std::uint32_t(shift + i * 16), from + i * 16);
      }
    } else {
      if constexpr (!padded) from += thread * 16;
#pragma unroll
      for (int k = 0; k < n_chunks; ++k) {
        Place const at = place(thread, k);
        copy_16(to + at.offset(), from + (padded ? at.row * row_bytes + at.column * 16 : k * (n_threads * 16)), at.is_in(rows) ? 16 : 0);
      }
    }
  }

  /// Where packed: the tile of the raw bytes, when those have arrived for all threads.
  __device__ __forceinline__ static void unpack(unsigned char* tile, unsigned char const* raw, Range rows, int thread) {
    constexpr int at_once = n_threads == warp_size ? 4 : 2;  // a warp that is alone waits for each of its loads
#pragma unroll at_once
    for (int k = 0; k < n_chunks; ++k) {
      Place const at = place(thread, k);
      uint4 values{0, 0, 0, 0};
      if constexpr (!std::is_same_v<KV, Q8_0>) {
        if (at.is_in(rows)) values = *reinterpret_cast<uint4 const*>(raw + at.row * row_bytes + at.column * 16);
      } else if (at.is_in(rows)) {
        auto const* const block = reinterpret_cast<std::uint16_t const*>(raw + at.row * row_bytes + at.column / 4 * Q8_0::block_bytes);
        std::uint32_t const scale = block[0] * 0x10001u;
        std::uint16_t const* const q = block + 1 + at.column % 4 * 4;
        uint2 const first = scaled_bytes(q[0] | std::uint32_t(q[1]) << 16, scale);
        uint2 const second = scaled_bytes(q[2] | std::uint32_t(q[3]) << 16, scale);
        values = uint4{first.x, first.y, second.x, second.y};
      }
      *reinterpret_cast<uint4*>(tile + at.offset()) = values;
    }
  }
};

/// Where a lane's row of 16 x 16 elements is, in bytes from their first, for load_matrices() in rows `stride` halves apart. The four
/// matrices are those of operand A: rows 0..7 and 8..15, then the same of columns 8..15.
template <int stride>
__device__ __forceinline__ std::uint32_t offset_in_a(int lane) {
  return std::uint32_t(lane % 16 * stride + lane / 16 * 8) * 2;
}
/// Of keys: positions 0..7, elements 0..7 and 8..15, then positions 8..15: operand B of two products.
template <int stride>
__device__ __forceinline__ std::uint32_t offset_in_keys(int lane) {
  return std::uint32_t((lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8) * 2;
}
/// Of values, transposed: elements 0..7, positions 0..7 and 8..15, then elements 8..15: operand B of two products. The same as A's.
template <int stride>
__device__ __forceinline__ std::uint32_t offset_in_values(int lane) {
  return offset_in_a<stride>(lane);
}

/// The largest and the sum over the four lanes that hold a row of C.
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/// A row's softmax goes on with scores (16-bit products' C), of which a lane has elements `at` and `at` + 1 of each of n: they become
/// weights; `sum` grows by this lane's. Returns what sums so far are to be multiplied with.
template <int n>
__device__ __forceinline__ float continue_softmax(float (&scores)[n][4], int at, float& max, float& sum) {
  float largest = max;
#pragma unroll
  for (int i = 0; i < n; ++i) largest = fmaxf(largest, fmaxf(scores[i][at], scores[i][at + 1]));
  largest = quad_max(largest);
  float const base = largest == -INFINITY ? 0.0f : largest;  // nothing seen yet: all weights are 0
  float const kept = power_of_2(max - base);
  max = largest;
  float added = 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    scores[i][at] = power_of_2(scores[i][at] - base);
    scores[i][at + 1] = power_of_2(scores[i][at + 1] - base);
    added += scores[i][at] + scores[i][at + 1];
  }
  sum = sum * kept + added;
  return kept;
}

}  // namespace detail
}  // namespace tiered::cuda
