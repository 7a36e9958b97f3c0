/// Products of up to 16 rows with weights of one format, in one launch: rows are normed and quantised inside. [device-visible]
///
/// Bound by DRAM: each weight is read once. About one block to a multiprocessor, each with a run of neighbouring rows of weights; its
/// warps have their first stages under way before the previous kernel is complete.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/few_mma.cuh"
#include "tiered/kernels/cuda/few_rows.cuh"
#include "tiered/kernels/cuda/few_stages.cuh"
#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row_matmul.cuh"

namespace tiered::cuda {
namespace detail {

/// How a launch is cut.
struct FusedShape {
  std::int32_t n_units, split, rows_bytes;
  Alignment alignment;
};

template <class F>
Alignment alignment_of(FusedMatmulArgs const& a, int n_segments) {
  std::uintptr_t bits = std::uintptr_t(a.dim / F::block_elems * F::block_bytes);
  for (int i = 0; i < a.n_parts; ++i) bits |= reinterpret_cast<std::uintptr_t>(a.parts[i].w);
  if (bits % 16 != 0) return Alignment::any;
  bool const regular = a.then == FusedMatmulArgs::Then::gate || (a.n_parts == 1 && a.parts[0].rows % n_segments == 0);
  return regular ? Alignment::regular : Alignment::aligned;
}

/// Unit u: row u of gate and of up; or n_segments rows of all parts, one after another.
template <class F, int n_segments, int n_rows>
class FusedJob {
 public:
  __device__ explicit FusedJob(FusedMatmulArgs const& args) : a_(args) {}

  __device__ __forceinline__ void find(int unit, int segment, unsigned char const*& begin, unsigned char const*& end) const {
    int row = 0;
    FusedMatmulArgs::Part const& part = a_.parts[locate(unit, segment, row)];
    int const row_bytes = a_.dim / F::block_elems * F::block_bytes;
    auto const* const w = static_cast<unsigned char const*>(part.w);
    begin = row < part.rows ? w + std::int64_t(row) * row_bytes : nullptr;
    end = w + std::int64_t(part.rows) * row_bytes;
  }

  __device__ __forceinline__ int rows_per_unit() const { return a_.then == FusedMatmulArgs::Then::gate ? 1 : n_segments; }

  __device__ __forceinline__ void finish(int unit, float value, int index) const {
    constexpr int n_values = n_segments * n_rows;
    int const lane = int(threadIdx.x) % 32, token = index % n_rows;
    bool const leads = lane % (32 / n_values) == 0 && token < a_.n_tokens;
    if (a_.then == FusedMatmulArgs::Then::gate) {
      float const up = __shfl_xor_sync(~0u, value, 16);  // the other half of the lanes has segment 1
      if (leads && lane < 16) a_.parts[0].y[token * a_.parts[0].y_stride + unit] = gated_value(a_.activation, value, up);
      return;
    }
    int row = 0;
    FusedMatmulArgs::Part const& part = a_.parts[locate(unit, index / n_rows, row)];
    if (!leads || row >= part.rows) return;
    float* const y = part.y + token * part.y_stride + row;
    if (part.bias != nullptr) value += part.bias[row];
    *y = a_.then == FusedMatmulArgs::Then::add ? *y + value : value;
  }

 private:
  /// A part and a row of it; one behind its end where there is none.
  __device__ __forceinline__ int locate(int unit, int segment, int& row) const {
    if (a_.then == FusedMatmulArgs::Then::gate) {
      row = unit;
      return segment;
    }
    row = unit * n_segments + segment;
    int part = 0;
    if (a_.n_parts == 1) return part;
#pragma unroll
    for (int i = 0; i + 1 < FusedMatmulArgs::max_parts; ++i) {
      bool const behind = part == i && i + 1 < a_.n_parts && row >= a_.parts[i].rows;
      row -= behind ? a_.parts[i].rows : 0;
      part += behind ? 1 : 0;
    }
    return part;
  }

  FusedMatmulArgs const& a_;
};

template <class F, int n_segments, int n_rows>
__global__ void __launch_bounds__(few_threads, few_blocks_at_once<F>(n_segments, n_rows))
    fused_matmul_kernel(__grid_constant__ FusedMatmulArgs const a, __grid_constant__ FusedShape const shape) {
  using Products = FewProducts<F, n_segments, n_rows, FusedJob<F, n_segments, n_rows>>;
  extern __shared__ uint4 few_shared[];
  constexpr int n_scratch = max_of(few_rows_scratch, few_warps * Products::n_values);
  __shared__ float scratch[n_scratch];
  auto* const rows = reinterpret_cast<unsigned char*>(few_shared);
  let_next_start();
  FusedJob<F, n_segments, n_rows> const job(a);
  Products products(job, part_begin(shape.n_units, blockIdx.x, gridDim.x), part_begin(shape.n_units, blockIdx.x + 1, gridDim.x), a.dim,
                    shape.split, shape.alignment, rows + shape.rows_bytes + int(threadIdx.x) / 32 * Products::ring_bytes);
  products.start();
  if (a.norm) bring_near(a.norm_weight, a.dim);
  wait_for_previous();
  FewSource source;
  source.x = a.x;
  source.norm_weight = a.norm_weight;
  source.n_rows = a.n_tokens;
  source.dim = a.dim;
  source.eps = a.eps;
  source.norm = a.norm;
  FewLayout const layout = rows_apart<F>(a.dim);
  read_rows<F>(source, layout, rows, scratch);
  products.run(rows, layout, scratch);
}

/// Of a.n_tokens <= n_rows. cudaErrorInvalidConfiguration where rows are too long for shared memory.
template <class F, int n_segments, int n_rows>
int launch_fused_matmul(FusedMatmulArgs const& a, CudaQueue const& queue) {
  constexpr auto kernel = &fused_matmul_kernel<F, n_segments, n_rows>;
  using Products = FewProducts<F, n_segments, n_rows, FusedJob<F, n_segments, n_rows>>;
  static_assert(sizeof(float) * max_of(few_rows_scratch, few_warps * Products::n_values) <= few_static_bytes);
  std::int64_t n_units = a.parts[0].rows;
  if (a.then != FusedMatmulArgs::Then::gate) {
    for (int i = 1; i < a.n_parts; ++i) n_units += a.parts[i].rows;
    n_units = ceil_div(n_units, std::int64_t(n_segments));
  }
  if (n_units == 0) return 0;
  std::int64_t const rows_bytes = few_rows_bytes<F>(a.dim, n_rows);
  int const n_warps = few_warps_beside(rows_bytes, Products::ring_bytes, queue);
  if (n_warps == 0) return int(cudaErrorInvalidConfiguration);
  if (int const status = allow_few_shared<kernel>(queue); status != 0) return status;
  std::int64_t const blocks = min_of(n_units, std::int64_t(queue.n_multiprocessors) * (few_warps / n_warps));
  int const n_slices = ceil_div(few_chunks<F>(a.dim), FewChunk<F>::stage_chunks);
  FusedShape shape{std::int32_t(n_units), 1, std::int32_t(rows_bytes), alignment_of<F>(a, n_segments)};
  while (shape.split * 2 * ceil_div(n_units, blocks) <= n_warps && shape.split * 2 <= n_slices) shape.split *= 2;
  std::size_t const shared = std::size_t(rows_bytes) + std::size_t(n_warps) * Products::ring_bytes;
  return launch_kernel(kernel, dim3(unsigned(blocks)), dim3(unsigned(n_warps) * 32), shared, queue, a, shape);
}

template <class F>
int launch_fused_matmul_of(FusedMatmulArgs const& a, int n_rows, CudaQueue const& queue) {
  std::int64_t n_all = 0;
  for (int i = 0; i < a.n_parts; ++i) n_all += a.parts[i].rows;
  switch (n_rows) {
    case 1:
      if (a.then != FusedMatmulArgs::Then::gate && n_all < few_rows_in_pairs * queue.n_multiprocessors) {
        return launch_fused_matmul<F, 1, 1>(a, queue);
      }
      return launch_fused_matmul<F, 2, 1>(a, queue);
    case 2: return launch_fused_matmul<F, 2, 2>(a, queue);
    case 4: return launch_fused_matmul<F, 2, 4>(a, queue);
    case 8: return launch_fused_matmul<F, 2, 8>(a, queue);
    default: return launch_fused_matmul<F, 2, 16>(a, queue);
  }
}

}  // namespace detail

/// parts[begin, end), all of format F; where `gate`, both.
template <class F>
int fused_matmul(FusedMatmulArgs const& args, Range parts, Queue queue) {
  FusedMatmulArgs a = args;
  a.n_parts = 0;
  for (auto i = parts.begin; i < parts.end; ++i) a.parts[a.n_parts++] = args.parts[i];
  if (a.n_parts == 0 || a.n_tokens == 0) return 0;
  if (detail::OneRowLaunch const launch = detail::float_row_matmul<F>(a, native(queue)); launch.done) return launch.status;
  if (detail::OneRowLaunch const launch = detail::one_row_matmul<F>(a, native(queue)); launch.done) return launch.status;
  if (detail::OneRowLaunch const launch = detail::few_mma<F>(a, native(queue)); launch.done) return launch.status;
  int n_rows = 1;
  while (n_rows < a.n_tokens) n_rows *= 2;
  // Where rows are so long that they leave little room for rings, weights are read again for each half of them.
  auto const n_warps = [&] { return detail::few_warps_beside(few_rows_bytes<F>(a.dim, n_rows), few_ring_bytes, native(queue)); };
  while (n_rows > 1 && n_warps() < few_warps / 4) n_rows /= 2;
  for (std::int32_t n_left = args.n_tokens; n_left > 0; n_left -= a.n_tokens) {
    a.n_tokens = min_of(n_left, std::int32_t(n_rows));
    if (int const status = detail::launch_fused_matmul_of<F>(a, n_rows, native(queue)); status != 0) return status;
    a.x += std::int64_t(a.n_tokens) * a.dim;
    for (int i = 0; i < a.n_parts; ++i) a.parts[i].y += a.n_tokens * a.parts[i].y_stride;
  }
  return 0;
}

}  // namespace tiered::cuda
