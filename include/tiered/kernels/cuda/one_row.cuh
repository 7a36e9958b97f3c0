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
#include "tiered/kernels/cuda/one_row_pieces.cuh"
#include "tiered/kernels/cuda/one_row_pieces_k.cuh"

namespace tiered::cuda {
namespace detail {

/// Elements [4 * four, + 4) of a row; eight lanes have a block. The whole warp calls; `inside`: whether there are such.
template <class F>
__device__ __forceinline__ void put_four(OneRow const& row, int four, bool inside, float4 v, float factor) {
  if constexpr (FewChunk<F>::blocks) {
    using Piece = OneRowPiece<F>;
    int const chunk = four / 8, part = four % 8;
    int const place = Piece::index_of(chunk) * row.n_pieces + Piece::piece_of(chunk);
    QuantizedFour const q = quantize_four(v);
    int const other = __shfl_down_sync(~0u, q.sum, 4);
    std::uint32_t word = q.q;
    int to = part;
    if constexpr (Piece::order == ChunkOrder::turned) {
      std::uint32_t const next = __shfl_sync(~0u, word, part % 4 == 3 ? part - 3 : part + 1, 8);
      if ((chunk & 8) != 0) word = __byte_perm(word, next, 0x5432);
    } else if constexpr (Piece::order == ChunkOrder::interleaved) {
      std::uint32_t const partner = __shfl_xor_sync(~0u, word, 4);
      word = part < 4 ? __byte_perm(word, partner, 0x5140) : __byte_perm(partner, word, 0x7362);
      to = part % 4 * 2 + part / 4;
    }
    if (!inside) return;
    unsigned char* const half = Piece::of_halves ? row.half(place + to / 4) : row.half(place) + to / 4 * row.plane_bytes;
    *reinterpret_cast<std::uint32_t*>(half + to % 4 * 4) = word;
    if (part != 0) return;
    uint2 const scale_and_sums{__float_as_uint(q.scale * factor), (std::uint32_t(q.sum) & 0xffffu) | std::uint32_t(other) << 16};
    *reinterpret_cast<uint2*>(row.scale(Piece::of_halves ? place / 2 : place)) = scale_and_sums;
  } else {
    if (!inside) return;
    int const chunk = four / FewChunk<F>::planes, plane = four % FewChunk<F>::planes;
    *reinterpret_cast<float4*>(row.data + plane * row.plane_bytes + chunk * 16) =
        make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
  }
}

/// x, n_fours times four floats, times norm_weight where there is one, on its way to a row: this thread's part of it is loaded `ahead`
/// steps ahead, norm weights, which are constant, from the constructor on, x from start() on.
template <int ahead>
class OneRowReader {
 public:
  __device__ __forceinline__ OneRowReader(float const* norm_weight, int dim)
      : norm_weight_(reinterpret_cast<float4 const*>(norm_weight)), n_fours_(dim / 4) {
#pragma unroll
    for (int i = 0; i < ahead; ++i) load_norm(i, int(threadIdx.x) + i * int(blockDim.x));
  }
  __device__ __forceinline__ void start(float const* x) {
    x_ = reinterpret_cast<float4 const*>(x);
#pragma unroll
    for (int i = 0; i < ahead; ++i) load(i, int(threadIdx.x) + i * int(blockDim.x));
  }
  /// The block calls; this thread's sum of squares of x.
  template <class F>
  __device__ __forceinline__ float put(OneRow const& row) {
    float squares = 0;
    int const lane = int(threadIdx.x) % 32, n_ahead = ahead * int(blockDim.x);
#pragma unroll 1
    for (int begin = int(threadIdx.x) - lane; begin < n_fours_; begin += n_ahead) {
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        int const first = begin + i * int(blockDim.x);
        if (first >= n_fours_) break;
        float4 const v = v_[i], w = w_[i];
        load_norm(i, first + lane + n_ahead);
        load(i, first + lane + n_ahead);
        squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
        put_four<F>(row, first + lane, first + lane < n_fours_, make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w), 1.0f);
      }
    }
    return squares;
  }

 private:
  __device__ __forceinline__ void load_norm(int i, int four) {
    w_[i] = norm_weight_ != nullptr && four < n_fours_ ? norm_weight_[four] : make_float4(1, 1, 1, 1);
  }
  __device__ __forceinline__ void load(int i, int four) { v_[i] = four < n_fours_ ? x_[four] : make_float4(0, 0, 0, 0); }

  float4 const* norm_weight_;
  float4 const* x_ = nullptr;
  float4 v_[ahead], w_[ahead];
  int n_fours_;
};

/// n_bytes, a multiple of 16, by a warp.
__device__ __forceinline__ void fetch_run(std::uint32_t to, unsigned char const* from, int n_bytes) {
#pragma unroll 1
  for (int at = int(threadIdx.x) % 32 * 16; at < n_bytes; at += 32 * 16) copy_16(to + unsigned(at), from + at);
}

/// n_bytes from anywhere, which land as far behind a multiple of 16 as they lie behind one; nothing behind them is read.
__device__ __forceinline__ void fetch_shifted_run(std::uint32_t to, unsigned char const* from, int n_bytes) {
  int const offset = offset_of_16(from), end = offset + n_bytes;
#pragma unroll 1
  for (int at = int(threadIdx.x) % 32 * 16; at < end; at += 32 * 16) copy_16(to + unsigned(at), from - offset + at, min(end - at, 16));
}

/// Adds the products of the activations and of n_rows rows of weights: of pieces [first, end), `first` being where where(r) says that row r
/// begins, and a multiple of 32.
template <class F, int n_rows, class Where>
__device__ __forceinline__ void add_pieces(Where const& where, OneRow const& row, int first, int end, float (&sums)[n_rows]) {
  using Product = PieceProductOf<F>;
  constexpr int unroll = n_rows == 1 && !OneRowPiece<F>::of_256 ? 2 : 1;
  int const lane = int(threadIdx.x) % 32;
  Product const product(lane);
#pragma unroll unroll
  for (int piece = first + lane; piece < end; piece += 32) {
#pragma unroll
    for (int part = 0; part < Product::parts; ++part) {
      auto const x = product.input(row, piece, part);
#pragma unroll
      for (int r = 0; r < n_rows; ++r) sums[r] = product.add(where(r), piece - first, part, x, sums[r]);
    }
  }
}

/// How a launch's units of work are divided among blockIdx.x, and where its parts of shared memory are.
struct OneRowShape {
  std::int32_t each, rest;               ///< units of a block; the first `rest` blocks have one more
  std::int32_t rows_bytes, stage_bytes;  ///< of activations; of the rows of weights that a warp takes at a time
  std::int32_t part_bytes;               ///< of one of those in a stage
  std::int32_t n_stages;                 ///< of a warp

  __device__ __forceinline__ int begin() const { return int(blockIdx.x) * each + min(int(blockIdx.x), rest); }
  __device__ __forceinline__ int end() const { return begin() + each + (int(blockIdx.x) < rest ? 1 : 0); }
};
/// A stage holds n_rows rows of weights, or parts of them.
inline OneRowShape one_row_shape(std::int64_t n_units, std::int64_t blocks, std::int64_t rows_bytes, std::int64_t stage_bytes, int n_rows,
                                 int n_stages = 1) {
  return {std::int32_t(n_units / blocks), std::int32_t(n_units % blocks),     std::int32_t(rows_bytes),
          std::int32_t(stage_bytes),      std::int32_t(stage_bytes / n_rows), n_stages};
}

/// Units of a block, one after another in each warp. A Job says where weights are and what becomes of sums:
///   job.fetch(unit, to)             copies a unit's rows of weights to the shared address
///   job.begin_in_stage(unit, r)     where in the stage row r then begins: of shifted rows only, others follow each other
///   job.finish(unit, value, index)  a lane has the sum of row index = lane / (32 / n_rows); the whole warp calls
template <class F, int n_rows, class Job>
class OneRowProducts {
 public:
  __device__ __forceinline__ OneRowProducts(Job const& job, OneRowShape const& shape, unsigned char* shared) : job_(job) {
    int const warp = int(threadIdx.x) / 32;
    unit_ = ahead_ = shape.begin() + warp;
    end_ = shape.end();
    n_stages_ = shape.n_stages;
    stage_bytes_ = shape.stage_bytes;
    row_bytes_ = shape.part_bytes;
    ring_ = shared + shape.rows_bytes + warp * n_stages_ * stage_bytes_;
  }
  __device__ __forceinline__ void start() {
#pragma unroll 1
    for (int i = 0; i < n_stages_; ++i) fetch_next(ring_ + i * stage_bytes_);
  }
  __device__ __forceinline__ void run(OneRow const& row, float factor) {
    int at = 0;
#pragma unroll 1
    while (unit_ < end_) {
      if (n_stages_ == 1) {
        wait_copies<0>();
      } else {
        wait_copies<1>();
      }
      __syncwarp();
      float sums[n_rows] = {};
      unsigned char* const stage = ring_ + at;
      if constexpr (is_shifted<F>) {
        int begins[n_rows];
#pragma unroll
        for (int r = 0; r < n_rows; ++r) begins[r] = job_.begin_in_stage(unit_, r);
        add_pieces<F>([&](int r) { return stage + begins[r]; }, row, 0, row.n_pieces, sums);
      } else {
        add_pieces<F>([&](int r) { return stage + r * row_bytes_; }, row, 0, row.n_pieces, sums);
      }
      int const done = unit_;
      unit_ += int(blockDim.x) / 32;
      __syncwarp();
      fetch_next(stage);
      at = at + stage_bytes_ == n_stages_ * stage_bytes_ ? 0 : at + stage_bytes_;
      job_.finish(done, sum_over_lanes(sums) * factor, int(threadIdx.x) % 32 / (32 / n_rows));
    }
  }

 private:
  __device__ __forceinline__ void fetch_next(unsigned char* stage) {
    if (ahead_ < end_) job_.fetch(ahead_, std::uint32_t(__cvta_generic_to_shared(stage)));
    ahead_ += int(blockDim.x) / 32;
    commit_copies();
  }

  Job const& job_;
  unsigned char* ring_;
  int unit_, ahead_, end_, n_stages_, stage_bytes_, row_bytes_;
};

/// 1 / sqrt(mean of squares + eps) of the sums of all warps.
__device__ __forceinline__ float norm_of(float const* squares, int dim, float eps) {
  int const lane = int(threadIdx.x) % 32;
  return rsqrtf(warp_sum(lane < int(blockDim.x) / 32 ? squares[lane] : 0.0f) / float(dim) + eps);
}

/// The row that `reader` has started with and its products, once weights are under way; squares: max_warps floats, shared.
template <class F, class Products, class Reader>
__device__ __forceinline__ void run_one_row(Products& products, Reader& reader, unsigned char* shared, float* squares, int dim, bool norm,
                                            float eps) {
  OneRow const row = one_row<F>(shared, dim);
  float const sum = warp_sum(reader.template put<F>(row));
  if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
  __syncthreads();
  products.run(row, norm ? norm_of(squares, dim, eps) : 1.0f);
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
  return bits % 16 == 0 && n_elems % 4 == 0 && few_chunks<F>(int(n_elems)) % OneRowPiece<F>::chunks == 0;
}

/// Warps to a block that has `units` units: alike loads, as many as have room; 0 where so few have that a ring is better.
inline int one_row_warps_for(std::int64_t units, std::int64_t rows_bytes, std::int64_t stage_bytes, CudaQueue const& queue,
                             int most_warps = one_row_warps) {
  std::int64_t const room = (few_dynamic_bytes(shared_bytes_limit(queue.capability)) - rows_bytes) / stage_bytes;
  std::int64_t const most = min_of(room, std::int64_t(most_warps));
  if (most < min_of(units, std::int64_t(one_row_least_warps))) return 0;
  std::int64_t const warps = ceil_div(units, ceil_div(units, most));
  return int(max_of(warps, min_of(most, std::int64_t(one_row_least_warps))));
}

/// Stages of a warp's ring, for blocks that have `units` units.
inline int one_row_stages_for(std::int64_t units, std::int64_t rows_bytes, std::int64_t stage_bytes, CudaQueue const& queue) {
  std::int64_t const room = (few_dynamic_bytes(shared_bytes_limit(queue.capability)) - rows_bytes) / (2 * stage_bytes);
  std::int64_t const most = min_of(room, std::int64_t(one_row_warps));
  return most >= one_row_least_warps_of_two && units >= one_row_least_rounds_of_two * most ? 2 : 1;
}

}  // namespace detail
}  // namespace tiered::cuda
