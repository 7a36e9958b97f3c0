/// Rows of formats with super-blocks of 256 as vectors for AVX-512 with VNNI, two super-blocks at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "tiered/kernels/cpu/quants_avx512.hpp"
#include "tiered/kernels/format/format.hpp"

// g++ 12 takes the "undefined" operands of its own intrinsics for mistakes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tiered::cpu::avx512 {

inline std::uint16_t word_at(std::byte const* p) {
  std::uint16_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}
inline std::int32_t dword_at(std::byte const* p) {
  std::int32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

/// The binary16 at `at` of the first super-block in the lanes where `second` is 0, that of the second one elsewhere.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512 two_halves(Parts p, int at, __mmask16 second) {
  __m256i const first = _mm256_set1_epi16(std::int16_t(word_at(p[0] + at)));
  return _mm512_cvtph_ps(_mm256_mask_set1_epi16(first, second, std::int16_t(word_at(p[1] + at))));
}
inline constexpr __mmask16 odd_pairs = 0xcccc, upper_lanes = 0xff00;

/// 16 bytes at `at` of two super-blocks.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m256i two_of_16(Parts p, int at) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(p[0] + at)), load_128(p[1] + at), 1);
}

/// Lanes 4j + i of a vector of dwords get the j-th value.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i by_quarter(int a, int b, int c, int d) {
  return _mm512_set_epi32(d, d, d, d, c, c, c, c, b, b, b, b, a, a, a, a);
}
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512 bytes_to_floats(__m128i bytes) {
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

/// Lanes p % 4 < 2 are for the first super-block.
struct PartsByPairs {
  static constexpr int parts = 2;
  static constexpr bool any_stride = true;
  template <int units>
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static __m512 joined(__m512 a, __m512 b) {
    return _mm512_shuffle_ps(a, b, units);
  }
};

// Q4_K and Q5_K. 16 bytes j of a vector are from part j of a super-block: block 2j in the low nibbles, 2j + 1 in the high ones.

template <int super_bytes>
struct UnpackK4 : PartsByPairs {
  static constexpr int bytes = 2 * super_bytes, offset = 0, n_mins = 1, min_sign = -1;
  static constexpr bool has_groups = false, is_small = false;
  static constexpr int block(int p) { return p % 4 / 2 * 8 + p / 4 * 2 + p % 2; }

  /// detail::scale_min_k4 for 16 groups. A head is d and dmin, then dwords a, b, c of packed scales.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    __m128i const first = load_128(p[0]), second = load_128(p[1]);
    __m128i const da = _mm_unpacklo_epi32(first, second), bc = _mm_unpackhi_epi32(first, second);  // d d a a, b b c c
    __m128i const ab = _mm_castps_si128(_mm_shuffle_ps(_mm_castsi128_ps(da), _mm_castsi128_ps(bc), 0x4e));
    __m128i const cc = _mm_srlv_epi32(_mm_unpackhi_epi64(bc, bc), _mm_set_epi32(4, 4, 0, 0));
    __m128i const low = _mm_and_si128(ab, _mm_set1_epi8(63));
    __m128i const upper = _mm_and_si128(_mm_srli_epi16(ab, 2), _mm_set1_epi8(48));
    __m128i const high = _mm_ternarylogic_epi32(cc, _mm_set1_epi8(15), upper, 0xea);  // (cc & 15) | upper
    __m128i const order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m512 const scales = bytes_to_floats(_mm_shuffle_epi8(_mm_unpacklo_epi64(low, high), order));
    __m512 const mins = bytes_to_floats(_mm_shuffle_epi8(_mm_unpackhi_epi64(low, high), order));
    __m512 const d = _mm512_cvtph_ps(_mm256_castsi128_si256(da));  // d, dmin, d, dmin
    Factors f = {};
    f.scale = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_set4_epi32(2, 2, 0, 0), d), scales);
    f.min = _mm512_mul_ps(_mm512_permutexvar_ps(_mm512_set4_epi32(3, 3, 1, 1), d), mins);
    return f;
  }
};

template <>
struct Unpack<Q4_K> : UnpackK4<144> {
  static constexpr int multiple(int i) { return i % 2 == 0 ? 1 : 16; }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      __m512i const a = load_512(p[s] + 16), b = load_512(p[s] + 80);
      __m512i const first = _mm512_shuffle_i32x4(a, b, 0x88), second = _mm512_shuffle_i32x4(a, b, 0xdd);
      w[4 * s] = low_nibbles(first);
      w[4 * s + 1] = low_nibbles(second);
      w[4 * s + 2] = _mm512_andnot_si512(_mm512_set1_epi8(15), first);
      w[4 * s + 3] = _mm512_andnot_si512(_mm512_set1_epi8(15), second);
    }
  }
};

template <>
struct Unpack<Q5_K> : UnpackK4<176> {
  static constexpr int multiple(int i) { return i % 2 == 0 ? 1 : 2; }
  /// Bits 2j and 2j + 1 of `bits` are the fifth ones of 16 bytes j; high nibbles come out doubled.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void split(__m512i packed, std::byte const* bits,
                                                                                                 __m512i& low, __m512i& high) {
    __m512i const fifth = _mm512_rolv_epi32(_mm512_broadcast_i32x4(load_128(bits)), by_quarter(4, 2, 0, 30));
    low = or_masked(low_nibbles(packed), fifth, 0x10);
    high = or_masked(_mm512_and_si512(_mm512_srli_epi16(packed, 3), _mm512_set1_epi8(0x1e)), fifth, 0x20);
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      std::byte const* const q = p[s];
      __m512i const a = load_512(q + 48), b = load_512(q + 112);
      split(_mm512_shuffle_i32x4(a, b, 0x88), q + 16, w[4 * s], w[4 * s + 2]);
      split(_mm512_shuffle_i32x4(a, b, 0xdd), q + 32, w[4 * s + 1], w[4 * s + 3]);
    }
  }
};

// Formats with scales for 16 weights: even vectors hold the first halves of blocks, odd ones the second.

template <>
struct Unpack<Q6_K> : PartsByPairs {
  static constexpr int bytes = 2 * 210, offset = 32, n_mins = 0, min_sign = 1;
  static constexpr bool has_groups = true, is_small = false;
  static constexpr int block(int p) { return p % 4 / 2 * 8 + p / 8 * 4 + p % 2 * 2 + p / 4 % 2; }
  static constexpr int multiple(int) { return 1; }

  /// 16 bytes j: block 4(j / 2) + j % 2 of a super-block in the low nibbles, two blocks further in the high ones.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void split(__m512i packed, __m512i pairs,
                                                                                                 __m512i& low, __m512i& high) {
    low = or_masked(low_nibbles(packed), _mm512_rolv_epi32(pairs, by_quarter(4, 2, 4, 2)), 0x30);
    high = or_masked(high_nibbles(packed), _mm512_rolv_epi32(pairs, by_quarter(0, 30, 0, 30)), 0x30);
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
#pragma GCC unroll 2
    for (int s = 0; s < 2; ++s) {
      std::byte const* const q = p[s];
      __m512i const a = load_512(q), b = load_512(q + 64), pairs = load_512(q + 128);
      split(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(pairs, pairs, 0xa0), w[4 * s], w[4 * s + 2]);
      split(_mm512_shuffle_i32x4(a, b, 0xdd), _mm512_shuffle_i32x4(pairs, pairs, 0xf5), w[4 * s + 1], w[4 * s + 3]);
    }
  }
  struct Order {
    std::uint16_t index[16] = {};
    constexpr Order() {
      for (int p = 0; p < 16; ++p) index[p] = std::uint16_t(block(p));
    }
  };
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    static constexpr Order order;
    __m256i const index = _mm256_loadu_si256(reinterpret_cast<__m256i const*>(order.index));
    __m512i const both = _mm512_cvtepi16_epi32(_mm256_permutexvar_epi16(index, two_of_16(p, 192)));
    Factors f = {};
    f.scale = two_halves(p, 208, odd_pairs);
    f.even = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(both, 24), 24));
    f.odd = _mm512_cvtepi32_ps(_mm512_srai_epi32(both, 8));
    return f;
  }
};

/// Lane p is block p: two bits at 2i of the bytes of vectors 2i and 2i + 1.
struct UnpackBitPairs {
  static constexpr int parts = 2;
  static constexpr bool any_stride = true;
  template <int units>
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static __m512 joined(__m512 a, __m512 b) {
    return _mm512_shuffle_f32x4(a, b, units);
  }
  static constexpr bool has_groups = true, is_small = true;
  static constexpr int block(int p) { return p; }
};

template <>
struct Unpack<Q2_K> : UnpackBitPairs {
  static constexpr int bytes = 2 * 84, offset = 0, n_mins = 2, min_sign = -1;
  static constexpr int multiple(int i) { return i % 2 == 0 ? 1 : 4; }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void split(__m512i pairs, __m512i* w) {
    __m512i const low = _mm512_set1_epi8(0x03), high = _mm512_set1_epi8(0x0c), upper = _mm512_srli_epi16(pairs, 4);
    w[0] = _mm512_and_si512(pairs, low);
    w[2] = _mm512_and_si512(pairs, high);
    w[4] = _mm512_and_si512(upper, low);
    w[6] = _mm512_and_si512(upper, high);
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
    __m512i const a = load_512(p[0] + 16), b = load_512(p[1] + 16);
    split(_mm512_shuffle_i32x4(a, b, 0x88), w);
    split(_mm512_shuffle_i32x4(a, b, 0xdd), w + 1);
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    __m512i const packed = _mm512_cvtepu8_epi16(two_of_16(p, 0)), mins = _mm512_srli_epi16(packed, 4);
    __m512i const lower = _mm512_set1_epi32(0xffff);
    __m512 const dmin = two_halves(p, 82, upper_lanes);
    Factors f;
    f.scale = two_halves(p, 80, upper_lanes);
    f.both = _mm512_and_si512(packed, _mm512_set1_epi16(15));
    f.even = _mm512_cvtepi32_ps(_mm512_and_si512(f.both, lower));
    f.odd = _mm512_cvtepi32_ps(_mm512_srli_epi32(f.both, 16));
    f.min = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_and_si512(mins, lower)));
    f.min_odd = _mm512_mul_ps(dmin, _mm512_cvtepi32_ps(_mm512_srli_epi32(mins, 16)));
    return f;
  }
};

template <>
struct Unpack<Q3_K> : UnpackBitPairs {
  static constexpr int bytes = 2 * 110, offset = 4, n_mins = 0, min_sign = 1;
  static constexpr int multiple(int i) { return i % 2 == 0 ? 1 : 2; }

  /// Puts the third bit above each pair. Bits i of `mask` are for i of the lower half of a super-block, bits 4 + i for the upper.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void split(__m512i pairs, __m512i mask, __m512i* w) {
    __m512i const low = _mm512_set1_epi8(0x03), high = _mm512_set1_epi8(0x06);
    __m512i const third = _mm512_rolv_epi32(mask, by_quarter(2, 30, 2, 30));  // bit i to bit i + 2
    __m512i const upper = _mm512_srli_epi16(third, 2);
    w[0] = or_masked(_mm512_and_si512(pairs, low), third, 0x04);
    w[2] = or_masked(_mm512_and_si512(_mm512_srli_epi16(pairs, 1), high), third, 0x08);
    w[4] = or_masked(_mm512_and_si512(_mm512_srli_epi16(pairs, 4), low), upper, 0x04);
    w[6] = or_masked(_mm512_and_si512(_mm512_srli_epi16(pairs, 5), high), upper, 0x08);
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
    __m512i const a = load_512(p[0] + 32), b = load_512(p[1] + 32);
    __m512i const mask = _mm512_inserti64x4(_mm512_castsi256_si512(load_256(p[0])), load_256(p[1]), 1);
    split(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(mask, mask, 0xa0), w);
    split(_mm512_shuffle_i32x4(a, b, 0xdd), _mm512_shuffle_i32x4(mask, mask, 0xf5), w + 1);
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    __m256i const packed = two_of_16(p, 92);  // dwords 1 to 3
    __m256i const low = _mm256_srlv_epi32(_mm256_shuffle_epi32(packed, 0x99), _mm256_set_epi32(4, 4, 0, 0, 4, 4, 0, 0));
    __m256i const high = _mm256_rolv_epi32(_mm256_shuffle_epi32(packed, 0xff), _mm256_set_epi32(30, 0, 2, 4, 30, 0, 2, 4));
    __m256i const four = _mm256_and_si256(low, _mm256_set1_epi8(15));
    __m512i const six = _mm512_cvtepu8_epi16(_mm256_ternarylogic_epi32(four, high, _mm256_set1_epi8(48), 0xf8));
    Factors f = {};
    f.scale = two_halves(p, 108, upper_lanes);
    f.both = _mm512_sub_epi16(six, _mm512_set1_epi16(32));
    f.even = _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(f.both, 16), 16));
    f.odd = _mm512_cvtepi32_ps(_mm512_srai_epi32(f.both, 16));
    return f;
  }
};

template <>
struct Unpack<IQ4_XS> : UnpackBlocks, PartsByPairs {
  using PartsByPairs::parts, PartsByPairs::any_stride;
  static constexpr int bytes = 2 * 136, offset = 128;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
    __m512i const table = table_of(IQ4_NL::codebook(), offset);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i const packed = load_512(p[i / 2] + i % 2 * 64 + 8);
      w[2 * i] = _mm512_shuffle_epi8(table, low_nibbles(packed));
      w[2 * i + 1] = _mm512_shuffle_epi8(table, high_nibbles(packed));
    }
  }
  /// Lane 4j + i: group 4(i % 2) + j of super-block i / 2.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    __m512i const low = _mm512_mask_set1_epi32(_mm512_set1_epi32(dword_at(p[0] + 4)), odd_pairs, dword_at(p[1] + 4));
    __m512i const high = _mm512_mask_set1_epi32(_mm512_set1_epi32(dword_at(p[0])), odd_pairs, dword_at(p[1]));  // d, scales_h
    __m512i const group = _mm512_set_epi32(7, 3, 7, 3, 6, 2, 6, 2, 5, 1, 5, 1, 4, 0, 4, 0);
    __m512i const four = _mm512_and_si512(_mm512_srlv_epi32(low, _mm512_slli_epi32(group, 2)), _mm512_set1_epi32(15));
    __m512i const two = _mm512_srlv_epi32(high, _mm512_add_epi32(_mm512_slli_epi32(group, 1), _mm512_set1_epi32(12)));
    __m512i const six = _mm512_ternarylogic_epi32(four, two, _mm512_set1_epi32(48), 0xf8);
    Factors f = {};
    f.scale = _mm512_mul_ps(two_halves(p, 0, odd_pairs), _mm512_cvtepi32_ps(_mm512_sub_epi32(six, _mm512_set1_epi32(32))));
    return f;
  }
};

}  // namespace tiered::cpu::avx512

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
