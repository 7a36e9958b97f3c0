/// gate and up of many rows to the halves that the next product reads: `gated` and convert.cuh in one, with the same bits. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/convert_args.hpp"
#include "tiered/kernels/cuda/convert.cuh"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"

namespace tiered::cuda {

/// y[t, :] = act(gate[t, :]) * up[t, :], as act_f16_rows or act_bf16_rows.
struct GatedRowsArgs {
  float const* gate = nullptr;  ///< [n_rows, dim]
  float const* up = nullptr;    ///< likewise
  void* y = nullptr;            ///< activation_bytes(...)
  std::int32_t n_rows = 0, dim = 0;
  Activation activation = Activation::silu;
  PlacePiece piece;  ///< with begins: so many rows as that has places; n_rows, at least as many, says where factors lie
};

namespace detail {

inline constexpr int gated_blocks_per_multiprocessor = 16;

/// Eight elements of a row from k on; zeros past its end.
__device__ __forceinline__ void load_gated_8(GatedRowsArgs const& a, std::int64_t row, int k, bool aligned, float (&v)[8]) {
  float up[8];
  load_8(a.gate + row * a.dim, k, a.dim, aligned, v);
  load_8(a.up + row * a.dim, k, a.dim, aligned, up);
  for (int i = 0; i < 8; ++i) v[i] = k + i < a.dim ? gated_value(a.activation, v[i], up[i]) : 0.0f;
}

/// Blocks take one row after another. factors: [n_rows], binary16 only.
template <bool bf16>
__global__ void __launch_bounds__(convert_threads) gated_rows_kernel(GatedRowsArgs const a, float* factors) {
  wait_for_previous();
  let_next_start();
  int const row_elems = int(act_row_elems(std::uint64_t(a.dim)));
  bool const aligned = a.dim % 4 == 0 && ((std::uintptr_t(a.gate) | std::uintptr_t(a.up)) & 15u) == 0;
  int const n_rows = a.piece.begins != nullptr ? a.piece.end() - a.piece.begin() : a.n_rows;
#pragma unroll 1
  for (int row = int(blockIdx.x); row < n_rows; row += int(gridDim.x)) {
    if (row != int(blockIdx.x)) __syncthreads();  // before block_largest() is used again
    auto const each = [&](auto const& visit) {
#pragma unroll 2
      for (int k = int(threadIdx.x) * 8; k < row_elems; k += convert_threads * 8) {
        float v[8];
        load_gated_8(a, row, k, aligned, v);
        visit(k, v);
      }
    };
    write_half_row<bf16>(static_cast<std::uint16_t*>(a.y) + std::int64_t(row) * row_elems, factors + row, a.dim, threadIdx.x == 0, each,
                         [](std::uint32_t v) { return block_largest(v); });
  }
}

}  // namespace detail

/// form: act_f16_rows or act_bf16_rows.
inline int gated_rows(GatedRowsArgs const& a, DType form, Queue queue) {
  if (a.n_rows == 0 || a.dim == 0) return 0;
  auto* const factors =
      reinterpret_cast<float*>(static_cast<std::byte*>(a.y) + act_factors_offset(std::uint64_t(a.n_rows), std::uint64_t(a.dim)));
  CudaQueue const& q = native(queue);
  int const most =
      a.piece.begins != nullptr && q.n_multiprocessors > 0 ? q.n_multiprocessors * detail::gated_blocks_per_multiprocessor : a.n_rows;
  return launch_kernel(form == DType::act_bf16_rows ? detail::gated_rows_kernel<true> : detail::gated_rows_kernel<false>,
                       unsigned(min_of(a.n_rows, most)), convert_threads, 0, q, a, factors);
}

/// KernelTable::convert_gated.
template <DType form>
int convert_gated(ConvertGatedArgs const& a, Queue queue) {
  return gated_rows(GatedRowsArgs{a.gate, a.up, a.y, a.n_rows, a.dim, a.activation, {}}, form, queue);
}

}  // namespace tiered::cuda
