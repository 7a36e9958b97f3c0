/// Products of many rows by cuBLAS: weights that are halves as they lie, others decoded to halves range by range. [device-visible]
///
/// A range of rows is decoded into CudaQueue::workspace and read back from the L2 cache by the product; then the next range. What cuBLAS
/// wrote is finished by a pass over rows that have a factor or where there is a bias.
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

/// y[t, :] = factors[t] * y[t, :] + bias. A warp for each row, which leaves at once where there is nothing to do.
template <class F>
__global__ void __launch_bounds__(256)
    finish_rows_kernel(float* y, std::int64_t y_stride, float const* factors, float const* bias, int n_tokens, int rows) {
  wait_for_previous();
  let_next_start();
  int const token = int(blockIdx.x * blockDim.x + threadIdx.x) / warp_size;
  if (token >= n_tokens) return;
  float const factor = factors != nullptr ? factors[token] : 1.0f;
  if (factor == 1.0f && bias == nullptr) return;
  float* const row = y + token * y_stride;
#pragma unroll 4
  for (int r = int(threadIdx.x) % warp_size; r < rows; r += warp_size) row[r] = row[r] * factor + (bias != nullptr ? bias[r] : 0.0f);
}

/// y[t, r] = sum_k x[t, k] w[r, k], both of halves, k contiguous.
inline int cublas_product(cudaDataType_t type, void const* w, std::int64_t w_stride, TileArgs const& a, float* y, std::int32_t rows,
                          CudaQueue const& queue) {
  float const one = 1, zero = 0;
  cublasStatus_t const status = cublasGemmEx(queue.cublas, CUBLAS_OP_T, CUBLAS_OP_N, rows, a.n_rows, a.dim, &one, w, type, int(w_stride),
                                             a.x, type, int(act_row_elems(std::uint64_t(a.dim))), &zero, y, CUDA_R_32F, int(a.y_stride),
                                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  return kernel_status(status);
}

/// Rows of weights that are decoded at a time: as many as the workspace holds, in equal ranges.
inline std::int32_t range_rows(TileArgs const& a, CudaQueue const& queue) {
  std::int64_t const most = std::int64_t(queue.workspace_bytes / (act_row_elems(std::uint64_t(a.dim)) * 2)) / 128 * 128;
  if (most == 0) return 0;
  std::int64_t const n_ranges = ceil_div(std::int64_t(a.rows), most);
  return std::int32_t(min_of(round_up(ceil_div(std::int64_t(a.rows), n_ranges), std::int64_t(128)), most));
}

template <class F>
int decode_rows(TileArgs const& a, std::int32_t first, std::int32_t n, CudaQueue const& queue) {
  int const row_chunks = a.dim / 32, out_stride = int(act_row_elems(std::uint64_t(a.dim)));
  auto const* const w = static_cast<std::uint8_t const*>(a.w) + std::uint64_t(first) * row_bytes(F::dtype, std::uint64_t(a.dim));
  std::int64_t const n_chunks = std::int64_t(n) * row_chunks;
  return launch_kernel(&decode_rows_kernel<F>, dim3(unsigned(ceil_div(n_chunks, std::int64_t(64)))), dim3(256), 0, queue, w,
                       reinterpret_cast<std::uint16_t*>(queue.workspace), n_chunks, row_chunks, out_stride);
}

}  // namespace detail

/// Whether launch_cublas() can do it at all.
template <class F>
bool cublas_can(TileArgs const& a, CudaQueue const& queue) {
  if (is_bf16_product<F> && queue.capability < 80) return false;
  if constexpr (F::block_elems == 1) return a.dim % 8 == 0 && reinterpret_cast<std::uintptr_t>(a.w) % 16 == 0;
  return detail::range_rows(a, queue) > 0;
}

/// Whether it is worth it: weights that are halves, always.
template <class F>
bool cublas_pays(TileArgs const& a, CudaQueue const& queue) {
  if constexpr (F::block_elems == 1) return true;
  if (a.n_rows < cublas_min_tokens || std::int64_t(a.rows) * a.dim < cublas_min_elems) return false;
  double const tiles = ceil_div(detail::range_rows(a, queue), 128) * double(ceil_div(a.n_rows, 128));
  return tiles >= cublas_min_tiles * queue.n_multiprocessors;
}

/// Enqueues a dense product through cuBLAS.
template <class F>
int launch_cublas(TileArgs const& a, CudaQueue const& queue) {
  constexpr cudaDataType_t type = is_bf16_product<F> ? CUDA_R_16BF : CUDA_R_16F;
  if constexpr (F::block_elems == 1) {
    if (int const status = detail::cublas_product(type, a.w, a.dim, a, a.y, a.rows, queue); status != 0) return status;
  } else {
    std::int32_t const step = detail::range_rows(a, queue);
    for (std::int32_t first = 0; first < a.rows; first += step) {
      std::int32_t const n = min_of(step, a.rows - first);
      if (int const status = detail::decode_rows<F>(a, first, n, queue); status != 0) return status;
      std::int64_t const stride = std::int64_t(act_row_elems(std::uint64_t(a.dim)));
      if (int const status = detail::cublas_product(type, queue.workspace, stride, a, a.y + first, n, queue); status != 0) return status;
    }
  }
  if (a.factors == nullptr && a.bias == nullptr) return 0;
  return launch_kernel(&detail::finish_rows_kernel<F>, dim3(unsigned(ceil_div(a.n_rows, 8))), dim3(256), 0, queue, a.y, a.y_stride,
                       a.factors, a.bias, a.n_rows, a.rows);
}

}  // namespace tiered::cuda
