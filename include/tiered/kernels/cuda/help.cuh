/// Asks the host for the experts that are not there, within a step that was enqueued as a whole: see HelpArgs. [device-visible]
///
/// One block does it all where nothing is missing: a microsecond or two. Where something is, it asks and adds, and other blocks copy what
/// the host lists straight out of its memory: no copy engine, whose hand-overs cost more than the waiting. Blocks begin in order; the first
/// waits for the host, the others for the first: so none holds up another, even where not all are there at once. Those between, which guess
/// (guess.cuh), wait for no block of this launch.
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/guess.cuh"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/words.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int help_threads = 512;
inline constexpr int help_copiers = 48;        ///< blocks that copy: with four loads of each thread more than a link's latency takes in
inline constexpr int help_small_bytes = 4096;  ///< parts up to so many bytes are the first block's

/// False where the host has given up, or is given up here. One thread.
template <class Mail>
__device__ inline bool wait_for_host(Mail* mail, std::uint64_t const* number, std::uint64_t wanted, std::uint64_t until_ns) {
  while (load_system(number) < wanted) {
    if (load_system(&mail->given_up) != 0) return false;
    if (now_ns() < until_ns) continue;
    mail->timed_out = mail->given_up = 1;  // the latter for all requests to come; the host takes it back before the next step
    __threadfence_system();
    return false;
  }
  return true;
}

/// `n_copiers` blocks share the bytes; this is the copier-th.
template <class T>
__device__ __forceinline__ void copy_part(TransferArgs::Part const& part, int copier, int n_copiers) {
  constexpr int at_once = 4;
  int const n = part.bytes / int(sizeof(T)), stride = n_copiers * help_threads;
  T const* const from = static_cast<T const*>(part.from);
  T* const to = static_cast<T*>(part.to);
  int i = copier * help_threads + int(threadIdx.x);
  for (; i + (at_once - 1) * stride < n; i += at_once * stride) {
    T v[at_once];
#pragma unroll
    for (int j = 0; j < at_once; ++j) v[j] = from[i + j * stride];
#pragma unroll
    for (int j = 0; j < at_once; ++j) to[i + j * stride] = v[j];
  }
  for (; i < n; i += stride) to[i] = from[i];
}

/// A warp for each small part, so that none waits for another's way through the link. The whole block.
__device__ __forceinline__ void copy_small_parts(TransferArgs::Part const* parts, int n_parts) {
  for (int p = int(threadIdx.x) / warp_size; p < n_parts; p += help_threads / warp_size) {
    TransferArgs::Part const part = parts[p];
    if (part.bytes > help_small_bytes) continue;
    auto const* const from = static_cast<std::uint32_t const*>(part.from);
    auto* const to = static_cast<std::uint32_t*>(part.to);
    for (int i = int(threadIdx.x) % warp_size; i < part.bytes / 4; i += warp_size) to[i] = from[i];
  }
}

/// Parts of the list that are small, or those that are not. The whole block.
__device__ inline void copy_parts(HelpMail const* mail, bool small, int copier, int n_copiers) {
  __shared__ TransferArgs::Part parts[HelpMail::max_parts];
  __shared__ int n_parts;
  if (threadIdx.x == 0) n_parts = min(mail->n_parts, HelpMail::max_parts);  // once: a host that gives up sets it to 0 at any time
  __syncthreads();
  for (int p = int(threadIdx.x); p < n_parts; p += help_threads) parts[p] = mail->parts[p];
  __syncthreads();
  if (small) return copy_small_parts(parts, n_parts);
  for (int p = 0; p < n_parts; ++p) {
    TransferArgs::Part const part = parts[p];
    if (part.bytes <= help_small_bytes) continue;
    std::uintptr_t const bits = reinterpret_cast<std::uintptr_t>(part.from) | reinterpret_cast<std::uintptr_t>(part.to);
    (bits | std::uintptr_t(part.bytes)) % 16 == 0 ? copy_part<uint4>(part, copier, n_copiers)
                                                  : copy_part<std::uint32_t>(part, copier, n_copiers);
  }
}

/// The row as experts take it, ids and weights, to the host; then the request.
__device__ inline void ask_host(HelpArgs const& a, std::uint64_t number, unsigned missing) {
  __shared__ float scratch[max_warps];
  int const thread = int(threadIdx.x);
  bool const norm = a.row.eps >= 0;
  float factor = 1;
  if (norm) {
    float squares = 0;
    for (int i = thread; i < a.dim; i += help_threads) squares += a.row.x[i] * a.row.x[i];
    factor = rsqrtf(block_sum(squares, scratch) / float(a.dim) + a.row.eps);
  }
  for (int i = thread; i < a.dim; i += help_threads) {
    float const v = norm ? a.row.x[i] * factor * (a.row.weight != nullptr ? a.row.weight[i] : 1.0f) : a.row.x[i];
    a.host_row[i] = v;
    a.row.y[i] = v;
  }
  if (thread < a.n_used) {
    a.host_ids[thread] = a.ids[thread];
    a.host_weights[thread] = a.weights[thread];
  }
  __threadfence_system();
  __syncthreads();
  if (thread != 0) return;
  a.mail->layer = a.layer;
  a.mail->missing = missing;
  store_system(&a.mail->request, number);
}

/// Four elements a thread at once: the host's come over the link, and each turn of the loop waits for them.
__device__ inline void add_sums(HelpArgs const& a, bool adds) {
  auto const add_one = [&](int i) {
    float const here = a.hidden[i] + a.sum[i];
    a.hidden[i] = adds ? here + a.host_sum[i] : here;
    a.sum[i] = 0;
  };
  int done = 0;
  if (((reinterpret_cast<std::uintptr_t>(a.hidden) | reinterpret_cast<std::uintptr_t>(a.sum) |
        reinterpret_cast<std::uintptr_t>(a.host_sum)) &
       15) == 0) {
    done = a.dim / 4 * 4;
    for (int i = int(threadIdx.x) * 4; i < done; i += help_threads * 4) {
      float4 const theirs = adds ? *reinterpret_cast<float4 const*>(a.host_sum + i) : make_float4(0, 0, 0, 0);
      float4 h = *reinterpret_cast<float4 const*>(a.hidden + i);
      float4 const s = *reinterpret_cast<float4 const*>(a.sum + i);
      h = make_float4(h.x + s.x, h.y + s.y, h.z + s.z, h.w + s.w);
      if (adds) h = make_float4(h.x + theirs.x, h.y + theirs.y, h.z + theirs.z, h.w + theirs.w);
      *reinterpret_cast<float4*>(a.hidden + i) = h;
      *reinterpret_cast<float4*>(a.sum + i) = make_float4(0, 0, 0, 0);
    }
  }
  for (int i = done + int(threadIdx.x); i < a.dim; i += help_threads) add_one(i);
}

/// A block that copies, where and as soon as the first one knows what. All of it calls.
__device__ __forceinline__ void copy_decided(HelpArgs const& a, bool missing, std::uint64_t number, int copier, int n_copiers) {
  __shared__ int is_decided;
  // On a small device, or one that others use too, a block may begin after the first one has changed the table: `decided` tells.
  if (threadIdx.x == 0) {
    is_decided = missing || load_device(&a.state->decided) >= number;
    while (is_decided && load_device(&a.state->decided) < number) {
    }
  }
  __syncthreads();
  if (!is_decided || load_device(&a.state->failed) == number) return;
  copy_parts(a.mail, false, copier, n_copiers);
  __syncthreads();
  if (threadIdx.x == 0 && copier + 1 == n_copiers) a.log->copied_ns = now_ns();  // all blocks have alike shares
}

/// The first block where something is missing: asks, copies small parts, waits. True if the host has left a sum to be added.
__device__ __forceinline__ bool await_host(HelpArgs const& a, std::uint64_t number, unsigned missing) {
  __shared__ int is_decided, is_answered;
  bool const leads = threadIdx.x == 0;
  ask_host(a, number, missing);
  if (leads) {
    std::uint64_t const asked = a.log->asked_ns = now_ns();
    is_decided = wait_for_host(a.mail, &a.mail->decided, number, asked + a.patience_ns);
    a.log->decided_ns = now_ns();
    if (!is_decided) store_device(&a.state->failed, number);
    store_device(&a.state->decided, number);
    __threadfence();  // before the small parts, of which some change the table
  }
  __syncthreads();
  if (is_decided) copy_parts(a.mail, true, 0, 1);
  if (leads) {
    is_answered = is_decided && wait_for_host(a.mail, &a.mail->answered, number, now_ns() + a.patience_ns);
    a.log->answered_ns = now_ns();
  }
  __syncthreads();
  return is_answered && a.mail->has_sum != 0;
}

/// Block 0 asks and adds, the next n_guess guess, the others copy.
__global__ void __launch_bounds__(help_threads) help_kernel(__grid_constant__ HelpArgs const a, int n_guess) {
  int const thread = int(threadIdx.x), block = int(blockIdx.x);
  if (block > 0 && block <= n_guess) {
    let_next_start();
    guess(a, block - 1);
    return wait_for_previous();
  }
  wait_for_previous();
  let_next_start();
  if (a.n_used == 0) {
    if (thread == 0 && block == 0) a.log->begin_ns = now_ns();
    return;
  }
  int const id = thread < a.n_used ? a.ids[thread] : -1;
  bool const absent = id >= 0 && id < a.n_experts && a.experts[id].gate == nullptr;
  unsigned const absent_places = __ballot_sync(~0u, absent);  // of the first warp, which has all places
  bool const missing = __syncthreads_or(absent) != 0;
  std::uint64_t const number = a.state->step * 1024 + std::uint64_t(a.layer) + 1;
  if (block != 0) return copy_decided(a, missing, number, block - n_guess - 1, int(gridDim.x) - n_guess - 1);
  if (thread < a.n_used) {
    a.log->ids[thread] = id;
    a.fetched_ids[thread] = -1;
  }
  if (thread == 0) {
    a.log->begin_ns = now_ns();
    a.log->missing = absent_places;
    a.log->asked_ns = 0;
  }
  add_sums(a, missing && await_host(a, number, absent_places));
  if (thread == 0) a.log->end_ns = now_ns();
}

}  // namespace detail

inline int help(HelpArgs const& a, Queue queue) {
  if (a.n_used > HelpLog::max_used || a.guesses.n_layers > GuessArgs::max_layers) return int(cudaErrorInvalidValue);
  static_assert(detail::help_threads == detail::guess_threads);
  int const n_guess = detail::guess_blocks(a), blocks = 1 + n_guess + (a.copies ? detail::help_copiers : 0);
  return launch_kernel(detail::help_kernel, unsigned(blocks), detail::help_threads, 0, native(queue), a, n_guess);
}

}  // namespace tiered::cuda
