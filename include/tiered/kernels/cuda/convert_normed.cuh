/// Rows through their norm to the halves that products read: norm.cuh and convert.cuh in one, with the same bits. [device-visible]
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/convert_args.hpp"
#include "tiered/kernels/cuda/convert.cuh"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/norm.cuh"

namespace tiered::cuda {
namespace detail {

template <bool bf16, class Team, class LargestOf>
__device__ __forceinline__ void norm_to_half_row(ConvertNormedArgs const& a, float* factors, std::int64_t row, Team const& team,
                                                 LargestOf const& largest_of) {
  int const row_elems = int(act_row_elems(std::uint64_t(a.norm.dim)));
  NormedRow<Team> const values(a.norm, row, team);
  auto const each = [&](auto const& visit) {
    values.each(row_elems / 4, [&](int group, float4 four) {
      float v[4] = {four.x, four.y, four.z, four.w};
      visit(group * 4, v);
    });
  };
  write_half_row<bf16>(static_cast<std::uint16_t*>(a.y) + row * row_elems, factors + row, a.norm.dim, team.rank() == 0, each, largest_of);
}

// factors: [n_rows], binary16 only.
template <bool bf16>
__global__ void __launch_bounds__(norm_threads) norm_to_half_rows_by_warp(ConvertNormedArgs const a, float* factors) {
  wait_for_previous();
  let_next_start();
  std::int64_t const row = std::int64_t(blockIdx.x) * (norm_threads / warp_size) + int(threadIdx.x) / warp_size;
  if (row < a.norm.n_rows) norm_to_half_row<bf16>(a, factors, row, WarpTeam{}, [](std::uint32_t v) { return warp_largest(v); });
}

template <bool bf16>
__global__ void __launch_bounds__(max_warps* warp_size) norm_to_half_rows_by_block(ConvertNormedArgs const a, float* factors) {
  __shared__ float scratch[max_warps];
  wait_for_previous();
  let_next_start();
  norm_to_half_row<bf16>(a, factors, blockIdx.x, BlockTeam{scratch}, [](std::uint32_t v) { return block_largest(v); });
}

}  // namespace detail

/// KernelTable::convert_normed; form: act_f16_rows or act_bf16_rows.
template <DType form>
int convert_normed(ConvertNormedArgs const& a, Queue queue) {
  constexpr bool bf16 = form == DType::act_bf16_rows;
  RmsNormArgs const& n = a.norm;
  if (n.n_rows == 0) return 0;
  auto* const factors =
      reinterpret_cast<float*>(static_cast<std::byte*>(a.y) + act_factors_offset(std::uint64_t(n.n_rows), std::uint64_t(n.dim)));
  if (n.dim <= detail::norm_warp_dim) {
    int const grid = ceil_div(n.n_rows, detail::norm_threads / warp_size);
    return launch_kernel(&detail::norm_to_half_rows_by_warp<bf16>, unsigned(grid), detail::norm_threads, 0, native(queue), a, factors);
  }
  return launch_kernel(&detail::norm_to_half_rows_by_block<bf16>, unsigned(n.n_rows), unsigned(detail::norm_block_threads(n.dim)), 0,
                       native(queue), a, factors);
}

}  // namespace tiered::cuda
