/// Products of many rows grouped by expert: the groups are known to the device alone. [device-visible]
#pragma once

#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/gemm_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/matmul_f32.cuh"
#include "tiered/kernels/cuda/tile_matmul.cuh"

namespace tiered::cuda {

/// Groups' ranges must lie within n_slots, but in a piece; places that no group has are not written.
template <class F>
int grouped_matmul(GroupedMatmulArgs const& a, Queue queue) {
  if (a.n_slots == 0 || a.n_groups == 0 || a.rows == 0) return 0;
  CudaQueue const& q = native(queue);
  TileArgs const args = tile_args(a, product_activation(F::dtype));
  if constexpr (F::dtype == DType::f32) {
    return launch_f32_matmul<F>(args, q);
  } else {
    std::int32_t const n_groups = min_of(a.n_groups, a.n_slots);
    double const mean = a.mean_slots > 0 ? a.mean_slots : double(a.n_slots) / n_groups;
    return launch_tiles<F>(args, choose_tile(mean, n_groups, a.rows * (a.y_up != nullptr ? 2 : 1), q), q);
  }
}

}  // namespace tiered::cuda
