/// The CUDA kernels of one device as a table. Plain C++; link tiered::cuda_kernels, or compile instantiate.cuh in one .cu of your own and
/// instantiate_format.cuh in one for each weight format.
#pragma once

#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/table.hpp"

namespace tiered {

/// What products of many rows take.
constexpr DType product_activation(DType weights) { return half_activation(weights); }

/// Queue::native of every entry is a CudaQueue; a status is a cudaError_t or kernel_status() of cuBLAS. The table lives as long as the
/// program.
KernelTable const& cuda_kernels();
/// The same with the limits of a device: fused_dim, by how much shared memory its blocks can have. 90 for sm_90.
KernelTable cuda_kernels(int capability);

}  // namespace tiered
