/// From a type known at run time to the kernels of its format, and the op whose parts have types of their own. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {
namespace detail {

struct KernelsByType {
  FormatKernels const* of[n_file_dtypes] = {};
};

inline KernelsByType const& kernels_by_type() {
  static KernelsByType const table = [] {
    KernelsByType kernels;
    for_each_format([&](auto format) {
      using F = decltype(format);
      kernels.of[std::uint32_t(F::dtype)] = &format_kernels<F>();
    });
    return kernels;
  }();
  return table;
}

}  // namespace detail

/// Null where there are none.
inline FormatKernels const* kernels_of(DType type) {
  return std::uint32_t(type) < n_file_dtypes ? detail::kernels_by_type().of[std::uint32_t(type)] : nullptr;
}

namespace detail {

/// Neighbours of one type share a launch.
inline int fused_runs(FusedMatmulArgs const& a, Queue queue) {
  for (std::int32_t begin = 0, end = 0; begin < a.n_parts; begin = end) {
    DType const type = a.parts[begin].type;
    while (end < a.n_parts && a.parts[end].type == type) ++end;
    FormatKernels const* const kernels = kernels_of(type);
    if (kernels == nullptr) return int(cudaErrorInvalidValue);
    if (int const status = kernels->fused_matmul(a, Range{begin, end}, queue); status != 0) return status;
  }
  return 0;
}

/// gate and up of different types: both are stored, up where its part says or else in the queue's workspace, then they meet.
inline int fused_gate_of_two_types(FusedMatmulArgs a, Queue queue) {
  CudaQueue const& q = native(queue);
  FusedMatmulArgs::Part const& gate = a.parts[0];
  FusedMatmulArgs::Part& up = a.parts[1];
  if (up.y == nullptr) {
    if (std::size_t(a.n_tokens) * std::size_t(up.rows) * sizeof(float) > q.workspace_bytes) return int(cudaErrorInvalidValue);
    up.y = reinterpret_cast<float*>(q.workspace);
    up.y_stride = up.rows;
  }
  a.then = FusedMatmulArgs::Then::store;
  if (int const status = fused_runs(a, queue); status != 0) return status;
  if (gate.y_stride == gate.rows && up.y_stride == up.rows) {
    return gated(GatedArgs{gate.y, up.y, gate.y, std::int64_t(a.n_tokens) * gate.rows, a.activation}, queue);
  }
  for (std::int64_t t = 0; t < a.n_tokens; ++t) {
    float* const y = gate.y + t * gate.y_stride;
    if (int const status = gated(GatedArgs{y, up.y + t * up.y_stride, y, gate.rows, a.activation}, queue); status != 0) return status;
  }
  return 0;
}

}  // namespace detail

inline int fused_matmul_of_any_type(FusedMatmulArgs const& a, Queue queue) {
  if (a.n_tokens == 0) return 0;
  if (a.n_tokens > fused_rows || a.n_parts < 1 || a.n_parts > FusedMatmulArgs::max_parts) return int(cudaErrorInvalidValue);
  bool const two_types = a.then == FusedMatmulArgs::Then::gate && a.parts[0].type != a.parts[1].type;
  return two_types ? detail::fused_gate_of_two_types(a, queue) : detail::fused_runs(a, queue);
}

}  // namespace tiered::cuda
