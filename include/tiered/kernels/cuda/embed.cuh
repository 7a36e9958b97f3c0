/// Rows of the embedding table. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

inline constexpr int embed_chunk = 2048;  ///< elements for one block: whole blocks of every format
inline constexpr int embed_threads = 256;

/// Global to shared memory, each byte read once, 16 at a time where they lie aligned; target must lie as source does, modulo 16.
__device__ __forceinline__ void copy_bytes(std::byte const* source, int n, std::byte* target) {
  int const to_aligned = int((16 - (reinterpret_cast<std::uintptr_t>(source) & 15)) & 15);
  int const head = min_of(to_aligned, n), n_wide = (n - head) / 16, tail = head + n_wide * 16;
#pragma unroll 2
  for (int i = int(threadIdx.x); i < n_wide; i += embed_threads) {
    reinterpret_cast<uint4*>(target + head)[i] = reinterpret_cast<uint4 const*>(source + head)[i];
  }
  if (int(threadIdx.x) < head) target[threadIdx.x] = source[threadIdx.x];
  if (int const i = tail + int(threadIdx.x); i < n) target[i] = source[i];
}

/// Block (row, chunk). The table may lie in page-locked host memory.
template <class F>
__global__ void __launch_bounds__(embed_threads) embed_kernel(EmbedArgs const a) {
  constexpr int chunk_bytes = embed_chunk / F::block_elems * F::block_bytes;
  __shared__ __align__(16) std::byte staged[chunk_bytes + 16];
  wait_for_previous();
  let_next_start();
  std::int64_t const row = blockIdx.x;
  int const begin = int(blockIdx.y) * embed_chunk, n = min_of(embed_chunk, a.dim - begin);
  std::byte const* const source =
      static_cast<std::byte const*>(a.table) + (std::int64_t(a.tokens[row]) * a.dim + begin) / F::block_elems * F::block_bytes;
  std::byte* const target = staged + (reinterpret_cast<std::uintptr_t>(source) & 15);
  copy_bytes(source, n / F::block_elems * F::block_bytes, target);
  __syncthreads();
  auto const* const blocks = reinterpret_cast<typename F::Block const*>(target);
  float* const out = a.out + row * a.dim + begin;
#pragma unroll 2
  for (int i = int(threadIdx.x); i < n; i += embed_threads) out[i] = F::decode(blocks[i / F::block_elems], i % F::block_elems) * a.scale;
}

}  // namespace detail

template <class F>
int embed(EmbedArgs const& a, Queue queue) {
  static_assert(detail::embed_chunk % F::block_elems == 0);
  if (a.n_rows == 0) return 0;
  dim3 const grid(unsigned(a.n_rows), unsigned(ceil_div(a.dim, detail::embed_chunk)));
  return launch_kernel(detail::embed_kernel<F>, grid, detail::embed_threads, 0, native(queue), a);
}

}  // namespace tiered::cuda
