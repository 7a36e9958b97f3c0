/// Rows of f32 to halves in two parts: act_f16_two. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/convert.cuh"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"

namespace tiered::cuda {
namespace detail {

/// A part of act_f16_two.
struct HalfRows {
  std::uint16_t* rows;  ///< [n_rows, act_row_elems(dim)]
  float* factors;       ///< [n_rows]
};

/// A block for each row, which it reads twice: for the factor, and for both parts.
__global__ void __launch_bounds__(convert_threads) to_two_half_rows_kernel(QuantizeArgs const a, HalfRows first, HalfRows second) {
  wait_for_previous();
  let_next_start();
  int const row_elems = int(act_row_elems(std::uint64_t(a.dim)));
  float const* const x = a.x + std::int64_t(blockIdx.x) * a.dim;
  bool const aligned = a.dim % 4 == 0 && (std::uintptr_t(a.x) & 15u) == 0;
  float v[8];
  std::uint32_t largest = 0;
  for (int k = int(threadIdx.x) * 8; k < row_elems; k += convert_threads * 8) {
    load_8(x, k, a.dim, aligned, v);
#pragma unroll
    for (float const value : v) largest = max_of(largest, tiered::detail::float_to_bits(value) & 0x7fffffffu);
  }
  float const factor = act_row_factor(block_largest(largest)), inverse = 1.0f / factor;  // powers of two
  if (threadIdx.x == 0) first.factors[blockIdx.x] = second.factors[blockIdx.x] = factor;
  std::int64_t const begin = std::int64_t(blockIdx.x) * row_elems;
  for (int k = int(threadIdx.x) * 8; k < row_elems; k += convert_threads * 8) {
    load_8(x, k, a.dim, aligned, v);
    std::uint32_t pairs[4], rests[4];
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = k + i < a.dim ? v[i] * inverse : 0.0f;  // zeros even where the factor is not a number
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      pairs[i] = pack_f16(v[2 * i], v[2 * i + 1]);
      rests[i] = rest_f16(v[2 * i], v[2 * i + 1], pairs[i]);
    }
    *reinterpret_cast<uint4*>(first.rows + begin + k) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
    *reinterpret_cast<uint4*>(second.rows + begin + k) = uint4{rests[0], rests[1], rests[2], rests[3]};
  }
}

}  // namespace detail

/// y as act_f16_two; aligned to 16.
inline int to_f16_two(QuantizeArgs const& a, Queue queue) {
  if (a.n_rows == 0) return 0;
  std::uint64_t const n = std::uint64_t(a.n_rows), dim = std::uint64_t(a.dim);
  auto const part = [&](std::uint64_t at) {
    std::byte* const begin = static_cast<std::byte*>(a.y) + at;
    return detail::HalfRows{reinterpret_cast<std::uint16_t*>(begin), reinterpret_cast<float*>(begin + act_factors_offset(n, dim))};
  };
  return launch_kernel(&detail::to_two_half_rows_kernel, dim3(unsigned(a.n_rows)), dim3(convert_threads), 0, native(queue), a, part(0),
                       part(act_second_offset(DType::act_f16_two, n, dim)));
}

}  // namespace tiered::cuda
