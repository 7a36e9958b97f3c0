/// Tiles of quantised matrix products for AVX-512 with VNNI: with few tokens along the rows, with many in panels.
#pragma once

#include <algorithm>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/cpu/activation_avx512.hpp"
#include "tiered/kernels/cpu/ahead.hpp"
#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/panels_avx512.hpp"
#include "tiered/kernels/cpu/quants_avx512.hpp"
#include "tiered/kernels/cpu/quants_k_avx512.hpp"

// g++ 12 takes the "undefined" operands of its own intrinsics for mistakes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tiered::cpu::avx512 {

/// Activations of a token for 512 weights, as the weights come out of bytes_of().
template <class F>
struct alignas(64) Group {
  std::int8_t q[8][64];
  float scale[16];                   ///< over multiple()
  std::int32_t sums[n_sums<F>][16];  ///< where is_small, without minima: both in halves of sums[0]
};

template <class F>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void arrange(ActQ8x32 const* x, Group<F>& out) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      auto const half = [&](int j) { return reinterpret_cast<__m128i const*>(x[Unpack<F>::block(4 * j + i)].q + 16 * h); };
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) _mm_store_si128(reinterpret_cast<__m128i*>(out.q[2 * i + h] + 16 * j), _mm_loadu_si128(half(j)));
    }
  }
  BlockSums const s = block_sums<F>(x);
  _mm512_store_ps(out.scale, _mm512_mul_ps(s.scale, _mm512_loadu_ps(header_order<F>.inverse)));
#pragma GCC unroll 2
  for (int i = 0; i < n_sums<F>; ++i) _mm512_store_si512(out.sums[i], s.sums[i]);
  if constexpr (Unpack<F>::is_small && Unpack<F>::n_mins == 0)
    _mm512_store_si512(out.sums[0], _mm512_mask_blend_epi16(0xaaaaaaaa, s.sums[0], _mm512_slli_epi32(s.sums[1], 16)));
}

/// The groups of n_blocks blocks, then those of the row's end: see RowEnds. Missing blocks are zero.
template <class F>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni")]] void arrange(ActQ8x32 const* x, std::int32_t n_blocks, Group<F>* out) {
  constexpr std::int32_t part_blocks = 16 / Unpack<F>::parts;
  std::int32_t b = 0;
  for (; n_blocks - b >= 16; b += 16) arrange<F>(x + b, *out++);
  for (; b < n_blocks; b += part_blocks) {
    ActQ8x32 space[16];
    for (std::int32_t i = 0; i < 16; ++i) space[i] = b + i % part_blocks < n_blocks ? x[b + i % part_blocks] : ActQ8x32{};
    arrange<F>(space, *out++);
  }
}

/// Lane 4j + i: the sum of the four lanes j of a_i.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i sums_of_four(__m512i a0, __m512i a1, __m512i a2,
                                                                                                         __m512i a3) {
  __m512i const a01 = _mm512_add_epi32(_mm512_unpacklo_epi32(a0, a1), _mm512_unpackhi_epi32(a0, a1));
  __m512i const a23 = _mm512_add_epi32(_mm512_unpacklo_epi32(a2, a3), _mm512_unpackhi_epi32(a2, a3));
  return _mm512_add_epi32(_mm512_unpacklo_epi64(a01, a23), _mm512_unpackhi_epi64(a01, a23));
}

/// Lane 4j + i: the sum of the four lanes j of even[i] times the lower half of the lane of `scales`, and of odd[i] times the upper.
/// Products are small: 16 of them are below 2^15.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i scaled_sums(__m512i const (&even)[4],
                                                                                                        __m512i const (&odd)[4],
                                                                                                        __m512i scales) {
  __m512i const one = _mm512_set1_epi16(1);
  __m512i two[4];  // of lanes j: two of even[i], two of odd[i]
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) two[i] = _mm512_madd_epi16(_mm512_packs_epi32(even[i], odd[i]), one);
  __m512i const first = _mm512_madd_epi16(_mm512_packs_epi32(two[0], two[1]), _mm512_unpacklo_epi16(scales, scales));
  __m512i const second = _mm512_madd_epi16(_mm512_packs_epi32(two[2], two[3]), _mm512_unpackhi_epi16(scales, scales));
  __m512 const a = _mm512_castsi512_ps(first), b = _mm512_castsi512_ps(second);
  return _mm512_add_epi32(_mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88)), _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
}

/// Adds the products of 512 weights to the lanes of n tokens. x: the group of the first token, those of others `stride` apart.
///
/// Instructions for each weight in the loop of one token, with g++ 12, 0.02 to fetch lines among them: 0.14 IQ4_XS, Q8_0; 0.15 Q4_0,
/// Q4_K; 0.16 Q4_1, Q2_K; 0.17 IQ4_NL, MXFP4; 0.19 Q3_K, Q5_K; 0.21 Q6_K; 0.26 Q5_0, Q5_1; each further token 0.05, where scales are for
/// 16 weights 0.085. The least possible for 4 bits is 0.09: of 512 weights 8 products, 4 loads, 12 to split nibbles, 9 to add lanes, 4 for
/// scales, 5 fetches, 3 of the loop; blocks that are no vectors, as those of 18 bytes are not, need 12 loads and 4 for scales more.
template <class F, int n>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void add_group(Parts p, Group<F> const* x,
                                                                                                   std::int32_t stride, __m512 (&sums)[n]) {
  using U = Unpack<F>;
  __m512i w[8];
  U::bytes_of(p, w);
  Factors const f = U::factors(p);
#pragma GCC unroll 4
  for (int t = 0; t < n; ++t) {
    Group<F> const& g = x[t * stride];
    __m512i const zero = _mm512_setzero_si512();
    __m512i a[4], b[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      a[i] = _mm512_dpbusd_epi32(zero, w[2 * i], _mm512_load_si512(g.q[2 * i]));
      b[i] = _mm512_dpbusd_epi32(U::has_groups ? zero : a[i], w[2 * i + 1], _mm512_load_si512(g.q[2 * i + 1]));
    }
    __m512 const scale = _mm512_mul_ps(f.scale, _mm512_load_ps(g.scale));
    __m512 whole;
    if constexpr (U::is_small) {
      __m512i total = scaled_sums(a, b, f.both);
      if constexpr (U::n_mins == 0) total = _mm512_dpwssd_epi32(total, f.both, _mm512_load_si512(g.sums[0]));
      whole = _mm512_cvtepi32_ps(total);
    } else {
      __m512i total = sums_of_four(b[0], b[1], b[2], b[3]);
      if constexpr (U::n_mins == 0) total = _mm512_add_epi32(total, _mm512_load_si512(g.sums[n_sums<F> - 1]));
      whole = _mm512_cvtepi32_ps(total);
      if constexpr (U::has_groups) {
        __m512i first = sums_of_four(a[0], a[1], a[2], a[3]);
        if constexpr (U::n_mins == 0) first = _mm512_add_epi32(first, _mm512_load_si512(g.sums[0]));
        whole = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first), f.even, _mm512_mul_ps(whole, f.odd));  // exact, as it is below 2^24
      }
    }
    sums[t] = _mm512_fmadd_ps(whole, scale, sums[t]);
    if constexpr (U::n_mins > 0) sums[t] = _mm512_fmadd_ps(f.min, _mm512_castsi512_ps(_mm512_load_si512(g.sums[0])), sums[t]);
    if constexpr (U::n_mins > 1) sums[t] = _mm512_fmadd_ps(f.min_odd, _mm512_castsi512_ps(_mm512_load_si512(g.sums[1])), sums[t]);
  }
}

/// Lane 4q + r of sums[c]: what was lane 4q + c of row r's sums.
template <int n>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void by_lane(__m512 (&sums)[4][n]) {
#pragma GCC unroll 4
  for (int t = 0; t < n; ++t) {
    __m512 const low01 = _mm512_shuffle_ps(sums[0][t], sums[1][t], 0x44), high01 = _mm512_shuffle_ps(sums[0][t], sums[1][t], 0xee);
    __m512 const low23 = _mm512_shuffle_ps(sums[2][t], sums[3][t], 0x44), high23 = _mm512_shuffle_ps(sums[2][t], sums[3][t], 0xee);
    sums[0][t] = _mm512_shuffle_ps(low01, low23, 0x88);
    sums[1][t] = _mm512_shuffle_ps(low01, low23, 0xdd);
    sums[2][t] = _mm512_shuffle_ps(high01, high23, 0x88);
    sums[3][t] = _mm512_shuffle_ps(high01, high23, 0xdd);
  }
}

/// The sums of four rows, from by_lane(): over lanes 4q + c for each q, then over q.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m128 sums_of_rows(__m512 c0, __m512 c1, __m512 c2,
                                                                                                        __m512 c3) {
  __m512 const sum = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(c0, c1), c2), c3);
  __m128 const two = _mm_add_ps(_mm512_castps512_ps128(sum), _mm512_extractf32x4_ps(sum, 1));
  return _mm_add_ps(_mm_add_ps(two, _mm512_extractf32x4_ps(sum, 2)), _mm512_extractf32x4_ps(sum, 3));
}

/// Whether every line is fetched ahead: see Ahead. Q8_0 has so few instructions for a line that the core keeps up by itself: GB/s of one
/// Zen 4 core from DRAM with nothing fetched, one line of a group 4096 bytes ahead, and all lines 31 31 26.
enum class Fetch { lines, one_line };
template <class F>
inline constexpr Fetch fetch_of = F::dtype == DType::q8_0 ? Fetch::one_line : Fetch::lines;

/// The lanes of n tokens for n_groups groups of a row. x: the groups of a token, those of others `stride` apart.
template <class F, Fetch fetches, int n>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void multiply_groups(
    std::byte const* p, std::int32_t n_groups, Group<F> const* x, std::int32_t stride, Ahead const& ahead, __m512 (&sums)[n]) {
  __m512 lanes[n];
#pragma GCC unroll 4
  for (int t = 0; t < n; ++t) lanes[t] = _mm512_setzero_ps();
  for (Group<F> const* const end = x + n_groups; x != end; ++x, p += Unpack<F>::bytes) {
    if constexpr (fetches == Fetch::lines) ahead.fetch_for<Unpack<F>::bytes>(p);
    if constexpr (fetches == Fetch::one_line) _mm_prefetch(reinterpret_cast<char const*>(p) + 4096, _MM_HINT_T1);
    add_group<F, n>({p, Unpack<F>::bytes / Unpack<F>::parts}, x, stride, lanes);
  }
#pragma GCC unroll 4
  for (int t = 0; t < n; ++t) sums[t] = lanes[t];
}

/// What four rows have beyond their last whole group, as groups of their own, so that no lane is idle: parts of 4 blocks of four
/// rows are a group, or super-blocks of two. Its lanes are those of the rows' sums, so the order of the sums is that of whole groups.
template <class F>
struct RowEnds {
  static constexpr int parts = Unpack<F>::parts, part_bytes = Unpack<F>::bytes / parts, loads = (part_bytes + 63) / 64;
  int n_parts;
  bool in_place;                                   ///< all parts are whole, and read where they lie, if there are four rows
  __mmask64 last[loads];                           ///< the bytes of the last part
  std::byte groups[parts][Unpack<F>::bytes + 64];  ///< and what is written beyond the last part

  explicit RowEnds(std::int64_t bytes) : n_parts(int((bytes + part_bytes - 1) / part_bytes)) {
    std::int64_t const last_bytes = bytes - (n_parts - 1) * part_bytes;
    in_place = Unpack<F>::any_stride && last_bytes == part_bytes;
    for (int i = 0; i < loads; ++i) last[i] = bytes_below(last_bytes - 64 * i);
  }

  /// Those of row i; of 0, 1, 2, 3, in this order. After the groups of the row: read before them, out of the order in which they lie,
  /// they cost rows of 768 from DRAM a third of their speed. What is read back is not what was stored at once, which takes long.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] void copy(std::byte const* p, int i) {
    int part = 0;
    for (; parts > 2 && part < n_parts - 1; ++part, p += part_bytes) {
#pragma GCC unroll 4
      for (int at = 0; at < part_bytes; at += 64) store(part, i, at, _mm512_maskz_loadu_epi8(bytes_below(part_bytes - at), p + at));
    }
    if (part == n_parts) return;
#pragma GCC unroll 4
    for (int at = 0; at < part_bytes; at += 64) store(part, i, at, _mm512_maskz_loadu_epi8(last[at / 64], p + at));
  }

  /// Adds their products to the rows' sums, with two parts before by_lane(), else after it. x: see arrange(). rows: the end of row 0,
  /// others row_bytes apart; null: copies.
  template <int n>
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] void add(std::byte const* rows, std::int64_t row_bytes,
                                                                                        Group<F> const* x, std::int32_t stride,
                                                                                        __m512 (&sums)[4][n]) const {
    if constexpr (parts == 4) {
      for (int part = 0; part < n_parts; ++part) add_group<F, n>(group(part, rows, row_bytes), x + part, stride, sums[part]);
    } else {
      for (int i = 0; i < 4; i += 2) {
        __m512 two[n];
#pragma GCC unroll 4
        for (int t = 0; t < n; ++t) two[t] = first_parts(sums[i][t], sums[i + 1][t]);
        add_group<F, n>(group(i / 2, rows, row_bytes), x, stride, two);
#pragma GCC unroll 4
        for (int t = 0; t < n; ++t) {
          sums[i][t] = Unpack<F>::template joined<0xe4>(two[t], sums[i][t]);
          sums[i + 1][t] = Unpack<F>::template joined<0xee>(two[t], sums[i + 1][t]);
        }
      }
    }
  }

 private:
  Parts group(int i, std::byte const* rows, std::int64_t row_bytes) const {
    if (!Unpack<F>::any_stride || rows == nullptr) return {groups[i], part_bytes};
    return {rows + (parts == 4 ? i * part_bytes : 2 * i * row_bytes), row_bytes};
  }
  static constexpr __mmask64 bytes_below(std::int64_t n) { return n >= 64 ? ~__mmask64{0} : n > 0 ? (__mmask64{1} << n) - 1 : 0; }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] void store(int part, int i, int at, __m512i bytes) {
    _mm512_storeu_si512(groups[parts == 4 ? part : i / 2] + i % parts * part_bytes + at, bytes);
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static __m512 first_parts(__m512 a, __m512 b) {
    return Unpack<F>::template joined<0x44>(a, b);
  }
};

/// Up to four tokens: weights are unpacked once for all of them, and rows read from front to back.
template <class F, Fetch fetches, int n>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni")]] void multiply_rows(Product const& p, Range rows, std::int32_t first_token) {
  constexpr std::int32_t most_stretches = 16 / n, most_elems = most_stretches * stretch_elems;
  constexpr std::int32_t most_groups = most_stretches * stretch_groups + 3;
  constexpr std::int64_t stretch_bytes = stretch_elems / F::block_elems * F::block_bytes;
  Group<F> x[n * most_groups];
  std::int64_t const row_bytes = std::int64_t(p.dim / F::block_elems) * F::block_bytes;
  Ahead const ahead(p, rows, row_bytes);
  if constexpr (fetches == Fetch::lines) ahead.fetch_first();
  for (std::int32_t k = 0; k < p.dim; k += most_elems) {
    std::int32_t const elems = std::min(most_elems, p.dim - k), n_stretches = (elems + stretch_elems - 1) / stretch_elems;
    std::int32_t const n_groups = elems / 512;
    std::int64_t const ends_at = std::int64_t(n_groups) * Unpack<F>::bytes;
    std::int64_t const ends_bytes = std::int64_t(elems / F::block_elems) * F::block_bytes - ends_at;
    RowEnds<F> ends(ends_bytes);
    for (int t = 0; t < n; ++t) {
      std::byte const* const row = p.x_row(first_token + t, std::size_t(p.dim / 32) * sizeof(ActQ8x32));
      arrange<F>(reinterpret_cast<ActQ8x32 const*>(row) + k / 32, elems / 32, x + t * most_groups);
    }
    std::byte const* const w = static_cast<std::byte const*>(p.w) + std::int64_t(k / F::block_elems) * F::block_bytes;
    for (std::int32_t r = rows.begin; r < rows.end; r += 4) {
      __m512 sums[most_stretches][4][n];
      bool const in_place = ends.in_place && r + 4 <= rows.end;
      std::byte const* const first_end = w + r * row_bytes + ends_at;
      std::uintptr_t next_end = ahead.of(first_end, 3 * row_bytes + ends_bytes);
      for (std::int32_t i = 0; i < 4; ++i) {
        std::byte const* const row = w + std::min(r + i, rows.end - 1) * row_bytes;  // the last one again where there is none
        for (std::int32_t s = 0; s < n_stretches; ++s)
          multiply_groups<F, fetches, n>(row + s * stretch_bytes, std::min(stretch_groups, n_groups - s * stretch_groups),
                                         x + s * stretch_groups, most_groups, ahead, sums[s][i]);
        if (fetches == Fetch::lines && ends_bytes > 0) {
          Ahead::fetch(next_end);
          for (std::int64_t at = 64; at < ends_bytes; at += 64) Ahead::fetch(next_end + std::uintptr_t(at));
          next_end += std::uintptr_t(row_bytes);
        }
        if (!in_place) ends.copy(row + ends_at, i);
      }
      auto& last = sums[n_stretches - 1];
      if (Unpack<F>::parts == 2 && ends.n_parts > 0) ends.add(in_place ? first_end : nullptr, row_bytes, x + n_groups, most_groups, last);
      for (std::int32_t s = 0; s < n_stretches; ++s) by_lane(sums[s]);
      if (Unpack<F>::parts == 4) ends.add(in_place ? first_end : nullptr, row_bytes, x + n_groups, most_groups, last);
      __mmask8 const valid = __mmask8((1 << std::min(4, rows.end - r)) - 1);
#pragma GCC unroll 4
      for (int t = 0; t < n; ++t) {
        float* const y = p.y_row(first_token + t) + r;
        float const* const before = k > 0 ? y : p.bias != nullptr ? p.bias + r : nullptr;
        __m128 sum = before != nullptr ? _mm_maskz_loadu_ps(valid, before) : _mm_setzero_ps();
        for (std::int32_t s = 0; s < n_stretches; ++s)
          sum = _mm_add_ps(sum, sums_of_rows(sums[s][0][t], sums[s][1][t], sums[s][2][t], sums[s][3][t]));
        _mm_mask_storeu_ps(y, valid, sum);
      }
    }
  }
}

/// Tokens up to which rows are read as they lie: packing panels costs as much as two or three tokens. 10^9 products a second of one Zen 4
/// core, weights in its cache: Q4_0 along rows with 4, 5, 6, 8 tokens 96, 83, 87, 93, in panels with 5, 6, 8, 16, 64, 512 tokens 67,
/// 80, 92, 120, 155, 169; Q6_K along rows with 4 tokens 70, in panels 57, 68, 78, 103, 133, 145.
template <class F>
inline constexpr std::int32_t most_tokens_by_row = Unpack<F>::has_groups&& Unpack<F>::n_mins == 0 ? 4 : 8;

template <class F, Fetch fetches = fetch_of<F>>
void quantized_tile(Product const& p, Range rows, Range tokens) {
  if (tokens.size() > most_tokens_by_row<F>) return multiply_panels<F>(p, rows, tokens);
  std::int32_t t = tokens.begin;
  for (; tokens.end - t >= 4; t += 4) multiply_rows<F, fetches, 4>(p, rows, t);
  if (tokens.end - t == 3) multiply_rows<F, fetches, 3>(p, rows, t);
  if (tokens.end - t == 2) multiply_rows<F, fetches, 2>(p, rows, t);
  if (tokens.end - t == 1) multiply_rows<F, fetches, 1>(p, rows, t);
}

}  // namespace tiered::cpu::avx512

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
