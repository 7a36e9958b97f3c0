/// OneRowProducts (one_row.cuh) slice after slice: for floats, few whole rows of which have room at a time. [device-visible]
///
/// A warp has a ring of stages, each of which holds the same slice of its n_rows rows; as one has been read, the slice that comes next but
/// the others in the ring is under way, of the next rows where these end. So as much is under way as there is room for, always, whatever
/// the rows' length. A lane takes a row's pieces in the same order as from whole rows: slices are of whole steps of the warp.
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row.cuh"

namespace tiered::cuda {
namespace detail {

/// Bytes of a row that a warp takes in one step.
inline constexpr int one_row_float_step_bytes = 32 * 16;

/// As OneRowProducts. Of a Job, instead of fetch():
///   job.row_bytes()         from row to row
///   job.find(unit, from)    from[r]: where row r of a unit begins; null where there is none
template <class F, int n_rows, class Job>
class OneRowSlices {
 public:
  static_assert(!FewChunk<F>::blocks);
  static constexpr int n_stages = one_row_slice_stages;

  __device__ __forceinline__ OneRowSlices(Job const& job, OneRowShape const& shape, unsigned char* shared) : job_(job) {
    int const warp = int(threadIdx.x) / 32;
    unit_ = ahead_unit_ = shape.begin() + warp;
    end_ = shape.end();
    stage_bytes_ = shape.stage_bytes;
    slice_bytes_ = shape.part_bytes;
    ring_ = shared + shape.rows_bytes + warp * n_stages * stage_bytes_;
    if (ahead_unit_ < end_) job_.find(ahead_unit_, ahead_);
  }
  __device__ __forceinline__ void start() {
#pragma unroll 1
    for (int i = 0; i < n_stages; ++i) fetch_next(ring_ + i * stage_bytes_);
  }
  __device__ __forceinline__ void run(OneRow const& row, float factor) {
    int const slice_pieces = slice_bytes_ / one_row_float_step_bytes * 32;
    int at = 0;
#pragma unroll 1
    while (unit_ < end_) {
      float sums[n_rows] = {};
#pragma unroll 1
      for (int first = 0; first < row.n_pieces; first += slice_pieces) {
        wait_copies<n_stages - 1>();
        __syncwarp();
        unsigned char* const stage = ring_ + at;
        add_pieces<F>([&](int r) { return stage + r * slice_bytes_; }, row, first, min(first + slice_pieces, row.n_pieces), sums);
        __syncwarp();
        fetch_next(stage);
        at = at + stage_bytes_ == n_stages * stage_bytes_ ? 0 : at + stage_bytes_;
      }
      job_.finish(unit_, sum_over_lanes(sums) * factor, int(threadIdx.x) % 32 / (32 / n_rows));
      unit_ += int(blockDim.x) / 32;
    }
  }

 private:
  __device__ __forceinline__ void fetch_next(unsigned char* stage) {
    if (ahead_unit_ < end_) {
      std::uint32_t const to = std::uint32_t(__cvta_generic_to_shared(stage));
      int const n_bytes = min(slice_bytes_, job_.row_bytes() - ahead_at_);
#pragma unroll
      for (int r = 0; r < n_rows; ++r) {
        if (ahead_[r] != nullptr) fetch_run(to + unsigned(r * slice_bytes_), ahead_[r] + ahead_at_, n_bytes);
      }
      ahead_at_ += slice_bytes_;
      if (ahead_at_ >= job_.row_bytes()) {
        ahead_at_ = 0;
        ahead_unit_ += int(blockDim.x) / 32;
        if (ahead_unit_ < end_) job_.find(ahead_unit_, ahead_);
      }
    }
    commit_copies();
  }

  Job const& job_;
  unsigned char* ring_;
  unsigned char const* ahead_[n_rows];
  int ahead_at_ = 0;
  int unit_, ahead_unit_, end_, slice_bytes_, stage_bytes_;
};

/// Warps of a block and bytes of a warp's stage; n_warps 0 where so few have room that a ring for each of more is better.
struct OneRowCut {
  int n_warps = 0;
  std::int64_t stage_bytes = 0;
};
/// For blocks that have `units` units of n_rows rows.
template <class F>
OneRowCut one_row_slices_for(std::int64_t units, int n_rows, std::int64_t dim, CudaQueue const& queue) {
  std::int64_t const room = few_dynamic_bytes(shared_bytes_limit(queue.capability)) - few_rows_bytes<F>(dim, 1);
  constexpr std::int64_t step_bytes = one_row_float_step_bytes;
  std::int64_t const ring_rows = std::int64_t(n_rows) * one_row_slice_stages;
  std::int64_t const most = min_of(room / (ring_rows * step_bytes), std::int64_t(one_row_warps));
  if (most < min_of(units, std::int64_t(one_row_least_warps))) return {};
  std::int64_t const even = ceil_div(units, ceil_div(units, most));
  std::int64_t const n_warps = max_of(even, min_of(most, std::int64_t(one_row_least_warps)));
  // All slices of a row alike, but for the last.
  std::int64_t const row_steps = ceil_div(dim / F::block_elems * F::block_bytes, step_bytes);
  std::int64_t const n_slices = ceil_div(row_steps, min_of(room / (ring_rows * n_warps) / step_bytes, row_steps));
  return {int(n_warps), ceil_div(row_steps, n_slices) * step_bytes * n_rows};
}

}  // namespace detail
}  // namespace tiered::cuda
