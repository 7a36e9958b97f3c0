/// FusedMatmulArgs for few rows by matrix units: weights are read once, for up to 16 rows. [device-visible]
///
/// One block to a multiprocessor, each with a run of units of 8 or 16 rows of weights. Where rows of activations are longer than shared
/// memory has room for, the block goes through its units once for each of some phases of k, and keeps sums in between.
///
/// A row's sums are added in an order that depends on the matrix, the device, and whether there are more than 8 rows of activations,
/// not on those other rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/few_mma_input.cuh"
#include "tiered/kernels/cuda/few_mma_products.cuh"
#include "tiered/kernels/cuda/few_mma_tuning.hpp"
#include "tiered/kernels/cuda/few_stages.cuh"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/one_row.cuh"

namespace tiered::cuda {
namespace detail {

/// Activations of a phase into shared memory; `prepared`: null, or all of them as few_mma_input_kernel() made them.
template <class F, int tokens>
__device__ __forceinline__ void fill_mma_input(FewSource const& source, float const* norms, unsigned char const* prepared, int first, int n,
                                               unsigned char* shared) {
  constexpr int step_bytes = MmaInput<F, tokens>::step_bytes;
  if (prepared == nullptr) {
    return put_rows<F, tokens>(source, 0, first, n, norms, shared, int(threadIdx.x) / 32, int(blockDim.x) / 32);
  }
  auto const* const from = reinterpret_cast<uint4 const*>(prepared + std::int64_t(first) * step_bytes);
  auto* const to = reinterpret_cast<uint4*>(shared);
#pragma unroll 8
  for (int i = int(threadIdx.x); i < n * (step_bytes / 16); i += int(blockDim.x)) to[i] = from[i];
}

template <class F, int tokens>
__global__ void __launch_bounds__(MmaCut<F, tokens>::warps * 32, 1)
    few_mma_kernel(__grid_constant__ FusedMatmulArgs const a, __grid_constant__ MmaShape const shape, unsigned char const* prepared) {
  extern __shared__ uint4 few_shared[];
  __shared__ float scratch[few_rows_scratch];
  auto* const shared = reinterpret_cast<unsigned char*>(few_shared);
  let_next_start();
  MmaJob<F, MmaCut<F, tokens>::rows> const job(a);
  MmaProducts<F, tokens> products(job, shape, a.dim, shared);
  products.start();
  FewSource source;
  source.x = a.x;
  source.norm_weight = a.norm_weight;
  source.n_rows = a.n_tokens;
  source.dim = a.dim;
  source.eps = a.eps;
  source.norm = a.norm;
  if (prepared == nullptr && a.norm) bring_near(a.norm_weight, a.dim);
  wait_for_previous();
  if (prepared == nullptr && a.norm) {
    bool const in_fours = a.dim % 4 == 0 && multiple_of_16(a.x) && multiple_of_16(a.norm_weight);
    find_norms(source, in_fours, scratch);
  }
  int const phase_steps = shape.phase_stages * MmaCut<F, tokens>::steps, n_steps = ceil_div(a.dim, MmaCut<F, tokens>::step_elems);
#pragma unroll 1
  for (int phase = 0; phase < shape.n_phases; ++phase) {
    int const first = phase * phase_steps;
    fill_mma_input<F, tokens>(source, scratch + int(blockDim.x) / 32 * a.n_tokens, prepared, first, min(phase_steps, n_steps - first),
                              shared);
    __syncthreads();
    products.run(phase);
  }
}

/// Of so many warps and phases, within `limit` bytes of shared memory; shared_bytes 0 where there is no room.
template <class F, int tokens>
MmaShape mma_shape(std::int64_t n_units, std::int64_t blocks, int dim, int n_warps, int n_phases, int limit) {
  using Products = MmaProducts<F, tokens>;
  int const units = int(ceil_div(n_units, blocks)),
            n_stages = ceil_div(ceil_div(dim, MmaCut<F, tokens>::step_elems), MmaCut<F, tokens>::steps);
  MmaShape shape;
  shape.n_units = std::int32_t(n_units);
  shape.phase_stages = ceil_div(n_stages, n_phases);
  shape.n_phases = ceil_div(n_stages, shape.phase_stages);
  std::int64_t const rings = std::int64_t(shape.phase_stages) * MmaCut<F, tokens>::steps * MmaInput<F, tokens>::step_bytes;
  std::int64_t const tables = rings + n_warps * MmaCut<F, tokens>::ring_bytes, sums = tables + n_warps * Products::table_bytes;
  std::int64_t const kept = sums + n_warps * Products::sums_bytes;
  std::int64_t const all = kept + (n_phases > 1 ? std::int64_t(units) * Products::unit_sums * 4 : 0);
  if (all > limit) return shape;
  shape.rings_at = std::int32_t(rings), shape.tables_at = std::int32_t(tables);
  shape.sums_at = std::int32_t(sums), shape.kept_at = std::int32_t(kept), shape.shared_bytes = std::int32_t(all);
  int least = 0;
  for (int split = 1; split <= n_warps; split *= 2) {  // in quarters of what a stage takes: ending a unit is about one of them
    int const cost = ceil_div(units, n_warps / split) * (4 * ceil_div(shape.phase_stages, split) + 1);
    if (split == 1 || cost < least) shape.split = split, least = cost;
  }
  return shape;
}

template <class F, int tokens>
OneRowLaunch launch_few_mma(FusedMatmulArgs const& a, CudaQueue const& queue) {
  constexpr auto kernel = &few_mma_kernel<F, tokens>;
  bool const gate = a.then == FusedMatmulArgs::Then::gate;
  std::int64_t n_rows = 0;
  for (int i = 0; i < (gate ? 1 : a.n_parts); ++i) n_rows += a.parts[i].rows;
  if (n_rows == 0) return {true, 0};
  std::int64_t const n_units = ceil_div(n_rows, std::int64_t(MmaCut<F, tokens>::rows / (gate ? 2 : 1))),
                     blocks = min_of(n_units, std::int64_t(queue.n_multiprocessors));
  int const limit = few_dynamic_bytes(shared_bytes_limit(queue.capability));
  MmaShape shape;
  int n_warps = MmaCut<F, tokens>::warps;
  for (; n_warps >= 4; n_warps /= 2) {
    for (int n_phases = 1; n_phases <= few_mma_max_phases && shape.shared_bytes == 0; ++n_phases) {
      shape = mma_shape<F, tokens>(n_units, blocks, a.dim, n_warps, n_phases, limit);
    }
    if (shape.shared_bytes != 0) break;
  }
  if (shape.shared_bytes == 0) return {false, 0};
  if (int const status = allow_few_shared<kernel>(queue); status != 0) return {true, status};
  unsigned char* prepared = nullptr;
  std::int64_t const prepared_bytes = std::int64_t(ceil_div(a.dim, MmaCut<F, tokens>::step_elems)) * MmaInput<F, tokens>::step_bytes;
  if (a.n_tokens >= few_mma_prepared_from && std::size_t(prepared_bytes) + 16 <= queue.workspace_bytes) {
    // At its end: what by_format.cuh keeps at its begin is still needed.
    auto* const end = reinterpret_cast<unsigned char*>(queue.workspace) + queue.workspace_bytes;
    prepared = end - prepared_bytes - (reinterpret_cast<std::uintptr_t>(end) & 15);
    FewSource source;
    source.x = a.x, source.norm_weight = a.norm_weight, source.n_rows = a.n_tokens, source.dim = a.dim;
    source.eps = a.eps, source.norm = a.norm;
    if (int const status = launch_few_mma_input<F, tokens>(source, prepared, queue); status != 0) return {true, status};
  }
  return {true, launch_kernel(kernel, dim3(unsigned(blocks)), dim3(unsigned(n_warps) * 32), std::size_t(shape.shared_bytes), queue, a,
                              shape, static_cast<unsigned char const*>(prepared))};
}

/// `done` false: another way is taken, by few_mma_takes(), or for want of shared memory.
template <class F>
OneRowLaunch few_mma(FusedMatmulArgs const& a, CudaQueue const& queue) {
  if (!few_mma_takes<F>(a.n_tokens, queue.capability)) return {false, 0};
  return a.n_tokens <= 8 ? launch_few_mma<F, 1>(a, queue) : launch_few_mma<F, 2>(a, queue);
}

}  // namespace detail
}  // namespace tiered::cuda
