/// Defines format_kernels<F>() for F = TIERED_CUDA_FORMAT: included by one .cu for each weight format.
#pragma once

#include "tiered/kernels/cuda/embed.cuh"
#include "tiered/kernels/cuda/few_experts.cuh"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/fused_matmul.cuh"
#include "tiered/kernels/cuda/grouped_matmul.cuh"
#include "tiered/kernels/cuda/matmul.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {

template <class F>
FormatKernels const& format_kernels() {
  static constexpr FormatKernels kernels{
      .embed = &embed<F>,
      .matmul = &matmul<F>,
      .matmul_add = &matmul_add<F>,
      .fine_matmul = fine_matmul_of<F, false>(),
      .fine_matmul_add = fine_matmul_of<F, true>(),
      .activation = product_activation(F::dtype),
      .fused_matmul = &fused_matmul<F>,
      .few_gate_up = &few_gate_up<F>,
      .few_down = &few_down<F>,
      .down_may_choose = &down_may_choose<F>,
      .grouped_matmul = &grouped_matmul<F>,
      .longest_few_row = &longest_few_row<F>,
  };
  return kernels;
}

template FormatKernels const& format_kernels<TIERED_CUDA_FORMAT>();

}  // namespace tiered::cuda
