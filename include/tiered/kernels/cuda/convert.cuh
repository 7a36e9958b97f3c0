/// Rows of f32 to the halves that products of many rows read: act_f16_rows and act_bf16_rows. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"
#include "tiered/kernels/format/half.hpp"

namespace tiered::cuda {

inline constexpr int convert_threads = 256;

namespace detail {

/// The factor of a row of binary16 by the bits of its largest magnitude: activation.hpp.
TIERED_HD constexpr float act_row_factor(std::uint32_t largest) {
  constexpr std::uint32_t infinity = 0x7f800000u, limit = (127u + 15u) << 23;
  if (largest >= infinity) return tiered::detail::bits_to_float(0x7fc00000u);
  if (largest <= limit) return 1.0f;
  std::uint32_t const up = (largest & 0x7fffffu) != 0 ? 1u : 0u;
  return tiered::detail::bits_to_float(((largest >> 23) - 15 + up) << 23);
}

/// Eight elements of a row from k on, times `scale`; zeros past its end.
__device__ __forceinline__ void load_8(float const* row, int k, int dim, bool aligned, float scale, float (&v)[8]) {
  if (aligned && k + 8 <= dim) {
    float4 const low = *reinterpret_cast<float4 const*>(row + k), high = *reinterpret_cast<float4 const*>(row + k + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    for (int i = 0; i < 8; ++i) v[i] *= scale;
  } else {
    for (int i = 0; i < 8; ++i) v[i] = k + i < dim ? row[k + i] * scale : 0.0f;
  }
}

__device__ __forceinline__ std::uint32_t warp_largest(std::uint32_t v) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v = max_of(v, __shfl_xor_sync(~0u, v, mask));
  return v;
}

/// The largest of a block's values, for every thread; once a kernel.
__device__ __forceinline__ std::uint32_t block_largest(std::uint32_t v) {
  __shared__ std::uint32_t of_warps[convert_threads / warp_size];
  int const lane = int(threadIdx.x) % warp_size;
  v = warp_largest(v);
  if (lane == 0) of_warps[threadIdx.x / warp_size] = v;
  __syncthreads();
  return warp_largest(lane < convert_threads / warp_size ? of_warps[lane] : 0u);
}

/// A block for each row. factors: [n_rows], binary16 only.
template <bool bf16>
__global__ void __launch_bounds__(convert_threads) to_half_rows_kernel(QuantizeArgs const a, float* factors) {
  wait_for_previous();
  let_next_start();
  int const row_elems = int(act_row_elems(std::uint64_t(a.dim)));
  float const* const x = a.x + std::int64_t(blockIdx.x) * a.dim;
  bool const aligned = a.dim % 4 == 0 && (std::uintptr_t(a.x) & 15u) == 0;
  float inverse = 1;
  float v[8];
  if constexpr (!bf16) {
    std::uint32_t largest = 0;  // magnitudes compare as integers, infinities and NaN above all numbers
    for (int k = int(threadIdx.x) * 8; k < a.dim; k += convert_threads * 8) {
      load_8(x, k, a.dim, aligned, 1.0f, v);
      for (int i = 0; i < 8; ++i) largest = max_of(largest, tiered::detail::float_to_bits(v[i]) & 0x7fffffffu);
    }
    float const factor = act_row_factor(block_largest(largest));
    inverse = 1.0f / factor;  // powers of two
    if (threadIdx.x == 0) factors[blockIdx.x] = factor;
  }
  auto* const y = static_cast<std::uint16_t*>(a.y) + std::int64_t(blockIdx.x) * row_elems;
  for (int k = int(threadIdx.x) * 8; k < row_elems; k += convert_threads * 8) {
    load_8(x, k, a.dim, aligned, inverse, v);
    std::uint32_t pairs[4];
    for (int i = 0; i < 4; ++i) pairs[i] = bf16 ? pack_bf16(v[i * 2], v[i * 2 + 1]) : pack_f16(v[i * 2], v[i * 2 + 1]);
    *reinterpret_cast<uint4*>(y + k) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
  }
}

}  // namespace detail

/// y as act_f16_rows; aligned to 16.
inline int to_f16_rows(QuantizeArgs const& a, Queue queue) {
  if (a.n_rows == 0) return 0;
  auto* const factors =
      reinterpret_cast<float*>(static_cast<std::byte*>(a.y) + act_factors_offset(std::uint64_t(a.n_rows), std::uint64_t(a.dim)));
  return launch_kernel(&detail::to_half_rows_kernel<false>, dim3(unsigned(a.n_rows)), dim3(convert_threads), 0, native(queue), a, factors);
}

/// y as act_bf16_rows; aligned to 16.
inline int to_bf16_rows(QuantizeArgs const& a, Queue queue) {
  if (a.n_rows == 0) return 0;
  return launch_kernel(&detail::to_half_rows_kernel<true>, dim3(unsigned(a.n_rows)), dim3(convert_threads), 0, native(queue), a,
                       static_cast<float*>(nullptr));
}

}  // namespace tiered::cuda
