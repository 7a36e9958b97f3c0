/// What launchers of the CUDA table return, as text: statuses of the runtime and of cuBLAS in one number. Toolkit headers only.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

namespace tiered {

/// Above every cudaError_t: what cuBLAS refused comes as this plus its own number.
inline constexpr int cublas_status_base = 1'000'000;

constexpr int kernel_status(cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS ? 0 : cublas_status_base + int(status); }

/// Queue::status_text of the CUDA table; lives as long as the program.
inline char const* kernel_status_text(int status) {
  if (status < cublas_status_base) return cudaGetErrorString(cudaError_t(status));
  switch (cublasStatus_t(status - cublas_status_base)) {
    case CUBLAS_STATUS_SUCCESS: break;
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED (1): the library was not initialised";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED (3): no memory for cuBLAS";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE (7): an argument that cuBLAS does not take";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "CUBLAS_STATUS_ARCH_MISMATCH (8): not on a device of this architecture";
    case CUBLAS_STATUS_MAPPING_ERROR: return "CUBLAS_STATUS_MAPPING_ERROR (11): memory of the device could not be reached";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED (13): a kernel of cuBLAS failed";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR (14): an operation within cuBLAS failed";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED (15): cuBLAS cannot do this product";
    case CUBLAS_STATUS_LICENSE_ERROR: return "CUBLAS_STATUS_LICENSE_ERROR (16): no licence for this function of cuBLAS";
  }
  return "a status that this version of cuBLAS does not name";
}

}  // namespace tiered
