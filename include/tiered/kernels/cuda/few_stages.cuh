/// Weights through shared memory into a warp, and their products with few rows. [device-visible]
///
/// Each warp has a ring of stages of its own and waits for nobody but itself; copies are 16 bytes a lane, side by side, whatever the
/// blocks' alignment. A lane then takes whole chunks (few_tuning.hpp), and reads those of the rows once for all weights of the stage.
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/few_rows.cuh"
#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/mma.cuh"
#include "tiered/kernels/cuda/unpack.cuh"
#include "tiered/kernels/cuda/unpack_k.cuh"

namespace tiered::cuda {
namespace detail {

__device__ __forceinline__ int offset_of_16(void const* p) { return int(reinterpret_cast<std::uintptr_t>(p) & 15); }

/// A warp's copy of n_bytes <= max_bytes of weights, which land as many bytes behind the stage as they lie behind a multiple of 16. `mine`
/// is their begin, `stage` the stage's shared address, both plus 16 for each lane. Where `careful`, nothing from `end` on is read; else
/// there must be no end within the 16 bytes that the copied ones end in.
template <int max_bytes>
__device__ __forceinline__ void fetch(std::uint32_t stage, unsigned char const* mine, int n_bytes, bool careful, unsigned char const* end) {
  int const offset = offset_of_16(mine), left = offset + n_bytes - int(threadIdx.x) % 32 * 16;
  unsigned char const* const from = mine - offset;
  if (careful) {
    int const readable = int(min_of(std::int64_t(end - from), std::int64_t(max_bytes + 16)));
#pragma unroll 1
    for (int at = 0; at < left; at += 32 * 16) copy_16(stage + unsigned(at), from + at, min(16, readable - at));
    return;
  }
#pragma unroll
  for (int at = 0; at < max_bytes + 15; at += 32 * 16) {
    if (at < left) copy_16(stage + unsigned(at), from + at);
  }
}

/// Whether a copy of n_bytes from `begin` needs care.
__device__ __forceinline__ bool ends_near(unsigned char const* begin, int n_bytes, unsigned char const* end) {
  return offset_of_16(end) != 0 && end - begin < std::int64_t(n_bytes + 16);
}

/// What a lane takes of weights that are floats.
template <class F>
struct FloatChunk {
  float w[FewChunk<F>::elems];
};
template <class F, bool blocks = FewChunk<F>::blocks>
struct ChunkOf {
  using Weights = FloatChunk<F>;
};
template <class F>
struct ChunkOf<F, true> {
  using Weights = typename Unpack<F>::Weights;
};
template <class F>
using ChunkWeights = typename ChunkOf<F>::Weights;

template <class F>
__device__ __forceinline__ void to_floats(std::uint32_t const (&words)[4], FloatChunk<F>& chunk) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (F::block_bytes == 4) {
      chunk.w[i] = __uint_as_float(words[i]);
    } else if constexpr (F::dtype == DType::f16) {
      chunk.w[2 * i] = f16_value(words[i]);
      chunk.w[2 * i + 1] = f16_value(words[i] >> 16);
    } else {
      chunk.w[2 * i] = __uint_as_float(words[i] << 16);
      chunk.w[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
  }
}

/// Chunk `chunk` of a stage whose first one begins `offset` bytes behind it. n_elems: of the row, from this chunk on; behind the last
/// there may be anything, so it becomes zeros.
template <class F>
__device__ __forceinline__ void load_chunk(unsigned char const* stage, int offset, int chunk, int n_elems, ChunkWeights<F>& w) {
  using Chunk = FewChunk<F>;
  if constexpr (Chunk::blocks) {
    Unpack<F>::load(stage, offset + chunk / Chunk::per_block * F::block_bytes, chunk % Chunk::per_block, w);
  } else {
    std::uint32_t words[4];
    if (offset == 0) {
      uint4 const four = *reinterpret_cast<uint4 const*>(stage + chunk * 16);
      words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
    } else {
      load_words<4>(stage, offset + chunk * 16, words);
    }
    to_floats<F>(words, w);
    if (n_elems < Chunk::elems) {
#pragma unroll
      for (int i = 0; i < Chunk::elems; ++i) w.w[i] = i < n_elems ? w.w[i] : 0.0f;
    }
  }
}

/// A lane's part of a row.
struct BlockInput {
  int4 first, second;
  float scale;
  int sums;
};
struct FloatInput {
  float4 first, second;
};

template <class F>
__device__ __forceinline__ auto load_input(unsigned char const* row, unsigned char const* scales, int plane_bytes, int chunk) {
  if constexpr (FewChunk<F>::blocks) {
    uint2 const scale = *reinterpret_cast<uint2 const*>(scales + chunk * 8);
    return BlockInput{*reinterpret_cast<int4 const*>(row + chunk * 16), *reinterpret_cast<int4 const*>(row + plane_bytes + chunk * 16),
                      __uint_as_float(scale.x), int(scale.y)};
  } else {
    FloatInput in{*reinterpret_cast<float4 const*>(row + chunk * 16), {0, 0, 0, 0}};
    if constexpr (FewChunk<F>::planes == 2) in.second = *reinterpret_cast<float4 const*>(row + plane_bytes + chunk * 16);
    return in;
  }
}

/// sum + the product of a chunk of weights and of a row.
template <class F>
__device__ __forceinline__ float add_product(FloatChunk<F> const& w, FloatInput const& x, float sum) {
  sum = fmaf(w.w[0], x.first.x, sum);
  sum = fmaf(w.w[1], x.first.y, sum);
  sum = fmaf(w.w[2], x.first.z, sum);
  sum = fmaf(w.w[3], x.first.w, sum);
  if constexpr (FewChunk<F>::elems == 8) {
    sum = fmaf(w.w[4], x.second.x, sum);
    sum = fmaf(w.w[5], x.second.y, sum);
    sum = fmaf(w.w[6], x.second.z, sum);
    sum = fmaf(w.w[7], x.second.w, sum);
  }
  return sum;
}
/// __dp4a() of unsigned and signed bytes.
__device__ __forceinline__ int dot_unsigned(std::uint32_t a, int b, int sum) {
#if defined(__CUDA_ARCH__)
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(a), "r"(b));
#else
  for (int i = 0; i < 4; ++i) sum += int(a >> 8 * i & 255u) * int(std::int8_t(b >> 8 * i));
#endif
  return sum;
}

template <class F, class Weights>
__device__ __forceinline__ float add_product(Weights const& w, BlockInput const& x, float sum) {
  constexpr int minus_offset = -Weights::offset & 255;  // two 16-bit sums times two bytes, in one instruction
  int first = 0, second = 0;
  if constexpr (Weights::offset != 0) {
    first = __dp2a_lo(x.sums, minus_offset, 0);
    second = __dp2a_lo(x.sums, minus_offset << 8, 0);
    if constexpr (Weights::n_scales == 1) first = __dp2a_lo(x.sums, minus_offset | minus_offset << 8, 0), second = 0;
  }
  int const a[4] = {x.first.x, x.first.y, x.first.z, x.first.w}, b[4] = {x.second.x, x.second.y, x.second.z, x.second.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    first = __dp4a(int(w.q[i]), a[i], first);
    second = Weights::high_shift != 0 ? dot_unsigned(w.q[4 + i], b[i], second) : __dp4a(int(w.q[4 + i]), b[i], second);
  }
  second >>= Weights::high_shift;
  float value;
  if constexpr (Weights::n_scales == 1) {
    value = w.scale[0] * float(first + second);
  } else {
    value = fmaf(w.scale[1], float(second), w.scale[0] * float(first));
  }
  if constexpr (Weights::n_mins == 1) {
    value = fmaf(float(Unpack<F>::sign) * w.min[0], float(__dp2a_lo(x.sums, 0x0101, 0)), value);
  } else if constexpr (Weights::n_mins == 2) {
    value = fmaf(float(Unpack<F>::sign) * w.min[0], float(__dp2a_lo(x.sums, 1, 0)), value);
    value = fmaf(float(Unpack<F>::sign) * w.min[1], float(__dp2a_lo(x.sums, 0x0100, 0)), value);
  }
  return fmaf(x.scale, value, sum);
}

/// Halves of the lanes swap halves of their values, those of lanes `mask` apart, until each lane has one.
template <int mask, int n>
__device__ __forceinline__ float swap_halves(float const (&v)[n]) {
  if constexpr (n == 1) {
    return v[0];
  } else {
    bool const upper = (int(threadIdx.x) & mask) != 0;
    float rest[n / 2];
#pragma unroll
    for (int i = 0; i < n / 2; ++i) {
      float const kept = upper ? v[i + n / 2] : v[i], given = upper ? v[i] : v[i + n / 2];
      rest[i] = kept + __shfl_xor_sync(~0u, given, mask);
    }
    return swap_halves<mask / 2>(rest);
  }
}

/// Sums of n values over the lanes of a warp, n a power of two up to 32: each lane gets that of value lane / (32 / n).
template <int n>
__device__ __forceinline__ float sum_over_lanes(float const (&v)[n]) {
  float sum = swap_halves<16>(v);
#pragma unroll
  for (int mask = 16 / n; mask > 0; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
  return sum;
}

/// What is known of where rows of weights begin.
enum class Alignment : std::uint8_t {
  any,
  aligned,  ///< at multiples of 16
  regular,  ///< and a unit's rows the same way apart from those of the unit before, for all units
};

/// `n_segments` rows of weights at a time with `n_rows` rows of shared memory. A Job says where weights are and what becomes of sums:
///   job.find(unit, segment, begin, end)  the row's first byte, and the end of its matrix; begin null where there is none
///   job.rows_per_unit()                  by how many rows units are apart, where they are so regularly
///   job.finish(unit, value, index)       a lane has sum [segment, row] index = lane / (32 / (n_segments * n_rows)); the whole warp calls
/// A unit is what one warp computes at a time; `split` warps share one along k, and then no warp has two of them.
template <class F, int n_segments, int n_rows, class Job>
class FewProducts {
 public:
  static constexpr int n_values = n_segments * n_rows;
  static constexpr int stage_bytes = n_segments * FewChunk<F>::stage_bytes;
  static constexpr int stages_of_ring = few_ring_bytes / stage_bytes;
  static constexpr int n_stages = stages_of_ring > few_max_stages ? few_max_stages : stages_of_ring < 2 ? 2 : stages_of_ring;
  static constexpr int ring_bytes = n_stages * stage_bytes;
  static_assert(ring_bytes <= few_most_ring_bytes<F>);

  /// Units [begin, end) of the block, rows of weights of dim elements; ring: of this warp.
  __device__ FewProducts(Job const& job, int begin, int end, int dim, int split, Alignment alignment, unsigned char* ring)
      : job_(job),
        ring_(ring),
        end_(end),
        dim_(dim),
        split_(split),
        aligned_(alignment != Alignment::any),
        regular_(alignment == Alignment::regular) {
    int const warp = int(threadIdx.x) / 32;
    step_ = int(blockDim.x) / 32 / split;
    unit_ = ahead_unit_ = begin + warp / split;
    first_slice_ = ahead_slice_ = warp % split;
    row_bytes_ = dim / F::block_elems * F::block_bytes;
    n_slices_ = ceil_div(few_chunks<F>(dim), FewChunk<F>::stage_chunks);
    shared_ring_ = std::uint32_t(__cvta_generic_to_shared(ring)) + threadIdx.x % 32 * 16;
    simple_ = regular_ && (slice_bytes % 16 == 0 || n_slices_ == 1);
    if (ahead_unit_ < end_) look_ahead();
  }

  /// Puts the first stages under way: reads weights only.
  __device__ void start() {
#pragma unroll 1
    for (int i = 0; i < n_stages; ++i) fetch_next(i);
  }

  /// Everything else. The whole block calls; scratch: few_warps * n_values floats.
  __device__ void run(unsigned char const* rows, FewLayout const& layout, float* scratch) {
    int const lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32, index = lane / (32 / n_values);
    while (unit_ < end_) {
      float const value = product(rows, layout);
      if (split_ > 1) {
        scratch[warp * n_values + index] = value;
        break;
      }
      job_.finish(unit_, value, index);
      unit_ += step_;
    }
    if (split_ == 1) return;
    __syncthreads();
    if (first_slice_ != 0 || unit_ >= end_) return;
    float value = 0;
    for (int i = 0; i < split_; ++i) value += scratch[(warp + i) * n_values + index];
    job_.finish(unit_, value, index);
  }

 private:
  static constexpr int slice_bytes = FewChunk<F>::bytes(FewChunk<F>::stage_chunks);

  /// To the rows of ahead_unit_.
  __device__ __forceinline__ void look_ahead() {
#pragma unroll
    for (int s = 0; s < n_segments; ++s) {
      unsigned char const *begin, *end;
      job_.find(ahead_unit_, s, begin, end);
      ahead_[s] = begin == nullptr ? nullptr : begin + threadIdx.x % 32 * 16;
    }
  }

  __device__ __forceinline__ void fetch_next(int stage) {
    if (ahead_unit_ < end_) {
      int const from = ahead_slice_ * slice_bytes, n_bytes = min(slice_bytes, row_bytes_ - from);
      std::uint32_t const to = shared_ring_ + unsigned(stage * stage_bytes);
      if (simple_) {
        fetch_simply(to, from, n_bytes);
      } else {
        fetch_any(to, from, n_bytes);
      }
      ahead_slice_ += split_;
      if (ahead_slice_ >= n_slices_) to_next_unit();
    }
    commit_copies();
  }

  /// The same as below where slices begin at multiples of 16, and matrices end there.
  __device__ __forceinline__ void fetch_simply(std::uint32_t to, int from, int n_bytes) {
    int const left = n_bytes - int(threadIdx.x) % 32 * 16;
#pragma unroll
    for (int at = 0; at < slice_bytes; at += 32 * 16) {
      if (at >= left) continue;
#pragma unroll
      for (int s = 0; s < n_segments; ++s) copy_16(to + unsigned(s * FewChunk<F>::stage_bytes + at), ahead_[s] + from + at);
    }
  }
  __device__ __forceinline__ void fetch_any(std::uint32_t to, int from, int n_bytes) {
#pragma unroll
    for (int s = 0; s < n_segments; ++s) {
      if (ahead_[s] == nullptr) continue;
      unsigned char const *begin, *end;
      job_.find(ahead_unit_, s, begin, end);
      fetch<slice_bytes>(to + unsigned(s * FewChunk<F>::stage_bytes), ahead_[s] + from, n_bytes, ends_near(begin, row_bytes_, end), end);
    }
  }

  __device__ __forceinline__ void to_next_unit() {
    ahead_slice_ = first_slice_;
    ahead_unit_ += step_;
    if (regular_) {
      int const n_bytes = step_ * job_.rows_per_unit() * row_bytes_;
#pragma unroll
      for (int s = 0; s < n_segments; ++s) ahead_[s] += n_bytes;
    } else if (ahead_unit_ < end_) {
      look_ahead();
    }
  }

  /// The sums of unit_ over the warp's slices, as sum_over_lanes() hands them out.
  __device__ __forceinline__ float product(unsigned char const* rows, FewLayout const& layout) {
    float sums[n_values] = {};
    int offsets[n_segments] = {};
    if (!aligned_) {
#pragma unroll
      for (int s = 0; s < n_segments; ++s) {
        unsigned char const *begin, *end;
        job_.find(unit_, s, begin, end);
        offsets[s] = offset_of_16(begin);
      }
    }
#pragma unroll 1
    for (int slice = first_slice_; slice < n_slices_; slice += split_) {
      wait_copies<n_stages - 1>();
      __syncwarp();
      int here[n_segments];
#pragma unroll
      for (int s = 0; s < n_segments; ++s) here[s] = (offsets[s] + slice * slice_bytes) & 15;
      add_slice(ring_ + stage_ * stage_bytes, here, slice * FewChunk<F>::stage_chunks, rows, layout, sums);
      __syncwarp();
      fetch_next(stage_);
      stage_ = stage_ + 1 == n_stages ? 0 : stage_ + 1;
    }
    return sum_over_lanes(sums);
  }

  /// Chunks [first, ...) of the rows: those of a stage.
  __device__ __forceinline__ void add_slice(unsigned char const* stage, int const (&offsets)[n_segments], int first,
                                            unsigned char const* rows, FewLayout const& layout, float (&sums)[n_values]) {
    int const lane = int(threadIdx.x) % 32, n = few_chunks<F>(dim_) - first;
    constexpr int n_steps = FewChunk<F>::stage_chunks / 32,
                  unroll = n_values == 1 || (n_values == 2 && FewChunk<F>::per_block == 1) ? n_steps : 1;
    if (n >= FewChunk<F>::stage_chunks) {
#pragma unroll unroll
      for (int i = 0; i < n_steps; ++i) add_chunk(stage, offsets, first, lane + 32 * i, rows, layout, sums);
    } else {
#pragma unroll 1
      for (int chunk = lane; chunk < n; chunk += 32) add_chunk(stage, offsets, first, chunk, rows, layout, sums);
    }
  }

  __device__ __forceinline__ void add_chunk(unsigned char const* stage, int const (&offsets)[n_segments], int first, int chunk,
                                            unsigned char const* rows, FewLayout const& layout, float (&sums)[n_values]) {
    int const n_elems = dim_ - (first + chunk) * FewChunk<F>::elems;
    if constexpr (n_rows == 1) {  // one segment after another, for want of registers
      auto const x = load_input<F>(rows, rows + 2 * layout.plane_bytes, layout.plane_bytes, first + chunk);
#pragma unroll
      for (int s = 0; s < n_segments; ++s) {
        ChunkWeights<F> w;
        load_chunk<F>(stage + s * FewChunk<F>::stage_bytes, offsets[s], chunk, n_elems, w);
        sums[s] = add_product<F>(w, x, sums[s]);
      }
    } else {
      ChunkWeights<F> w[n_segments];
#pragma unroll
      for (int s = 0; s < n_segments; ++s) load_chunk<F>(stage + s * FewChunk<F>::stage_bytes, offsets[s], chunk, n_elems, w[s]);
      unsigned char const* row = rows;
      unsigned char const* scales = rows + 2 * layout.plane_bytes;
#pragma unroll
      for (int r = 0; r < n_rows; ++r, row += layout.row_bytes, scales += layout.scale_row_bytes) {
        auto const x = load_input<F>(row, scales, layout.plane_bytes, first + chunk);
#pragma unroll
        for (int s = 0; s < n_segments; ++s) sums[s * n_rows + r] = add_product<F>(w[s], x, sums[s * n_rows + r]);
      }
    }
  }

  Job const& job_;
  unsigned char* ring_;
  unsigned char const* ahead_[n_segments];  ///< the rows of ahead_unit_, plus 16 bytes for each lane; null where there is none
  std::uint32_t shared_ring_;               ///< ring_'s shared address, likewise
  int end_, dim_, split_, step_, unit_, ahead_unit_, first_slice_, ahead_slice_, row_bytes_, n_slices_;
  int stage_ = 0;
  bool aligned_, regular_, simple_;
};

/// Where part `i` of n begins, parts of `total` being alike but for one: of part n, the end of all.
__device__ __forceinline__ int part_begin(int total, unsigned i, unsigned n) {
  unsigned const each = unsigned(total) / n, rest = unsigned(total) - each * n;
  return int(i * each + (i < rest ? i : rest));
}

/// Lets a kernel have all that there is.
template <auto kernel>
int allow_few_shared(CudaQueue const& queue) {
  return allow_shared_memory<kernel>(few_dynamic_bytes(shared_bytes_limit(queue.capability)), queue, Carveout::most_shared);
}

/// As many warps as have room for their rings beside rows; 0 where not even one has.
inline int few_warps_beside(std::int64_t rows_bytes, int ring_bytes, CudaQueue const& queue) {
  int const limit = shared_bytes_limit(queue.capability);
  std::int64_t const room = few_dynamic_bytes(limit) - rows_bytes;
  int n = limit >= (160 << 10) ? few_warps : few_warps / 2;
  while (n > 0 && std::int64_t(n) * ring_bytes > room) n /= 2;
  return n;
}

}  // namespace detail
}  // namespace tiered::cuda
