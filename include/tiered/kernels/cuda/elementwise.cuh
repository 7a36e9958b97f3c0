/// Ops that take each element by itself. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/gelu.hpp"

namespace tiered::cuda {

/// x times half of erfc(-x / sqrt 2), see gelu_term().
__device__ __forceinline__ float gelu(float x) {
  float const s = __fdiv_rn(1.0f, __fmaf_rn(fabsf(x), gelu_slope, 1.0f));
  float sum = gelu_term(n_gelu_terms - 1);
#pragma unroll
  for (int i = n_gelu_terms - 2; i >= 0; --i) sum = __fmaf_rn(sum, s, gelu_term(i));
  float const tail = __fmul_rn(sum, expf(__fmul_rn(__fmul_rn(x, x), -0.5f)));
  return __fmul_rn(x, x < 0 ? tail : __fsub_rn(1.0f, tail));
}

/// But for gelu_erf, x / (1 + e^-z): z = x, 1.702 x, or 2 sqrt(2 / pi) (x + 0.044715 x^3), twice the argument of the tanh. Nothing is left
/// for the compiler to contract, so that an element has the same bits wherever this is inlined.
__device__ __forceinline__ float activate(Activation activation, float x) {
  if (activation == Activation::gelu_erf) return gelu(x);
  float z = x;
  if (activation == Activation::quick_gelu) z = __fmul_rn(1.702f, x);
  if (activation == Activation::gelu_tanh) z = x * __fmaf_rn(0.0713548163f, x * x, 1.5957691216f);
  return __fdiv_rn(x, 1.0f + expf(-z));
}

namespace detail {

inline constexpr int element_threads = 256;

/// Whether arrays of n floats can be taken four at a time.
template <class... Pointers>
bool all_in_fours(std::int64_t n, Pointers... pointers) {
  return n % 4 == 0 && ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

/// Enough blocks to fill the device several times, no more than there is work for.
inline unsigned element_blocks(std::int64_t n_threads, CudaQueue const& queue) {
  std::int64_t const most = std::int64_t(queue.n_multiprocessors > 0 ? queue.n_multiprocessors : 64) * 32;
  return unsigned(min_of(ceil_div(n_threads, std::int64_t(element_threads)), most));
}
__device__ __forceinline__ std::int64_t first_element() { return std::int64_t(blockIdx.x) * element_threads + threadIdx.x; }
__device__ __forceinline__ std::int64_t element_step() { return std::int64_t(gridDim.x) * element_threads; }

__device__ __forceinline__ float gated_value(Activation activation, float gate, float up) {
  return __fmul_rn(activate(activation, gate), up);
}
__device__ __forceinline__ float4 gated_value(Activation activation, float4 gate, float4 up) {
  return make_float4(gated_value(activation, gate.x, up.x), gated_value(activation, gate.y, up.y), gated_value(activation, gate.z, up.z),
                     gated_value(activation, gate.w, up.w));
}
__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }
__device__ __forceinline__ float multiply_add(float w, float a, float b) { return __fmaf_rn(w, a, b); }
__device__ __forceinline__ float4 multiply_add(float w, float4 a, float4 b) {
  return make_float4(__fmaf_rn(w, a.x, b.x), __fmaf_rn(w, a.y, b.y), __fmaf_rn(w, a.z, b.z), __fmaf_rn(w, a.w, b.w));
}

// V: float, or float4, n and dim then counted in those.
template <class V>
__global__ void __launch_bounds__(element_threads) gated_kernel(V const* gate, V const* up, V* out, std::int64_t n, Activation activation) {
  wait_for_previous();
  let_next_start();
  for (std::int64_t i = first_element(); i < n; i += element_step()) out[i] = gated_value(activation, gate[i], up[i]);
}

__device__ __forceinline__ float activated(Activation activation, float x) { return activate(activation, x); }
__device__ __forceinline__ float4 activated(Activation activation, float4 x) {
  return make_float4(activate(activation, x.x), activate(activation, x.y), activate(activation, x.z), activate(activation, x.w));
}

template <class V>
__global__ void __launch_bounds__(element_threads) activate_kernel(V* x, std::int64_t n, Activation activation) {
  wait_for_previous();
  let_next_start();
  for (std::int64_t i = first_element(); i < n; i += element_step()) x[i] = activated(activation, x[i]);
}

template <class V>
__global__ void __launch_bounds__(element_threads) add_kernel(V const* x, V* y, std::int64_t n) {
  wait_for_previous();
  let_next_start();
  for (std::int64_t i = first_element(); i < n; i += element_step()) y[i] = plus(y[i], x[i]);
}

template <class V>
__global__ void __launch_bounds__(element_threads)
    gather_kernel(V const* x, std::int32_t const* index, V* y, std::int64_t n_rows, int dim) {
  wait_for_previous();
  let_next_start();
  for (std::int64_t i = first_element(); i < n_rows * dim; i += element_step()) y[i] = x[index[i / dim] * std::int64_t(dim) + i % dim];
}

/// Of rows of `dim` elements: those of the table and of y.
template <class V>
__global__ void __launch_bounds__(element_threads)
    add_taps_kernel(V const* table, std::int32_t const* index, float const* share, V* y, std::int64_t n_rows, int dim) {
  wait_for_previous();
  let_next_start();
  for (std::int64_t i = first_element(); i < n_rows * dim; i += element_step()) {
    std::int64_t const row = i / dim, k = i % dim;
    V sum = y[i];
#pragma unroll
    for (std::int64_t j = row * AddTapsArgs::n_taps; j < (row + 1) * AddTapsArgs::n_taps; ++j)
      sum = multiply_add(share[j], table[index[j] * std::int64_t(dim) + k], sum);
    y[i] = sum;
  }
}

struct CombineShape {
  int n_tokens, n_used, dim;
};

template <class V, bool to_sum>
__global__ void __launch_bounds__(element_threads) combine_kernel(V const* y, float const* weights, V* out, CombineShape const s) {
  wait_for_previous();
  let_next_start();
  for (std::int64_t i = first_element(); i < std::int64_t(s.n_tokens) * s.dim; i += element_step()) {
    std::int64_t const token = i / s.dim, k = i % s.dim;
    V sum{};
    for (std::int64_t slot = token * s.n_used; slot < (token + 1) * s.n_used; ++slot)
      sum = multiply_add(weights[slot], y[slot * s.dim + k], sum);
    if constexpr (to_sum) sum = plus(out[i], sum);
    out[i] = sum;
  }
}

template <class V, bool to_sum>
int launch_combine(CombineArgs const& a, CudaQueue const& queue) {
  constexpr int width = int(sizeof(V) / sizeof(float));
  CombineShape const shape{a.n_tokens, a.n_used, a.dim / width};
  return launch_kernel(combine_kernel<V, to_sum>, element_blocks(std::int64_t(a.n_tokens) * shape.dim, queue), element_threads, 0, queue,
                       reinterpret_cast<V const*>(a.y), a.weights, reinterpret_cast<V*>(a.out), shape);
}

template <bool to_sum>
int combine_rows(CombineArgs const& a, CudaQueue const& queue) {
  if (a.n_tokens == 0 || a.dim == 0) return 0;
  return all_in_fours(a.dim, a.y, a.out) ? launch_combine<float4, to_sum>(a, queue) : launch_combine<float, to_sum>(a, queue);
}

}  // namespace detail

inline int gated(GatedArgs const& a, Queue queue) {
  if (a.n == 0) return 0;
  CudaQueue const& q = native(queue);
  if (detail::all_in_fours(a.n, a.gate, a.up, a.out)) {
    return launch_kernel(detail::gated_kernel<float4>, detail::element_blocks(a.n / 4, q), detail::element_threads, 0, q,
                         reinterpret_cast<float4 const*>(a.gate), reinterpret_cast<float4 const*>(a.up), reinterpret_cast<float4*>(a.out),
                         a.n / 4, a.activation);
  }
  return launch_kernel(detail::gated_kernel<float>, detail::element_blocks(a.n, q), detail::element_threads, 0, q, a.gate, a.up, a.out, a.n,
                       a.activation);
}

inline int add(AddArgs const& a, Queue queue) {
  if (a.n == 0) return 0;
  CudaQueue const& q = native(queue);
  if (detail::all_in_fours(a.n, a.x, a.y)) {
    return launch_kernel(detail::add_kernel<float4>, detail::element_blocks(a.n / 4, q), detail::element_threads, 0, q,
                         reinterpret_cast<float4 const*>(a.x), reinterpret_cast<float4*>(a.y), a.n / 4);
  }
  return launch_kernel(detail::add_kernel<float>, detail::element_blocks(a.n, q), detail::element_threads, 0, q, a.x, a.y, a.n);
}

inline int activate(ActivateArgs const& a, Queue queue) {
  if (a.n == 0) return 0;
  CudaQueue const& q = native(queue);
  if (detail::all_in_fours(a.n, a.x)) {
    return launch_kernel(detail::activate_kernel<float4>, detail::element_blocks(a.n / 4, q), detail::element_threads, 0, q,
                         reinterpret_cast<float4*>(a.x), a.n / 4, a.activation);
  }
  return launch_kernel(detail::activate_kernel<float>, detail::element_blocks(a.n, q), detail::element_threads, 0, q, a.x, a.n,
                       a.activation);
}

inline int add_taps(AddTapsArgs const& a, Queue queue) {
  if (a.n_rows == 0 || a.dim == 0) return 0;
  CudaQueue const& q = native(queue);
  std::int64_t const n = std::int64_t(a.n_rows) * a.dim;
  if (detail::all_in_fours(a.dim, a.table, a.y)) {
    return launch_kernel(detail::add_taps_kernel<float4>, detail::element_blocks(n / 4, q), detail::element_threads, 0, q,
                         reinterpret_cast<float4 const*>(a.table), a.index, a.share, reinterpret_cast<float4*>(a.y), std::int64_t(a.n_rows),
                         a.dim / 4);
  }
  return launch_kernel(detail::add_taps_kernel<float>, detail::element_blocks(n, q), detail::element_threads, 0, q, a.table, a.index,
                       a.share, a.y, std::int64_t(a.n_rows), a.dim);
}

inline int gather(GatherArgs const& a, Queue queue) {
  if (a.n_rows == 0 || a.dim == 0) return 0;
  CudaQueue const& q = native(queue);
  std::int64_t const n = std::int64_t(a.n_rows) * a.dim;
  if (detail::all_in_fours(a.dim, a.x, a.y)) {
    return launch_kernel(detail::gather_kernel<float4>, detail::element_blocks(n / 4, q), detail::element_threads, 0, q,
                         reinterpret_cast<float4 const*>(a.x), a.index, reinterpret_cast<float4*>(a.y), std::int64_t(a.n_rows), a.dim / 4);
  }
  return launch_kernel(detail::gather_kernel<float>, detail::element_blocks(n, q), detail::element_threads, 0, q, a.x, a.index, a.y,
                       std::int64_t(a.n_rows), a.dim);
}

inline int combine(CombineArgs const& a, Queue queue) { return detail::combine_rows<false>(a, native(queue)); }
/// out += the sum, instead of = it.
inline int combine_add(CombineArgs const& a, Queue queue) { return detail::combine_rows<true>(a, native(queue)); }

}  // namespace tiered::cuda
