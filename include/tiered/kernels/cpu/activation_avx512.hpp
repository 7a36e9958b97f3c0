/// What AVX-512 products read of activations besides their bytes: scales and sums of 16 blocks at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "tiered/kernels/cpu/quants_avx512.hpp"
#include "tiered/kernels/format/activation.hpp"

// g++ 12 takes the "undefined" operands of its own intrinsics for mistakes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tiered::cpu::avx512 {

/// Elements of a row that are summed by themselves; the sums of stretches are added in ascending order.
///
/// The sum of a stretch, the same in every kernel: blocks b and b + 16 of it meet in one lane. A lane is a chain over its blocks,
/// ascending, of fma(whole number, (weight scale) * (activation scale), sum), and one fma more for each minimum; the whole number is
/// the exact sum of the block's products. Lanes p = 4q + c are then added over c, and these sums over q, both ascending. So with few
/// tokens 16 blocks of one row advance at once, with many tokens 16 rows, without a shuffle between product and chain.
inline constexpr std::int32_t stretch_elems = 4096;
inline constexpr std::int32_t stretch_blocks = stretch_elems / 32, stretch_groups = stretch_elems / 512;

/// How many numbers for each block undo offsets or are multiplied with minima.
template <class F>
inline constexpr int n_sums = (Unpack<F>::has_groups ? 2 : 1);

/// For each lane of a group of 512: scale of the block; with offsets, -offset * (sum of q), as whole numbers to begin sums with,
/// for each half of the block where weights have scales of 16; with minima, min_sign * scale * (sum of q).
struct BlockSums {
  __m512 scale;
  __m512i sums[2];
};

template <class F>
struct HeaderOrder {
  std::uint32_t index[16] = {};
  std::int32_t offset[16] = {};
  float inverse[16] = {};
  /// Eight bytes of each block, five times that apart: as in halves(), in two vectors.
  constexpr HeaderOrder() {
    for (int p = 0; p < 16; ++p) {
      int const b = Unpack<F>::block(p);
      index[p] = std::uint32_t(b % 8 * 5 % 8 * 2 + b / 8 * 16);
      offset[p] = -Unpack<F>::offset * Unpack<F>::multiple(p % 4);
      inverse[p] = 1.0f / float(Unpack<F>::multiple(p % 4));
    }
  }
};
template <class F>
inline constexpr HeaderOrder<F> header_order;

/// Of x[0..16).
template <class F>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline BlockSums block_sums(ActQ8x32 const* x) {
  HeaderOrder<F> const& order = header_order<F>;
  auto const* const p = reinterpret_cast<std::byte const*>(x);
  constexpr Chunks<40, 0, 8, 8> heads;
  __m512i a = _mm512_setzero_si512(), b = a;
#pragma GCC unroll 5
  for (int c = 0; c < 5; ++c) {
    a = _mm512_mask_loadu_epi64(a, __mmask8(heads.mask[c]), p + 64 * c);
    b = _mm512_mask_loadu_epi64(b, __mmask8(heads.mask[c]), p + 320 + 64 * c);
  }
  __m512i const index = load_512(order.index);
  __m512 const scale = _mm512_castsi512_ps(_mm512_permutex2var_epi32(a, index, b));
  __m512i const both = _mm512_permutex2var_epi32(a, _mm512_add_epi32(index, _mm512_set1_epi32(1)), b);
  __m512i whole[2];
  if constexpr (n_sums<F> == 2) {
    whole[0] = _mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16);
    whole[1] = _mm512_srai_epi32(both, 16);
  } else {
    whole[0] = whole[1] = _mm512_madd_epi16(both, _mm512_set1_epi16(1));
  }
  BlockSums s;
  s.scale = scale;
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    if constexpr (Unpack<F>::n_mins > 0) {
      __m512 const sum = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(whole[i]));
      s.sums[i] = _mm512_castps_si512(Unpack<F>::min_sign > 0 ? sum : _mm512_sub_ps(_mm512_set1_ps(-0.0f), sum));
    } else {
      s.sums[i] = _mm512_mullo_epi32(whole[i], load_512(order.offset));
    }
  }
  return s;
}

/// x[0..16), with zeros from x[n] on.
inline ActQ8x32 const* padded(ActQ8x32 const* x, std::int32_t n, ActQ8x32 (&space)[16]) {
  if (n >= 16) return x;
  std::memcpy(static_cast<void*>(space), x, std::size_t(n) * sizeof *x);
  std::memset(static_cast<void*>(space + n), 0, std::size_t(16 - n) * sizeof *x);
  return space;
}
/// The bytes of 512 weights, with zeros from byte n on.
template <class F>
std::byte const* padded(std::byte const* p, std::int64_t n, std::byte (&space)[Unpack<F>::bytes]) {
  if (n >= Unpack<F>::bytes) return p;
  std::memcpy(space, p, std::size_t(n));
  std::memset(space + n, 0, Unpack<F>::bytes - std::size_t(n));
  return space;
}

}  // namespace tiered::cpu::avx512

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
