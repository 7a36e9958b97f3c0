/// Experts of few tokens, slot by slot, where rows of weights are multiples of 16 bytes: one_row.cuh for FewGateUpArgs and FewDownArgs. The
/// halves may choose the experts themselves. [device-visible]
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/few_route.cuh"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row.cuh"

namespace tiered::cuda {
namespace detail {

/// Byte by byte.
__device__ __noinline__ inline void fetch_bytes(unsigned char* stage, unsigned char const* from, int n_bytes) {
#pragma unroll 1
  for (int i = int(threadIdx.x) % 32; i < n_bytes; i += 32) stage[i] = __ldcg(from + i);  // an expert's slot may have held another
}
/// fetch_run() from where it is not known whether it is a multiple of 16.
__device__ __forceinline__ void fetch_run_checked(std::uint32_t to, unsigned char* stage, unsigned char const* from, int n_bytes) {
  if (offset_of_16(from) == 0) return fetch_run(to, from, n_bytes);
  fetch_bytes(stage, from, n_bytes);
}

/// Asks for n_bytes, a multiple of 16 at a multiple of 16, to come into L2; a warp calls.
__device__ __forceinline__ void bring_to_l2(unsigned char const* from, int n_bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  if (threadIdx.x % 32 == 0 && n_bytes > 0) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(n_bytes) : "memory");
  }
#elif defined(__CUDA_ARCH__)
  for (int at = int(threadIdx.x) % 32 * 128; at < n_bytes; at += 32 * 128) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(from + at)));
  }
#endif
}

/// A unit: two rows of gate and the same two of up, or one and one where it is the last.
template <class F>
class OneRowGateUpJob {
 public:
  __device__ __forceinline__ OneRowGateUpJob(FewGateUpArgs const& args, ExpertGroup const& expert, float* h, unsigned char* shared)
      : a_(args),
        gate_(static_cast<unsigned char const*>(expert.gate)),
        up_(static_cast<unsigned char const*>(expert.up)),
        h_(h),
        shared_(shared),
        row_bytes_(args.dim / F::block_elems * F::block_bytes) {}

  __device__ __forceinline__ void fetch(int unit, std::uint32_t to) const {
    std::int64_t const first = std::int64_t(unit) * 2 * row_bytes_;
    int const n_bytes = unit * 2 + 1 < a_.hidden_dim ? 2 * row_bytes_ : row_bytes_;
    unsigned char* const stage = shared_ + (to - std::uint32_t(__cvta_generic_to_shared(shared_)));
    fetch_run_checked(to, stage, gate_ + first, n_bytes);
    fetch_run_checked(to + unsigned(2 * row_bytes_), stage + 2 * row_bytes_, up_ + first, n_bytes);
  }
  __device__ __forceinline__ void finish(int unit, float value, int index) const {
    float const up = __shfl_xor_sync(~0u, value, 16);
    int const row = unit * 2 + index;
    if (threadIdx.x % 8 == 0 && index < 2 && row < a_.hidden_dim) h_[row] = gated_value(a_.activation, value, up);
  }

 private:
  FewGateUpArgs const& a_;
  unsigned char const *gate_, *up_;
  float* h_;
  unsigned char* shared_;
  int row_bytes_;
};

/// The warp's share of an expert's `down`, which the next kernel reads.
__device__ __forceinline__ void bring_down_near(FewGateUpArgs const& a, void const* down, int share_bytes) {
  if (share_bytes == 0 || offset_of_16(down) != 0) return;
  std::int64_t const begin = std::int64_t(int(blockIdx.x) * (int(blockDim.x) / 32) + int(threadIdx.x) / 32) * share_bytes;
  bring_to_l2(static_cast<unsigned char const*>(down) + begin, int(min_of(std::int64_t(share_bytes), a.down_bytes - begin)));
}

/// blockIdx.y: a slot's place; blockIdx.z: its token.
template <class F>
__global__ void TIERED_MOST_REGISTERS(one_row_gate_up_registers<F>, one_row_threads)
    one_row_gate_up_kernel(__grid_constant__ FewGateUpArgs const a, __grid_constant__ OneRowShape const shape, int share_bytes) {
  extern __shared__ uint4 few_shared[];
  __shared__ float squares[max_warps];
  auto* const shared = reinterpret_cast<unsigned char*>(few_shared);
  bool const chooses = a.route.logits != nullptr;
  if (!chooses) let_next_start();
  OneRowReader<one_row_steps_ahead<F>> reader(a.norm ? a.norm_weight : nullptr, a.dim);
  wait_for_previous();
  if (chooses) let_next_start();  // it reads the logits at once
  int const place = int(blockIdx.y), token = int(blockIdx.z), slot = token * a.n_used + place;
  reader.start(a.x + std::int64_t(token) * a.dim);
  ExpertGroup const* expert;
  if (chooses) {
    expert = choose_expert(a.route, a.list.weights, token, place);
  } else {
    int const id = a.list.ids[slot];
    if (unsigned(id) >= unsigned(a.list.n_experts)) return;
    expert = a.list.weights + id;
  }
  // One block's last warp for each token.
  bool const writes = chooses && (blockIdx.x | blockIdx.y) == 0 && threadIdx.x / 32 == blockDim.x / 32 - 1;
  if (expert->gate == nullptr) {  // computed elsewhere
    if (writes) write_choice(a.route, token);
    return;
  }
  OneRowGateUpJob<F> const job(a, *expert, a.h + std::int64_t(slot) * a.hidden_dim, shared);
  OneRowProducts<F, 4, OneRowGateUpJob<F>> products(job, shape, shared);
  products.start();
  bring_down_near(a, expert->down, share_bytes);
  if (writes) write_choice(a.route, token);
  run_one_row<F>(products, reader, shared, squares, a.dim, a.norm, a.eps);
}

/// Where the slots' matrices are, found by the logits, [n_used] in shared memory; the block calls, and waits before it reads them.
__device__ inline void find_downs(FewDownArgs const& a, int token, unsigned char const** downs) {
  choose_expert(a.route, a.list.weights, token, 0);
  int const lane = int(threadIdx.x);
  if (lane >= warp_size) return;
  PlacedExpert const placed = placed_expert(a.n_used);
  if (lane < a.n_used) downs[placed.place] = static_cast<unsigned char const*>(few_choice().experts[lane].down);
}

/// The same by a list of ids; the lane's slot's matrix, null where it has none. The block need not wait.
__device__ __forceinline__ unsigned char const* listed_down(FewDownArgs const& a, std::int64_t token, unsigned char const** downs) {
  int const lane = int(threadIdx.x) % 32;
  unsigned char const* down = nullptr;
  if (lane < a.n_used) {
    int const id = a.list.ids[token * a.n_used + lane];
    if (unsigned(id) < unsigned(a.list.n_experts)) down = static_cast<unsigned char const*>(a.list.weights[id].down);
    if (threadIdx.x / 32 == 0) downs[lane] = down;
  }
  __syncthreads();
  return down;
}

/// A token's activations, those of all slots as one long row, each slot's times its weight; a thread asks for its first ones early.
template <class F>
class SlotActivations {
 public:
  static constexpr int ahead = one_row_steps_ahead<F>;

  __device__ __forceinline__ SlotActivations(float const* h, int n_elems) : h_(h), n_fours_(n_elems / 4) {}
  __device__ __forceinline__ void start() {
#pragma unroll
    for (int i = 0; i < ahead; ++i) next_[i] = load(int(threadIdx.x) + i * int(blockDim.x));
  }
  /// The block calls. Lane i has the weight of slot i; those that are not `present` have zeros. `inverse`: 2^32 over a slot's fours.
  __device__ __forceinline__ void put(OneRow const& row, unsigned present, float weight, unsigned inverse) {
    int const lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warps = int(blockDim.x) / 32;
#pragma unroll 1
    for (int begin = warp * 32; begin < n_fours_; begin += ahead * n_warps * 32) {
#pragma unroll
      for (int i = 0; i < ahead; ++i) {
        int const first = begin + i * n_warps * 32, four = first + lane;
        if (first >= n_fours_) break;
        bool const inside = four < n_fours_;
        int const slot = inside ? int(__umulhi(unsigned(four), inverse)) : 0;
        bool const has_expert = inside && (present >> slot & 1u) != 0;
        float4 const v = has_expert ? next_[i] : make_float4(0, 0, 0, 0);
        next_[i] = load(four + ahead * n_warps * 32);
        float const factor = __shfl_sync(~0u, weight, slot);
        put_four<F>(row, four, inside, v, has_expert ? factor : 0.0f);
      }
    }
  }

 private:
  __device__ __forceinline__ float4 load(int four) const {
    return four < n_fours_ ? reinterpret_cast<float4 const*>(h_)[four] : make_float4(0, 0, 0, 0);
  }
  float const* h_;
  int n_fours_;
  float4 next_[ahead];
};

/// Zeros in a warp's stage of n_bytes.
__device__ __forceinline__ void clear_stage(unsigned char* stage, int n_bytes) {
  for (int i = int(threadIdx.x) % 32 * 16; i < n_bytes; i += 512) *reinterpret_cast<uint4*>(stage + i) = uint4{0, 0, 0, 0};
  __syncwarp();
}

/// Blocks of the token, each with a run of neighbouring rows; all slots of a row are one long row, as slot weights are in the activations.
/// Where the router's logits are there, each block chooses for itself, and has weights under way, while gate and up are computed.
template <class F>
__global__ void TIERED_MOST_REGISTERS(one_row_down_registers<F>, one_row_threads)
    one_row_down_kernel(__grid_constant__ FewDownArgs const a, __grid_constant__ OneRowShape const shape, unsigned inverse) {
  extern __shared__ uint4 few_shared[];
  __shared__ unsigned char const* downs[few_max_slots];
  auto* const shared = reinterpret_cast<unsigned char*>(few_shared);
  int const lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warps = int(blockDim.x) / 32;
  int const row_bytes = a.hidden_dim / F::block_elems * F::block_bytes, n_elems = a.n_used * a.hidden_dim;
  std::int64_t const token = blockIdx.y;
  let_next_start();
  SlotActivations<F> activations(a.h + token * n_elems, n_elems);
  bool const chooses = a.route.logits != nullptr;
  // Each warp knows all slots' experts in its lanes, so that none waits for another.
  unsigned char const* down = nullptr;
  if (chooses) {
    find_downs(a, int(token), downs);
    __syncthreads();
    if (lane < a.n_used) down = downs[lane];
  } else {
    wait_for_previous();
    activations.start();
    down = listed_down(a, token, downs);
  }
  unsigned const present = __ballot_sync(~0u, down != nullptr);
  int row = shape.begin() + warp;
  int const end = shape.end();
  unsigned char* const stage = shared + shape.rows_bytes + warp * shape.stage_bytes;
  std::uint32_t const to = std::uint32_t(__cvta_generic_to_shared(stage));
  auto const fetch = [&] {
#pragma unroll 1
    for (int i = 0; i < a.n_used && row < end; ++i) {
      if ((present >> i & 1u) == 0) continue;
      fetch_run_checked(to + unsigned(i * row_bytes), stage + i * row_bytes, downs[i] + std::int64_t(row) * row_bytes, row_bytes);
    }
    commit_copies();
  };
  if (present != ~0u >> (32 - a.n_used)) clear_stage(stage, shape.stage_bytes);  // slots without an expert: zeros times zeros
  fetch();
  if (chooses) {
    wait_for_previous();
    activations.start();
  }
  float const weight = lane < a.n_used ? a.slot_weights[token * a.n_used + lane] : 0.0f;
  OneRow const input = one_row<F>(shared, n_elems);
  activations.put(input, present, weight, inverse);
  __syncthreads();
  float* const sum = a.sum + token * a.dim;
  while (row < end) {
    wait_copies<0>();
    __syncwarp();
    float products[1] = {};
    add_pieces<F>([&](int) { return stage; }, input, 0, input.n_pieces, products);
    int const done = row;
    row += n_warps;
    __syncwarp();
    fetch();
    float const value = warp_sum(products[0]);
    if (lane == 0) sum[done] += value;
  }
}

/// Blocks to each of n_groups of so many units: the last wave should be full, but each further block computes its rows anew.
inline int one_row_blocks_per_group(int n_groups, int n_units, CudaQueue const& queue) {
  int const most = min_of(min_of(n_units, few_max_blocks_per_group), max_of(1, 4 * queue.n_multiprocessors / n_groups));
  int best = 1;
  float best_cost = 0;
  for (int n = 1; n <= most; ++n) {
    int const waves = ceil_div(n_groups * n, queue.n_multiprocessors);
    float const cost = float(waves) * (1.0f / float(n) + few_cost_of_wave);
    if (n == 1 || cost < best_cost) best = n, best_cost = cost;
  }
  return best;
}

/// One row's gate and up: n_warps 0 where rows of weights are irregular, or so long that stages do not fit, or slots come by groups.
struct OneRowGateUp {
  std::int64_t rows_bytes = 0, stage_bytes = 0;
  int blocks = 0, n_warps = 0;
};
template <class F>
OneRowGateUp shape_gate_up(FewGateUpArgs const& a, CudaQueue const& queue) {
  OneRowGateUp s;
  std::uintptr_t const bits = reinterpret_cast<std::uintptr_t>(a.x) | reinterpret_cast<std::uintptr_t>(a.norm_weight);
  if (a.list.groups != nullptr || a.list.n_slots != a.n_tokens * a.n_used || !is_regular<F>(a.dim, bits)) return s;
  std::int32_t const n_units = ceil_div(a.hidden_dim, 2);
  s.rows_bytes = few_rows_bytes<F>(a.dim, 1);
  s.stage_bytes = std::int64_t(a.dim) / F::block_elems * F::block_bytes * 4;
  s.blocks = one_row_blocks_per_group(a.list.n_slots, n_units, queue);
  s.n_warps = one_row_warps_for(ceil_div(n_units, s.blocks), s.rows_bytes, s.stage_bytes, queue);
  return s;
}

/// `done` false: see shape_gate_up().
template <class F>
OneRowLaunch one_row_gate_up(FewGateUpArgs const& a, CudaQueue const& queue) {
  constexpr auto kernel = &one_row_gate_up_kernel<F>;
  OneRowGateUp const s = shape_gate_up<F>(a, queue);
  if (s.n_warps == 0) return {false, 0};
  if (int const status = allow_few_shared<kernel>(queue); status != 0) return {true, status};
  OneRowShape const shape = one_row_shape(ceil_div(a.hidden_dim, 2), s.blocks, s.rows_bytes, s.stage_bytes, 4);
  int const share_bytes = int(ceil_div(a.down_bytes / 16, std::int64_t(s.blocks) * s.n_warps) * 16);
  dim3 const grid(unsigned(s.blocks), unsigned(a.n_used), unsigned(a.n_tokens));
  return {true, launch_kernel(kernel, grid, dim3(unsigned(s.n_warps) * 32), std::size_t(s.rows_bytes + s.n_warps * s.stage_bytes), queue, a,
                              shape, share_bytes)};
}

template <class F>
OneRowLaunch one_row_down(FewDownArgs const& a, CudaQueue const& queue) {
  constexpr auto kernel = &one_row_down_kernel<F>;
  std::int64_t const n_elems = std::int64_t(a.hidden_dim) * a.n_used;
  if (a.slot_weights == nullptr || a.n_used > few_max_slots || a.hidden_dim < 8 || n_elems > 65536 ||
      !is_regular<F>(a.hidden_dim, reinterpret_cast<std::uintptr_t>(a.h))) {
    return {false, 0};
  }
  std::int64_t const rows_bytes = few_rows_bytes<F>(n_elems, 1);
  std::int64_t const stage_bytes = n_elems / F::block_elems * F::block_bytes;
  int const blocks = one_row_blocks_per_group(a.n_tokens, a.dim, queue);
  int const n_warps = one_row_warps_for(ceil_div(a.dim, blocks), rows_bytes, stage_bytes, queue);
  if (n_warps == 0) return {false, 0};
  if (int const status = allow_few_shared<kernel>(queue); status != 0) return {true, status};
  OneRowShape const shape = one_row_shape(a.dim, blocks, rows_bytes, stage_bytes, 1);
  unsigned const fours = unsigned(a.hidden_dim / 4), inverse = unsigned((std::uint64_t{1} << 32) / fours + 1);
  dim3 const grid(unsigned(blocks), unsigned(a.n_tokens));
  return {true, launch_kernel(kernel, grid, dim3(unsigned(n_warps) * 32), std::size_t(rows_bytes + n_warps * stage_bytes), queue, a, shape,
                              inverse)};
}

}  // namespace detail
}  // namespace tiered::cuda
