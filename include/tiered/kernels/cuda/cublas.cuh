/// Products of many rows by cuBLAS: weights that are halves in whole 16 bytes a row as they lie, others range by range. [device-visible]
///
/// A range of rows is decoded, or copied to aligned rows, into CudaQueue::workspace and read back from the L2 cache by the product; then
/// the next range. What cuBLAS wrote is finished by a pass over rows that have a factor or where there is a bias. Where it adds to what is
/// there, that is made ready by such a pass: y' = (y + bias) / factor.
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/gemm_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/status.hpp"
#include "tiered/kernels/cuda/tile_decode.cuh"
#include "tiered/kernels/cuda/tile_decode_k.cuh"
#include "tiered/kernels/cuda/tile_rows.cuh"

namespace tiered::cuda {
namespace detail {

/// Four values of each of four neighbouring lanes, transposed: lane j gets value j of lanes 0, 1, 2, 3.
__device__ __forceinline__ void transpose_quad(Pairs& v, int j) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & bit) != 0) continue;
      bool const upper = (j & bit) != 0;
      std::uint32_t const received = __shfl_xor_sync(~0u, upper ? v[i] : v[i | bit], bit);
      if (upper)
        v[i] = received;
      else
        v[i | bit] = received;
    }
  }
}

/// out[row, k] = w[row, k] as halves, rows out_stride elements apart. Four lanes make 32 elements; n_chunks of those in all.
template <class F>
__global__ void __launch_bounds__(256)
    decode_rows_kernel(std::uint8_t const* w, std::uint16_t* out, std::int64_t n_chunks, int row_chunks, int out_stride) {
  constexpr int block_chunks = F::block_elems / 32;
  wait_for_previous();
  let_next_start();
  std::int64_t const thread = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  bool const valid = thread / 4 < n_chunks;
  std::int64_t const chunk = valid ? thread / 4 : 0;  // whole warps take part in the transposition
  int const j = int(threadIdx.x) % 4;
  Pairs pairs;
  TileDecoder<F>::decode(w + chunk / block_chunks * F::block_bytes, int(chunk % block_chunks), j, pairs);
  transpose_quad(pairs, j);
  if (!valid) return;
  std::int64_t const row = chunk / row_chunks, k = (chunk - row * row_chunks) * 32 + j * 8;
  *reinterpret_cast<uint4*>(out + row * out_stride + k) = uint4{pairs[0], pairs[1], pairs[2], pairs[3]};
}

/// Eight 16-bit elements from p on, of which there are n_left; zeros for the others, which are not read.
__device__ __forceinline__ uint4 load_halves(std::uint16_t const* p, int n_left) {
  if (n_left >= 8 && std::uintptr_t(p) % 8 == 0) {
    uint2 const first = reinterpret_cast<uint2 const*>(p)[0], second = reinterpret_cast<uint2 const*>(p)[1];
    return uint4{first.x, first.y, second.x, second.y};
  }
  std::uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t const low = 2 * i < n_left ? p[2 * i] : 0u, high = 2 * i + 1 < n_left ? p[2 * i + 1] : 0u;
    words[i] = low | high << 16;
  }
  return uint4{words[0], words[1], words[2], words[3]};
}

/// out[row, k] = w[row, k], rows out_stride elements apart, with zeros up to a whole chunk. A thread makes one of row_chunks chunks of
/// eight elements a row; n_chunks in all.
template <class F>
__global__ void __launch_bounds__(256)
    copy_rows_kernel(std::uint16_t const* w, std::uint16_t* out, int n_chunks, int row_chunks, int dim, int out_stride) {
  int const chunk = int(blockIdx.x) * int(blockDim.x) + int(threadIdx.x);
  bool const valid = chunk < n_chunks;
  int const row = chunk / row_chunks, k = (chunk - row * row_chunks) * 8;
  uint4 const eight = valid ? load_halves(w + std::int64_t(row) * dim + k, dim - k) : uint4{0, 0, 0, 0};  // depends on no kernel
  wait_for_previous();
  let_next_start();
  if (valid) *reinterpret_cast<uint4*>(out + std::int64_t(row) * out_stride + k) = eight;
}

/// Before a product that is added, (v + bias) * scale; behind one, v * scale + bias.
template <bool before>
__device__ __forceinline__ float scaled(float v, float bias, float scale) {
  return before ? (v + bias) * scale : fmaf(v, scale, bias);
}
template <bool before>
__device__ __forceinline__ float4 scaled(float4 v, float4 bias, float scale) {
  return make_float4(scaled<before>(v.x, bias.x, scale), scaled<before>(v.y, bias.y, scale), scaled<before>(v.z, bias.z, scale),
                     scaled<before>(v.w, bias.w, scale));
}

/// A warp's row of n, in place. V: float or float4. Some are under way at a time, which the compiler could not know not to be biases.
template <bool before, class V>
__device__ __forceinline__ void scale_row(V* row, V const* bias, int n, float scale) {
  constexpr int at_once = 4;
#pragma unroll 1
  for (int first = int(threadIdx.x) % warp_size; first < n; first += at_once * warp_size) {
    V v[at_once], b[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      int const at = first + i * warp_size;
      v[i] = at < n ? row[at] : V{};
      b[i] = at < n && bias != nullptr ? bias[at] : V{};
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      int const at = first + i * warp_size;
      if (at < n) row[at] = scaled<before>(v[i], b[i], scale);
    }
  }
}

/// y[t, :] = factors[t] * y[t, :] + bias, or `before` y[t, :] = (y[t, :] + bias) / factors[t], factors being powers of two. A warp for each
/// row, which leaves at once where there is nothing to do.
template <class F, bool before>
__global__ void __launch_bounds__(256)
    scale_rows_kernel(float* y, std::int64_t y_stride, float const* factors, float const* bias, int n_tokens, int rows) {
  wait_for_previous();
  let_next_start();
  int const token = int(blockIdx.x * blockDim.x + threadIdx.x) / warp_size;
  if (token >= n_tokens) return;
  float const factor = factors != nullptr ? factors[token] : 1.0f;
  if (factor == 1.0f && bias == nullptr) return;
  float const scale = before ? 1.0f / factor : factor;
  float* const row = y + token * y_stride;
  bool const aligned = (reinterpret_cast<std::uintptr_t>(row) | reinterpret_cast<std::uintptr_t>(bias)) % 16 == 0;
  int const n_fours = aligned ? rows / 4 : 0, done = n_fours * 4;
  scale_row<before>(reinterpret_cast<float4*>(row), reinterpret_cast<float4 const*>(bias), n_fours, scale);
  scale_row<before>(row + done, bias != nullptr ? bias + done : nullptr, rows - done, scale);
}

template <class F, bool before>
int scale_rows(TileArgs const& a, float const* bias, CudaQueue const& queue) {
  if (a.factors == nullptr && bias == nullptr) return 0;
  return launch_kernel(&scale_rows_kernel<F, before>, dim3(unsigned(ceil_div(a.n_rows, 8))), dim3(256), 0, queue, a.y, a.y_stride,
                       a.factors, bias, a.n_rows, a.rows);
}

/// y[t, r] = sum_k x[t, k] w[r, k], both of halves, k contiguous, zeros in both from a.dim to the next multiple of 8; or += where a.add.
inline int cublas_product(cudaDataType_t type, void const* w, std::int64_t w_stride, TileArgs const& a, float* y, std::int32_t rows,
                          CudaQueue const& queue) {
  float const one = 1, kept = a.add ? 1.0f : 0.0f;
  cublasStatus_t const status = cublasGemmEx(queue.cublas, CUBLAS_OP_T, CUBLAS_OP_N, rows, a.n_rows, round_up(a.dim, 8), &one, w, type,
                                             int(w_stride), a.x, type, int(act_row_elems(std::uint64_t(a.dim))), &kept, y, CUDA_R_32F,
                                             int(a.y_stride), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  return kernel_status(status);
}

/// Whether cuBLAS takes weights where they lie: its kernels for matrix units read 16 bytes at a time.
template <class F>
bool lie_aligned(TileArgs const& a) {
  return F::block_elems == 1 && a.dim % 8 == 0 && reinterpret_cast<std::uintptr_t>(a.w) % 16 == 0;
}

/// Rows of weights that are unpacked at a time: as many as the workspace holds, in equal ranges.
inline std::int32_t range_rows(TileArgs const& a, CudaQueue const& queue) {
  std::int64_t const most = std::int64_t(queue.workspace_bytes / (act_row_elems(std::uint64_t(a.dim)) * 2)) / 128 * 128;
  if (most == 0) return 0;
  std::int64_t const n_ranges = ceil_div(std::int64_t(a.rows), most);
  return std::int32_t(min_of(round_up(ceil_div(std::int64_t(a.rows), n_ranges), std::int64_t(128)), most));
}

/// Rows [first, first + n) of the weights as halves in the workspace, act_row_elems(a.dim) apart.
template <class F>
int unpack_rows(TileArgs const& a, std::int32_t first, std::int32_t n, CudaQueue const& queue) {
  int const out_stride = int(act_row_elems(std::uint64_t(a.dim)));
  auto const* const w = static_cast<std::uint8_t const*>(a.w) + std::uint64_t(first) * row_bytes(F::dtype, std::uint64_t(a.dim));
  auto* const out = reinterpret_cast<std::uint16_t*>(queue.workspace);
  if constexpr (F::block_elems == 1) {
    static_assert(F::block_bytes == 2);
    int const row_chunks = ceil_div(a.dim, 8), n_chunks = n * row_chunks;
    return launch_kernel(&copy_rows_kernel<F>, dim3(unsigned(ceil_div(n_chunks, 256))), dim3(256), 0, queue,
                         reinterpret_cast<std::uint16_t const*>(w), out, n_chunks, row_chunks, a.dim, out_stride);
  } else {
    int const row_chunks = a.dim / 32;
    std::int64_t const n_chunks = std::int64_t(n) * row_chunks;
    return launch_kernel(&decode_rows_kernel<F>, dim3(unsigned(ceil_div(n_chunks, std::int64_t(64)))), dim3(256), 0, queue, w, out,
                         n_chunks, row_chunks, out_stride);
  }
}

}  // namespace detail

/// Whether launch_cublas() can do it at all.
template <class F>
bool cublas_can(TileArgs const& a, CudaQueue const& queue) {
  if (is_bf16_product<F> && queue.capability < 80) return false;
  return detail::lie_aligned<F>(a) || detail::range_rows(a, queue) > 0;
}

/// Whether it is worth it: weights that cuBLAS takes as they lie, always.
template <class F>
bool cublas_pays(TileArgs const& a, CudaQueue const& queue) {
  if (detail::lie_aligned<F>(a)) return true;
  if (a.n_rows < cublas_min_tokens || std::int64_t(a.rows) * a.dim < cublas_min_elems) return false;
  double const tiles = ceil_div(detail::range_rows(a, queue), 128) * double(ceil_div(a.n_rows, 128));
  return tiles >= cublas_min_tiles * queue.n_multiprocessors;
}

/// Enqueues a dense product through cuBLAS.
template <class F>
int launch_cublas(TileArgs const& a, CudaQueue const& queue) {
  constexpr cudaDataType_t type = is_bf16_product<F> ? CUDA_R_16BF : CUDA_R_16F;
  if (a.add) {
    if (int const status = detail::scale_rows<F, true>(a, a.bias, queue); status != 0) return status;
  }
  if (detail::lie_aligned<F>(a)) {
    if (int const status = detail::cublas_product(type, a.w, a.dim, a, a.y, a.rows, queue); status != 0) return status;
  } else {
    std::int32_t const step = detail::range_rows(a, queue);
    std::int64_t const stride = std::int64_t(act_row_elems(std::uint64_t(a.dim)));
    for (std::int32_t first = 0; first < a.rows; first += step) {
      std::int32_t const n = min_of(step, a.rows - first);
      if (int const status = detail::unpack_rows<F>(a, first, n, queue); status != 0) return status;
      if (int const status = detail::cublas_product(type, queue.workspace, stride, a, a.y + first, n, queue); status != 0) return status;
    }
  }
  return detail::scale_rows<F, false>(a, a.add ? nullptr : a.bias, queue);
}

}  // namespace tiered::cuda
