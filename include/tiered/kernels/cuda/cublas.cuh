/// Products of many rows by cuBLAS: weights that are halves in whole 16 bytes a row as they lie, others range by range. [device-visible]
///
/// A range of rows is decoded, or copied to aligned rows, into CudaQueue::workspace and read back from the L2 cache by the product; then
/// the next range. What cuBLAS wrote is finished by a pass over rows that have a factor, which few have. Where it adds to what is there,
/// that is made ready by such a pass. cuBLAS adds biases itself, but those that are not aligned: these are added by such a pass, too.
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

/// Before a product that is added, (v + bias) * scale; behind one, v * scale + bias. Less what the product adds of the bias by itself,
/// which is `added` (0 or 1) times all of it.
template <bool before>
__device__ __forceinline__ float rescaled(float v, float bias, float scale, float added) {
  return before ? fmaf(v + bias, scale, -added * bias) : fmaf(v - added * bias, scale, bias);
}
template <bool before>
__device__ __forceinline__ float4 rescaled(float4 v, float4 bias, float scale, float added) {
  return make_float4(rescaled<before>(v.x, bias.x, scale, added), rescaled<before>(v.y, bias.y, scale, added),
                     rescaled<before>(v.z, bias.z, scale, added), rescaled<before>(v.w, bias.w, scale, added));
}

/// A warp's row of n, in place. V: float or float4. Some are under way at a time, which the compiler could not know not to be biases.
template <bool before, class V>
__device__ __forceinline__ void rescale_row(V* row, V const* bias, int n, float scale, float added) {
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
      if (at < n) row[at] = rescaled<before>(v[i], b[i], scale, added);
    }
  }
}

/// What is done to y around a product. Factors are powers of two.
struct Rescaling {
  float* y;
  std::int64_t y_stride;
  float const* factors;  ///< [n_tokens] or null: ones
  float const* bias;     ///< [rows] or null
  std::int32_t n_tokens, rows;
  bool in_product;  ///< which adds the bias
};

/// y[t, :] = factors[t] * y[t, :] + bias, or `before` y[t, :] = (y[t, :] + bias) / factors[t], as far as the product does not add it. A
/// warp for each row, which leaves at once where there is nothing to do.
template <class F, bool before>
__global__ void __launch_bounds__(256) rescale_rows_kernel(Rescaling const a) {
  wait_for_previous();
  let_next_start();
  int const token = int(blockIdx.x * blockDim.x + threadIdx.x) / warp_size;
  if (token >= a.n_tokens) return;
  float const factor = a.factors != nullptr ? a.factors[token] : 1.0f;
  if (factor == 1.0f && (a.bias == nullptr || a.in_product)) return;
  float const scale = before ? 1.0f / factor : factor, added = a.in_product ? 1.0f : 0.0f;
  float* const row = a.y + token * a.y_stride;
  bool const aligned = (reinterpret_cast<std::uintptr_t>(row) | reinterpret_cast<std::uintptr_t>(a.bias)) % 16 == 0;
  int const n_fours = aligned ? a.rows / 4 : 0, done = n_fours * 4;
  rescale_row<before>(reinterpret_cast<float4*>(row), reinterpret_cast<float4 const*>(a.bias), n_fours, scale, added);
  rescale_row<before>(row + done, a.bias != nullptr ? a.bias + done : nullptr, a.rows - done, scale, added);
}

template <class F, bool before>
int rescale_rows(TileArgs const& a, float const* bias, bool in_product, CudaQueue const& queue) {
  if (a.factors == nullptr && (bias == nullptr || in_product)) return 0;
  Rescaling const args{a.y, a.y_stride, a.factors, bias, a.n_rows, a.rows, in_product};
  return launch_kernel(&rescale_rows_kernel<F, before>, dim3(unsigned(ceil_div(a.n_rows, 8))), dim3(256), 0, queue, args);
}

/// y[t, first + r] = sum_k x[t, k] w[r, k] (+ bias[first + r]) for n rows of weights, both of halves, k contiguous, zeros in both from
/// a.dim to the next multiple of 8; or += where a.add. Rows beyond a multiple of 8 by themselves where that is worth a launch.
inline int cublas_product(bool bf16, void const* w, std::int64_t w_stride, TileArgs const& a, float const* bias, std::int32_t first,
                          std::int32_t n, CudaQueue const& queue) {
  if (queue.gemm.run == nullptr) return kernel_status(CUBLAS_STATUS_NOT_INITIALIZED);
  GemmArgs g{bf16, w, a.x, bias != nullptr ? bias + first : nullptr, a.y + first};
  g.w_stride = w_stride, g.x_stride = std::int64_t(act_row_elems(std::uint64_t(a.dim))), g.y_stride = a.y_stride;
  g.rows = n, g.n = a.n_rows, g.dim = round_up(a.dim, 8);
  g.add = a.add;
  std::int32_t const rest = n % 8;
  if (rest > 0 && std::int64_t(n) * a.n_rows * a.dim >= cublas_split_macs) {
    g.rows = n - rest;
    if (int const status = queue.gemm.run(queue.gemm.plans, g, queue.stream); status != 0) return status;
    g.w = static_cast<std::uint16_t const*>(w) + (n - rest) * w_stride;
    g.y += n - rest;
    if (bias != nullptr) g.bias += n - rest;
    g.rows = rest;
  }
  return queue.gemm.run(queue.gemm.plans, g, queue.stream);
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
  bool const in_product = a.bias != nullptr && reinterpret_cast<std::uintptr_t>(a.bias) % 16 == 0;
  float const* const bias = in_product ? a.bias : nullptr;
  if (a.add) {
    if (int const status = detail::rescale_rows<F, true>(a, a.bias, in_product, queue); status != 0) return status;
  }
  if (detail::lie_aligned<F>(a)) {
    if (int const status = detail::cublas_product(is_bf16_product<F>, a.w, a.dim, a, bias, 0, a.rows, queue); status != 0) return status;
  } else {
    std::int32_t const step = detail::range_rows(a, queue);
    std::int64_t const stride = std::int64_t(act_row_elems(std::uint64_t(a.dim)));
    for (std::int32_t first = 0; first < a.rows; first += step) {
      std::int32_t const n = min_of(step, a.rows - first);
      if (int const status = detail::unpack_rows<F>(a, first, n, queue); status != 0) return status;
      if (int const status = detail::cublas_product(is_bf16_product<F>, queue.workspace, stride, a, bias, first, n, queue); status != 0)
        return status;
    }
  }
  return detail::rescale_rows<F, false>(a, a.add ? nullptr : a.bias, in_product && !a.add, queue);
}

}  // namespace tiered::cuda
