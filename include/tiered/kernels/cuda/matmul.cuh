/// Products of many rows with weights of a format: one entry, three ways. [device-visible]
#pragma once

#include "tiered/kernels/cuda/cublas.cuh"
#include "tiered/kernels/cuda/gemm_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/matmul_f32.cuh"
#include "tiered/kernels/cuda/tile_matmul.cuh"

namespace tiered::cuda {

namespace detail {

/// By whichever is faster; tiles take any shape.
template <class F>
int matmul_into(MatmulArgs const& a, bool add, CudaQueue const& queue) {
  if (a.n_tokens == 0 || a.rows == 0) return 0;
  TileArgs const args = tile_args(a, product_activation(F::dtype), add);
  if constexpr (F::dtype == DType::f32) {
    return launch_f32_matmul<F>(args, queue);
  } else {
    if (cublas_can<F>(args, queue) && cublas_pays<F>(args, queue)) return launch_cublas<F>(args, queue);
    return launch_tiles<F>(args, choose_tile(a.n_tokens, 1, a.rows, queue), queue);
  }
}

/// x in two parts: the products of what rounding left first, then those of what it made, added.
template <class F>
int fine_matmul_into(MatmulArgs const& a, bool add, CudaQueue const& queue) {
  MatmulArgs rest = a;
  rest.x = static_cast<std::byte const*>(a.x) + act_second_offset(DType::act_f16_two, std::uint64_t(a.n_tokens), std::uint64_t(a.dim));
  rest.bias = nullptr;
  if (int const status = matmul_into<F>(rest, add, queue); status != 0) return status;
  return matmul_into<F>(a, true, queue);
}

}  // namespace detail

template <class F>
int matmul(MatmulArgs const& a, Queue queue) {
  return detail::matmul_into<F>(a, false, native(queue));
}
template <class F>
int matmul_add(MatmulArgs const& a, Queue queue) {
  return detail::matmul_into<F>(a, true, native(queue));
}

/// FormatKernels::fine_matmul, fine_matmul_add: weights that are halves themselves; for others null.
template <class F, bool add>
constexpr Kernel<MatmulArgs> fine_matmul_of() {
  if constexpr (F::dtype == DType::f16) {
    return [](MatmulArgs const& a, Queue queue) { return detail::fine_matmul_into<F>(a, add, native(queue)); };
  } else {
    return nullptr;
  }
}

}  // namespace tiered::cuda
