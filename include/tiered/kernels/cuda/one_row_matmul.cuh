/// FusedMatmulArgs for one row with regular weights, and for few rows with so few floats that each block has one row of them (routers).
/// Both have all of their first weights under way before the previous kernel is complete. [device-visible]
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row.cuh"
#include "tiered/kernels/cuda/one_row_slices.cuh"
#include "tiered/kernels/cuda/one_row_steps.cuh"

namespace tiered::cuda {
namespace detail {

/// Bytes of a stage that n_rows neighbouring rows take, in all.
template <class F>
TIERED_HD constexpr std::int64_t one_row_run_bytes(std::int64_t n_rows, std::int64_t row_bytes) {
  return is_shifted<F> ? round_up(n_rows * row_bytes + 15, std::int64_t(16)) : n_rows * row_bytes;
}

/// A unit: n_rows rows of one part, those there are; or, where `gate`, half as many of gate and the same ones of up.
template <class F, int n_rows, bool gate>
class OneRowJob {
 public:
  static constexpr int half = gate ? n_rows / 2 : n_rows;

  __device__ __forceinline__ explicit OneRowJob(FusedMatmulArgs const& args)
      : a_(args), row_bytes_(args.dim / F::block_elems * F::block_bytes) {}

  __device__ __forceinline__ void fetch(int unit, std::uint32_t to) const {
    int const part = locate(unit);
    std::int64_t const first = std::int64_t(unit) * half;
    int const n_bytes = int(min_of(std::int64_t(half), a_.parts[part].rows - first)) * row_bytes_;
    fetch_rows(to, static_cast<unsigned char const*>(a_.parts[part].w) + first * row_bytes_, n_bytes);
    if constexpr (gate) fetch_rows(to + run_bytes(), static_cast<unsigned char const*>(a_.parts[1].w) + first * row_bytes_, n_bytes);
  }
  __device__ __forceinline__ int begin_in_stage(int unit, int r) const {
    return r / half * int(run_bytes()) + int(low_bits(unit, r / half * half)) + r % half * row_bytes_;
  }

  __device__ __forceinline__ int row_bytes() const { return row_bytes_; }
  __device__ __forceinline__ void find(int unit, unsigned char const* (&from)[n_rows]) const {
    int const part = locate(unit);
#pragma unroll
    for (int r = 0; r < n_rows; ++r) {
      FusedMatmulArgs::Part const& of = a_.parts[gate ? r / half : part];
      std::int64_t const row = std::int64_t(unit) * half + r % half;
      from[r] = row < of.rows ? static_cast<unsigned char const*>(of.w) + row * row_bytes_ : nullptr;
    }
  }

  __device__ __forceinline__ void find_any(int unit, unsigned char const* (&from)[n_rows]) const {
    int const part = locate(unit);
#pragma unroll
    for (int r = 0; r < n_rows; ++r) {
      FusedMatmulArgs::Part const& of = a_.parts[gate ? r / half : part];
      from[r] = static_cast<unsigned char const*>(of.w) + std::int64_t(min(unit * half + r % half, of.rows - 1)) * row_bytes_;
    }
  }
  __device__ __forceinline__ unsigned low_bits(int unit, int r) const {
    int const part = locate(unit);
    auto const begin = unsigned(reinterpret_cast<std::uintptr_t>(a_.parts[gate ? r / half : part].w));
    return (begin + unsigned(unit * half + r % half) * unsigned(row_bytes_)) & 15u;
  }

  __device__ __forceinline__ void finish(int unit, float value, int index) const {
    bool const leads = int(threadIdx.x) % (32 / n_rows) == 0;
    if constexpr (gate) {
      float const up = __shfl_xor_sync(~0u, value, 16);
      int const row = unit * half + index;
      if (leads && index < half && row < a_.parts[0].rows) a_.parts[0].y[row] = gated_value(a_.activation, value, up);
    } else {
      FusedMatmulArgs::Part const& part = a_.parts[locate(unit)];
      int const row = unit * half + index;
      if (!leads || row >= part.rows) return;
      if (part.bias != nullptr) value += part.bias[row];
      part.y[row] = a_.then == FusedMatmulArgs::Then::add ? part.y[row] + value : value;
    }
  }

 private:
  __device__ __forceinline__ unsigned run_bytes() const { return unsigned(one_row_run_bytes<F>(half, row_bytes_)); }
  __device__ static __forceinline__ void fetch_rows(std::uint32_t to, unsigned char const* from, int n_bytes) {
    if constexpr (is_shifted<F>) {
      fetch_shifted_run(to, from, n_bytes);
    } else {
      fetch_run(to, from, n_bytes);
    }
  }
  /// A unit's part; then `unit` counts from the part's first.
  __device__ __forceinline__ int locate(int& unit) const {
    int part = 0;
    if constexpr (!gate) {
#pragma unroll
      for (int i = 0; i + 1 < FusedMatmulArgs::max_parts; ++i) {
        int const n = ceil_div(a_.parts[i].rows, n_rows);
        bool const behind = part == i && i + 1 < a_.n_parts && unit >= n;
        unit -= behind ? n : 0;
        part += behind ? 1 : 0;
      }
    }
    return part;
  }

  FusedMatmulArgs const& a_;
  int row_bytes_;
};

/// How rows of weights come.
enum class OneRowWay : std::uint8_t { whole, slices, steps };

template <class F, int n_rows, OneRowWay way, class Job>
using OneRowProductsOf =
    std::conditional_t<way == OneRowWay::whole, OneRowProducts<F, n_rows, Job>,
                       std::conditional_t<way == OneRowWay::slices, OneRowSlices<F, n_rows, Job>, OneRowSteps<F, n_rows, Job>>>;
template <class F, int n_rows, OneRowWay way>
inline constexpr int one_row_registers_of = way == OneRowWay::whole    ? one_row_registers<F>(n_rows)
                                            : way == OneRowWay::slices ? one_row_slices_registers(n_rows)
                                                                       : one_row_step_registers<F>;

template <class F, int n_rows, bool gate, OneRowWay way>
__global__ void TIERED_MOST_REGISTERS((one_row_registers_of<F, n_rows, way>), one_row_threads)
    one_row_matmul_kernel(__grid_constant__ FusedMatmulArgs const a, __grid_constant__ OneRowShape const shape) {
  extern __shared__ uint4 few_shared[];
  __shared__ float squares[max_warps];
  auto* const shared = reinterpret_cast<unsigned char*>(few_shared);
  let_next_start();
  using Job = OneRowJob<F, n_rows, gate>;
  Job const job(a);
  OneRowProductsOf<F, n_rows, way, Job> products(job, shape, shared);
  products.start();
  OneRowReader<one_row_steps_ahead<F>> reader(a.norm ? a.norm_weight : nullptr, a.dim);
  wait_for_previous();
  reader.start(a.x);
  run_one_row<F>(products, reader, shared, squares, a.dim, a.norm, a.eps);
}

template <int n_rows, bool gate>
std::int64_t one_row_units(FusedMatmulArgs const& a) {
  std::int64_t n_units = 0;
  for (int i = 0; i < (gate ? 1 : a.n_parts); ++i) n_units += ceil_div(a.parts[i].rows, gate ? n_rows / 2 : n_rows);
  return n_units;
}

template <class F, int n_rows, bool gate>
OneRowLaunch launch_one_row_matmul(FusedMatmulArgs const& a, CudaQueue const& queue) {
  constexpr auto kernel = &one_row_matmul_kernel<F, n_rows, gate, OneRowWay::whole>;
  std::int64_t const n_units = one_row_units<n_rows, gate>(a);
  if (n_units == 0) return {true, 0};
  std::int64_t const rows_bytes = few_rows_bytes<F>(a.dim, 1);
  constexpr int n_runs = gate ? 2 : 1;
  std::int64_t const stage_bytes = n_runs * one_row_run_bytes<F>(n_rows / n_runs, std::int64_t(a.dim) / F::block_elems * F::block_bytes);
  std::int64_t const blocks = min_of(n_units, std::int64_t(queue.n_multiprocessors));
  std::int64_t const per_block = ceil_div(n_units, blocks);
  int const n_stages = one_row_stages_for(per_block, rows_bytes, stage_bytes, queue);
  int const n_warps = one_row_warps_for(per_block, rows_bytes, n_stages * stage_bytes, queue);
  if (n_warps == 0) return {false, 0};
  if (int const status = allow_few_shared<kernel>(queue); status != 0) return {true, status};
  OneRowShape const shape = one_row_shape(n_units, blocks, rows_bytes, stage_bytes, n_rows, n_stages);
  std::size_t const shared = std::size_t(rows_bytes + n_warps * n_stages * stage_bytes);
  return {true, launch_kernel(kernel, dim3(unsigned(blocks)), dim3(unsigned(n_warps) * 32), shared, queue, a, shape)};
}

template <class F, int n_rows, bool gate>
OneRowLaunch launch_one_row_slices(FusedMatmulArgs const& a, CudaQueue const& queue) {
  constexpr auto kernel = &one_row_matmul_kernel<F, n_rows, gate, OneRowWay::slices>;
  std::int64_t const n_units = one_row_units<n_rows, gate>(a);
  if (n_units == 0) return {true, 0};
  std::int64_t const blocks = min_of(n_units, std::int64_t(queue.n_multiprocessors)), rows_bytes = few_rows_bytes<F>(a.dim, 1);
  OneRowCut const cut = one_row_slices_for<F>(ceil_div(n_units, blocks), n_rows, a.dim, queue);
  if (cut.n_warps == 0) return {false, 0};
  if (int const status = allow_few_shared<kernel>(queue); status != 0) return {true, status};
  OneRowShape const shape = one_row_shape(n_units, blocks, rows_bytes, cut.stage_bytes, n_rows, one_row_slice_stages);
  std::size_t const shared = std::size_t(rows_bytes + cut.n_warps * one_row_slice_stages * cut.stage_bytes);
  return {true, launch_kernel(kernel, dim3(unsigned(blocks)), dim3(unsigned(cut.n_warps) * 32), shared, queue, a, shape)};
}

/// F may be Shifted or AnyAddress.
template <class F, bool gate>
OneRowLaunch launch_one_row_steps(FusedMatmulArgs const& a, CudaQueue const& queue) {
  constexpr int n_rows = one_row_step_rows<F>;
  constexpr auto kernel = &one_row_matmul_kernel<F, n_rows, gate, OneRowWay::steps>;
  constexpr std::int64_t stage_bytes = n_rows * one_row_step_part_bytes<F>, ring_bytes = one_row_step_stages * stage_bytes;
  std::int64_t const n_units = one_row_units<n_rows, gate>(a);
  if (n_units == 0) return {true, 0};
  std::int64_t const blocks = min_of(n_units, std::int64_t(queue.n_multiprocessors)), rows_bytes = few_rows_bytes<F>(a.dim, 1);
  constexpr int most = one_row_step_warps<F>;
  int n_warps = one_row_warps_for(ceil_div(n_units, blocks), rows_bytes, ring_bytes, queue, most);
  if (n_warps == 0) return {false, 0};
  // Each of a multiprocessor's four schedulers as many: unpacking is most of the work.
  std::int64_t const room = few_dynamic_bytes(shared_bytes_limit(queue.capability)) - rows_bytes;
  int const more = round_up(n_warps, 4), fewer = n_warps / 4 * 4;
  if (more * ring_bytes <= room) {
    n_warps = more;
  } else if (fewer > 0 && ceil_div(n_units, blocks) >= 4 * fewer) {
    n_warps = fewer;
  }
  if (int const status = allow_few_shared<kernel>(queue); status != 0) return {true, status};
  OneRowShape const shape = one_row_shape(n_units, blocks, rows_bytes, stage_bytes, n_rows, one_row_step_stages);
  std::size_t const shared = std::size_t(rows_bytes + n_warps * ring_bytes);
  return {true, launch_kernel(kernel, dim3(unsigned(blocks)), dim3(unsigned(n_warps) * 32), shared, queue, a, shape)};
}
template <class F>
OneRowLaunch one_row_steps(FusedMatmulArgs const& a, CudaQueue const& queue) {
  return a.then == FusedMatmulArgs::Then::gate ? launch_one_row_steps<F, true>(a, queue) : launch_one_row_steps<F, false>(a, queue);
}

template <class F>
OneRowLaunch one_row_floats(FusedMatmulArgs const& a, std::int64_t n_all, CudaQueue const& queue) {
  if (a.then == FusedMatmulArgs::Then::gate) return launch_one_row_slices<F, 2, true>(a, queue);
  return ceil_div(n_all, std::int64_t(queue.n_multiprocessors)) >= one_row_slices_from_two ? launch_one_row_slices<F, 2, false>(a, queue)
                                                                                           : launch_one_row_slices<F, 1, false>(a, queue);
}

/// Rows of weights that a warp takes at a time, of `n_all`: two only where that leaves no warp without room.
template <class F>
int one_row_rows_at_a_time(std::int64_t n_all, std::int64_t dim, CudaQueue const& queue) {
  std::int64_t const per_block = ceil_div(n_all, std::int64_t(queue.n_multiprocessors));
  if (per_block < one_row_from_two) return 1;
  if (one_row_takes_four<F> && per_block >= one_row_from_four) return 4;
  std::int64_t const room = few_dynamic_bytes(shared_bytes_limit(queue.capability)) - few_rows_bytes<F>(dim, 1);
  std::int64_t const warps = min_of(ceil_div(per_block, std::int64_t(2)), std::int64_t(one_row_warps));
  return warps * 2 * (dim / F::block_elems * F::block_bytes) <= room ? 2 : 1;
}

/// Whether regular rows that a warp takes n_rows of at a time had better come by steps.
template <class F>
bool one_row_prefers_steps(int n_rows, std::int64_t n_all, std::int64_t dim, CudaQueue const& queue) {
  if (one_row_always_in_steps<F>) return n_rows == one_row_step_rows<F>;
  if (ceil_div(n_all, std::int64_t(queue.n_multiprocessors)) < one_row_steps_from<F>) return false;
  std::int64_t const room = few_dynamic_bytes(shared_bytes_limit(queue.capability)) - few_rows_bytes<F>(dim, 1);
  return room / (2 * n_rows * (dim / F::block_elems * F::block_bytes)) < one_row_least_warps_of_two;
}

/// One or two whole rows of weights at a time. F may be Shifted or AnyAddress.
template <class F>
OneRowLaunch one_row_whole(FusedMatmulArgs const& a, int n_rows, CudaQueue const& queue) {
  if (a.then == FusedMatmulArgs::Then::gate) return launch_one_row_matmul<F, 2, true>(a, queue);
  OneRowLaunch launch{false, 0};
  if (n_rows >= 2) launch = launch_one_row_matmul<F, 2, false>(a, queue);
  return launch.done ? launch : launch_one_row_matmul<F, 1, false>(a, queue);
}

template <class F>
OneRowLaunch one_row_blocks(FusedMatmulArgs const& a, std::int64_t n_all, CudaQueue const& queue) {
  bool const gate = a.then == FusedMatmulArgs::Then::gate;
  int const n_rows = one_row_rows_at_a_time<F>(n_all, a.dim, queue);
  OneRowLaunch launch{false, 0};
  if constexpr (one_row_always_in_steps<F> || one_row_long_in_steps<F>) {
    if (one_row_prefers_steps<F>(n_rows, n_all, a.dim, queue)) launch = one_row_steps<F>(a, queue);
  }
  if (launch.done) return launch;
  if constexpr (one_row_takes_four<F> && !one_row_always_in_steps<F>) {
    if (n_rows == 4) launch = gate ? launch_one_row_matmul<F, 4, true>(a, queue) : launch_one_row_matmul<F, 4, false>(a, queue);
  }
  return launch.done ? launch : one_row_whole<F>(a, n_rows, queue);
}

/// Rows of weights that begin anywhere, of formats that come by steps if there are many. `bits`: of where they begin, and from row to row.
template <class F>
OneRowLaunch one_row_any_address(FusedMatmulArgs const& a, std::int64_t n_all, std::uintptr_t bits, CudaQueue const& queue) {
  if constexpr (one_row_step_rows<F> != 0) {
    constexpr bool in_words = F::block_bytes % 4 == 0;  // every block, of eight bytes where F's product reads so much at a time
    bool const begin_so = bits % (in_words && F::block_bytes % 8 == 0 ? 8 : 4) == 0;
    if ((in_words && !begin_so) || bits % 2 != 0) return {false, 0};
    using Any = std::conditional_t<in_words, Shifted<F>, AnyAddress<F>>;
    OneRowLaunch launch{false, 0};
    if (ceil_div(n_all, std::int64_t(queue.n_multiprocessors)) >= one_row_steps_from<F>) {
      if constexpr (one_row_always_in_steps<F>) {
        if (begin_so) launch = one_row_steps<Shifted<F>>(a, queue);
      }
      if (!launch.done) launch = one_row_steps<Any>(a, queue);
    }
    return launch.done ? launch : one_row_whole<Any>(a, one_row_rows_at_a_time<F>(n_all, a.dim, queue), queue);
  } else {
    return {false, 0};
  }
}

/// `done` false: weights are irregular, or rows so long that there is no room for stages.
template <class F>
OneRowLaunch one_row_matmul(FusedMatmulArgs const& a, CudaQueue const& queue) {
  std::uintptr_t const rows = reinterpret_cast<std::uintptr_t>(a.x) | reinterpret_cast<std::uintptr_t>(a.norm_weight);
  std::uintptr_t bits = std::uintptr_t(a.dim / F::block_elems * F::block_bytes);
  std::int64_t n_all = 0;
  for (int i = 0; i < a.n_parts; ++i) bits |= reinterpret_cast<std::uintptr_t>(a.parts[i].w), n_all += a.parts[i].rows;
  if (a.n_tokens != 1) return {false, 0};
  if (!is_regular<F>(a.dim, bits | rows)) return rows % 16 == 0 ? one_row_any_address<F>(a, n_all, bits, queue) : OneRowLaunch{false, 0};
  if constexpr (F::block_elems == 1) {
    return one_row_floats<F>(a, n_all, queue);
  } else {
    return one_row_blocks<F>(a, n_all, queue);
  }
}

/// Routers: a thread has up to float_row_chunks chunks of a row of weights in registers.
inline constexpr int float_row_threads = 512, float_row_chunks = 2, float_row_warps = float_row_threads / 32;
inline constexpr int float_row_most = 4;  ///< rows of weights to a multiprocessor

/// One row of weights with all tokens; the whole block, from its begin to its end.
template <class F>
__device__ __forceinline__ void float_row(FusedMatmulArgs const& a, std::int64_t row) {
  constexpr int elems = FewChunk<F>::elems;
  __shared__ float2 partial[fused_rows][float_row_warps];  // product and sum of squares
  int const lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warps = int(blockDim.x) / 32, n_chunks = a.dim / elems;
  let_next_start();
  FloatChunk<F> w[float_row_chunks];
#pragma unroll
  for (int i = 0; i < float_row_chunks; ++i) {
    int const chunk = int(threadIdx.x) + i * int(blockDim.x);
    uint4 const four = chunk < n_chunks ? static_cast<uint4 const*>(a.parts[0].w)[row * n_chunks + chunk] : uint4{0, 0, 0, 0};
    std::uint32_t const words[4] = {four.x, four.y, four.z, four.w};
    to_floats<F>(words, w[i]);
  }
  wait_for_previous();
  for (int t = 0; t < a.n_tokens; ++t) {
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < float_row_chunks; ++i) {
      int const chunk = int(threadIdx.x) + i * int(blockDim.x);
      if (chunk >= n_chunks) continue;
      auto const* const x = reinterpret_cast<float4 const*>(a.x + std::int64_t(t) * a.dim + chunk * elems);
      auto const* const norm =
          reinterpret_cast<float4 const*>(a.norm && a.norm_weight != nullptr ? a.norm_weight + chunk * elems : nullptr);
#pragma unroll
      for (int k = 0; k < elems / 4; ++k) {
        float4 v = x[k];
        squares += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
        if (norm != nullptr) v = make_float4(v.x * norm[k].x, v.y * norm[k].y, v.z * norm[k].z, v.w * norm[k].w);
        sum += w[i].w[4 * k] * v.x + w[i].w[4 * k + 1] * v.y + (w[i].w[4 * k + 2] * v.z + w[i].w[4 * k + 3] * v.w);
      }
    }
    float const both[2] = {sum, squares};
    float const value = sum_over_lanes(both);
    if (lane % 16 == 0) (lane == 0 ? partial[t][warp].x : partial[t][warp].y) = value;
  }
  __syncthreads();
  for (int t = warp; t < a.n_tokens; t += n_warps) {
    float2 const mine = lane < n_warps ? partial[t][lane] : make_float2(0, 0);
    float const both[2] = {mine.x, mine.y};
    float value = sum_over_lanes(both);
    float const squares = __shfl_xor_sync(~0u, value, 16);
    if (lane != 0) continue;
    if (a.norm) value *= rsqrtf(squares / float(a.dim) + a.eps);
    if (a.parts[0].bias != nullptr) value += a.parts[0].bias[row];
    float* const y = a.parts[0].y + t * a.parts[0].y_stride + row;
    *y = a.then == FusedMatmulArgs::Then::add ? *y + value : value;
  }
}

template <class F>
__global__ void __launch_bounds__(float_row_threads) float_row_kernel(__grid_constant__ FusedMatmulArgs const a) {
  float_row<F>(a, blockIdx.x);
}

template <class F>
bool takes_float_rows(FusedMatmulArgs const& a, CudaQueue const& queue) {
  std::uintptr_t const bits = reinterpret_cast<std::uintptr_t>(a.x) | reinterpret_cast<std::uintptr_t>(a.norm_weight) |
                              reinterpret_cast<std::uintptr_t>(a.parts[0].w);
  return a.n_parts == 1 && a.then != FusedMatmulArgs::Then::gate && a.parts[0].rows <= float_row_most * queue.n_multiprocessors &&
         a.n_tokens <= fused_rows && a.dim / FewChunk<F>::elems <= float_row_threads * float_row_chunks && is_regular<F>(a.dim, bits);
}

template <class F>
OneRowLaunch float_row_matmul(FusedMatmulArgs const& a, CudaQueue const& queue) {
  if constexpr (FewChunk<F>::blocks) {
    return {false, 0};
  } else {
    std::int32_t const n_rows = a.parts[0].rows, n_chunks = a.dim / FewChunk<F>::elems;
    if (!takes_float_rows<F>(a, queue)) return {false, 0};
    if (n_rows == 0) return {true, 0};
    constexpr auto kernel = &float_row_kernel<F>;
    constexpr Carveout carveout = overlap_small_kernels ? Carveout::most_shared : Carveout::chosen;
    if (int const status = allow_shared_memory<kernel>(0, queue, carveout); status != 0) return {true, status};
    int const threads = min_of(round_up(n_chunks, 32), float_row_threads);
    return {true, launch_kernel(kernel, dim3(unsigned(n_rows)), dim3(unsigned(threads)), 0, queue, a)};
  }
}

}  // namespace detail
}  // namespace tiered::cuda
