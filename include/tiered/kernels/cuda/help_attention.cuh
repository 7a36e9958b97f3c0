/// Asks the host for its part of attention, within a step that was enqueued as a whole: see HelpAttentionArgs. [device-visible]
///
/// One block each: a row's queries are a few KB. Between the two the device reads its own positions, those over the link among them, with
/// the kernel that attends to any; that one waits for nobody. So only the block that adds the host's part waits, and only for the host.
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/help.cuh"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int help_attention_threads = 512;
inline constexpr int help_attention_most_heads = 512;

__global__ void __launch_bounds__(help_attention_threads) attention_ask_kernel(__grid_constant__ HelpAttentionArgs const a) {
  wait_for_previous();
  let_next_start();
  int const thread = int(threadIdx.x);
  if (thread == 0) {
    a.log->begin_ns = now_ns();
    a.log->asked_ns = 0;
  }
  if (!a.asks(a.row->position)) return;
  int const n = a.n_heads * a.head_dim;
  int done = 0;
  if ((reinterpret_cast<std::uintptr_t>(a.q) | reinterpret_cast<std::uintptr_t>(a.host_q)) % sizeof(float4) == 0) {
    done = n / 4 * 4;
    for (int i = thread * 4; i < done; i += help_attention_threads * 4)
      *reinterpret_cast<float4*>(a.host_q + i) = *reinterpret_cast<float4 const*>(a.q + i);
  }
  for (int i = done + thread; i < n; i += help_attention_threads) a.host_q[i] = a.q[i];
  __threadfence_system();  // and what earlier kernels wrote: the row's own keys and values
  __syncthreads();
  if (thread != 0) return;
  a.log->asked_ns = now_ns();
  a.mail->layer = a.layer;
  store_system(&a.mail->request, *a.step * 1024 + std::uint64_t(a.layer) + 1);
}

/// Of a head: what the device's part and the host's are multiplied with. A part that saw nothing counts nothing, whatever is in it.
__device__ __forceinline__ float2 part_weights(float own, float host) {
  float const largest = fmaxf(own, host);
  float const w_own = own == -INFINITY ? 0.0f : expf(own - largest), w_host = host == -INFINITY ? 0.0f : expf(host - largest);
  float const sum = w_own + w_host;
  return sum == 0 ? make_float2(0, 0) : make_float2(w_own / sum, w_host / sum);
}

__global__ void __launch_bounds__(help_attention_threads) attention_answer_kernel(__grid_constant__ HelpAttentionArgs const a) {
  __shared__ int is_answered;
  __shared__ float2 weights[help_attention_most_heads];
  wait_for_previous();
  let_next_start();
  int const thread = int(threadIdx.x);
  bool const asks = a.asks(a.row->position);
  if (thread == 0) {
    std::uint64_t const now = a.log->own_ns = now_ns();
    is_answered = asks && wait_for_host(a.mail, &a.mail->answered, *a.step * 1024 + std::uint64_t(a.layer) + 1, now + a.patience_ns);
    a.log->answered_ns = a.log->end_ns = now_ns();
  }
  __syncthreads();
  if (is_answered == 0) return;
  for (int head = thread; head < a.n_heads; head += help_attention_threads)
    weights[head] = part_weights(a.log_sum_exp[head], a.host_log_sum_exp[head]);
  __syncthreads();
  auto const add = [](float2 w, float own, float host) { return (w.x == 0 ? 0.0f : w.x * own) + (w.y == 0 ? 0.0f : w.y * host); };
  int const n = a.n_heads * a.head_dim;
  std::uintptr_t const bits = reinterpret_cast<std::uintptr_t>(a.out) | reinterpret_cast<std::uintptr_t>(a.host_part);
  if (bits % sizeof(float4) == 0 && a.head_dim % 4 == 0) {
    for (int i = thread * 4; i < n; i += help_attention_threads * 4) {
      float4 const own = *reinterpret_cast<float4 const*>(a.out + i), host = *reinterpret_cast<float4 const*>(a.host_part + i);
      float2 const w = weights[i / a.head_dim];
      *reinterpret_cast<float4*>(a.out + i) =
          make_float4(add(w, own.x, host.x), add(w, own.y, host.y), add(w, own.z, host.z), add(w, own.w, host.w));
    }
  } else {
    for (int i = thread; i < n; i += help_attention_threads) a.out[i] = add(weights[i / a.head_dim], a.out[i], a.host_part[i]);
  }
  if (thread == 0) a.log->end_ns = now_ns();
}

}  // namespace detail

inline int attention_ask(HelpAttentionArgs const& a, Queue queue) {
  return launch_kernel(detail::attention_ask_kernel, 1, detail::help_attention_threads, 0, native(queue), a);
}

inline int attention_answer(HelpAttentionArgs const& a, Queue queue) {
  if (a.n_heads > detail::help_attention_most_heads) return int(cudaErrorInvalidValue);
  return launch_kernel(detail::attention_answer_kernel, 1, detail::help_attention_threads, 0, native(queue), a);
}

}  // namespace tiered::cuda
