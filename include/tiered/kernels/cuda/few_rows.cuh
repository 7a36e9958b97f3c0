/// Rows of activations on their way into products of few rows: normed, quantised and laid out in shared memory, by each block for
/// itself, so that there is no launch before the product. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/arithmetic.hpp"

namespace tiered::cuda {

/// Rows in VRAM.
struct FewSource {
  float const* x = nullptr;            ///< [n_rows, dim]
  float const* norm_weight = nullptr;  ///< [dim], or null for ones; with `norm`
  float const* factors = nullptr;      ///< [n_rows], or null: what a row is multiplied by when it is quantised already
  int n_rows = 0, dim = 0;
  float eps = 0;
  bool norm = false;
};

/// Rows in shared memory: a chunk's first 16 bytes in one plane, the second in another, scale and sums of 8-bit blocks in a third, since
/// lanes with neighbouring chunks then read without conflicts. Steps from row to row within the first two planes, and in the third.
struct FewLayout {
  int row_bytes, plane_bytes, scale_row_bytes;
};

/// dim elements in chunks of a format.
template <class F>
TIERED_HD constexpr int few_chunks(int dim) {
  return (dim + FewChunk<F>::elems - 1) / FewChunk<F>::elems;
}
/// One row after another, all planes of each together: any number of rows, whole rows at fixed distances.
template <class F>
TIERED_HD constexpr FewLayout rows_apart(int dim) {
  int const chunks = few_chunks<F>(dim), bytes = (chunks * FewChunk<F>::row_bytes + 15) / 16 * 16;
  return {bytes, chunks * 16, bytes};
}
/// n_rows as if they were one.
template <class F>
TIERED_HD constexpr FewLayout rows_joined(int dim, int n_rows) {
  int const chunks = few_chunks<F>(dim);
  return {chunks * 16, chunks * n_rows * 16, chunks * 8};
}
template <class F>
TIERED_HD constexpr std::int64_t few_rows_bytes(std::int64_t dim, int n_rows) {
  return n_rows * (((dim + FewChunk<F>::elems - 1) / FewChunk<F>::elems * FewChunk<F>::row_bytes + 15) / 16 * 16);
}

/// FormatKernels::longest_few_row: beside such a row one warp has room for its ring.
template <class F>
std::int32_t longest_few_row(int shared_bytes) {
  std::int64_t const row_bytes = (few_dynamic_bytes(shared_bytes) - few_most_ring_bytes<F>) / 16 * 16;
  return std::int32_t(row_bytes / FewChunk<F>::row_bytes * FewChunk<F>::elems / 32 * 32);
}

/// Floats of shared memory that read_rows() needs.
inline constexpr int few_rows_scratch = few_warps * 16 + 16;

namespace detail {

/// x[k..k+4) of dim, zeros behind the end.
__device__ __forceinline__ float4 load_four(float const* x, int k, int dim, bool in_fours) {
  if (in_fours && k + 4 <= dim) return *reinterpret_cast<float4 const*>(x + k);
  float4 v{0, 0, 0, 0};
  if (k < dim) v.x = x[k];
  if (k + 1 < dim) v.y = x[k + 1];
  if (k + 2 < dim) v.z = x[k + 2];
  if (k + 3 < dim) v.w = x[k + 3];
  return v;
}

__device__ __forceinline__ bool multiple_of_16(void const* p) { return (reinterpret_cast<std::uintptr_t>(p) & 15) == 0; }

/// 1 / sqrt(mean of squares + eps) of every row into scratch[n_warps * n_rows ...).
__device__ inline void find_norms(FewSource const& s, bool in_fours, float* scratch) {
  int const lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, n_warps = int(blockDim.x) / 32;
  for (int row = 0; row < s.n_rows; ++row) {
    float const* const x = s.x + std::int64_t(row) * s.dim;
    float sum = 0;
    for (int k = int(threadIdx.x) * 4; k < s.dim; k += int(blockDim.x) * 4) {
      float4 const v = load_four(x, k, s.dim, in_fours);
      sum += v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w);
    }
    sum = warp_sum(sum);
    if (lane == 0) scratch[row * n_warps + warp] = sum;
  }
  __syncthreads();
  if (int(threadIdx.x) < s.n_rows) {
    float sum = 0;
    for (int i = 0; i < n_warps; ++i) sum += scratch[int(threadIdx.x) * n_warps + i];
    scratch[n_warps * s.n_rows + int(threadIdx.x)] = 1.0f / sqrtf(sum / float(s.dim) + s.eps);
  }
  __syncthreads();
}

__device__ __forceinline__ float4 normed_four(FewSource const& s, int row, int k, bool in_fours, float const* norms) {
  float4 v = load_four(s.x + std::int64_t(row) * s.dim, k, s.dim, in_fours);
  if (!s.norm) return v;
  float const norm = norms[row];
  v = make_float4(v.x * norm, v.y * norm, v.z * norm, v.w * norm);
  if (s.norm_weight == nullptr) return v;
  float4 const w = load_four(s.norm_weight, k, s.dim, in_fours);
  return make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
}

__device__ __forceinline__ int largest_magnitude(float4 v) {
  int const x = __float_as_int(v.x) & 0x7fffffff, y = __float_as_int(v.y) & 0x7fffffff;
  int const z = __float_as_int(v.z) & 0x7fffffff, w = __float_as_int(v.w) & 0x7fffffff;
  return max(max(x, y), max(z, w));
}

/// 1 / v within a few units in the last place, of 2^-101 <= v < 2^126.
__device__ __forceinline__ float near_inverse(float v) {
#if defined(__CUDA_ARCH__)
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(v));
#else
  float const inverse = 1.0f / v;
#endif
  return __fmaf_rn(__fmaf_rn(-v, inverse, 1.0f), inverse, inverse);
}
/// a / b, correctly rounded as division is, from a near inverse of b, where nothing on the way overflows or is subnormal.
__device__ __forceinline__ float divided(float a, float b, float inverse) {
  float q = __fmul_rn(a, inverse);
  q = __fmaf_rn(__fmaf_rn(-b, q, a), inverse, q);
  return __fmaf_rn(__fmaf_rn(-b, q, a), inverse, q);
}

/// quantize_block() by eight lanes: each has four elements, and gets them as bytes. Lanes 0 and 4 of the eight get their half's sum.
struct QuantizedFour {
  std::uint32_t q;
  float scale;
  int sum;
};
__device__ __forceinline__ QuantizedFour quantize_four(float4 v) {
  int largest = largest_magnitude(v);
  for (int mask = 4; mask > 0; mask /= 2) largest = max(largest, __shfl_xor_sync(~0u, largest, mask));
  constexpr int infinity = 0x7f800000, tiny = (127 - 100) << 23;
  bool const plain = largest < infinity && largest >= tiny;
  float const magnitude = __int_as_float(plain ? largest : 0x3f800000), down = magnitude >= 0x1p64f ? 0x1p-64f : 1.0f;
  float const scaled = magnitude * down, inverse = divided(127.0f, scaled, near_inverse(scaled)) * down;
  QuantizedFour out{0, divided(magnitude, 127.0f, 1.0f / 127.0f), 0};
  if (!plain) {
    out.scale = largest < tiny ? 0.0f : __int_as_float(0x7fc00000);
  } else {
    int const x = tiered::detail::nearest_int(__fmul_rn(v.x, inverse)), y = tiered::detail::nearest_int(__fmul_rn(v.y, inverse));
    int const z = tiered::detail::nearest_int(__fmul_rn(v.z, inverse)), w = tiered::detail::nearest_int(__fmul_rn(v.w, inverse));
    out.q = (std::uint32_t(x) & 255u) | (std::uint32_t(y) & 255u) << 8 | (std::uint32_t(z) & 255u) << 16 | std::uint32_t(w) << 24;
    out.sum = x + y + z + w;
  }
  out.sum += __shfl_xor_sync(~0u, out.sum, 1);
  out.sum += __shfl_xor_sync(~0u, out.sum, 2);
  return out;
}

__device__ inline void quantize_rows(FewSource const& s, FewLayout const& layout, bool in_fours, float const* norms, unsigned char* rows) {
  int const lane = int(threadIdx.x) % 32, part = lane % 8, warp = int(threadIdx.x) / 32, n_warps = int(blockDim.x) / 32;
  int const chunks = s.dim / 32, n_blocks = chunks * s.n_rows;
  for (int first = warp * 4; first < n_blocks; first += n_warps * 4) {
    int const block = first + lane / 8;
    bool const inside = block < n_blocks;
    int const row = inside ? block / chunks : 0, chunk = block - row * chunks;
    float4 v{0, 0, 0, 0};
    if (inside) v = normed_four(s, row, chunk * 32 + part * 4, in_fours, norms);
    QuantizedFour const four = quantize_four(v);
    int const other = __shfl_down_sync(~0u, four.sum, 4);
    if (!inside) continue;
    unsigned char* const at = rows + row * layout.row_bytes + (part / 4) * layout.plane_bytes + chunk * 16 + (part % 4) * 4;
    *reinterpret_cast<std::uint32_t*>(at) = four.q;
    if (part != 0) continue;
    float const scale = s.factors != nullptr ? four.scale * s.factors[row] : four.scale;
    uint2 const scale_and_sums{__float_as_uint(scale), (std::uint32_t(four.sum) & 0xffffu) | std::uint32_t(other) << 16};
    *reinterpret_cast<uint2*>(rows + 2 * layout.plane_bytes + row * layout.scale_row_bytes + chunk * 8) = scale_and_sums;
  }
}

template <class F>
__device__ void copy_rows(FewSource const& s, FewLayout const& layout, bool in_fours, float const* norms, unsigned char* rows) {
  int const fours = few_chunks<F>(s.dim) * (FewChunk<F>::elems / 4), n = fours * s.n_rows;
  for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) {
    int const row = i / fours, four = i - row * fours;
    float4 v = normed_four(s, row, four * 4, in_fours, norms);
    if (s.factors != nullptr) {
      float const factor = s.factors[row];
      v = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
    }
    int const chunk = four / FewChunk<F>::planes, plane = four % FewChunk<F>::planes;
    *reinterpret_cast<float4*>(rows + row * layout.row_bytes + plane * layout.plane_bytes + chunk * 16) = v;
  }
}

}  // namespace detail

/// Brings n floats near, without waiting for them; the whole block takes part. Norm weights are constant: before wait_for_previous() too.
__device__ __forceinline__ void bring_near(float const* p, int n) {
  if (p == nullptr) return;
#if defined(__CUDA_ARCH__)
  for (int k = int(threadIdx.x) * 32; k < n; k += int(blockDim.x) * 32) asm volatile("prefetch.global.L1 [%0];" ::"l"(p + k));
#endif
}

/// The whole block takes part; rows are complete for all of it on return.
template <class F>
__device__ __forceinline__ void read_rows(FewSource const& s, FewLayout const& layout, unsigned char* rows, float* scratch) {
  bool const in_fours = s.dim % 4 == 0 && detail::multiple_of_16(s.x) && detail::multiple_of_16(s.norm_weight);
  if (s.norm) detail::find_norms(s, in_fours, scratch);
  float const* const norms = scratch + int(blockDim.x) / 32 * s.n_rows;
  if constexpr (FewChunk<F>::blocks) {
    detail::quantize_rows(s, layout, in_fours, norms, rows);
  } else {
    detail::copy_rows<F>(s, layout, in_fours, norms, rows);
  }
  __syncthreads();
}

}  // namespace tiered::cuda
