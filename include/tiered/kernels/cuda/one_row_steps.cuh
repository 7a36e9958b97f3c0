/// OneRowProducts (one_row.cuh) step after step, for blocks of 256: where few whole rows of weights have room at a time, where rows begin
/// anywhere, and where unpacking is what takes long. [device-visible]
///
/// A warp has a ring of stages, each of which holds what the warp takes of its n_rows rows in one step: eight blocks of each, at offsets
/// known at compile time, so that there is little to do beside unpacking. As a step has been taken, the one that comes next but the others
/// in the ring is under way, of the next rows where these end: as much is under way as there is room for, whatever the rows' length. A lane
/// takes a row's pieces in the same order as from whole rows.
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row.cuh"

namespace tiered::cuda {
namespace detail {

/// Bytes of a row that a warp takes in one step, a multiple of 16.
template <class F>
inline constexpr int one_row_step_bytes = FewChunk<F>::bytes(32 * OneRowPiece<F>::chunks);
/// Lanes with every second block take a unit's third row first, then the fourth, the first and the second. Of a row of Q3_K, whose blocks
/// are 27.5 words long, lanes with every second block read from the same banks as the others: all loads take two accesses, 112 in a step of
/// four rows. From two rows whose parts of a stage begin 16 words apart modulo 32, most take one: 76 in all. Where rows begin anywhere,
/// what suits those of 45 blocks: 71 to 76 instead of 104.
template <class F>
inline constexpr bool one_row_takes_turns = F::dtype == DType::q3_k;
/// Bytes of a row's part of a stage, with those around them where rows begin anywhere.
template <class F>
inline constexpr int one_row_step_part_bytes = one_row_step_bytes<F> + (one_row_takes_turns<F> ? is_any_address<F> ? 32 : 48
                                                                        : is_shifted<F>        ? 16
                                                                                               : 0);

/// As OneRowProducts. Of a Job, instead of fetch():
///   job.row_bytes()           from row to row
///   job.find_any(unit, from)  from[r]: where row r of a unit begins, or where there is none, the last one
///   job.low_bits(unit, r)     the former modulo 16, or anything where there is no such row
template <class F, int n_rows, class Job>
class OneRowSteps {
 public:
  static_assert(OneRowPiece<F>::of_256 && PieceProductOf<F>::parts == 1 && one_row_step_bytes<F> % 16 == 0);
  static constexpr int n_stages = one_row_step_stages;
  static constexpr int step_bytes = one_row_step_bytes<F>, part_bytes = one_row_step_part_bytes<F>, stage_bytes = n_rows * part_bytes;

  __device__ __forceinline__ OneRowSteps(Job const& job, OneRowShape const& shape, unsigned char* shared)
      : job_(job), lane_(int(threadIdx.x) % 32), n_warps_(int(blockDim.x) / 32) {
    int const warp = int(threadIdx.x) / 32;
    unit_ = ahead_unit_ = shape.begin() + warp;
    end_ = shape.end();
    ring_ = shared + shape.rows_bytes + warp * (n_stages * stage_bytes);
    look_ahead();
  }
  __device__ __forceinline__ void start() {
#pragma unroll 1
    for (int i = 0; i < n_stages; ++i) fetch_next(i * stage_bytes);
  }
  __device__ __forceinline__ void run(OneRow const& row, float factor) {
    Product const product(lane_);
    int at = 0;
#pragma unroll 1
    while (unit_ < end_) {
      float sums[n_rows] = {};
      int begins[n_rows];  // of rows in a stage
#pragma unroll
      for (int r = 0; r < n_rows; ++r) begins[r] = r * part_bytes + (is_shifted<F> ? int(job_.low_bits(unit_, r)) : 0);
      take_turns(begins);
#pragma unroll 1
      for (int first = 0; first < row.n_pieces; first += 32) {
        wait_copies<n_stages - 1>();
        __syncwarp();
        int const left = row.n_pieces - first;
        if (n_rows > 1 && left <= 16) {
          take_turns(begins);
          take_turns(sums);
          add_half_step(product, row, ring_ + at, begins, first, left, sums);
          take_turns(sums);
        } else if (lane_ < left) {
          add_step(product, row, ring_ + at, begins, first, sums);
        }
        __syncwarp();
        fetch_next(at);
        at = at == (n_stages - 1) * stage_bytes ? 0 : at + stage_bytes;
      }
      take_turns(sums);
      job_.finish(unit_, sum_over_lanes(sums) * factor, lane_ / (32 / n_rows));
      unit_ += n_warps_;
    }
  }

 private:
  using Product = PieceProductOf<F>;

  /// From the rows' order to that in which a lane takes them, and back.
  template <class T>
  __device__ __forceinline__ void take_turns(T (&of_rows)[n_rows]) const {
    if constexpr (one_row_takes_turns<F>) {
      static_assert(n_rows == 4);
      bool const turned = (lane_ & 4) != 0;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        T const first = of_rows[r], second = of_rows[r + 2];
        of_rows[r] = turned ? second : first;
        of_rows[r + 2] = turned ? first : second;
      }
    }
  }
  __device__ __forceinline__ void add_step(Product const& product, OneRow const& row, unsigned char const* stage,
                                           int const (&begins)[n_rows], int first, float (&sums)[n_rows]) const {
    auto const x = product.input(row, first + lane_, 0);
    // Two begins of all rows, the rest known at compile time.
    int const turn = one_row_takes_turns<F> && (lane_ & 4) != 0 ? n_rows / 2 * part_bytes : 0;
    unsigned char const *const first_rows = stage + turn, *const last_rows = stage - turn;
#pragma unroll
    for (int r = 0; r < n_rows; ++r) {
      unsigned char const* const begin = is_shifted<F> ? stage + begins[r] : (r < n_rows / 2 ? first_rows : last_rows) + r * part_bytes;
      sums[r] = product.add(begin, lane_, 0, x, sums[r]);
    }
  }
  /// The last step of rows that have no more than half of one: lanes 16 and up take half of the rows over from the others, with their
  /// sums so far, and give them back, so that nothing is added up in another order.
  __device__ __forceinline__ void add_half_step(Product const& product, OneRow const& row, unsigned char const* stage,
                                                int const (&begins)[n_rows], int first, int left, float (&sums)[n_rows]) const {
    constexpr int n = n_rows / 2;
    bool const upper = lane_ >= 16;
    int const piece = lane_ % 16;
    float of_half[n];
#pragma unroll
    for (int r = 0; r < n; ++r) {
      float const other = __shfl_xor_sync(~0u, sums[n + r], 16);
      of_half[r] = upper ? other : sums[r];
    }
    if (piece < left) {
      auto const x = product.input(row, first + piece, 0);
#pragma unroll
      for (int r = 0; r < n; ++r) of_half[r] = product.add(stage + (upper ? begins[n + r] : begins[r]), piece, 0, x, of_half[r]);
    }
#pragma unroll
    for (int r = 0; r < n; ++r) {
      float const other = __shfl_xor_sync(~0u, of_half[r], 16);
      if (upper) continue;
      sums[r] = of_half[r];
      sums[n + r] = other;
    }
  }

  /// What comes next, to the stage that begins at `at`.
  __device__ __forceinline__ void fetch_next(int at) {
    if (ahead_unit_ < end_) {
      std::uint32_t const to = std::uint32_t(__cvta_generic_to_shared(ring_ + at)) + unsigned(lane_ * 16);
      if (ahead_left_ > step_bytes) {
        fetch_step<false>(to);
        ahead_left_ -= step_bytes;
#pragma unroll
        for (int r = 0; r < n_rows; ++r) ahead_[r] += step_bytes;
      } else {
        fetch_step<true>(to);
        ahead_unit_ += n_warps_;
        look_ahead();
      }
    }
    commit_copies();
  }
  /// Of rows that begin anywhere, from a multiple of 16 to one, but nothing behind a row: before its last step there is a block to come.
  static constexpr int fetched_bytes = step_bytes + (is_shifted<F> ? 16 : 0);
  template <bool last>
  __device__ __forceinline__ void fetch_step(std::uint32_t to) const {
#pragma unroll
    for (int r = 0; r < n_rows; ++r) {
      int const end = ahead_left_ + (is_shifted<F> ? int(ahead_offsets_ >> (4 * r) & 15u) : 0) - lane_ * 16;
#pragma unroll
      for (int at = 0; at < fetched_bytes; at += 32 * 16) {
        if (at + 32 * 16 > fetched_bytes && lane_ >= (fetched_bytes - at) / 16) continue;
        if (last && end <= at) continue;
        copy_16(to + unsigned(r * part_bytes + at), ahead_[r] + at, last && is_shifted<F> ? min(end - at, 16) : 16);
      }
    }
  }
  __device__ __forceinline__ void look_ahead() {
    if (ahead_unit_ >= end_) return;
    ahead_left_ = job_.row_bytes();
    ahead_offsets_ = 0;
    job_.find_any(ahead_unit_, ahead_);
#pragma unroll
    for (int r = 0; r < n_rows; ++r) {
      int const offset = is_shifted<F> ? offset_of_16(ahead_[r]) : 0;
      ahead_offsets_ |= unsigned(offset) << (4 * r);
      ahead_[r] += lane_ * 16 - offset;
    }
  }

  Job const& job_;
  unsigned char* ring_;
  unsigned char const* ahead_[n_rows];  ///< the step to come of each row, from a multiple of 16 on, plus 16 bytes for each lane
  unsigned ahead_offsets_ = 0;          ///< how far behind it each begins, four bits each
  int ahead_left_ = 0;                  ///< bytes of a row from there on
  int unit_, ahead_unit_, end_, lane_, n_warps_;
};

}  // namespace detail
}  // namespace tiered::cuda
