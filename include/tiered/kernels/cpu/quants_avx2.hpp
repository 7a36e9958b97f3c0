/// Blocks of every quantised format as vectors of bytes: what AVX2 products unpack once for several tokens.
#pragma once

#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "tiered/kernels/format/format.hpp"

namespace tiered::cpu::avx2 {

// Functions here are inlined into functions of the same target; without always_inline compilers call them.

[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m128i load_16(void const* p) {
  return _mm_loadu_si128(static_cast<__m128i const*>(p));
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i load_32(void const* p) {
  return _mm256_loadu_si256(static_cast<__m256i const*>(p));
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m128i load_8(void const* p) {
  return _mm_loadl_epi64(static_cast<__m128i const*>(p));
}
inline std::uint32_t load_word(void const* p) {
  std::uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

/// Low nibbles of 16 bytes, then their high nibbles.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i nibbles(std::uint8_t const* qs) {
  __m128i const packed = load_16(qs);
  __m256i const both = _mm256_inserti128_si256(_mm256_castsi128_si256(packed), _mm_srli_epi16(packed, 4), 1);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

/// Byte i all ones where bit i is set.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i bits_to_bytes(std::uint8_t const* bits) {
  __m256i const copied = _mm256_set1_epi32(std::int32_t(load_word(bits)));
  __m256i const byte_of = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  __m256i const bit_of = _mm256_set1_epi64x(std::int64_t(0x8040201008040201u));
  __m256i const selected = _mm256_and_si256(_mm256_shuffle_epi8(copied, byte_of), bit_of);
  return _mm256_cmpeq_epi8(selected, bit_of);
}

[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i look_up(tiered::detail::Codebook16 values, __m256i indices) {
  __m128i const table = _mm_set_epi64x(std::int64_t(values.high), std::int64_t(values.low));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), indices);
}

// Blocks of 32: quants(), signed bytes or, for formats with a minimum, unsigned ones; scale().

[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i quants(Q4_0, Q4_0::Block const& b) {
  return _mm256_sub_epi8(nibbles(b.qs), _mm256_set1_epi8(8));
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i quants(Q4_1, Q4_1::Block const& b) { return nibbles(b.qs); }
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i quants(Q5_0, Q5_0::Block const& b) {
  // q - 16 is the nibble where the fifth bit is set, else the nibble with all upper bits set.
  return _mm256_or_si256(nibbles(b.qs), _mm256_andnot_si256(bits_to_bytes(b.qh), _mm256_set1_epi8(std::int8_t(0xf0))));
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i quants(Q5_1, Q5_1::Block const& b) {
  return _mm256_or_si256(nibbles(b.qs), _mm256_and_si256(bits_to_bytes(b.qh), _mm256_set1_epi8(16)));
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i quants(Q8_0, Q8_0::Block const& b) { return load_32(b.qs); }
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i quants(IQ4_NL, IQ4_NL::Block const& b) {
  return look_up(IQ4_NL::codebook(), nibbles(b.qs));
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i quants(MXFP4, MXFP4::Block const& b) {
  return look_up(MXFP4::codebook(), nibbles(b.qs));
}

[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline float half(std::uint16_t bits) { return _cvtsh_ss(bits); }
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline float scale(MXFP4::Block const& b) { return e8m0_to_half_float(b.e); }
template <class Block>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline float scale(Block const& b) {
  return half(b.d);
}

// Super-blocks of 256: group_scales(), for 16 groups of 16 elements each; part<p>(), bytes of elements [32p, 32p + 32), signed or,
// for formats with a minimum, unsigned.

struct GroupScales {
  __m128i scales, mins;  ///< signed bytes
};

/// Bits [2k, 2k + 2) of each byte.
template <int k>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i bit_pairs(std::uint8_t const* bytes) {
  return _mm256_and_si256(_mm256_srli_epi16(load_32(bytes), 2 * k), _mm256_set1_epi8(3));
}
/// Bit `from` of each byte, moved to bit `to`.
template <int from, int to>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i moved_bit(std::uint8_t const* bytes) {
  __m256i const v = load_32(bytes);
  __m256i const moved = from <= to ? _mm256_slli_epi16(v, from <= to ? to - from : 0) : _mm256_srli_epi16(v, from > to ? from - to : 0);
  return _mm256_and_si256(moved, _mm256_set1_epi8(1 << to));
}
/// The nibbles of part p where each 32 bytes hold two parts.
template <int p>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i nibble_part(std::uint8_t const* qs) {
  __m256i const packed = load_32(qs + p / 2 * 32);
  return _mm256_and_si256(p % 2 == 0 ? packed : _mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15));
}
/// 8 bytes, each twice.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m128i twice(std::uint32_t low, std::uint32_t high) {
  __m128i const bytes = _mm_cvtsi64_si128(std::int64_t(std::uint64_t(high) << 32 | low));
  return _mm_unpacklo_epi8(bytes, bytes);
}

/// detail::scale_min_k4 for all groups at once.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline GroupScales scales_k4(std::uint8_t const* packed) {
  std::uint32_t const a = load_word(packed), b = load_word(packed + 4), c = load_word(packed + 8);
  std::uint32_t const six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
  return {twice(a & six, (c & four) | (a >> 2 & two)), twice(b & six, (c >> 4 & four) | (b >> 2 & two))};
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline GroupScales group_scales(Q4_K::Block const& b) { return scales_k4(b.scales); }
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline GroupScales group_scales(Q5_K::Block const& b) { return scales_k4(b.scales); }
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline GroupScales group_scales(Q6_K::Block const& b) {
  return {load_16(b.scales), _mm_setzero_si128()};
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline GroupScales group_scales(Q2_K::Block const& b) {
  __m128i const packed = load_16(b.scales), four = _mm_set1_epi8(15);
  return {_mm_and_si128(packed, four), _mm_and_si128(_mm_srli_epi16(packed, 4), four)};
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline GroupScales group_scales(Q3_K::Block const& b) {
  __m128i const packed = load_8(b.scales);
  __m128i const low = _mm_and_si128(_mm_unpacklo_epi64(packed, _mm_srli_epi16(packed, 4)), _mm_set1_epi8(15));
  std::uint32_t const h = load_word(b.scales + 8);
  __m128i const pairs = _mm_setr_epi32(std::int32_t(h), std::int32_t(h >> 2), std::int32_t(h >> 4), std::int32_t(h >> 6));
  __m128i const high = _mm_slli_epi16(_mm_and_si128(pairs, _mm_set1_epi8(3)), 4);
  return {_mm_sub_epi8(_mm_or_si128(low, high), _mm_set1_epi8(32)), _mm_setzero_si128()};
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline GroupScales group_scales(IQ4_XS::Block const& b) {
  std::uint32_t const l = load_word(b.scales_l);
  __m128i const even = _mm_cvtsi32_si128(std::int32_t(l & 0x0f0f0f0f)), odd = _mm_cvtsi32_si128(std::int32_t(l >> 4 & 0x0f0f0f0f));
  // Lane g: bits 2g, 2g + 1 pushed to the top, then down to bits 4 and 5.
  __m128i const top = _mm_mullo_epi16(_mm_set1_epi16(std::int16_t(b.scales_h)),
                                      _mm_setr_epi16(1 << 14, 1 << 12, 1 << 10, 1 << 8, 1 << 6, 1 << 4, 1 << 2, 1));
  __m128i const high = _mm_and_si128(_mm_srli_epi16(top, 10), _mm_set1_epi16(0x30));
  __m128i const scales = _mm_sub_epi8(_mm_or_si128(_mm_unpacklo_epi8(even, odd), _mm_packus_epi16(high, high)), _mm_set1_epi8(32));
  return {_mm_unpacklo_epi8(scales, scales), _mm_setzero_si128()};
}

template <int p>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i part(Q2_K::Block const& b) {
  return bit_pairs<p % 4>(b.qs + p / 4 * 32);
}
template <int p>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i part(Q3_K::Block const& b) {
  return _mm256_sub_epi8(_mm256_or_si256(bit_pairs<p % 4>(b.qs + p / 4 * 32), moved_bit<p, 2>(b.hmask)), _mm256_set1_epi8(4));
}
template <int p>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i part(Q4_K::Block const& b) {
  return nibble_part<p>(b.qs);
}
template <int p>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i part(Q5_K::Block const& b) {
  return _mm256_or_si256(nibble_part<p>(b.qs), moved_bit<p, 4>(b.qh));
}
template <int p>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i part(Q6_K::Block const& b) {
  __m256i const packed = load_32(b.ql + p / 4 * 64 + p % 2 * 32);
  __m256i const low = _mm256_and_si256(p % 4 < 2 ? packed : _mm256_srli_epi16(packed, 4), _mm256_set1_epi8(15));
  return _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(bit_pairs<p % 4>(b.qh + p / 4 * 32), 4)), _mm256_set1_epi8(32));
}
template <int p>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i part(IQ4_XS::Block const& b) {
  return look_up(IQ4_NL::codebook(), nibbles(b.qs + p * 16));
}

}  // namespace tiered::cpu::avx2
