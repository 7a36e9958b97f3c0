/// Units of weights of one block through its warps' rings to sums, by matrix units. [device-visible]
///
/// `split` warps share a unit along k, warps / split units are under way at a time; each warp has a ring of stages of its own, as in
/// few_stages.cuh.
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/few_mma_input.cuh"
#include "tiered/kernels/cuda/few_mma_steps.cuh"
#include "tiered/kernels/cuda/few_mma_tuning.hpp"
#include "tiered/kernels/cuda/few_stages.cuh"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"

namespace tiered::cuda {
namespace detail {

/// How a launch is cut, and where its parts of shared memory begin.
struct MmaShape {
  std::int32_t n_units = 0, split = 1, n_phases = 1, phase_stages = 0;
  std::int32_t rings_at = 0, tables_at = 0, sums_at = 0, kept_at = 0, shared_bytes = 0;
};

/// Unit u: rows n_columns u... of all parts, one after another; or, to be gated, half as many of gate in even columns and of up in odd
/// ones.
template <class F, int n_columns>
class MmaJob {
 public:
  __device__ __forceinline__ explicit MmaJob(FusedMatmulArgs const& args)
      : a_(args), gate_(args.then == FusedMatmulArgs::Then::gate), row_bytes_(args.dim / F::block_elems * F::block_bytes) {}

  __device__ __forceinline__ int row_bytes() const { return row_bytes_; }
  /// A column's row, null where there is none, and the end of its matrix.
  __device__ __forceinline__ unsigned char const* find(int unit, int column, unsigned char const*& end) const {
    int row = 0;
    FusedMatmulArgs::Part const& part = a_.parts[locate(unit, column, row)];
    auto const* const w = static_cast<unsigned char const*>(part.w);
    end = w + std::int64_t(part.rows) * row_bytes_;
    return row < part.rows ? w + std::int64_t(row) * row_bytes_ : nullptr;
  }
  /// The whole warp calls; lanes of columns 2i and 2i + 1 are neighbours.
  __device__ __forceinline__ void finish(int unit, int column, int token, bool inside, float value) const {
    float const up = __shfl_xor_sync(~0u, value, 1);
    int row = 0;
    FusedMatmulArgs::Part const& part = a_.parts[locate(unit, column, row)];
    if (!inside || token >= a_.n_tokens || row >= part.rows || (gate_ && column % 2 != 0)) return;
    float* const y = part.y + token * part.y_stride + row;
    if (gate_) {
      *y = gated_value(a_.activation, value, up);
      return;
    }
    if (part.bias != nullptr) value += part.bias[row];
    *y = a_.then == FusedMatmulArgs::Then::add ? *y + value : value;
  }

 private:
  __device__ __forceinline__ int locate(int unit, int column, int& row) const {
    if (gate_) {
      row = unit * (n_columns / 2) + column / 2;
      return column % 2;
    }
    row = unit * n_columns + column;
    int part = 0;
#pragma unroll
    for (int i = 0; i + 1 < FusedMatmulArgs::max_parts; ++i) {
      bool const behind = part == i && i + 1 < a_.n_parts && row >= a_.parts[i].rows;
      row -= behind ? a_.parts[i].rows : 0;
      part += behind ? 1 : 0;
    }
    return part;
  }

  FusedMatmulArgs const& a_;
  bool gate_;
  int row_bytes_;
};

template <class F, int tokens>
class MmaProducts {
 public:
  using Cut = MmaCut<F, tokens>;
  using Job = MmaJob<F, Cut::rows>;
  static constexpr int table_bytes = Cut::tiles * 64 * MmaFactors<F>::of_weights * 4;
  static constexpr int unit_sums = Cut::rows * 8 * tokens, sums_bytes = unit_sums * 4;  ///< of a warp

  __device__ __forceinline__ MmaProducts(Job const& job, MmaShape const& shape, int dim, unsigned char* shared)
      : job_(job), shape_(shape), shared_(shared), dim_(dim) {
    int const warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    begin_ = part_begin(shape.n_units, blockIdx.x, gridDim.x);
    end_ = part_begin(shape.n_units, blockIdx.x + 1, gridDim.x);
    groups_ = int(blockDim.x) / 32 / shape.split;
    first_unit_ = ahead_unit_ = begin_ + warp / shape.split;
    first_stage_ = ahead_stage_ = warp % shape.split;
    n_stages_ = ceil_div(ceil_div(dim, Cut::step_elems), Cut::steps);
    ring_ = shared + shape.rings_at + warp * Cut::ring_bytes + lane / 4 * Cut::row_bytes;
    to_ = shared_address(ring_) + unsigned(lane % 4 * 16);
    find_ahead();
  }

  /// Puts the first stages under way: reads weights only.
  __device__ __forceinline__ void start() {
#pragma unroll 1
    for (int i = 0; i < Cut::n_stages; ++i) fetch_next(i);
  }

  /// One phase, whose activations are there for all. The whole block calls; on return it has read them.
  __device__ __forceinline__ void run(int phase) {
    auto* const all = reinterpret_cast<float*>(shared_ + shape_.sums_at);
    auto* const mine = reinterpret_cast<float2*>(all + int(threadIdx.x) / 32 * unit_sums) + threadIdx.x % 32;
    for (int first = begin_; first < end_; first += groups_) {
      int const unit = first + first_unit_ - begin_;
      MmaSums<F, tokens> sums = {};
      if (unit < end_) add_unit(unit, phase, sums);
      __syncthreads();  // the sums before these have been read
#pragma unroll
      for (int i = 0; i < Cut::tiles * tokens; ++i) {
        float const* const two = &sums[i / tokens][i % tokens * 2];
        mine[i * 32] = make_float2(two[0], two[1]);
      }
      __syncthreads();
      finish(first, phase, all);
    }
  }

 private:
  __device__ __forceinline__ int phase_end(int phase) const { return min((phase + 1) * shape_.phase_stages, n_stages_); }

  __device__ __forceinline__ void add_unit(int unit, int phase, MmaSums<F, tokens>& sums) {
    int const begin = phase * shape_.phase_stages;
    int low[Cut::tiles];
#pragma unroll
    for (int t = 0; t < Cut::tiles; ++t) {
      unsigned char const* row_end;
      low[t] = offset_of_16(job_.find(unit, t * 8 + int(threadIdx.x) % 32 / 4, row_end));
    }
    auto* const table = reinterpret_cast<float*>(shared_ + shape_.tables_at + int(threadIdx.x) / 32 * table_bytes);
#pragma unroll 1
    for (int stage = begin + first_stage_; stage < phase_end(phase); stage += shape_.split) {
      wait_copies<Cut::n_stages - 1>();
      __syncwarp();
      int const n_elems = dim_ - stage * Cut::steps * Cut::step_elems;
      int offsets[Cut::tiles];
#pragma unroll
      for (int t = 0; t < Cut::tiles; ++t) offsets[t] = (low[t] + stage * Cut::bytes) & 15;
      add_mma_stage<F, tokens>(ring_ + slot_ * Cut::stage_bytes, offsets, min(Cut::steps, ceil_div(n_elems, Cut::step_elems)), n_elems,
                               shared_ + (stage - begin) * Cut::steps * MmaInput<F, tokens>::step_bytes, table, sums);
      __syncwarp();
      fetch_next(slot_);
      slot_ = slot_ + 1 == Cut::n_stages ? 0 : slot_ + 1;
    }
  }

  /// Sums of warps that share a unit, in their order: [tile][token of two][lane][row of two], as run() writes them.
  __device__ __forceinline__ void finish(int first, int phase, float const* all) {
    auto* const kept = reinterpret_cast<float*>(shared_ + shape_.kept_at);
    for (int at = int(threadIdx.x); at < groups_ * unit_sums; at += int(blockDim.x)) {
      int const group = at / unit_sums, i = at % unit_sums, lane = i % 64 / 2, pair = i / 64, unit = first + group;
      float* const mine = kept + (unit - begin_) * unit_sums + i;
      bool const inside = unit < end_;
      float value = inside && phase > 0 ? *mine : 0.0f;
      for (int k = 0; k < shape_.split; ++k) value += all[(group * shape_.split + k) * unit_sums + i];
      if (phase + 1 < shape_.n_phases) {
        if (inside) *mine = value;
      } else {
        job_.finish(unit, pair / tokens * 8 + lane % 4 * 2 + i % 2, lane / 4 + pair % tokens * 8, inside, value);
      }
    }
  }

  __device__ __forceinline__ void fetch_next(int slot) {
    if (ahead_phase_ < shape_.n_phases) {
#pragma unroll
      for (int t = 0; t < Cut::tiles; ++t) {
        if (ahead_[t] != nullptr) fetch_row(ahead_[t], ahead_end_[t], to_ + unsigned(slot * Cut::stage_bytes + t * 8 * Cut::row_bytes));
      }
      ahead_stage_ += shape_.split;
      if (ahead_stage_ >= phase_end(ahead_phase_)) {
        ahead_unit_ += groups_;
        find_ahead();
      }
    }
    commit_copies();
  }

  /// Stage ahead_stage_ of a row, every fourth 16 bytes of it by this lane.
  __device__ __forceinline__ void fetch_row(unsigned char const* row, unsigned char const* end, std::uint32_t to) const {
    unsigned char const* const from = row + ahead_stage_ * Cut::bytes;
    int const offset = offset_of_16(from), left = offset + min(Cut::bytes, job_.row_bytes() - ahead_stage_ * Cut::bytes);
    int const readable = int(min_of(std::int64_t(end - from) + offset, std::int64_t(Cut::row_bytes)));
#pragma unroll
    for (int i = 0; i < Cut::row_bytes; i += 64) {
      int const at = i + int(threadIdx.x) % 4 * 16;
      if (at < left) copy_16(to + unsigned(i), from - offset + at, min(16, readable - at));
    }
  }

  /// The next unit, or phase, of which this warp has a stage: at ahead_unit_ or behind it.
  __device__ __forceinline__ void find_ahead() {
    for (; ahead_phase_ < shape_.n_phases; ++ahead_phase_, ahead_unit_ = first_unit_) {
      ahead_stage_ = ahead_phase_ * shape_.phase_stages + first_stage_;
      if (ahead_unit_ >= end_ || ahead_stage_ >= phase_end(ahead_phase_)) continue;
#pragma unroll
      for (int t = 0; t < Cut::tiles; ++t) ahead_[t] = job_.find(ahead_unit_, t * 8 + int(threadIdx.x) % 32 / 4, ahead_end_[t]);
      return;
    }
  }

  Job const& job_;
  MmaShape const& shape_;
  unsigned char* shared_;
  unsigned char* ring_;  ///< of this lane's row of the first tile
  std::uint32_t to_;     ///< its shared address, and 16 bytes for each lane of the row
  unsigned char const *ahead_[Cut::tiles] = {}, *ahead_end_[Cut::tiles] = {};
  int dim_, begin_, end_, groups_, first_unit_, first_stage_, n_stages_, ahead_unit_, ahead_stage_, ahead_phase_ = 0;
  int slot_ = 0;
};

}  // namespace detail
}  // namespace tiered::cuda
