/// Tiles of products of 16-bit floats with bfloat16 panels of activations, for AVX-512 with BF16: weights are bfloat16, or become it.
///
/// VDPBF16PS adds two products to each of sixteen f32 sums. y[t][r] is bias[r] plus sums of bf16_piece products each, in ascending
/// order. A piece is summed in sixteen lanes: lane l takes elements 32 j + 2 l and 32 j + 2 l + 1, for ascending j; then lanes are joined
/// pairwise, first l with l + 8. With few tokens a vector holds the lanes of a row and a token, and rows are read as they lie. With many,
/// it holds one lane of a row for the sixteen tokens of a panel, and lanes take turns: the same additions, none across a vector.
#pragma once

#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/matmul_f32_avx512.hpp"
#include "tiered/kernels/cpu/panels_amx.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/format.hpp"

// g++ 12 takes the "undefined" operands of its own intrinsics for mistakes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tiered::cpu::avx512 {

/// Elements that are summed by themselves. The longer, the less lanes are joined; of these, a panel takes 64 KiB, and so do sixteen rows.
inline constexpr std::int32_t bf16_piece = 2048;
static_assert(bf16_piece % panel_stretch == 0);

/// Up to here rows are read as they lie.
inline constexpr std::int32_t bf16_few_tokens = panel_rows;

/// Those of 32 weights that the mask has, as bfloat16; the others are zero.
template <class F>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] inline __m512i bf16_weights(
    std::byte const* src, __mmask32 present) {
  static_assert(F::block_elems == 1 && F::block_bytes == 2);
  if constexpr (F::dtype == DType::bf16) {
    return _mm512_maskz_loadu_epi16(present, src);
  } else {
    __m512 const low = _mm512_maskz_cvtph_ps(all_lanes, _mm256_maskz_loadu_epi16(__mmask16(present), src));
    __m512 const high = _mm512_maskz_cvtph_ps(all_lanes, _mm256_maskz_loadu_epi16(__mmask16(present >> 16), src + 32));
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }
}

/// sums[t][r] += w[r] . x[t] for up to 32 elements, whose mask is `present` or, where all are there, not read.
template <class F, bool all, int n_rows, int n_tokens>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] inline void add_bf16_step(
    std::byte const* const* w, std::uint16_t const* const* x, std::int64_t i, __mmask32 present, __m512 (&sums)[n_tokens][n_rows]) {
  __m512i rows[n_rows];
#pragma GCC unroll 4
  for (int r = 0; r < n_rows; ++r) {
    std::byte const* const src = w[r] + i * 2;
    if constexpr (!all || F::dtype != DType::bf16) {
      rows[r] = bf16_weights<F>(src, all ? ~__mmask32{0} : present);
    } else if constexpr (n_rows > 1) {
      rows[r] = _mm512_loadu_si512(src);
    } else {  // a row alone, from memory: with two loads for a line 6 % faster on Zen 4
      auto const* const halves = reinterpret_cast<__m256i const*>(src);
      rows[r] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(halves)), _mm256_loadu_si256(halves + 1), 1);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < n_tokens; ++t) {
    __m512i const token = _mm512_loadu_si512(x[t] + i);
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; ++r)
      sums[t][r] = _mm512_dpbf16_ps(sums[t][r], reinterpret_cast<__m512bh>(rows[r]), reinterpret_cast<__m512bh>(token));
  }
}

/// lanes[t][r], of n <= bf16_piece elements.
template <class F, int n_rows, int n_tokens>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] inline void bf16_lanes(
    std::byte const* const* w, std::uint16_t const* const* x, std::int64_t first, std::int32_t n, __m512 (*lanes)[f32_rows]) {
  __m512 sums[n_tokens][n_rows];
#pragma GCC unroll 4
  for (int t = 0; t < n_tokens; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; ++r) sums[t][r] = _mm512_setzero_ps();
  }
  std::int64_t i = first;
  for (; i + 32 <= first + n; i += 32) add_bf16_step<F, true>(w, x, i, 0, sums);
  if (i < first + n) add_bf16_step<F, false>(w, x, i, (__mmask32{1} << (first + n - i)) - 1, sums);
#pragma GCC unroll 4
  for (int t = 0; t < n_tokens; ++t) {
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; ++r) lanes[t][r] = sums[t][r];
  }
}

/// Up to 16 tokens of one panel, times rows as they lie.
template <class F>
class Bf16Rows {
 public:
  Bf16Rows(Product const& product, Range rows, Range tokens) : p_(product), rows_(rows), tokens_(tokens) {}

  void run() {
    std::int32_t const most = most_pieces / tokens_.size() * bf16_piece;
    for (k_ = 0; k_ < p_.dim; k_ += most) {
      n_elems_ = std::min(most, p_.dim - k_);
      find_tokens();
      bool const by_row = tokens_.size() == 1 || tokens_.size() * n_elems_ <= row_elems;
      switch (by_row ? tokens_.size() : 0) {
        case 1: multiply<1, 1>(0); break;
        case 2: multiply<1, 2>(0); break;
        case 3: multiply<1, 3>(0); break;
        case 4: multiply<1, 4>(0); break;
        default: multiply_fours();
      }
    }
  }

 private:
  static constexpr std::int32_t most_pieces = bf16_few_tokens;  ///< of all tokens together: 64 KiB
  /// Of all tokens together, to meet rows one by one: they stay in the first cache. GB/s of one Zen 4 core, rows of 5632 from the third:
  /// two tokens 35, four 18, and four rows together 34.
  static constexpr std::int32_t row_elems = 6 * bf16_piece;

  /// x_[t]: n_elems_ of token t from k_ on, and zeros up to a multiple of 32.
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void find_tokens() {
    std::int32_t const width = std::min(panel_rows, p_.n_tokens - tokens_.begin);
    auto const* from = static_cast<std::uint16_t const*>(p_.x) + panel_index(p_.n_tokens, p_.dim, tokens_.begin, k_);
    x_[0] = from;
    if (p_.n_tokens == 1) return;
    std::int32_t const stride = (n_elems_ + 31) / 32 * 32 + 32;  // of a power of two, tokens would meet in the same lines of the cache
    for (std::int32_t t = 0; t < tokens_.size(); ++t) x_[t] = tokens_of_panel_ + t * stride;
    for (std::int32_t k = 0; k < n_elems_; k += 32) {
      if (k % panel_stretch == 0) from = static_cast<std::uint16_t const*>(p_.x) + panel_index(p_.n_tokens, p_.dim, tokens_.begin, k_ + k);
      if (width == 1) {
        _mm512_store_si512(tokens_of_panel_ + k, _mm512_loadu_si512(from));
        from += 32;
        continue;
      }
      __m512i v[16];
#pragma GCC unroll 16
      for (int pair = 0; pair < 16; ++pair, from += 2 * width) v[pair] = _mm512_maskz_loadu_epi32(first_lanes(width), from);
      amx::transpose(v);
#pragma GCC unroll 16
      for (int t = 0; t < 16; ++t) {
        if (t < tokens_.size()) _mm512_store_si512(tokens_of_panel_ + t * stride + k, v[t]);
      }
    }
  }

  /// More tokens than one row can meet in registers: four rows and four tokens at a time.
  void multiply_fours() {
    std::int32_t t = 0;
    for (; t + 4 <= tokens_.size(); t += 4) multiply<f32_rows, 4>(t);
    if (tokens_.size() - t == 1) multiply<f32_rows, 1>(t);
    if (tokens_.size() - t == 2) multiply<f32_rows, 2>(t);
    if (tokens_.size() - t == 3) multiply<f32_rows, 3>(t);
  }

  /// All rows times n tokens, `together` rows at a time: one, so that memory is read from front to back, see F32Tile::by_row().
  template <int together, int n>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void multiply(std::int32_t first_token) {
    __m512 lanes[most_pieces / n][n][f32_rows];
    for (std::int32_t r = rows_.begin; r < rows_.end; r += f32_rows) {
      std::int32_t const n_rows = std::min(f32_rows, rows_.end - r);
      std::byte const* w[f32_rows];
      for (std::int32_t i = 0; i < f32_rows; ++i)
        w[i] = static_cast<std::byte const*>(p_.w) + (std::int64_t{r + std::min(i, n_rows - 1)} * p_.dim + k_) * 2;
      for (std::int32_t i = 0; i < f32_rows; i += together) {
        for (std::int32_t k = 0, piece = 0; k < n_elems_; k += bf16_piece, ++piece) {
          __m512 some[n][f32_rows];
          bf16_lanes<F, together, n>(w + i, x_ + first_token, k, std::min(bf16_piece, n_elems_ - k), some);
          for (int t = 0; t < n; ++t) std::copy_n(some[t], together, lanes[piece][t] + i);
        }
      }
      put<n>(lanes, r, n_rows, tokens_.begin + first_token);
    }
  }

  /// Adds what the lanes hold to y, or to the bias.
  template <int n>
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void put(__m512 const (*lanes)[n][f32_rows], std::int32_t row,
                                                                                     std::int32_t n_rows, std::int32_t token) const {
    alignas(64) float sums[n * f32_rows] = {};
    for (std::int32_t t = 0; t < n; ++t) {
      float const* const before = k_ > 0 ? p_.y_row(token + t) + row : p_.bias != nullptr ? p_.bias + row : nullptr;
      if (before != nullptr) std::copy_n(before, n_rows, sums + t * f32_rows);
    }
    for (std::int32_t piece = 0; piece * bf16_piece < n_elems_; ++piece) add_lanes(lanes[piece], sums);
    for (std::int32_t t = 0; t < n; ++t) std::copy_n(sums + t * f32_rows, n_rows, p_.y_row(token + t) + row);
  }

  Product const& p_;
  Range rows_, tokens_;
  std::int32_t k_ = 0, n_elems_ = 0;
  std::uint16_t const* x_[bf16_few_tokens];
  alignas(64) std::uint16_t tokens_of_panel_[bf16_few_tokens * (bf16_piece + 32)];
};

/// Panels of tokens times sixteen rows at a time, whose pairs of elements are packed side by side.
///
/// GFLOP/s of one Zen 4 core, weights from DRAM, 128 and 512 tokens, rows of 2048 and 5632: 196 to 204, 210 of 235 at most (VDPBF16PS
/// from registers). Without fetching panels 200 with 512 tokens; with rows packed while others are multiplied 199; packing is 4 %.
template <class F>
class Bf16Panels {
 public:
  static constexpr std::int32_t most_rows = 64, most_tokens = 128;  ///< pieces of these tokens stay in the second-level cache: 512 KiB

  explicit Bf16Panels(Product const& product) : p_(product) {}

  /// At most most_rows and most_tokens; tokens begin with a panel.
  void run(Range rows, Range tokens) {
    rows_ = rows;
    tokens_ = tokens;
    n_row_blocks_ = (rows.size() + 15) / 16;
    n_panels_ = (tokens.size() + panel_rows - 1) / panel_rows;
    start();
    for (std::int32_t i = 0; i < n_blocks(); ++i) {
      pack(block(i));
      begin_fetching(i + 1);
      for (std::int32_t panel = 0; panel < n_panels_; ++panel) add_piece(block(i), panel);
    }
    finish();
  }

 private:
  static constexpr std::int32_t n_sums = 16 * panel_rows;
  static constexpr std::int32_t lane_bytes = (bf16_piece / 32 + 1) * 64;  // lanes a power of two apart would meet in the same lines

  /// Rows from `row` on, elements of a piece from k on. All rows for each piece, so that panels stay near.
  struct Block {
    std::int32_t row = 0, k = 0;
  };
  Block block(std::int32_t i) const { return {rows_.begin + i % n_row_blocks_ * 16, i / n_row_blocks_ * bf16_piece}; }
  std::int32_t n_blocks() const { return (p_.dim + bf16_piece - 1) / bf16_piece * n_row_blocks_; }
  std::int32_t n_elems(Block b) const { return std::min(bf16_piece, p_.dim - b.k); }
  std::byte const* source(Block b) const { return static_cast<std::byte const*>(p_.w) + (std::int64_t{b.row} * p_.dim + b.k) * 2; }

  /// [16 rows][16 tokens]
  float* sums_of(std::int32_t row, std::int32_t panel) { return sums_ + ((row - rows_.begin) / 16 * n_panels_ + panel) * n_sums; }

  void start() {
    for (std::int32_t r = rows_.begin; r < rows_.end; ++r) {
      float const bias = p_.bias != nullptr ? p_.bias[r] : 0.0f;
      for (std::int32_t i = 0; i < n_panels_; ++i) std::fill_n(sums_of(r, i) + (r - rows_.begin) % 16 * panel_rows, panel_rows, bias);
    }
  }

  void finish() {
    for (std::int32_t i = 0, token = tokens_.begin; i < n_panels_; ++i, token += panel_rows) {
      std::int32_t const n = std::min(panel_rows, tokens_.end - token);
      for (std::int32_t r = rows_.begin; r < rows_.end; r += 16) {
        float* y[16] = {};
        for (std::int32_t t = 0; t < n; ++t) y[t] = p_.y_row(token + t) + r;
        amx::put_sums(sums_of(r, i), std::min(16, rows_.end - r), nullptr, n, y);
      }
    }
  }

  /// For each lane and step the pairs of sixteen rows.
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void pack(Block b) {
    std::byte const* w[16];
    for (std::int32_t i = 0; i < 16; ++i)  // the last one again where there is none: nobody reads its sums
      w[i] = source({std::min(b.row + i, rows_.end - 1), b.k});
    std::byte* to = packed_;
    for (std::int32_t left = n_elems(b); left > 0; left -= 32, to += 64) {
      __mmask32 const present = left >= 32 ? ~__mmask32{0} : (__mmask32{1} << left) - 1;
      __m512i v[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) v[i] = bf16_weights<F>(w[i], present), w[i] += 64;
      amx::transpose(v);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * lane_bytes, v[i]);
    }
  }

  /// Block i is packed next; without one, usually the rows after these, by the same thread. Every panel fetches a share of it to the second
  /// level, so that packing does not wait for memory.
  void begin_fetching(std::int32_t i) {
    Block const next = i < n_blocks() ? block(i) : Block{rows_.end, 0};
    next_ = std::uintptr_t(source(next));
    fetched_bytes_ = next.row + 16 <= p_.rows ? (n_elems(next) * 2 / n_panels_ + 63) / 64 * 64 : 0;
  }
  void fetch_some(int row) const {
    for (std::int32_t i = 0; i < fetched_bytes_; i += 64)
      _mm_prefetch(reinterpret_cast<char const*>(next_ + std::uintptr_t(std::int64_t{row} * p_.dim * 2 + i)), _MM_HINT_T1);
  }

  /// Bits reversed, so that lanes that are joined follow each other; after the last, the first.
  static constexpr int lane_of(int turn) { return (turn & 1) * 8 + (turn & 2) * 2 + (turn >> 1 & 2) + (turn >> 3 & 1); }

  /// Adds a block times a panel.
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void add_piece(Block b, std::int32_t panel) {
    std::int32_t const token = tokens_.begin + panel * panel_rows;
    std::int64_t const width = std::min(panel_rows, p_.n_tokens - token);
    float* const total = sums_of(b.row, panel);
    alignas(64) float waiting[4][n_sums];  // what lanes are joined with later
    int n_waiting = 0;
    for (int turn = 0; turn < 16; ++turn) {
      fetch_some(turn);
      int const lane = lane_of(turn);
      Lane pairs{{}, 0, width};
      for (std::int32_t k = b.k; k < b.k + n_elems(b); k += panel_stretch) {
        std::int32_t const elems = panel_stretch_elems(p_.dim, k);
        auto const* const x = static_cast<std::uint16_t const*>(p_.x) + panel_index(p_.n_tokens, p_.dim, token, k);
        std::int64_t const to_next = (lane_of(turn + 1) - lane) * width * 4 + (turn < 15 ? 0 : std::int64_t{elems} * panel_rows * 2);
        pairs.parts[pairs.n_parts++] = {x + lane * width * 2, to_next, elems / 32};
      }
      __m512 sums[16];
      lane_sums(packed_ + lane * lane_bytes, pairs, sums);
      for (int joined = turn; joined % 2 == 1; joined /= 2) add_to(waiting[--n_waiting], sums);
      if (turn == 15) add_to(total, sums);
      float* const to = turn < 15 ? waiting[n_waiting++] : total;
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) _mm512_store_ps(to + r * panel_rows, sums[r]);
    }
    next_ += std::uintptr_t(fetched_bytes_);
  }

  /// One lane of a panel's elements of a piece: of each stretch the first pairs, bytes to what is read of it next, and steps.
  struct Lane {
    struct Part {
      std::uint16_t const* x;
      std::int64_t to_next;
      std::int32_t n_steps;
    };
    Part parts[bf16_piece / panel_stretch];
    std::int32_t n_parts = 0;
    std::int64_t width = 0;  ///< tokens
  };

  /// sums[r]: one lane of row r, for the tokens of a panel. w: the lane's pairs of sixteen rows, step by step. The lane that comes next
  /// is fetched: the core does not foresee it, and finds it in the third level.
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] static inline void lane_sums(
      std::byte const* w, Lane const& lane, __m512 (&sums)[16]) {
    __mmask16 const present = first_lanes(lane.width);
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) sums[r] = _mm512_setzero_ps();
    for (std::int32_t part = 0; part < lane.n_parts; ++part) {
      auto [x, to_next, n_steps] = lane.parts[part];
      for (std::int32_t i = 0; i < n_steps; ++i, w += 64, x += 32 * lane.width) {
        __m512i const tokens = _mm512_maskz_loadu_epi32(present, x);
        _mm_prefetch(reinterpret_cast<char const*>(std::uintptr_t(x) + std::uintptr_t(to_next)), _MM_HINT_T1);
#pragma GCC unroll 16
        for (int r = 0; r < 16; ++r) {
          __m512i const row = _mm512_set1_epi32(reinterpret_cast<std::int32_t const*>(w)[r]);
          sums[r] = _mm512_dpbf16_ps(sums[r], reinterpret_cast<__m512bh>(tokens), reinterpret_cast<__m512bh>(row));
        }
      }
    }
  }
  [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] static inline void add_to(
      float const* others, __m512 (&sums)[16]) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) sums[r] = _mm512_add_ps(sums[r], _mm512_load_ps(others + r * panel_rows));
  }

  Product const& p_;
  Range rows_, tokens_;
  std::int32_t n_row_blocks_ = 0, n_panels_ = 0;

  std::uintptr_t next_ = 0;         ///< what is fetched, an address and no pointer: it may be past the end
  std::int32_t fetched_bytes_ = 0;  ///< of each row, by every panel
  alignas(64) float sums_[most_rows / 16 * (most_tokens / panel_rows) * n_sums];
  alignas(64) std::byte packed_[16 * lane_bytes];
};

/// x in panels, of all tokens of the product; x_rows null. Tokens begin at multiples of 16.
template <class F>
void bf16_tile(Product const& p, Range rows, Range tokens) {
  constexpr std::int32_t most_rows = Bf16Panels<F>::most_rows, most_tokens = Bf16Panels<F>::most_tokens;
  std::int32_t const rest = tokens.size() % panel_rows;  // half a panel takes as long as a whole one
  bool const by_row = tokens.size() <= bf16_few_tokens || (rest > 0 && rest <= panel_rows / 2);
  Range const few{by_row ? std::max(tokens.begin, tokens.end - (rest > 0 ? rest : panel_rows)) : tokens.end, tokens.end};
  if (few.begin > tokens.begin) {
    Bf16Panels<F> panels(p);
    for (std::int32_t t = tokens.begin; t < few.begin; t += most_tokens) {
      for (std::int32_t r = rows.begin; r < rows.end; r += most_rows)
        panels.run({r, std::min(rows.end, r + most_rows)}, {t, std::min(few.begin, t + most_tokens)});
    }
  }
  if (few.size() > 0) Bf16Rows<F>(p, rows, few).run();
}

template <class F>
constexpr ProductKernel bf16_kernel() {
  ProductKernel kernel{&bf16_tile<F>, DType::act_bf16, f32_rows, panel_rows};
  kernel.many_rows = Bf16Panels<F>::most_rows;
  return kernel;
}

}  // namespace tiered::cpu::avx512

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
