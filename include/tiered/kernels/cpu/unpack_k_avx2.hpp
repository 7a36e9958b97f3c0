/// Rows of formats with super-blocks of 256 as vectors for AVX2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "tiered/kernels/cpu/unpack_avx2.hpp"

namespace tiered::cpu::avx2 {

/// The binary16 at p in all lanes.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 all_lanes(std::byte const* p) {
  std::int16_t word;
  std::memcpy(&word, p, sizeof word);
  return _mm256_cvtph_ps(_mm_set1_epi16(word));
}

template <int largest_>
struct UnpackK4 : UnpackBlocks {
  static constexpr int largest = largest_, min_sign = -1;

  /// detail::scale_min_k4 for 8 groups. A head is d and dmin, then dwords a, b, c of packed scales.
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    __m128i const head = load_16(p);
    __m128i const abcc = _mm_srlv_epi32(_mm_shuffle_epi32(head, 0xf9), _mm_setr_epi32(0, 0, 0, 4));
    __m128i const low = _mm_and_si128(abcc, _mm_setr_epi32(0x3f3f3f3f, 0x3f3f3f3f, 0x0f0f0f0f, 0x0f0f0f0f));
    __m128i const high = _mm_and_si128(_mm_srli_epi16(_mm_shuffle_epi32(head, 0x94), 2), _mm_setr_epi32(0, 0, 0x30303030, 0x30303030));
    __m128i const all = _mm_or_si128(low, high);  // scales, minima, scales, minima
    __m256 const scales = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_shuffle_epi32(all, 0xd8)));
    __m256 const mins = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_shuffle_epi32(all, 0x8d)));
    Factors f = {};
    f.scale = _mm256_mul_ps(all_lanes(p), scales);
    f.min = _mm256_mul_ps(all_lanes(p + 2), mins);
    return f;
  }
};

/// Nibbles of 32-byte part 2a, and of part 2a + 4 below, for blocks 2a (low), 2a + 1 (high), 2a + 4 and 2a + 5.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void nibble_parts(std::byte const* qs, __m256i (&w)[8]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m256i const packed = two_of_16<64>(qs + 16 * i);  // half i % 2 of parts i / 2 and i / 2 + 2
    w[i / 2 * 4 + i % 2] = low_nibbles(packed);
    w[i / 2 * 4 + i % 2 + 2] = high_nibbles(packed);
  }
}

template <>
struct Unpack<Q4_K> : UnpackK4<15> {
  static constexpr int bytes = 144;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
    nibble_parts(p + 16, w);
  }
};

template <>
struct Unpack<Q5_K> : UnpackK4<31> {
  static constexpr int bytes = 176;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
    nibble_parts(p + 48, w);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {  // bits i in the first 16 bytes, i + 4 in the others, all moved to bit i + 4
      __m256i const fifth = _mm256_sllv_epi32(twice_16(p + 16 + 16 * h), _mm256_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0));
      w[h] = or_masked(w[h], fifth, 16);
      w[2 + h] = or_masked(w[2 + h], _mm256_srli_epi16(fifth, 1), 16);
      w[4 + h] = or_masked(w[4 + h], _mm256_srli_epi16(fifth, 2), 16);
      w[6 + h] = or_masked(w[6 + h], _mm256_srli_epi16(fifth, 3), 16);
    }
  }
};

struct UnpackGroups : UnpackBlocks {
  static constexpr bool has_groups = true;
};

template <>
struct Unpack<Q6_K> : UnpackGroups {
  static constexpr int bytes = 210, largest = 63, offset = 32;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i const a = two_of_16<64>(p + 16 * h), b = two_of_16<64>(p + 32 + 16 * h), pairs = two_of_16<32>(p + 128 + 16 * h);
      w[h] = or_masked(low_nibbles(a), _mm256_slli_epi16(pairs, 4), 0x30);
      w[2 + h] = or_masked(low_nibbles(b), _mm256_slli_epi16(pairs, 2), 0x30);
      w[4 + h] = or_masked(high_nibbles(a), pairs, 0x30);
      w[6 + h] = or_masked(high_nibbles(b), _mm256_srli_epi16(pairs, 2), 0x30);
    }
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    Factors f = {};
    f.scale = all_lanes(p + 208);
    f.groups = _mm256_cvtepi8_epi16(load_16(p + 192));
    return f;
  }
};

/// Bits 2i, 2i + 1 of each byte.
template <int i>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i bit_pairs(__m256i v) {
  return _mm256_and_si256(i > 0 ? _mm256_srli_epi16(v, 2 * i) : v, _mm256_set1_epi8(3));
}

template <>
struct Unpack<Q2_K> : UnpackGroups {
  static constexpr int bytes = 84, largest = 3, min_sign = -1;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i const pairs = two_of_16<32>(p + 16 + 16 * h);
      w[h] = bit_pairs<0>(pairs);
      w[2 + h] = bit_pairs<1>(pairs);
      w[4 + h] = bit_pairs<2>(pairs);
      w[6 + h] = bit_pairs<3>(pairs);
    }
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    __m256i const both = _mm256_cvtepu8_epi16(load_16(p));
    Factors f;
    f.scale = all_lanes(p + 80);
    f.min = all_lanes(p + 82);
    f.groups = _mm256_and_si256(both, _mm256_set1_epi16(15));
    f.group_mins = _mm256_srli_epi16(both, 4);
    return f;
  }
};

template <>
struct Unpack<Q3_K> : UnpackGroups {
  static constexpr int bytes = 110, largest = 7, offset = 4;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      __m256i const pairs = two_of_16<32>(p + 32 + 16 * h);
      // Bit i of the first 16 bytes, i + 4 of the others, all moved to bit i.
      __m256i const third = _mm256_srlv_epi32(twice_16(p + 16 * h), _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
      w[h] = or_masked(bit_pairs<0>(pairs), _mm256_slli_epi16(third, 2), 4);
      w[2 + h] = or_masked(bit_pairs<1>(pairs), _mm256_slli_epi16(third, 1), 4);
      w[4 + h] = or_masked(bit_pairs<2>(pairs), third, 4);
      w[6 + h] = or_masked(bit_pairs<3>(pairs), _mm256_srli_epi16(third, 1), 4);
    }
  }
  /// Q3_K::scale() of 16 groups. The last four bytes hold their upper bits.
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static __m128i six_bits(std::byte const* p) {
    __m128i const packed = _mm_loadl_epi64(reinterpret_cast<__m128i const*>(p));
    __m128i const low = _mm_and_si128(_mm_unpacklo_epi64(packed, _mm_srli_epi16(packed, 4)), _mm_set1_epi8(15));
    __m128i const upper = _mm_set1_epi32(std::int32_t(load_word(p + 8)));
    __m128i const pairs = _mm_srlv_epi32(_mm_sllv_epi32(upper, _mm_setr_epi32(4, 2, 0, 0)), _mm_setr_epi32(0, 0, 0, 2));
    return _mm_sub_epi8(_mm_or_si128(low, _mm_and_si128(pairs, _mm_set1_epi8(48))), _mm_set1_epi8(32));
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    Factors f = {};
    f.scale = all_lanes(p + 108);
    f.groups = _mm256_cvtepi8_epi16(six_bits(p + 96));
    return f;
  }
};

template <>
struct Unpack<IQ4_XS> : UnpackBlocks {
  static constexpr int bytes = 136;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
    four_bits<16, 8>(p, w);
    look_up(table_of(IQ4_NL::codebook(), 0), w);
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    __m256i const group = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i const low = _mm256_srlv_epi32(_mm256_set1_epi32(std::int32_t(load_word(p + 4))), _mm256_slli_epi32(group, 2));
    __m256i const high =  // scales_h above d: bits 2g to bits 4
        _mm256_srlv_epi32(_mm256_set1_epi32(std::int32_t(load_word(p))),
                          _mm256_add_epi32(_mm256_slli_epi32(group, 1), _mm256_set1_epi32(12)));
    __m256i const six = _mm256_or_si256(_mm256_and_si256(low, _mm256_set1_epi32(15)), _mm256_and_si256(high, _mm256_set1_epi32(48)));
    Factors f = {};
    f.scale = _mm256_mul_ps(all_lanes(p), _mm256_cvtepi32_ps(_mm256_sub_epi32(six, _mm256_set1_epi32(32))));
    return f;
  }
};

}  // namespace tiered::cpu::avx2
