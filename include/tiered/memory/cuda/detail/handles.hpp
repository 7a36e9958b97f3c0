/// Handles of the CUDA runtime with an owner.
#pragma once

#include <memory>
#include <type_traits>

#include <cuda_runtime_api.h>

#include "tiered/memory/cuda/check.hpp"

namespace tiered::detail {

struct DestroyCuda {
  void operator()(cudaStream_t stream) const { static_cast<void>(cudaStreamDestroy(stream)); }
  void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
  void operator()(cudaGraph_t graph) const { static_cast<void>(cudaGraphDestroy(graph)); }
  void operator()(cudaGraphExec_t graph) const { static_cast<void>(cudaGraphExecDestroy(graph)); }
};
/// An owned handle: a cudaStream_t, cudaEvent_t, cudaGraph_t or cudaGraphExec_t.
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyCuda>;

inline Owned<cudaEvent_t> make_event(unsigned flags) {
  cudaEvent_t event = nullptr;
  cuda_check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags");
  return Owned<cudaEvent_t>(event);
}

}  // namespace tiered::detail
