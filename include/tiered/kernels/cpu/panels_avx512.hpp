/// Quantised matrix products with many tokens for AVX-512 with VNNI: 16 rows side by side, repacked on the way.
#pragma once

#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/cpu/activation_avx512.hpp"
#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/quants_avx512.hpp"
#include "tiered/kernels/cpu/quants_k_avx512.hpp"

// g++ 12 takes the "undefined" operands of its own intrinsics for mistakes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tiered::cpu::avx512 {

/// A stretch of 16 rows. Blocks lie in the order in which they are summed: those of lane 0 (see stretch_elems), of lane 1 ...
/// Formats differ only in what is in here: scales for 32 or 16 weights, offsets or minima.
template <bool has_groups, int n_mins>
struct alignas(64) Panel {
  static constexpr int n_factors = (has_groups ? 3 : 1) + n_mins;
  std::uint8_t w[stretch_blocks][8][16][4];      ///< block, four weights, row, weight
  float factors[stretch_blocks][n_factors][16];  ///< as in Factors, scale / multiple
  std::int32_t n_groups = 0;                     ///< place of the lane p's block of group g: p * n_groups + g
  std::int32_t n_blocks[16] = {};                ///< of each lane
};
template <class F>
using PanelOf = Panel<Unpack<F>::has_groups, Unpack<F>::n_mins>;

/// m[d] = dword d of the 16 rows m.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void transpose(__m512i (&m)[16]) {
  __m512i u[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    __m512i const low01 = _mm512_unpacklo_epi32(m[i], m[i + 1]), high01 = _mm512_unpackhi_epi32(m[i], m[i + 1]);
    __m512i const low23 = _mm512_unpacklo_epi32(m[i + 2], m[i + 3]), high23 = _mm512_unpackhi_epi32(m[i + 2], m[i + 3]);
    u[i] = _mm512_unpacklo_epi64(low01, low23);
    u[i + 1] = _mm512_unpackhi_epi64(low01, low23);
    u[i + 2] = _mm512_unpacklo_epi64(high01, high23);
    u[i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    __m512i const even01 = _mm512_shuffle_i32x4(u[c], u[c + 4], 0x88), odd01 = _mm512_shuffle_i32x4(u[c], u[c + 4], 0xdd);
    __m512i const even23 = _mm512_shuffle_i32x4(u[c + 8], u[c + 12], 0x88), odd23 = _mm512_shuffle_i32x4(u[c + 8], u[c + 12], 0xdd);
    m[c] = _mm512_shuffle_i32x4(even01, even23, 0x88);
    m[c + 4] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
    m[c + 8] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
    m[c + 12] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
  }
}

/// A group of 512 weights of 16 rows, as bytes_of() and factors() give them.
template <class F>
struct alignas(64) Unpacked {
  __m512i w[8][16];
  __m512 factors[PanelOf<F>::n_factors][16];
};

template <class F>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void unpack_row(std::byte const* p, int row,
                                                                                                    Unpacked<F>& out) {
  using U = Unpack<F>;
  __m512i w[8];
  Parts const parts{p, U::bytes / U::parts};
  U::bytes_of(parts, w);
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) out.w[v][row] = w[v];
  Factors const f = U::factors(parts);
  int i = 0;
  out.factors[i++][row] = _mm512_mul_ps(f.scale, _mm512_loadu_ps(header_order<F>.inverse));
  if constexpr (U::has_groups) out.factors[i++][row] = f.even, out.factors[i++][row] = f.odd;
  if constexpr (U::n_mins > 0) out.factors[i++][row] = f.min;
  if constexpr (U::n_mins > 1) out.factors[i++][row] = f.min_odd;
}

/// Fills the panel with `bytes` bytes of each row.
template <class F>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni")]] void pack(std::byte const* const (&rows)[16], std::int64_t bytes,
                                                                   PanelOf<F>& panel) {
  using U = Unpack<F>;
  std::int32_t const n_blocks = std::int32_t(bytes / F::block_bytes) * (F::block_elems / 32);
  panel.n_groups = (n_blocks + 15) / 16;
  for (int p = 0; p < 16; ++p) panel.n_blocks[p] = (n_blocks - U::block(p) + 15) / 16;
  Unpacked<F> group;
  for (std::int32_t g = 0; g < panel.n_groups; ++g) {
    std::int64_t const at = std::int64_t(g) * U::bytes;
    for (int r = 0; r < 16; ++r) {
      std::byte space[U::bytes];
      unpack_row<F>(padded<F>(rows[r] + at, bytes - at, space), r, group);
    }
    for (int v = 0; v < 8; ++v) {  // dword 4j + k of vector 2i + h: bytes [16h + 4k, 16h + 4k + 4) of block(4j + i)
      transpose(group.w[v]);
#pragma GCC unroll 16
      for (int d = 0; d < 16; ++d) {
        std::int32_t const place = (d / 4 * 4 + v / 2) * panel.n_groups + g;
        _mm512_store_si512(panel.w[place][v % 2 * 4 + d % 4], group.w[v][d]);
      }
    }
    for (int i = 0; i < panel.n_factors; ++i) {
      __m512i m[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) m[r] = _mm512_castps_si512(group.factors[i][r]);
      transpose(m);
#pragma GCC unroll 16
      for (int p = 0; p < 16; ++p) _mm512_store_si512(panel.factors[p * panel.n_groups + g][i], m[p]);
    }
  }
}

/// n tokens from the first block of a stretch on.
template <int n>
struct Columns {
  ActQ8x32 const* x[n];
  float* y[n];                                  ///< at the first row of the panel
  float const* before[n];                       ///< what the sums are added to; null: zeros
  __mmask16 rows[n];                            ///< which rows of the panel there are; none where a token is the last one again
  std::int32_t sums[n][2][stretch_groups][16];  ///< of BlockSums, at [half of the block][group][lane]
};

/// sum + w * x, w four unsigned bytes of each row, x four signed ones.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i add_products(__m512i sum, __m512i w,
                                                                                                         void const* x) {
  // g++ 12 does not broadcast within this instruction, but spends one more.
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(*static_cast<std::int32_t const*>(x)));
  return sum;
}

/// Adds block `block` of the stretch, at `place` of the panel. sums: at [0][0][group][lane] of the first token.
/// For 8 tokens and 4096 products 131 instructions; 139 with minima, 152 with scales for 16 weights, 191 with both. The least: 64.
template <bool has_groups, int n_mins, int n>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void add_block(Panel<has_groups, n_mins> const& panel,
                                                                                                   Columns<n> const& columns,
                                                                                                   std::int32_t place, std::int32_t block,
                                                                                                   std::int32_t const* sums,
                                                                                                   __m512 (&lane)[n]) {
  constexpr int per_token = 2 * stretch_groups * 16, per_half = stretch_groups * 16;
  __m512i a[2][n];
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) {
    a[0][t] = a[1][t] = _mm512_setzero_si512();
    if constexpr (n_mins == 0) a[0][t] = _mm512_set1_epi32(sums[t * per_token]);
    if constexpr (n_mins == 0 && has_groups) a[1][t] = _mm512_set1_epi32(sums[t * per_token + per_half]);
  }
#pragma GCC unroll 8
  for (int k = 0; k < 8; ++k) {
    __m512i const w = _mm512_load_si512(panel.w[place][k]);
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) {
      __m512i& sum = a[has_groups ? k / 4 : 0][t];
      sum = add_products(sum, w, columns.x[t][block].q + 4 * k);
    }
  }
  auto const& factors = panel.factors[place];
#pragma GCC unroll 8
  for (int t = 0; t < n; ++t) {
    __m512 const scale = _mm512_mul_ps(_mm512_load_ps(factors[0]), _mm512_set1_ps(columns.x[t][block].scale));
    __m512 whole = _mm512_cvtepi32_ps(a[has_groups][t]);
    if constexpr (has_groups) {
      whole = _mm512_mul_ps(whole, _mm512_load_ps(factors[2]));
      whole = _mm512_fmadd_ps(_mm512_cvtepi32_ps(a[0][t]), _mm512_load_ps(factors[1]), whole);
    }
    lane[t] = _mm512_fmadd_ps(whole, scale, lane[t]);
#pragma GCC unroll 2
    for (int i = 0; i < n_mins; ++i) {
      float const sum = __builtin_bit_cast(float, sums[t * per_token + i * per_half]);
      lane[t] = _mm512_fmadd_ps(_mm512_load_ps(factors[(has_groups ? 3 : 1) + i]), _mm512_set1_ps(sum), lane[t]);
    }
  }
}

/// block: the first one of each lane.
template <bool has_groups, int n_mins, int n>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni")]] void multiply_panel(Panel<has_groups, n_mins> const& panel,
                                                                             Columns<n> const& columns, std::int32_t const (&block)[16]) {
  __m512 all[n];
  for (int q = 0; q < 4; ++q) {
    __m512 four[n];
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) four[t] = _mm512_setzero_ps();
    for (int p = 4 * q; p < 4 * q + 4; ++p) {
      __m512 lane[n];
#pragma GCC unroll 8
      for (int t = 0; t < n; ++t) lane[t] = _mm512_setzero_ps();
      for (std::int32_t g = 0; g < panel.n_blocks[p]; ++g)
        add_block<has_groups, n_mins, n>(panel, columns, p * panel.n_groups + g, block[p] + 16 * g, columns.sums[0][0][g] + p, lane);
#pragma GCC unroll 8
      for (int t = 0; t < n; ++t) four[t] = p % 4 == 0 ? lane[t] : _mm512_add_ps(four[t], lane[t]);
    }
#pragma GCC unroll 8
    for (int t = 0; t < n; ++t) all[t] = q == 0 ? four[t] : _mm512_add_ps(all[t], four[t]);
  }
  for (int t = 0; t < n; ++t) {
    __mmask16 const valid = columns.rows[t];
    __m512 const before = columns.before[t] != nullptr ? _mm512_maskz_loadu_ps(valid, columns.before[t]) : _mm512_setzero_ps();
    _mm512_mask_storeu_ps(columns.y[t], valid, _mm512_add_ps(before, all[t]));
  }
}

/// n tokens from `first_token` on, the last one again where there are fewer, times panels of rows [rows.begin, rows.end).
template <class F, int n>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni")]] void multiply_panels(Product const& p, PanelOf<F> const* panels, Range rows,
                                                                              std::int32_t k, std::int32_t first_token,
                                                                              std::int32_t last_token) {
  std::int32_t const n_blocks = std::min(stretch_elems, p.dim - k) / 32;
  std::int32_t block[16];
  for (int lane = 0; lane < 16; ++lane) block[lane] = Unpack<F>::block(lane);
  Columns<n> columns;
  std::int32_t token[n];
  for (int t = 0; t < n; ++t) {
    token[t] = std::min(first_token + t, last_token);
    columns.x[t] = reinterpret_cast<ActQ8x32 const*>(p.x_row(token[t], std::size_t(p.dim / 32) * sizeof(ActQ8x32))) + k / 32;
    for (std::int32_t b = 0; b < n_blocks; b += 16) {
      ActQ8x32 space[16];
      BlockSums const s = block_sums<F>(padded(columns.x[t] + b, n_blocks - b, space));
      for (int i = 0; i < n_sums<F>; ++i) _mm512_storeu_si512(columns.sums[t][i][b / 16], s.sums[i]);
    }
  }
  for (std::int32_t r = rows.begin; r < rows.end; r += 16, ++panels) {
    for (int t = 0; t < n; ++t) {
      columns.y[t] = p.y_row(token[t]) + r;
      columns.before[t] = k > 0 ? columns.y[t] : p.bias != nullptr ? p.bias + r : nullptr;
      columns.rows[t] = __mmask16(first_token + t > last_token ? 0 : (1u << std::min(16, rows.end - r)) - 1);
    }
    multiply_panel(*panels, columns, block);
  }
}

/// Rows of a panel, tokens that meet it at once, and rows whose panels are kept while the tokens pass: 290 KB of stack, 420 with Q2_K,
/// less than half of a second-level cache. With 32 rows kept, products with 512 tokens take 6 % longer.
inline constexpr std::int32_t kept_rows = 64, panel_height = 16, panel_width = 8;

template <class F>
void multiply_panels(Product const& p, Range rows, Range tokens) {
  PanelOf<F> panels[kept_rows / 16];
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
      for (std::int32_t t = tokens.begin; t < tokens.end; t += 8) {
        std::int32_t const left = tokens.end - t, last = tokens.end - 1;
        if (left > 6)
          multiply_panels<F, 8>(p, panels, kept, k, t, last);
        else if (left > 4)
          multiply_panels<F, 6>(p, panels, kept, k, t, last);
        else if (left > 2)
          multiply_panels<F, 4>(p, panels, kept, k, t, last);
        else
          multiply_panels<F, 2>(p, panels, kept, k, t, last);
      }
    }
  }
}

}  // namespace tiered::cpu::avx512

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
