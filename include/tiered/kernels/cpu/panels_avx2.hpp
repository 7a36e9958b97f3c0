/// Quantised matrix products with many tokens for AVX2: 16 rows side by side, repacked on the way.
#pragma once

#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/cpu/activation_avx2.hpp"
#include "tiered/kernels/cpu/matmul.hpp"

namespace tiered::cpu::avx2 {

/// A stretch of 16 rows. Blocks lie in the order in which they are summed: those of lane 0 (see stretch_elems), of lane 1 ...
/// Signed weights lie in 16 bits, as no instruction multiplies signed bytes.
/// Factors are the scale, then with scales for 16 weights three vectors of 16-bit pairs: twice that of the first half, twice that of
/// the second, both; then the minimum, and with minima for 16 weights both of them as a pair.
template <class U>
struct alignas(32) Panel {
  static constexpr bool is_wide = U::largest == 0;
  static constexpr int n_weights = is_wide ? 16 : 8;  // vectors
  static constexpr int min_at = U::has_groups ? 4 : 1, n_factors = min_at + (U::min_sign == 0 ? 0 : U::has_groups ? 2 : 1);
  __m256i w[stretch_blocks][n_weights][2];        ///< block, 4 weights (2 if wide), row / 8; dword: row % 8
  __m256i factors[stretch_blocks][n_factors][2];  ///< dword: row
  std::int32_t n_groups = 0;                      ///< place of the lane p's block of group g: p * n_groups + g
  std::int32_t n_blocks[8] = {};                  ///< of each lane
};

/// m[d] = dword d of the 8 rows m.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void transpose(__m256i (&m)[8]) {
  __m256i u[8];
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    __m256i const low01 = _mm256_unpacklo_epi32(m[i], m[i + 1]), high01 = _mm256_unpackhi_epi32(m[i], m[i + 1]);
    __m256i const low23 = _mm256_unpacklo_epi32(m[i + 2], m[i + 3]), high23 = _mm256_unpackhi_epi32(m[i + 2], m[i + 3]);
    u[i] = _mm256_unpacklo_epi64(low01, low23);
    u[i + 1] = _mm256_unpackhi_epi64(low01, low23);
    u[i + 2] = _mm256_unpacklo_epi64(high01, high23);
    u[i + 3] = _mm256_unpackhi_epi64(high01, high23);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    m[c] = _mm256_permute2x128_si256(u[c], u[c + 4], 0x20);
    m[c + 4] = _mm256_permute2x128_si256(u[c], u[c + 4], 0x31);
  }
}

/// The signed bytes 0 and 2 of each dword as 16-bit lanes, and bytes 1 and 3.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i even_bytes(__m256i v) {
  return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i odd_bytes(__m256i v) { return _mm256_srai_epi16(v, 8); }

/// A group of 256 weights of 8 rows, as bytes_of() and factors() give them.
template <class U>
struct Unpacked {
  __m256i w[8][8];
  __m256i factors[Panel<U>::n_factors][8];
};

template <class U>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void unpack_row(std::byte const* p, int row, Unpacked<U>& out) {
  constexpr int min_at = Panel<U>::min_at;
  __m256i w[8];
  U::bytes_of(p, w);
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) out.w[v][row] = w[v];
  Factors const f = U::factors(p);
  out.factors[0][row] = _mm256_castps_si256(f.scale);
  if constexpr (U::has_groups) {
    __m256i const low = _mm256_and_si256(f.groups, _mm256_set1_epi32(0xffff)), high = _mm256_srli_epi32(f.groups, 16);
    out.factors[1][row] = _mm256_or_si256(low, _mm256_slli_epi32(low, 16));
    out.factors[2][row] = _mm256_or_si256(high, _mm256_slli_epi32(high, 16));
    out.factors[3][row] = f.groups;
  }
  if constexpr (U::min_sign != 0) out.factors[min_at][row] = _mm256_castps_si256(f.min);
  if constexpr (U::min_sign != 0 && U::has_groups) out.factors[min_at + 1][row] = f.group_mins;
}

/// Writes a group of 8 rows, the first ones of the panel (half 0) or the last.
template <class U>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void pack_group(Unpacked<U>& group, std::int32_t g, int half, Panel<U>& panel) {
  for (int v = 0; v < 8; ++v) {  // dword 4j + k of vector 2i + h: bytes [16h + 4k, 16h + 4k + 4) of block i + 4j
    transpose(group.w[v]);
#pragma GCC unroll 8
    for (int d = 0; d < 8; ++d) {
      auto& w = panel.w[(v / 2 + d / 4 * 4) * panel.n_groups + g];
      int const k = v % 2 * 4 + d % 4;
      if constexpr (Panel<U>::is_wide) {
        w[2 * k][half] = even_bytes(group.w[v][d]);
        w[2 * k + 1][half] = odd_bytes(group.w[v][d]);
      } else {
        w[k][half] = group.w[v][d];
      }
    }
  }
  for (int i = 0; i < Panel<U>::n_factors; ++i) {
    transpose(group.factors[i]);
#pragma GCC unroll 8
    for (int p = 0; p < 8; ++p) panel.factors[p * panel.n_groups + g][i][half] = group.factors[i][p];
  }
}

/// Fills the panel with `bytes` bytes of each row.
template <class F>
[[gnu::target("avx2,fma,f16c")]] void pack(std::byte const* const (&rows)[16], std::int64_t bytes, Panel<Unpack<F>>& panel) {
  using U = Unpack<F>;
  std::int32_t const n_blocks = std::int32_t(bytes / F::block_bytes) * (F::block_elems / 32);
  panel.n_groups = (n_blocks + 7) / 8;
  for (int p = 0; p < 8; ++p) panel.n_blocks[p] = (n_blocks - p + 7) / 8;
  Unpacked<U> group;
  for (std::int32_t g = 0; g < panel.n_groups; ++g) {
    std::int64_t const at = std::int64_t(g) * U::bytes;
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < 8; ++r) {
        std::byte space[U::bytes];
        unpack_row<U>(padded<F>(rows[8 * half + r] + at, bytes - at, space), r, group);
      }
      pack_group<U>(group, g, half, panel);
    }
  }
}

/// n tokens from the first block of a stretch on.
template <class U, int n>
struct Columns {
  ActQ8x32 const* x[n];
  float* y[n];                           ///< at the first row of the panel
  float const* before[n];                ///< what the sums are added to; null: zeros
  std::int32_t rows[n];                  ///< how many rows of the panel there are; none where a token is the last one again
  std::int32_t sums[n][stretch_blocks];  ///< Whole::sums, or pairs of sums of q where scales are for 16 weights
  alignas(32) __m256i wide[Panel<U>::is_wide ? n : 1][stretch_blocks][2];  ///< q as even_bytes() and odd_bytes()

  /// What weights [k, k + 1) of a panel's block are multiplied with.
  std::byte const* at(int t, std::int32_t block, int k) const {
    if constexpr (Panel<U>::is_wide) return reinterpret_cast<std::byte const*>(&wide[t][block][k % 2]) + k / 2 * 4;
    return reinterpret_cast<std::byte const*>(x[t][block].q + 4 * k);
  }
};
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i broadcast(void const* p) {
  return _mm256_set1_epi32(std::int32_t(load_word(p)));
}

/// Keeps g++ from putting off additions until all products are there, which needs more registers than there are.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void add_now(__m256i& sum) { asm("" : "+x"(sum)); }

/// The exact products of one block with 16 rows. As many as fit are added in 16 bits.
template <class U, int n>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void block_products(Panel<U> const& panel, Columns<U, n> const& columns,
                                                                                std::int32_t place, std::int32_t block,
                                                                                __m256i (&total)[n][2]) {
  constexpr int pair = 2 * 127 * U::largest, most = U::has_groups ? 4 : 8;
  constexpr int run = Panel<U>::is_wide ? 1 : most * pair < 32768 ? most : 4 * pair < 32768 ? 4 : 2;
#pragma GCC unroll 16
  for (int first = 0; first < Panel<U>::n_weights; first += run) {
    __m256i sum[n][2];
#pragma GCC unroll 8
    for (int k = first; k < first + run; ++k) {
      __m256i const w0 = panel.w[place][k][0], w1 = panel.w[place][k][1];
#pragma GCC unroll 8
      for (int t = 0; t < n; ++t) {
        __m256i const x = broadcast(columns.at(t, block, k));
        if constexpr (Panel<U>::is_wide) {
          sum[t][0] = _mm256_madd_epi16(w0, x), sum[t][1] = _mm256_madd_epi16(w1, x);
        } else {
          __m256i const a = _mm256_maddubs_epi16(w0, x), b = _mm256_maddubs_epi16(w1, x);
          sum[t][0] = k == first ? a : _mm256_add_epi16(sum[t][0], a);
          sum[t][1] = k == first ? b : _mm256_add_epi16(sum[t][1], b);
          add_now(sum[t][0]), add_now(sum[t][1]);
        }
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) {
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        __m256i v = sum[t][i];
        if constexpr (!Panel<U>::is_wide)
          v = _mm256_madd_epi16(v, U::has_groups ? panel.factors[place][1 + first / 4][i] : _mm256_set1_epi16(1));
        total[t][i] = first == 0 ? v : _mm256_add_epi32(total[t][i], v);
        add_now(total[t][i]);
      }
    }
  }
}

/// Adds block `block` of the stretch, at `place` of the panel.
/// For 4 tokens and 2048 products 243 instructions with 4 bits, 250 with minima; 262 to 267 with 5 bits; 280 to 313 with scales for 16
/// weights; 401 with signed weights. The least with 4 bits: 176 for products, their operands and sums, 40 for scales and floats.
template <class U, int n>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void add_block(Panel<U> const& panel, Columns<U, n> const& columns,
                                                                           std::int32_t place, std::int32_t block, __m256 (&lane)[n][2]) {
  __m256i total[n][2];
  block_products<U, n>(panel, columns, place, block, total);
  auto const& factors = panel.factors[place];
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) {
    __m256 const x_scale = _mm256_broadcast_ss(&columns.x[t][block].scale);
    __m256i const x_sums = _mm256_set1_epi32(columns.sums[t][block]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      Whole whole{total[t][i], x_sums};
      if constexpr (U::has_groups) whole.sums = group_sums<U>(factors[U::min_sign != 0 ? 5 : 3][i], x_sums);
      __m256 const scale = _mm256_castsi256_ps(factors[0][i]),
                   min = _mm256_castsi256_ps(factors[U::min_sign != 0 ? Panel<U>::min_at : 0][i]);
      lane[t][i] = add_whole<U>(lane[t][i], whole, scale, min, x_scale);
    }
  }
}

/// y[0..n) = before + sum.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void store_sums(float* y, float const* before, int n, __m256 sum) {
  if (n <= 0) return;
  if (n >= 8) return _mm256_storeu_ps(y, _mm256_add_ps(before != nullptr ? _mm256_loadu_ps(before) : _mm256_setzero_ps(), sum));
  float out[8];
  _mm256_storeu_ps(out, sum);
  for (int i = 0; i < n; ++i) y[i] = (before != nullptr ? before[i] : 0.0f) + out[i];
}

template <class U, int n>
[[gnu::target("avx2,fma,f16c")]] void multiply_panel(Panel<U> const& panel, Columns<U, n> const& columns) {
  __m256 all[n][2] = {}, four[n][2] = {};
  for (int p = 0; p < 8; ++p) {
    __m256 lane[n][2];
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) lane[t][0] = lane[t][1] = _mm256_setzero_ps();
    for (std::int32_t g = 0; g < panel.n_blocks[p]; ++g) add_block<U, n>(panel, columns, p * panel.n_groups + g, p + 8 * g, lane);
    for (int t = 0; t < n; ++t) {
      for (int i = 0; i < 2; ++i) {
        four[t][i] = p % 4 == 0 ? lane[t][i] : _mm256_add_ps(four[t][i], lane[t][i]);
        if (p == 3) all[t][i] = four[t][i];
        if (p == 7) all[t][i] = _mm256_add_ps(all[t][i], four[t][i]);
      }
    }
  }
  for (int t = 0; t < n; ++t) {
    float const* const before = columns.before[t];
    store_sums(columns.y[t], before, columns.rows[t], all[t][0]);
    store_sums(columns.y[t] + 8, before != nullptr ? before + 8 : nullptr, columns.rows[t] - 8, all[t][1]);
  }
}

template <class U, int n>
[[gnu::target("avx2,fma,f16c")]] void load_columns(Columns<U, n>& columns, std::int32_t n_blocks) {
  for (int t = 0; t < n; ++t) {
    for (std::int32_t b = 0; b < n_blocks; ++b) {
      ActQ8x32 const& x = columns.x[t][b];
      if constexpr (U::has_groups) {
        columns.sums[t][b] = std::int32_t(load_word(x.sums));
      } else {
        columns.sums[t][b] = sums_of<U>(x);
      }
      if constexpr (Panel<U>::is_wide) {
        columns.wide[t][b][0] = even_bytes(load_32(x.q));
        columns.wide[t][b][1] = odd_bytes(load_32(x.q));
      }
    }
  }
}

/// n tokens from `first_token` on, the last one again where there are fewer, times panels of rows [rows.begin, rows.end).
template <class U, int n>
void multiply_panels(Product const& p, Panel<U> const* panels, Range rows, std::int32_t k, std::int32_t first_token,
                     std::int32_t last_token) {
  Columns<U, n> columns;
  std::int32_t token[n];
  for (int t = 0; t < n; ++t) {
    token[t] = std::min(first_token + t, last_token);
    columns.x[t] = reinterpret_cast<ActQ8x32 const*>(p.x_row(token[t], std::size_t(p.dim / 32) * sizeof(ActQ8x32))) + k / 32;
  }
  load_columns(columns, std::min(stretch_elems, p.dim - k) / 32);
  for (std::int32_t r = rows.begin; r < rows.end; r += 16, ++panels) {
    for (int t = 0; t < n; ++t) {
      columns.y[t] = p.y_row(token[t]) + r;
      columns.before[t] = k > 0 ? columns.y[t] : p.bias != nullptr ? p.bias + r : nullptr;
      columns.rows[t] = first_token + t > last_token ? 0 : std::min(16, rows.end - r);
    }
    multiply_panel(*panels, columns);
  }
}

/// Rows of a panel, tokens that meet it at once, and rows whose panels are kept while the tokens pass: 150 KB of stack, 290 with signed
/// weights, in a second-level cache.
inline constexpr std::int32_t kept_rows = 32, panel_height = 16, panel_width = 4;

template <class F>
void multiply_panels(Product const& p, Range rows, Range tokens) {
  using U = Unpack<F>;
  Panel<U> panels[kept_rows / 16];
  std::int64_t const row_bytes = std::int64_t(p.dim / F::block_elems) * F::block_bytes;
  for (std::int32_t k = 0; k < p.dim; k += stretch_elems) {
    std::int64_t const begin = std::int64_t(k / F::block_elems) * F::block_bytes;
    std::int64_t const bytes = std::int64_t(std::min(stretch_elems, p.dim - k) / F::block_elems) * F::block_bytes;
    for (std::int32_t r = rows.begin; r < rows.end; r += kept_rows) {
      Range const kept{r, std::min(rows.end, r + kept_rows)};
      for (std::int32_t first = kept.begin; first < kept.end; first += 16) {
        std::byte const* row[16];
        for (int i = 0; i < 16; ++i) row[i] = static_cast<std::byte const*>(p.w) + std::min(first + i, kept.end - 1) * row_bytes + begin;
        pack<F>(row, bytes, panels[(first - r) / 16]);
      }
      for (std::int32_t t = tokens.begin; t < tokens.end; t += 4) {
        if (tokens.end - t > 2)
          multiply_panels<U, 4>(p, panels, kept, k, t, tokens.end - 1);
        else
          multiply_panels<U, 2>(p, panels, kept, k, t, tokens.end - 1);
      }
    }
  }
}

}  // namespace tiered::cpu::avx2
