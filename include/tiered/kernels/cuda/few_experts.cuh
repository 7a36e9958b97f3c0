/// Experts of few tokens, slot by slot: gate and up with their activation, then down, summed over a token's slots. [device-visible]
///
/// A slot has blocks of its own, so that none needs more than one expert's weights and one row (down: the rows of one token). No weights
/// can be fetched before the ids are there: everything is read after the previous kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/few_rows.cuh"
#include "tiered/kernels/cuda/few_stages.cuh"
#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row_experts.cuh"
#include "tiered/kernels/cuda/route.cuh"

namespace tiered::cuda {
namespace detail {

/// A slot's expert; slot < 0 where there is none.
struct FewSlot {
  int slot;
  ExpertGroup const* expert;
};

/// By ids: slot `place`.
__device__ inline FewSlot slot_by_id(SlotList const& list, int place) {
  int const id = place < list.n_slots ? list.ids[place] : -1;
  if (unsigned(id) >= unsigned(list.n_experts) || list.weights[id].gate == nullptr) return FewSlot{-1, nullptr};
  return FewSlot{place, list.weights + id};
}
/// By groups: the place-th slot of all groups together, for every lane of the warp, which looks at 32 groups at a time.
__device__ inline FewSlot slot_by_group(SlotList const& list, int place, int n_slots) {
  int const lane = int(threadIdx.x) % 32;
  int before = 0;
  for (int first = 0; first < list.n_groups; first += 32) {
    int const n = first + lane < list.n_groups ? list.groups[first + lane].n : 0;
    int upto = n;  // and with the groups before it
    for (int step = 1; step < 32; step *= 2) {
      int const other = __shfl_up_sync(~0u, upto, unsigned(step));
      if (lane >= step) upto += other;
    }
    unsigned const behind = __ballot_sync(~0u, place < before + upto);
    if (behind != 0) {
      int const owner = __ffs(int(behind)) - 1, in_group = place - before - __shfl_sync(~0u, upto - n, owner);
      ExpertGroup const* const group = list.groups + first + owner;
      int const slot = list.slots[group->first + in_group];
      return slot < 0 || slot >= n_slots ? FewSlot{-1, nullptr} : FewSlot{slot, group};
    }
    before += __shfl_sync(~0u, upto, 31);
  }
  return FewSlot{-1, nullptr};
}

/// Unit: one row of gate and of up.
template <class F>
class GateUpJob {
 public:
  __device__ GateUpJob(FewGateUpArgs const& args, ExpertGroup const& expert, int slot)
      : a_(args),
        gate_(static_cast<unsigned char const*>(expert.gate)),
        up_(static_cast<unsigned char const*>(expert.up)),
        h_(args.h + std::int64_t(slot) * args.hidden_dim) {}

  __device__ __forceinline__ void find(int unit, int segment, unsigned char const*& begin, unsigned char const*& end) const {
    int const row_bytes = a_.dim / F::block_elems * F::block_bytes;
    unsigned char const* const w = segment == 0 ? gate_ : up_;
    begin = w + std::int64_t(unit) * row_bytes;
    end = w + std::int64_t(a_.hidden_dim) * row_bytes;
  }
  __device__ __forceinline__ int rows_per_unit() const { return 1; }
  __device__ __forceinline__ void finish(int unit, float value, int) const {
    float const up = __shfl_xor_sync(~0u, value, 16);
    if (threadIdx.x % 32 == 0) h_[unit] = gated_value(a_.activation, value, up);
  }

 private:
  FewGateUpArgs const& a_;
  unsigned char const *gate_, *up_;
  float* h_;
};

template <class F>
__global__ void __launch_bounds__(few_threads, few_blocks_at_once<F>(2, 1))
    few_gate_up_kernel(__grid_constant__ FewGateUpArgs const a, int split, int rows_bytes) {
  using Products = FewProducts<F, 2, 1, GateUpJob<F>>;
  extern __shared__ uint4 few_shared[];
  __shared__ float scratch[few_rows_scratch];
  auto* const rows = reinterpret_cast<unsigned char*>(few_shared);
  let_next_start();
  if (a.norm) bring_near(a.norm_weight, a.dim);
  wait_for_previous();
  if (a.list.groups == nullptr) bring_near(a.x + std::int64_t(int(blockIdx.y) / a.n_used) * a.dim, a.dim);
  FewSlot const found =
      a.list.groups == nullptr ? slot_by_id(a.list, int(blockIdx.y)) : slot_by_group(a.list, int(blockIdx.y), a.n_tokens * a.n_used);
  int const slot = found.slot;
  if (slot < 0) return;
  ExpertGroup const expert = *found.expert;
  GateUpJob<F> const job(a, expert, slot);
  bool const aligned = (offset_of_16(expert.gate) | offset_of_16(expert.up) | a.dim / F::block_elems * F::block_bytes % 16) == 0;
  Products products(job, part_begin(a.hidden_dim, blockIdx.x, gridDim.x), part_begin(a.hidden_dim, blockIdx.x + 1, gridDim.x), a.dim, split,
                    aligned ? Alignment::regular : Alignment::any, rows + rows_bytes + int(threadIdx.x) / 32 * Products::ring_bytes);
  products.start();
  FewSource source;
  source.x = a.x + std::int64_t(slot / a.n_used) * a.dim;
  source.norm_weight = a.norm_weight;
  source.n_rows = 1;
  source.dim = a.dim;
  source.eps = a.eps;
  source.norm = a.norm;
  FewLayout const layout = rows_apart<F>(a.dim);
  read_rows<F>(source, layout, rows, scratch);
  products.run(rows, layout, scratch);
}

/// Where an output row's weights are: `joined` short rows of neighbouring slots in a stage, or slices of one.
struct DownShape {
  std::int32_t first_place, n_places;  ///< of a token, in this launch; without slot_weights: 0 and 1
  std::int32_t joined, n_slices, rows_bytes;
};

/// A warp computes one output row after another, over all of its slots: one long sum, since slot weights are in the rows already.
template <class F>
class DownProducts {
 public:
  using Chunk = FewChunk<F>;
  static constexpr int slice_chunks = Chunk::stage_chunks * 2;
  static constexpr int stage_bytes = (Chunk::bytes(slice_chunks) + 30) / 16 * 16;
  static constexpr int n_stages = few_ring_bytes / stage_bytes > 2 ? few_ring_bytes / stage_bytes : 2;
  static constexpr int ring_bytes = n_stages * stage_bytes;
  static_assert(ring_bytes <= few_most_ring_bytes<F>);

  TIERED_HD static constexpr int segment_stride(int row_bytes) { return (row_bytes + 30) / 16 * 16; }

  /// downs: of each place its matrix [dim, hidden_dim], or null; in shared memory.
  __device__ DownProducts(DownShape const& shape, unsigned char const* const* downs, int dim, int hidden_dim, unsigned char* ring)
      : shape_(shape), downs_(downs), ring_(ring), hidden_dim_(hidden_dim) {
    row_bytes_ = hidden_dim / F::block_elems * F::block_bytes;
    matrix_bytes_ = std::int64_t(dim) * row_bytes_;
    chunks_ = few_chunks<F>(hidden_dim);
    stride_ = shape.joined > 1 ? segment_stride(row_bytes_) : 0;
    shared_ring_ = std::uint32_t(__cvta_generic_to_shared(ring)) + threadIdx.x % 32 * 16;
    int bits = row_bytes_ | int(matrix_bytes_);
    for (int i = 0; i < shape.n_places; ++i) {
      bits |= offset_of_16(downs[i]);
      present_ |= downs[i] != nullptr ? 1u << i : 0u;
    }
    aligned_ = bits % 16 == 0;
    row_ = ahead_row_ = part_begin(dim, blockIdx.x, gridDim.x) + int(threadIdx.x) / 32;
    end_ = part_begin(dim, blockIdx.x + 1, gridDim.x);
  }
  __device__ void start() {
#pragma unroll 1
    for (int i = 0; i < n_stages; ++i) fetch_next(i);
  }
  __device__ bool has_row() const { return row_ < end_; }
  __device__ int row() const { return row_; }

  /// The sum of row(), for all lanes; then the next row is at hand.
  __device__ __forceinline__ float next(unsigned char const* rows, FewLayout const& layout) {
    float sum = 0;
#pragma unroll 1
    for (int place = 0; place < shape_.n_places; place += shape_.joined) {
#pragma unroll 1
      for (int slice = 0; slice < shape_.n_slices; ++slice) {
        wait_copies<n_stages - 1>();
        __syncwarp();
        sum = add_stage(ring_ + stage_ * stage_bytes, place, slice, rows, layout, sum);
        __syncwarp();
        fetch_next(stage_);
        stage_ = stage_ + 1 == n_stages ? 0 : stage_ + 1;
      }
    }
    row_ += int(blockDim.x) / 32;
    return warp_sum(sum);
  }

 private:
  __device__ __forceinline__ void fetch_next(int stage) {
    if (ahead_row_ < end_) {
      int const from = ahead_slice_ * Chunk::bytes(slice_chunks), n_bytes = min(Chunk::bytes(slice_chunks), row_bytes_ - from);
      int const n = min(shape_.joined, shape_.n_places - ahead_place_);
#pragma unroll 1
      for (int i = 0; i < n; ++i) {
        unsigned char const* const down = downs_[ahead_place_ + i];
        if (down == nullptr) continue;
        unsigned char const* const begin = down + std::int64_t(ahead_row_) * row_bytes_ + from;
        bool const careful = !aligned_ && ends_near(begin, n_bytes, down + matrix_bytes_);
        fetch<Chunk::bytes(slice_chunks)>(shared_ring_ + unsigned(stage * stage_bytes + i * stride_), begin + threadIdx.x % 32 * 16,
                                          n_bytes, careful, down + matrix_bytes_);
      }
      if (++ahead_slice_ == shape_.n_slices) ahead_slice_ = 0, ahead_place_ += shape_.joined;
      if (ahead_place_ >= shape_.n_places) ahead_place_ = 0, ahead_row_ += int(blockDim.x) / 32;
    }
    commit_copies();
  }

  /// Chunks of the stage are numbered through its rows.
  __device__ __forceinline__ float add_stage(unsigned char const* stage, int place, int slice, unsigned char const* rows,
                                             FewLayout const& layout, float sum) {
    int const first = slice * slice_chunks;
    int const of_one = min(slice_chunks, chunks_ - first), n = min(shape_.joined, shape_.n_places - place) * of_one;
    int const low_bits = (row_ & 15) * row_bytes_ + slice * Chunk::bytes(slice_chunks);
    unsigned char const* const input = rows + place * layout.row_bytes + first * 16;
    unsigned char const* const scales = rows + 2 * layout.plane_bytes + place * layout.scale_row_bytes + first * 8;
    unsigned const inverse = 65536u / unsigned(of_one) + 1;  // i / of_one = i * inverse / 2^16, as i * of_one < 2^16
#pragma unroll 2
    for (int i = int(threadIdx.x) % 32; i < n; i += 32) {
      int const segment = int(unsigned(i) * inverse >> 16), chunk = i - segment * of_one;
      if ((present_ >> (place + segment) & 1u) == 0) continue;
      int const offset = aligned_ ? 0 : (offset_of_16(downs_[place + segment]) + low_bits) & 15;
      ChunkWeights<F> w;
      load_chunk<F>(stage + segment * stride_, offset, chunk, hidden_dim_ - (first + chunk) * Chunk::elems, w);
      sum = add_product<F>(w, load_input<F>(input, scales, layout.plane_bytes, segment * chunks_ + chunk), sum);
    }
    return sum;
  }

  DownShape const& shape_;
  unsigned char const* const* downs_;
  unsigned char* ring_;
  std::int64_t matrix_bytes_;
  int hidden_dim_, row_bytes_, chunks_, stride_, row_, ahead_row_, end_;
  int ahead_place_ = 0, ahead_slice_ = 0, stage_ = 0;
  std::uint32_t shared_ring_, present_ = 0;  ///< present_: a bit for each place that has an expert
  bool aligned_;                             ///< all rows begin, and matrices end, at multiples of 16
};

/// blockIdx.y: a token with slot_weights, else a place of the list.
template <class F>
__global__ void __launch_bounds__(few_threads, 2)
    few_down_kernel(__grid_constant__ FewDownArgs const a, __grid_constant__ DownShape const shape) {
  using Products = DownProducts<F>;
  extern __shared__ uint4 few_shared[];
  __shared__ float scratch[few_rows_scratch];
  __shared__ unsigned char const* downs[few_max_slots];
  __shared__ int first_slot;
  auto* const rows = reinterpret_cast<unsigned char*>(few_shared);
  bool const summed = a.slot_weights != nullptr;
  let_next_start();
  wait_for_previous();
  int const place = summed ? int(blockIdx.y) * a.n_used + shape.first_place : int(blockIdx.y);
  if (a.list.groups == nullptr) bring_near(a.h + std::int64_t(place) * a.hidden_dim, a.hidden_dim * shape.n_places);
  if (threadIdx.x < 32) {
    FewSlot const found =
        a.list.groups == nullptr ? slot_by_id(a.list, place + int(threadIdx.x)) : slot_by_group(a.list, place, a.n_tokens * a.n_used);
    if (int(threadIdx.x) < shape.n_places) {
      downs[threadIdx.x] = found.slot < 0 ? nullptr : static_cast<unsigned char const*>(found.expert->down);
    }
    if (threadIdx.x == 0) first_slot = summed ? place : found.slot;
  }
  __syncthreads();
  if (first_slot < 0) return;
  Products products(shape, downs, a.dim, a.hidden_dim, rows + shape.rows_bytes + int(threadIdx.x) / 32 * Products::ring_bytes);
  products.start();
  FewSource source;
  source.x = a.h + std::int64_t(first_slot) * a.hidden_dim;
  source.factors = summed ? a.slot_weights + first_slot : nullptr;
  source.n_rows = shape.n_places;
  source.dim = a.hidden_dim;
  FewLayout const layout = rows_joined<F>(a.hidden_dim, shape.n_places);
  read_rows<F>(source, layout, rows, scratch);
  float* const y = summed ? a.sum + std::int64_t(blockIdx.y) * a.dim : a.y + std::int64_t(first_slot) * a.dim;
  while (products.has_row()) {
    int const row = products.row();
    float const value = products.next(rows, layout);
    if (threadIdx.x % 32 == 0) y[row] = summed ? y[row] + value : value;
  }
}

/// Blocks to each of n_groups of so many rows.
inline int few_blocks_per_group(int n_groups, int n_rows, CudaQueue const& queue, int blocks_at_once) {
  int const most = min_of(min_of(n_rows, few_max_blocks_per_group), max_of(1, 8 * blocks_at_once * queue.n_multiprocessors / n_groups));
  int best = 1;
  float best_cost = 0;
  for (int n = 1; n <= most; ++n) {
    int const waves = ceil_div(n_groups * n, queue.n_multiprocessors * blocks_at_once);
    float const cost = float(waves) * (1.0f / float(n) + few_cost_of_wave);
    if (n == 1 || cost < best_cost) best = n, best_cost = cost;
  }
  return best;
}

}  // namespace detail

template <class F>
int few_gate_up(FewGateUpArgs const& a, Queue q) {
  using Products = detail::FewProducts<F, 2, 1, detail::GateUpJob<F>>;
  constexpr auto kernel = &detail::few_gate_up_kernel<F>;
  CudaQueue const& queue = native(q);
  if (a.list.n_slots == 0 || a.hidden_dim == 0) return 0;
  if (detail::OneRowLaunch const launch = detail::one_row_gate_up<F>(a, queue); launch.done) return launch.status;
  if (a.route.logits != nullptr) {
    if (int const status = route(a.route, q); status != 0) return status;
  }
  std::int64_t const rows_bytes = few_rows_bytes<F>(a.dim, 1);
  int const n_warps = detail::few_warps_beside(rows_bytes, Products::ring_bytes, queue);
  if (n_warps == 0) return int(cudaErrorInvalidConfiguration);
  if (int const status = detail::allow_few_shared<kernel>(queue); status != 0) return status;
  int const blocks = detail::few_blocks_per_group(a.list.n_slots, a.hidden_dim, queue, few_warps / n_warps);
  int const n_slices = ceil_div(few_chunks<F>(a.dim), FewChunk<F>::stage_chunks);
  int split = 1;
  while (split * 2 * ceil_div(a.hidden_dim, blocks) <= n_warps && split * 2 <= n_slices) split *= 2;
  std::size_t const shared = std::size_t(rows_bytes) + std::size_t(n_warps) * Products::ring_bytes;
  return launch_kernel(kernel, dim3(unsigned(blocks), unsigned(a.list.n_slots)), dim3(unsigned(n_warps) * 32), shared, queue, a, split,
                       int(rows_bytes));
}

/// Whether `down` may begin beside few_gate_up(): only its kernel for regular rows lets the next one start once the logits are there, and
/// chooses by them as that does; another way ranks probabilities, whose ties are others.
template <class F>
bool down_may_choose(FewGateUpArgs const& a, Queue q) {
  return a.route.logits != nullptr && a.hidden_dim > 0 && detail::shape_gate_up<F>(a, native(q)).n_warps > 0;
}

/// A token's slots that do not find room in shared memory together are added by launches one after another.
template <class F>
int few_down(FewDownArgs const& a, Queue q) {
  using Products = detail::DownProducts<F>;
  constexpr auto kernel = &detail::few_down_kernel<F>;
  CudaQueue const& queue = native(q);
  bool const summed = a.slot_weights != nullptr;
  int const n_groups = summed ? a.n_tokens : a.list.n_slots, n_used = summed ? a.n_used : 1;
  if (n_groups == 0 || n_used == 0 || a.dim == 0) return 0;
  if (detail::OneRowLaunch const launch = detail::one_row_down<F>(a, queue); launch.done) return launch.status;
  int at_once = min_of(n_used, few_max_slots);
  while (at_once > 1 && detail::few_warps_beside(few_rows_bytes<F>(a.hidden_dim, at_once), Products::ring_bytes, queue) < few_warps / 4) {
    at_once = ceil_div(at_once, 2);
  }
  std::int64_t const rows_bytes = few_rows_bytes<F>(a.hidden_dim, at_once);
  int const n_warps = detail::few_warps_beside(rows_bytes, Products::ring_bytes, queue);
  if (n_warps == 0) return int(cudaErrorInvalidConfiguration);
  if (int const status = detail::allow_few_shared<kernel>(queue); status != 0) return status;
  int const chunks = few_chunks<F>(a.hidden_dim), blocks = detail::few_blocks_per_group(n_groups, a.dim, queue, few_warps / n_warps);
  detail::DownShape shape{0, at_once, 1, ceil_div(chunks, Products::slice_chunks), std::int32_t(rows_bytes)};
  int const fit = Products::stage_bytes / Products::segment_stride(a.hidden_dim / F::block_elems * F::block_bytes);
  if (shape.n_slices == 1 && fit > 1) shape.joined = ceil_div(at_once, ceil_div(at_once, min_of(fit, at_once)));  // stages alike
  std::size_t const shared = std::size_t(rows_bytes) + std::size_t(n_warps) * Products::ring_bytes;
  for (; shape.first_place < n_used; shape.first_place += at_once) {
    shape.n_places = min_of(at_once, n_used - shape.first_place);
    int const status =
        launch_kernel(kernel, dim3(unsigned(blocks), unsigned(n_groups)), dim3(unsigned(n_warps) * 32), shared, queue, a, shape);
    if (status != 0) return status;
  }
  return 0;
}

}  // namespace tiered::cuda
