/// Products of one row of activations with regular weights: what decoding is made of. [device-visible]
///
/// Few instructions and few steps that wait for each other. Weights of a warp's rows are contiguous and come as they lie, all of them at
/// once; the activations stay in registers while lanes go through several rows. A row is quantised as x * norm_weight: the norm is one
/// factor, which blocks of 8 bits do not care about, so the sum of squares is found beside and multiplied with the product at the end.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/cuda/few_rows.cuh"
#include "tiered/kernels/cuda/few_stages.cuh"
#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"

namespace tiered::cuda {
namespace detail {

/// What a lane takes at a time: neighbouring chunks, so many that they begin at a multiple of four bytes.
template <class F>
struct FewPiece {
  static constexpr bool many = FewChunk<F>::blocks && FewChunk<F>::per_block == 1;
  static constexpr int chunks = !many || F::block_bytes % 4 == 0 ? 1 : F::block_bytes % 2 == 0 ? 2 : 4;
  static constexpr int bytes = chunks * F::block_bytes;  ///< where `many`
};

/// A row of activations in shared memory, in the planes of FewLayout. Chunk c of piece p is at place c * n_pieces + p, so that lanes with
/// neighbouring pieces read without conflicts.
struct OneRow {
  unsigned char* data;
  int n_pieces, plane_bytes;
};
template <class F>
__device__ __forceinline__ OneRow one_row(unsigned char* data, int n_elems) {
  int const chunks = few_chunks<F>(n_elems);
  return {data, chunks / FewPiece<F>::chunks, chunks * 16};
}

/// Elements [4 * four, + 4) of a row; eight lanes have a block. The whole warp calls; `inside`: whether there are such.
template <class F>
__device__ __forceinline__ void put_four(OneRow const& row, int four, bool inside, float4 v, float factor) {
  if constexpr (FewChunk<F>::blocks) {
    int const chunk = four / 8, part = four % 8;
    int const place = chunk % FewPiece<F>::chunks * row.n_pieces + chunk / FewPiece<F>::chunks;
    QuantizedFour const q = quantize_four(v);
    int const other = __shfl_down_sync(~0u, q.sum, 4);
    if (!inside) return;
    *reinterpret_cast<std::uint32_t*>(row.data + part / 4 * row.plane_bytes + place * 16 + part % 4 * 4) = q.q;
    if (part != 0) return;
    uint2 const scale_and_sums{__float_as_uint(q.scale * factor), (std::uint32_t(q.sum) & 0xffffu) | std::uint32_t(other) << 16};
    *reinterpret_cast<uint2*>(row.data + 2 * row.plane_bytes + place * 8) = scale_and_sums;
  } else {
    if (!inside) return;
    int const chunk = four / FewChunk<F>::planes, plane = four % FewChunk<F>::planes;
    *reinterpret_cast<float4*>(row.data + plane * row.plane_bytes + chunk * 16) =
        make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
  }
}

/// x, n_fours times four floats, times norm_weight where there is one, on its way to a row: this thread's part of it is loaded one step
/// ahead, norm weights, which are constant, from the constructor on, x from start() on.
class OneRowReader {
 public:
  __device__ __forceinline__ OneRowReader(float const* norm_weight, int dim)
      : norm_weight_(reinterpret_cast<float4 const*>(norm_weight)), n_fours_(dim / 4) {
    load_norm(int(threadIdx.x));
  }
  __device__ __forceinline__ void start(float const* x) {
    x_ = reinterpret_cast<float4 const*>(x);
    load(int(threadIdx.x));
  }
  /// The block calls; this thread's sum of squares of x.
  template <class F>
  __device__ __forceinline__ float put(OneRow const& row) {
    float squares = 0;
    int const lane = int(threadIdx.x) % 32;
#pragma unroll 1
    for (int first = int(threadIdx.x) - lane; first < n_fours_; first += int(blockDim.x)) {
      float4 const v = v_, w = w_;
      load_norm(first + lane + int(blockDim.x));
      load(first + lane + int(blockDim.x));
      squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
      put_four<F>(row, first + lane, first + lane < n_fours_, make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w), 1.0f);
    }
    return squares;
  }

 private:
  __device__ __forceinline__ void load_norm(int four) {
    w_ = norm_weight_ != nullptr && four < n_fours_ ? norm_weight_[four] : make_float4(1, 1, 1, 1);
  }
  __device__ __forceinline__ void load(int four) { v_ = four < n_fours_ ? x_[four] : make_float4(0, 0, 0, 0); }

  float4 const* norm_weight_;
  float4 const* x_ = nullptr;
  float4 v_, w_;
  int n_fours_;
};

/// n_bytes, a multiple of 16, by a warp.
__device__ __forceinline__ void fetch_run(std::uint32_t to, unsigned char const* from, int n_bytes) {
#pragma unroll 1
  for (int at = int(threadIdx.x) % 32 * 16; at < n_bytes; at += 32 * 16) copy_16(to + unsigned(at), from + at);
}

/// Adds the products of the activations and of n_rows rows of weights, row_bytes apart.
template <class F, int n_rows>
__device__ __forceinline__ void add_pieces(unsigned char const* stage, int row_bytes, OneRow const& row, float (&sums)[n_rows]) {
  constexpr int chunks = FewPiece<F>::chunks, unroll = n_rows == 1 ? 2 : 1;
#pragma unroll unroll
  for (int piece = int(threadIdx.x) % 32; piece < row.n_pieces; piece += 32) {
#pragma unroll
    for (int c = 0; c < chunks; ++c) {
      auto const x = load_input<F>(row.data, row.data + 2 * row.plane_bytes, row.plane_bytes, c * row.n_pieces + piece);
#pragma unroll
      for (int r = 0; r < n_rows; ++r) {
        ChunkWeights<F> w;
        if constexpr (FewPiece<F>::many) {
          Unpack<F>::load(stage + r * row_bytes + piece * FewPiece<F>::bytes, c * F::block_bytes, 0, w);
        } else {
          load_chunk<F>(stage + r * row_bytes, 0, piece, FewChunk<F>::elems, w);
        }
        sums[r] = add_product<F>(w, x, sums[r]);
      }
    }
  }
}

/// How a launch's units of work are divided among blockIdx.x, and where its parts of shared memory are.
struct OneRowShape {
  std::int32_t each, rest;  ///< units of a block; the first `rest` blocks have one more
  std::int32_t rows_bytes, stage_bytes;

  __device__ __forceinline__ int begin() const { return int(blockIdx.x) * each + min(int(blockIdx.x), rest); }
  __device__ __forceinline__ int end() const { return begin() + each + (int(blockIdx.x) < rest ? 1 : 0); }
};
inline OneRowShape one_row_shape(std::int64_t n_units, std::int64_t blocks, std::int64_t rows_bytes, std::int64_t stage_bytes) {
  return {std::int32_t(n_units / blocks), std::int32_t(n_units % blocks), std::int32_t(rows_bytes), std::int32_t(stage_bytes)};
}

/// Units of a block, one after another in each warp. A Job says where weights are and what becomes of sums:
///   job.fetch(unit, to)             copies a unit's rows of weights to the shared address
///   job.finish(unit, value, index)  a lane has the sum of row index = lane / (32 / n_rows); the whole warp calls
template <class F, int n_rows, class Job>
class OneRowProducts {
 public:
  __device__ __forceinline__ OneRowProducts(Job const& job, OneRowShape const& shape, unsigned char* shared) : job_(job) {
    int const warp = int(threadIdx.x) / 32;
    unit_ = shape.begin() + warp;
    end_ = shape.end();
    stage_ = shared + shape.rows_bytes + warp * shape.stage_bytes;
    to_ = std::uint32_t(__cvta_generic_to_shared(stage_));
  }
  __device__ __forceinline__ void start() {
    if (unit_ < end_) job_.fetch(unit_, to_);
    commit_copies();
  }
  __device__ __forceinline__ void run(OneRow const& row, int row_bytes, float factor) {
    while (unit_ < end_) {
      wait_copies<0>();
      __syncwarp();
      float sums[n_rows] = {};
      add_pieces<F>(stage_, row_bytes, row, sums);
      int const done = unit_;
      unit_ += int(blockDim.x) / 32;
      __syncwarp();
      start();
      job_.finish(done, sum_over_lanes(sums) * factor, int(threadIdx.x) % 32 / (32 / n_rows));
    }
  }

 private:
  Job const& job_;
  unsigned char* stage_;
  std::uint32_t to_;
  int unit_, end_;
};

/// 1 / sqrt(mean of squares + eps) of the sums of all warps.
__device__ __forceinline__ float norm_of(float const* squares, int dim, float eps) {
  int const lane = int(threadIdx.x) % 32;
  return rsqrtf(warp_sum(lane < int(blockDim.x) / 32 ? squares[lane] : 0.0f) / float(dim) + eps);
}

/// The row that `reader` has started with and its products, once weights are under way; squares: max_warps floats, shared.
template <class F, class Products>
__device__ __forceinline__ void run_one_row(Products& products, OneRowReader& reader, unsigned char* shared, float* squares, int dim,
                                            bool norm, float eps) {
  OneRow const row = one_row<F>(shared, dim);
  float const sum = warp_sum(reader.put<F>(row));
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
  __syncthreads();
  products.run(row, dim / F::block_elems * F::block_bytes, norm ? norm_of(squares, dim, eps) : 1.0f);
}

/// Whether it was launched, and how that went.
struct OneRowLaunch {
  bool done;
  int status;
};

/// Whether rows of weights of n_elems, and the pointers whose bits these are, can be taken so.
template <class F>
bool is_regular(std::int64_t n_elems, std::uintptr_t bits) {
  bits |= std::uintptr_t(n_elems / F::block_elems * F::block_bytes);
  return bits % 16 == 0 && n_elems % 4 == 0 && few_chunks<F>(int(n_elems)) % FewPiece<F>::chunks == 0;
}

/// Warps to a block that has `units` units: alike loads, as many as have room; 0 where so few have that a ring is better.
inline int one_row_warps_for(std::int64_t units, std::int64_t rows_bytes, std::int64_t stage_bytes, CudaQueue const& queue,
                             int static_bytes = few_static_bytes) {
  std::int64_t const room = (shared_bytes_limit(queue.capability) - static_bytes - rows_bytes) / stage_bytes;
  std::int64_t const most = min_of(room, std::int64_t(one_row_warps));
  if (most < min_of(units, std::int64_t(one_row_least_warps))) return 0;
  std::int64_t const warps = ceil_div(units, ceil_div(units, most));
  return int(max_of(warps, min_of(most, std::int64_t(one_row_least_warps))));
}

}  // namespace detail
}  // namespace tiered::cuda
