/// Attention of many rows on tensor cores: a tile of rows of one head goes over tiles of positions, softmax and sums in registers.
/// [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/attention_plain.cuh"
#include "tiered/kernels/cuda/attention_tile.cuh"

namespace tiered::cuda {
namespace detail {

/// What a block of the kernel for many rows shares.
template <class KV, int head_dim>
struct ManyMemory {
  using Shape = ManyShape<head_dim>;
  using Tile = detail::Tile<KV, head_dim, Shape::positions, Shape::n_threads>;
  static constexpr int query_bytes = Shape::rows * Shape::stride * 2;
  static constexpr int keys = query_bytes, values = keys + Tile::tile_bytes;                           ///< where they begin
  static constexpr int raw_keys = values + Tile::tile_bytes, raw_values = raw_keys + Tile::raw_bytes;  ///< where packed
  static constexpr int total_bytes = Tile::packed ? raw_values + Tile::raw_bytes : raw_keys;
};

/// The rows of a block: what each sees, and the stretch of them that is attended to now: of one sequence, and without a position between
/// what they see that none of them sees, for whose page may not be there. All of it is shared, since registers are short.
template <class Shape>
struct ManyRows {
  static constexpr int n_rows = Shape::rows, of_warp = n_rows / Shape::n_warps;
  std::int32_t table[n_rows], begin[n_rows], end[n_rows];  ///< rows past the last see nothing
  std::int32_t head_rows;                                  ///< rows of a page before this KV head
  std::int32_t stretch_end;
  Range seen;  ///< by any row of the stretch
  KvTable pages;
  std::byte const *keys, *values;                  ///< of the tile that is fetched next
  Range any[Shape::n_warps], all[Shape::n_warps];  ///< outside `any` a warp sees nothing; inside `all` every row of it sees everything

  __device__ __forceinline__ void load(AttentionArgs const& a, std::int32_t first, int n, int kv_head) {
    int const i = int(threadIdx.x);
    if (i < n_rows) {
      KvRow const row = i < n ? a.rows[first + i] : KvRow{-1, -1};
      Range const sees = i < n ? visible_to(a, first + i, row.position) : Range{0, 0};
      table[i] = row.table;
      begin[i] = sees.begin;
      end[i] = sees.end;
    }
    if (i == 0) head_rows = kv_head * a.page_tokens;
    __syncthreads();
  }

  /// Finds the stretch that begins at row `first` of n. All threads take part.
  __device__ __forceinline__ Range find_stretch(AttentionArgs const& a, int first, int n) {
    int const i = int(threadIdx.x);
    __syncthreads();
    if (i == 0) {
      stretch_end = n;
      seen.begin = 0x7fffffff;
      seen.end = 0;
      pages = a.tables[table[first]];
    }
    __syncthreads();
    if (i > first && i < n && (table[i] != table[first] || is_apart(i))) atomicMin(&stretch_end, i);
    __syncthreads();
    Range const stretch{first, stretch_end};
    if (i >= first && i < stretch.end && begin[i] < end[i]) {
      atomicMin(&seen.begin, begin[i]);
      atomicMax(&seen.end, end[i]);
    }
    limit_warp(stretch, n);
    __syncthreads();
    return stretch;
  }

 private:
  /// Whether row i sees something that does not touch what the row before it sees.
  __device__ __forceinline__ bool is_apart(int i) const {
    return begin[i] < end[i] && (begin[i - 1] >= end[i - 1] || begin[i] > end[i - 1] || end[i] < begin[i - 1]);
  }
  __device__ __forceinline__ void limit_warp(Range stretch, int n) {
    int const warp = int(threadIdx.x) / warp_size, lane = int(threadIdx.x) % warp_size, row = warp * of_warp + lane;
    Range part{0x7fffffff, 0}, whole{0, 0x7fffffff};
    if (lane < of_warp && row < n) {
      bool const taken = row >= stretch.begin && row < stretch.end;
      whole = taken ? Range{begin[row], end[row]} : Range{0x7fffffff, 0};
      if (taken && whole.begin < whole.end) part = whole;
    }
    part = {__reduce_min_sync(0xffffffffu, part.begin), __reduce_max_sync(0xffffffffu, part.end)};
    whole = {__reduce_max_sync(0xffffffffu, whole.begin), __reduce_min_sync(0xffffffffu, whole.end)};
    if (lane == 0) {
      any[warp] = part;
      all[warp] = whole;
    }
  }
};

/// threadIdx.x, asked for again each time: what depends on it is then computed where it is needed and takes no register elsewhere.
__device__ __forceinline__ int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

/// A warp's rows: 16 or 32 of them, of which a lane has rows lane / 4 and that + 8 of each 16.
template <class KV, int head_dim>
struct ManyWarp {
  using Memory = ManyMemory<KV, head_dim>;
  using Shape = ManyShape<head_dim>;
  using Tile = typename Memory::Tile;
  using Rows = ManyRows<Shape>;
  static constexpr int row_tiles = Shape::row_tiles, positions = Shape::positions, stride = Shape::stride;
  using Scores = float[row_tiles][positions / 8][4];

  std::uint32_t shared;  ///< address of the block's memory
  float max[row_tiles][2], sum[row_tiles][2] = {};
  float sums[row_tiles][head_dim / 8][4] = {};

  __device__ __forceinline__ explicit ManyWarp(std::uint32_t memory) : shared(memory) {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) max[t][0] = max[t][1] = -INFINITY;
  }

  /// The first of the warp's rows in the block.
  __device__ __forceinline__ static int first_row_of(int thread) { return thread / warp_size * row_tiles * 16; }

  __device__ __forceinline__ void score(Scores& scores) const {
    int const thread = thread_again(), lane = thread % warp_size;
    std::uint32_t const queries = shared + std::uint32_t(first_row_of(thread) * stride) * 2 + offset_in_a<stride>(lane);
    std::uint32_t const keys = shared + Memory::keys + offset_in_keys<stride>(lane);
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int i = 0; i < positions / 8; ++i) scores[t][i][0] = scores[t][i][1] = scores[t][i][2] = scores[t][i][3] = 0;
    }
#pragma unroll
    for (int k = 0; k < tile_dim(head_dim) / 16; ++k) {
      std::uint32_t a[row_tiles][4];
#pragma unroll
      for (int t = 0; t < row_tiles; ++t) load_matrices(a[t], queries + t * 16 * stride * 2 + k * 32);
#pragma unroll
      for (int p = 0; p < positions / 16; ++p) {
        std::uint32_t b[4];
        load_matrices(b, keys + p * 16 * stride * 2 + k * 32);
#pragma unroll
        for (int t = 0; t < row_tiles; ++t) {
          multiply_f16(scores[t][2 * p], a[t], b[0], b[1]);
          multiply_f16(scores[t][2 * p + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  /// Scores of the tile from position `p` on that rows [stretch) do not see, and all of other rows, become -infinity.
  __device__ __forceinline__ void mask(Scores& scores, Rows const& rows, Range stretch, std::int32_t p) const {
    int const thread = thread_again(), first_row = first_row_of(thread), lane = thread % warp_size;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const row = first_row + t * 16 + half * 8 + lane / 4;
        bool const taken = row >= stretch.begin && row < stretch.end;
        int const first = p + lane % 4 * 2, begin = taken ? rows.begin[row] - first : 0, end = taken ? rows.end[row] - first : 0;
#pragma unroll
        for (int i = 0; i < positions / 8; ++i) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            int const at = i * 8 + j;
            if (at < begin || at >= end) scores[t][i][half * 2 + j] = -INFINITY;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void weigh(Scores& scores) {
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
      float const kept[2] = {continue_softmax(scores[t], 0, max[t][0], sum[t][0]), continue_softmax(scores[t], 2, max[t][1], sum[t][1])};
      if (!__any_sync(0xffffffffu, kept[0] != 1 || kept[1] != 1)) continue;  // mostly, far into a context: the same bits, sooner
#pragma unroll
      for (int i = 0; i < head_dim / 8 * 4; ++i) sums[t][i / 4][i % 4] *= kept[i % 4 / 2];
    }
  }

  __device__ __forceinline__ void add_values(Scores const& weights) {
    std::uint32_t const values = shared + Memory::values + offset_in_values<stride>(thread_again() % warp_size);
#pragma unroll
    for (int p = 0; p < positions / 16; ++p) {
      std::uint32_t a[row_tiles][4];
#pragma unroll
      for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) a[t][i] = pack_f16(weights[t][2 * p + i / 2][i % 2 * 2], weights[t][2 * p + i / 2][i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int d = 0; d < tile_dim(head_dim) / 16; ++d) {
        std::uint32_t b[4];
        load_matrices_transposed(b, values + p * 16 * stride * 2 + d * 32);
#pragma unroll
        for (int t = 0; t < row_tiles; ++t) {
          multiply_f16(sums[t][2 * d], a[t], b[0], b[1]);
          if (2 * d + 1 < head_dim / 8) multiply_f16(sums[t][2 * d + 1], a[t], b[2], b[3]);
        }
      }
    }
  }

  /// Goes over everything that the rows of a stretch see. All warps of the block take part.
  template <class Source>
  __device__ __forceinline__ void attend(Source const& source, Range stretch) {
    Rows const& rows = source.rows;
    std::int32_t p = rows.seen.begin / positions * positions;
    source.begin(p);
    for (; p < rows.seen.end; p += positions) {
      int const warp = thread_again() / warp_size;
      bool const sees = p < rows.any[warp].end && p + positions > rows.any[warp].begin;
      Scores scores;
      source.await_keys(p);
      if (sees) {
        score(scores);
        if (p < rows.all[warp].begin || p + positions > rows.all[warp].end) mask(scores, rows, stretch, p);
      }
      source.await_values(p);
      if (sees) {
        weigh(scores);
        add_values(scores);
      }
    }
    wait_copies<0>();
  }

  /// Rows [first, first + n_rows) of the call. One that came out not finite is computed again by itself: a value that is not finite reaches
  /// rows that do not see it, as 0 times infinity.
  __device__ __forceinline__ void store(AttentionArgs const& a, std::int32_t first, int n_rows, int head) const {
    int const thread = thread_again(), first_row = first_row_of(thread), lane = thread % warp_size;
#pragma unroll
    for (int t = 0; t < row_tiles; ++t) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const row = first_row + t * 16 + half * 8 + lane / 4;
        Softmax const softmax{max[t][half], quad_sum(sum[t][half])};
        float zero = 0;  // or not a number
        if (row < n_rows) {
          std::int64_t const query = std::int64_t(first + row) * a.n_heads + head;
          if (lane % 4 == 0 && a.log_sum_exp != nullptr) a.log_sum_exp[query] = softmax.log_sum_exp();
          float const inverse = softmax.inverse();
          float* const to = a.out + query * head_dim + lane % 4 * 2;
#pragma unroll
          for (int i = 0; i < head_dim / 8; ++i) {
            float2 const value{sums[t][i][half * 2] * inverse, sums[t][i][half * 2 + 1] * inverse};
            *reinterpret_cast<float2*>(to + i * 8) = value;
            zero = fmaf(0.0f, value.x, fmaf(0.0f, value.y, zero));
          }
        }
        zero = quad_sum(zero);
        unsigned odd = __ballot_sync(0xffffffffu, lane % 4 == 0 && zero != 0);
        for (; odd != 0; odd &= odd - 1) {
          __syncwarp();  // what other lanes stored is overwritten
          std::int32_t const again = first + first_row + t * 16 + half * 8 + (__ffs(int(odd)) - 1) / 4;
          attend_alone<KV, ceil_div(head_dim, warp_size)>(a, again, head, lane);
        }
      }
    }
  }
};

/// Brings the keys and values of a stretch of rows to shared memory, tile by tile. One thread finds out where a tile lies.
template <class KV, int head_dim>
struct ManySource {
  using Memory = ManyMemory<KV, head_dim>;
  using Tile = typename Memory::Tile;
  static constexpr int positions = ManyShape<head_dim>::positions;

  AttentionArgs const& a;
  ManyRows<ManyShape<head_dim>>& rows;
  unsigned char* memory;

  __device__ __forceinline__ Range rows_of(std::int32_t p) const {
    return {max_of(rows.seen.begin - p, 0), min_of(rows.seen.end - p, positions)};
  }

  /// Before a barrier: where the tile from position p on is, for the fetch() of it that follows the barrier.
  __device__ __forceinline__ void find(std::byte const*& from, std::byte* const* pages, std::int32_t p) const {
    if (threadIdx.x == 0 && p < rows.seen.end)
      from = pages[p / a.page_tokens] + std::int64_t(rows.head_rows + p % a.page_tokens) * Tile::row_bytes;
  }
  __device__ __forceinline__ void find_keys(std::int32_t p) const { find(rows.keys, rows.pages.k_pages, p); }
  __device__ __forceinline__ void find_values(std::int32_t p) const { find(rows.values, rows.pages.v_pages, p); }

  /// Begins to fetch the tile from position p on, if there is one; ends a group of copies.
  __device__ __forceinline__ void fetch(std::byte const* from, int to, std::int32_t p) const {
    if (p < rows.seen.end) Tile::fetch(shared_address(memory) + std::uint32_t(to), from, rows_of(p), thread_again());
    commit_copies();
  }
  __device__ __forceinline__ void fetch_keys(std::int32_t p) const { fetch(rows.keys, Tile::packed ? Memory::raw_keys : Memory::keys, p); }
  __device__ __forceinline__ void fetch_values(std::int32_t p) const {
    fetch(rows.values, Tile::packed ? Memory::raw_values : Memory::values, p);
  }
  __device__ __forceinline__ void unpack(int to, int raw, std::int32_t p) const {
    Tile::unpack(memory + to, memory + raw, rows_of(p), int(threadIdx.x));
    __syncthreads();
  }

  __device__ __forceinline__ void begin(std::int32_t p) const {
    find_keys(p);
    if constexpr (Tile::packed) find_values(p);
    __syncthreads();
    fetch_keys(p);
    if constexpr (Tile::packed) {
      fetch_values(p);
      __syncthreads();  // await_keys() finds the next tile at once
    }
  }
  /// Ends with the keys of the tile at p in place, for all threads, and the values on their way.
  __device__ __forceinline__ void await_keys(std::int32_t p) const {
    if constexpr (Tile::packed) {
      find_keys(p + positions);
      wait_copies<1>();
      __syncthreads();
      unpack(Memory::keys, Memory::raw_keys, p);
      fetch_keys(p + positions);
    } else {
      find_values(p);
      wait_copies<0>();
      __syncthreads();
      fetch_values(p);
    }
  }
  /// Ends with the values in place, and the keys of the next tile on their way.
  __device__ __forceinline__ void await_values(std::int32_t p) const {
    if constexpr (Tile::packed) {
      find_values(p + positions);
      wait_copies<1>();
      __syncthreads();
      unpack(Memory::values, Memory::raw_values, p);
      fetch_values(p + positions);
    } else {
      find_keys(p + positions);
      wait_copies<0>();
      __syncthreads();
      fetch_keys(p + positions);
    }
  }
};

/// Queries [rows][stride] as binary16, times `factor`; zeros from row n and from element head_dim on. q: of the first row, rows q_stride
/// floats apart.
template <int head_dim>
__device__ __forceinline__ void load_many_queries(unsigned char* to, float const* q, std::int64_t q_stride, int n, float factor) {
  using Shape = ManyShape<head_dim>;
  constexpr int row_fours = tile_dim(head_dim) / 4;
#pragma unroll 8
  for (int i = int(threadIdx.x); i < Shape::rows * row_fours; i += Shape::n_threads) {
    int const row = i / row_fours, four = i % row_fours;
    float4 value{0, 0, 0, 0};
    if (row < n && four < head_dim / 4) value = *reinterpret_cast<float4 const*>(q + row * q_stride + four * 4);
    *reinterpret_cast<uint2*>(to + (row * Shape::stride + four * 4) * 2) =
        uint2{pack_f16(value.x * factor, value.y * factor), pack_f16(value.z * factor, value.w * factor)};
  }
}

/// What a block does: the last tile of rows comes first, since it takes longest. Where all blocks run at once, two to a multiprocessor, the
/// second ones, from `turn` on, come in the opposite order, so that long ones are with short ones.
struct ManyShare {
  std::int32_t head, first;

  __device__ __forceinline__ ManyShare(std::int32_t rows, std::int32_t turn) {
    auto const n = std::int32_t(gridDim.x * gridDim.y);
    auto i = std::int32_t(blockIdx.y * gridDim.x + blockIdx.x);
    if (i >= turn) i = n - 1 - (i - turn);
    head = i % std::int32_t(gridDim.x);
    first = (std::int32_t(gridDim.y) - 1 - i / std::int32_t(gridDim.x)) * rows;
  }
};

/// Blocks (heads, tiles of rows).
template <class KV, int head_dim>
__global__ void __launch_bounds__(ManyShape<head_dim>::n_threads, 2) attention_many_kernel(AttentionArgs a, std::int32_t turn) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using Shape = ManyShape<head_dim>;
  using Warp = ManyWarp<KV, head_dim>;
  extern __shared__ __align__(128) unsigned char attention_shared[];
  __shared__ ManyRows<Shape> rows;
  wait_for_previous();
  let_next_start();
  ManyShare const share(Shape::rows, turn);
  std::int32_t const head = share.head, first = share.first;
  int const n = min_of(a.n_tokens - first, Shape::rows);
  std::int64_t const q_stride = std::int64_t(a.n_heads) * head_dim;
  load_many_queries<head_dim>(attention_shared, a.q + first * q_stride + head * head_dim, q_stride, n, a.scale * log2_e);
  rows.load(a, first, n, head / (a.n_heads / a.n_kv_heads));

  Warp mine(shared_address(attention_shared));
  ManySource<KV, head_dim> const source{a, rows, attention_shared};
  for (int begin = 0; begin < n;) {
    Range const stretch = rows.find_stretch(a, begin, n);
    begin = stretch.end;
    mine.attend(source, stretch);
  }
  mine.store(a, first, n, head);
#endif
}

}  // namespace detail
}  // namespace tiered::cuda
