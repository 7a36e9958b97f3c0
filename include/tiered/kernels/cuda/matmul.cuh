/// Products of many rows with weights of a format: one entry, three ways. [device-visible]
#pragma once

#include "tiered/kernels/cuda/cublas.cuh"
#include "tiered/kernels/cuda/gemm_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/matmul_f32.cuh"
#include "tiered/kernels/cuda/tile_matmul.cuh"

namespace tiered::cuda {

/// By tiles that decode their weights; any shape. F is not F32.
template <class F>
int matmul_tiles(MatmulArgs const& a, Queue queue) {
  if (a.n_tokens == 0 || a.rows == 0) return 0;
  CudaQueue const& q = native(queue);
  return launch_tiles<F>(tile_args(a, product_activation(F::dtype)), choose_tile(a.n_tokens, 1, a.rows, q), q);
}

/// By whichever is faster.
template <class F>
int matmul(MatmulArgs const& a, Queue queue) {
  if (a.n_tokens == 0 || a.rows == 0) return 0;
  CudaQueue const& q = native(queue);
  TileArgs const args = tile_args(a, product_activation(F::dtype));
  if constexpr (F::dtype == DType::f32) {
    return launch_f32_matmul<F>(args, q);
  } else {
    return cublas_can<F>(args, q) && cublas_pays<F>(args, q) ? launch_cublas<F>(args, q) : matmul_tiles<F>(a, queue);
  }
}

}  // namespace tiered::cuda
