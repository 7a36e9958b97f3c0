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

/// Eight elements of a row from k on; zeros past its end.
__device__ __forceinline__ void load_8(float const* row, int k, int dim, bool aligned, float (&v)[8]) {
  if (aligned && k + 8 <= dim) {
    float4 const low = *reinterpret_cast<float4 const*>(row + k), high = *reinterpret_cast<float4 const*>(row + k + 4);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
    v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
    for (int i = 0; i < 8; ++i) v[i] = k + i < dim ? row[k + i] : 0.0f;
  }
}

/// Elements [k, k + 4) or [k, k + 8) of a row of halves; k is a multiple of their number.
template <bool bf16>
__device__ __forceinline__ std::uint32_t half_pair(float low, float high) {
  return bf16 ? pack_bf16(low, high) : pack_f16(low, high);
}
template <bool bf16>
__device__ __forceinline__ void store_halves(std::uint16_t* y, int k, float const (&v)[4]) {
  *reinterpret_cast<uint2*>(y + k) = uint2{half_pair<bf16>(v[0], v[1]), half_pair<bf16>(v[2], v[3])};
}
template <bool bf16>
__device__ __forceinline__ void store_halves(std::uint16_t* y, int k, float const (&v)[8]) {
  *reinterpret_cast<uint4*>(y + k) =
      uint4{half_pair<bf16>(v[0], v[1]), half_pair<bf16>(v[2], v[3]), half_pair<bf16>(v[4], v[5]), half_pair<bf16>(v[6], v[7])};
}

__device__ __forceinline__ std::uint32_t warp_largest(std::uint32_t v) {
  for (int mask = warp_size / 2; mask > 0; mask /= 2) v = max_of(v, __shfl_xor_sync(~0u, v, mask));
  return v;
}

/// The largest of a block's values, for every thread; a barrier must stand between two calls.
__device__ __forceinline__ std::uint32_t block_largest(std::uint32_t v) {
  __shared__ std::uint32_t of_warps[max_warps];
  int const lane = int(threadIdx.x) % warp_size;
  v = warp_largest(v);
  if (lane == 0) of_warps[threadIdx.x / warp_size] = v;
  __syncthreads();
  return warp_largest(lane < int(blockDim.x) / warp_size ? of_warps[lane] : 0u);
}

/// A row of halves by all threads that have it. each(visit) calls visit(k, v) with a thread's elements [k, k + 4) or [k, k + 8), which that
/// may change, zeros past `dim`, the same at every call; largest_of(v) is the largest of all threads' v. What binary16 has is written as if
/// its factor were 1, which it is but for rows that are out of the ordinary: those are written again.
template <bool bf16, class Each, class LargestOf>
__device__ __forceinline__ void write_half_row(std::uint16_t* y, float* factor, int dim, bool first, Each const& each,
                                               LargestOf const& largest_of) {
  std::uint32_t largest = 0;  // magnitudes compare as integers, infinities and NaN above all numbers
  each([&](int k, auto const& v) {
    store_halves<bf16>(y, k, v);
    if constexpr (!bf16) {
#pragma unroll
      for (float const value : v) largest = max_of(largest, tiered::detail::float_to_bits(value) & 0x7fffffffu);
    }
  });
  if constexpr (!bf16) {
    float const own = act_row_factor(largest_of(largest));
    if (first) *factor = own;
    if (own == 1.0f) return;
    float const inverse = 1.0f / own;  // powers of two
    each([&](int k, auto& v) {
      int i = 0;
#pragma unroll
      for (float& value : v) value = k + i++ < dim ? value * inverse : 0.0f;  // zeros even where the factor is not a number
      store_halves<bf16>(y, k, v);
    });
  }
}

/// A block for each row. factors: [n_rows], binary16 only.
template <bool bf16>
__global__ void __launch_bounds__(convert_threads) to_half_rows_kernel(QuantizeArgs const a, float* factors) {
  wait_for_previous();
  let_next_start();
  int const row_elems = int(act_row_elems(std::uint64_t(a.dim)));
  float const* const x = a.x + std::int64_t(blockIdx.x) * a.dim;
  bool const aligned = a.dim % 4 == 0 && (std::uintptr_t(a.x) & 15u) == 0;
  auto const each = [&](auto const& visit) {
#pragma unroll 2
    for (int k = int(threadIdx.x) * 8; k < row_elems; k += convert_threads * 8) {
      float v[8];
      load_8(x, k, a.dim, aligned, v);
      visit(k, v);
    }
  };
  write_half_row<bf16>(static_cast<std::uint16_t*>(a.y) + std::int64_t(blockIdx.x) * row_elems, factors + blockIdx.x, a.dim,
                       threadIdx.x == 0, each, [](std::uint32_t v) { return block_largest(v); });
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
