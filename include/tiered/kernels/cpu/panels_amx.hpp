/// Rows of f32 to bfloat16 panels, and tiles of sums back to rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "tiered/core/ids.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/team.hpp"
#include "tiered/kernels/cpu/unpack_amx.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::cpu::amx {

/// Row i of v becomes column i.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] inline void transpose(__m512i (&v)[16]) {
  __m512i pairs[16], fours[16];  // of 32-bit words of neighbouring rows, in each quarter of a vector; then of those
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_maskz_unpacklo_epi32(0xffff, v[i], v[i + 1]);
    pairs[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, v[i], v[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_maskz_unpacklo_epi64(0xff, pairs[i], pairs[i + 2]);
    fours[i + 1] = _mm512_maskz_unpackhi_epi64(0xff, pairs[i], pairs[i + 2]);
    fours[i + 2] = _mm512_maskz_unpacklo_epi64(0xff, pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = _mm512_maskz_unpackhi_epi64(0xff, pairs[i + 1], pairs[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // quarter q of fours[4r + i] is rows 4r.. of column 4q + i
    __m512i const a = _mm512_maskz_shuffle_i32x4(0xffff, fours[i], fours[i + 4], 0x88);
    __m512i const b = _mm512_maskz_shuffle_i32x4(0xffff, fours[i + 8], fours[i + 12], 0x88);
    __m512i const c = _mm512_maskz_shuffle_i32x4(0xffff, fours[i], fours[i + 4], 0xdd);
    __m512i const d = _mm512_maskz_shuffle_i32x4(0xffff, fours[i + 8], fours[i + 12], 0xdd);
    v[i] = _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0x88);
    v[i + 4] = _mm512_maskz_shuffle_i32x4(0xffff, c, d, 0x88);
    v[i + 8] = _mm512_maskz_shuffle_i32x4(0xffff, a, b, 0xdd);
    v[i + 12] = _mm512_maskz_shuffle_i32x4(0xffff, c, d, 0xdd);
  }
}

constexpr __mmask16 first_lanes(std::int32_t n) { return n >= 16 ? 0xffff : n <= 0 ? 0 : __mmask16((1u << n) - 1); }

/// 32 elements of a row from k on, zeros from `dim` on; or what rounding takes of them.
template <bool rest>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c"), gnu::always_inline]] inline __m512i bf16_pairs(float const* row,
                                                                                                                        std::int32_t k,
                                                                                                                        std::int32_t dim) {
  __m512 const low = _mm512_maskz_loadu_ps(first_lanes(dim - k), row + k);
  __m512 const high = _mm512_maskz_loadu_ps(first_lanes(dim - k - 16), row + k + 16);
  return to_bf16<rest>(low, high);
}

/// Rows that are packed together: x[index[i]], or x[i] where there is no index.
struct PanelRows {
  float const* x = nullptr;             ///< rows of dim elements
  std::int32_t const* index = nullptr;  ///< [n] or null
  std::int32_t n = 0, dim = 0;

  float const* row(std::int32_t i) const { return x + std::int64_t(index != nullptr ? index[i] : i) * dim; }
};

/// Elements k of one panel, whose first row is `first`; k.begin is a multiple of 32. y: the panels of all rows, or of the rest of them.
template <bool rest = false>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] inline void pack_panel(PanelRows const& rows, std::int32_t first,
                                                                                                 Range k, std::uint16_t* y) {
  std::int32_t const n = std::min(panel_rows, rows.n - first);
  float const* row[panel_rows] = {};
  for (std::int32_t i = 0; i < n; ++i) row[i] = rows.row(first + i);
  for (std::int32_t at = k.begin; at < k.end; at += 32) {
    std::uint16_t* const out = y + panel_index(rows.n, rows.dim, first, at);
    __m512i v[panel_rows];
    v[0] = bf16_pairs<rest>(row[0], at, rows.dim);
    if (n == 1) {
      _mm512_storeu_si512(out, v[0]);
      continue;
    }
#pragma GCC unroll 16
    for (int i = 1; i < panel_rows; ++i) v[i] = i < n ? bf16_pairs<rest>(row[i], at, rows.dim) : _mm512_setzero_si512();
    transpose(v);
#pragma GCC unroll 16
    for (int i = 0; i < panel_rows; ++i) _mm512_mask_storeu_epi32(out + i * 2 * n, first_lanes(n), v[i]);
  }
}

/// Elements that a thread packs at a time.
inline constexpr std::int32_t pack_elems = 512;

/// Elements k of all rows.
inline void pack_panels(PanelRows const& rows, Range k, std::uint16_t* y) {
  for (std::int32_t first = 0; first < rows.n; first += panel_rows) pack_panel(rows, first, k, y);
}

/// QuantizeArgs to act_bf16, or act_bf16_two. Neither few rows nor many short ones keep threads from sharing the work.
template <bool two = false>
void quantize(QuantizeArgs const& a, Team& team) {
  std::int64_t const n_panels = (a.n_rows + panel_rows - 1) / panel_rows, parts = (a.dim + pack_elems - 1) / pack_elems;
  std::int64_t const part_elems = std::int64_t(std::min(a.dim, pack_elems)) * std::min(a.n_rows, panel_rows);
  PanelRows const rows{a.x, nullptr, a.n_rows, a.dim};
  auto* const y = static_cast<std::uint16_t*>(a.y);
  std::uint64_t const second = act_second_offset(DType::act_bf16_two, std::uint64_t(a.n_rows), std::uint64_t(a.dim)) / 2;
  team.parallel_for(n_panels * parts, row_grain(team, n_panels * parts, part_elems), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int32_t const first = std::int32_t(i / parts) * panel_rows, at = std::int32_t(i % parts) * pack_elems;
      Range const k{at, std::min(a.dim, at + pack_elems)};
      pack_panel(rows, first, k, y);
      if constexpr (two) pack_panel<true>(rows, first, k, y + second);
    }
  });
}

/// A tile of sums [16 weight rows][16 tokens] to y: element i of a vector is weight row i, for one token each.
/// y[t]: where the rows' results of token t lie; bias: of these rows, or null.
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] inline void put_sums(float const* tile, std::int32_t n_rows,
                                                                                               float const* bias, std::int32_t n_tokens,
                                                                                               float* const* y) {
  __m512i v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = _mm512_load_si512(tile + i * 16);
  transpose(v);
  __mmask16 const present = first_lanes(n_rows);
  __m512 const start = bias != nullptr ? _mm512_maskz_loadu_ps(present, bias) : _mm512_setzero_ps();
#pragma GCC unroll 16
  for (int t = 0; t < 16; ++t) {
    if (t < n_tokens) _mm512_mask_storeu_ps(y[t], present, _mm512_add_ps(start, _mm512_castsi512_ps(v[t])));
  }
}

}  // namespace tiered::cpu::amx
