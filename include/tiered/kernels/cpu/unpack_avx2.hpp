/// Rows of formats with blocks of 32 as vectors for AVX2, 8 blocks at a time. See unpack_k_avx2.hpp for the others.
#pragma once

#include <cstddef>
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
inline std::uint32_t load_word(void const* p) {
  std::uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

/// What a group of 256 weights is multiplied with besides its bytes. Lane p is for block p.
struct Factors {
  __m256 scale, min;           ///< of each block; of its super-block where weights have scales of 16
  __m256i groups, group_mins;  ///< 16-bit lanes 2p and 2p + 1: those of both halves of block p
};

/// | Unpack<F>::      | meaning                                                                                                  |
/// |------------------|----------------------------------------------------------------------------------------------------------|
/// | `bytes`          | of 256 weights                                                                                           |
/// | `largest`        | byte, of unsigned ones; 0: bytes are signed                                                              |
/// | `offset`         | what was added to weights to make them unsigned                                                          |
/// | `min_sign`       | minima are added (1), subtracted (-1), or there are none (0)                                             |
/// | `has_groups`     | scales, and minima, are for 16 weights                                                                   |
/// | `bytes_of(p, w)` | w[2i + h]: half h of block i, then half h of block i + 4                                                 |
/// | `factors(p)`     | their Factors                                                                                            |
/// Neither reads beyond p + bytes.
template <class F>
struct Unpack;

struct UnpackBlocks {
  static constexpr int largest = 0, offset = 0, min_sign = 0;
  static constexpr bool has_groups = false;
};

/// 16 bytes at p, 16 bytes `distance` further.
template <int distance>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i two_of_16(std::byte const* p) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(p)), load_16(p + distance), 1);
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i twice_16(void const* p) {
  return _mm256_broadcastsi128_si256(load_16(p));
}

[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i low_nibbles(__m256i v) {
  return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i high_nibbles(__m256i v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }

/// w | (v & mask).
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i or_masked(__m256i w, __m256i v, int mask) {
  return _mm256_or_si256(w, _mm256_and_si256(v, _mm256_set1_epi8(char(mask))));
}

/// A codebook with `offset` added, for byte shuffles. No carry passes between bytes where all sums fit one.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i table_of(tiered::detail::Codebook16 values, int offset) {
  std::uint64_t const added = 0x0101010101010101u * std::uint64_t(offset), low = 0x7f7f7f7f7f7f7f7fu;
  auto const sum = [=](std::uint64_t v) { return std::int64_t(((v & low) + (added & low)) ^ ((v ^ added) & ~low)); };
  return _mm256_broadcastsi128_si256(_mm_set_epi64x(sum(values.high), sum(values.low)));
}

// Scales lie `stride` bytes apart. As the stride in words is odd, those of 8 blocks have different places modulo 8 words: blends of
// loads bring all of them into one vector.

/// v with the words at `at` of blocks b to 7.
template <int stride, int at, int b>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m128i blend_words(__m128i v, std::byte const* p) {
  constexpr int word = (b * stride + at) / 2;
  if constexpr (b == 8) {
    return v;
  } else {
    return blend_words<stride, at, b + 1>(_mm_blend_epi16(v, load_16(p + word / 8 * 16), 1 << word % 8), p);
  }
}
template <int stride, int at>
struct WordOrder {
  std::uint8_t index[16] = {};
  bool is_identity = true;
  constexpr WordOrder() {
    for (int b = 0; b < 8; ++b) {
      int const word = (b * stride + at) / 2 % 8;
      index[2 * b] = std::uint8_t(2 * word);
      index[2 * b + 1] = std::uint8_t(2 * word + 1);
      is_identity = is_identity && word == b;
    }
  }
};
/// The binary16 at `at` of 8 blocks.
template <int stride, int at>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 halves(std::byte const* p) {
  static_assert(stride % 4 == 2 && at < 16);
  static constexpr WordOrder<stride, at> order;
  __m128i const v = blend_words<stride, at, 1>(load_16(p), p);
  return _mm256_cvtph_ps(order.is_identity ? v : _mm_shuffle_epi8(v, load_16(order.index)));
}

/// Scale and minimum from binary16 pairs. heads: dwords of blocks 0, 1, 4, 5, 2, 3, 6, 7.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline Factors scale_and_min(__m256i heads) {
  __m256 const a = _mm256_cvtph_ps(_mm256_castsi256_si128(heads)), b = _mm256_cvtph_ps(_mm256_extracti128_si256(heads, 1));
  Factors f = {};
  f.scale = _mm256_shuffle_ps(a, b, 0x88);
  f.min = _mm256_shuffle_ps(a, b, 0xdd);
  return f;
}

template <int block_bytes>
struct UnpackScaled : UnpackBlocks {
  static constexpr int bytes = 8 * block_bytes;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    Factors f = {};
    f.scale = halves<block_bytes, 0>(p);
    return f;
  }
};

/// Nibbles of 8 blocks, `at` their places in a block.
template <int stride, int at>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void four_bits(std::byte const* p, __m256i (&w)[8]) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m256i const packed = two_of_16<4 * stride>(p + stride * i + at);
    w[2 * i] = low_nibbles(packed);
    w[2 * i + 1] = high_nibbles(packed);
  }
}
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void look_up(__m256i table, __m256i (&w)[8]) {
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) w[i] = _mm256_shuffle_epi8(table, w[i]);
}

template <>
struct Unpack<Q4_0> : UnpackScaled<18> {
  static constexpr int largest = 15, offset = 8;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) { four_bits<18, 2>(p, w); }
};

template <>
struct Unpack<IQ4_NL> : UnpackScaled<18> {
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
    four_bits<18, 2>(p, w);
    look_up(table_of(IQ4_NL::codebook(), 0), w);
  }
};

template <>
struct Unpack<MXFP4> : UnpackBlocks {
  static constexpr int bytes = 8 * 17, largest = 24, offset = 12;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
    four_bits<17, 1>(p, w);
    look_up(table_of(MXFP4::codebook(), offset), w);
  }
  /// e8m0_to_half_float of 8 exponents: (e - 1) << 23, but 2^21 << e where that is subnormal.
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    auto const byte = [=](int b) { return std::uint64_t(p[17 * b]) << 8 * b; };
    std::uint64_t const all = (byte(0) | byte(1) | byte(2) | byte(3)) | (byte(4) | byte(5) | byte(6) | byte(7));
    __m256i const e = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(std::int64_t(all)));
    __m256i const normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i const subnormal = _mm256_min_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), e), _mm256_set1_epi32(1 << 22));
    Factors f = {};
    f.scale = _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
    return f;
  }
};

template <>
struct Unpack<Q8_0> : UnpackScaled<34> {
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      w[2 * i] = two_of_16<136>(p + 34 * i + 2);
      w[2 * i + 1] = two_of_16<136>(p + 34 * i + 18);
    }
  }
};

template <>
struct Unpack<Q4_1> : UnpackBlocks {
  static constexpr int bytes = 8 * 20, largest = 15, min_sign = 1;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) { four_bits<20, 4>(p, w); }
  /// Five dwords a block: the head of block b is dword 5b % 8 of a vector.
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    __m256i v = _mm256_blend_epi32(load_32(p), load_32(p + 32), 0x84);  // blocks 0, 1; 2, 3
    v = _mm256_blend_epi32(v, load_32(p + 64), 0x10);                   // 4
    v = _mm256_blend_epi32(v, load_32(p + 96), 0x42);                   // 5, 6
    v = _mm256_blend_epi32(v, load_32(p + 128), 0x08);                  // 7
    return scale_and_min(_mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 5, 4, 1, 2, 7, 6, 3)));
  }
};

/// Nibbles with a fifth bit, of blocks whose 32 such bits lie at `at`, four bytes before the nibbles.
template <int stride, int at>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void five_bits(std::byte const* p, __m256i (&w)[8]) {
  __m256i const first = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0101010101010101, 0));
  __m256i const second = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0303030303030303, 0x0202020202020202));
  __m256i const bit = _mm256_set1_epi64x(std::int64_t(0x8040201008040201u));
  four_bits<stride, at + 4>(p, w);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m256i const bits = two_of_16<4 * stride>(p + stride * i + at);
    __m256i const low = _mm256_and_si256(_mm256_shuffle_epi8(bits, first), bit);
    __m256i const high = _mm256_and_si256(_mm256_shuffle_epi8(bits, second), bit);
    w[2 * i] = or_masked(w[2 * i], _mm256_cmpeq_epi8(low, bit), 16);
    w[2 * i + 1] = or_masked(w[2 * i + 1], _mm256_cmpeq_epi8(high, bit), 16);
  }
}

template <>
struct Unpack<Q5_0> : UnpackScaled<22> {
  static constexpr int largest = 31, offset = 16;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) { five_bits<22, 2>(p, w); }
};

template <>
struct Unpack<Q5_1> : UnpackBlocks {
  static constexpr int bytes = 8 * 24, largest = 31, min_sign = 1;
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static void bytes_of(std::byte const* p, __m256i (&w)[8]) { five_bits<24, 4>(p, w); }
  /// The first 8 bytes of four blocks: 0, 3, 2, 1.
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static __m256i heads(std::byte const* p) {
    __m256i const v = _mm256_blend_epi32(load_32(p), load_32(p + 32), 0x30);
    return _mm256_blend_epi32(v, load_32(p + 64), 0x0c);
  }
  [[gnu::target("avx2,fma,f16c"), gnu::always_inline]] static Factors factors(std::byte const* p) {
    __m256 const a = _mm256_castsi256_ps(heads(p)), b = _mm256_castsi256_ps(heads(p + 96));
    __m256i const v = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));  // blocks 0, 3, 4, 7, 2, 1, 6, 5
    return scale_and_min(_mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 5, 2, 7, 4, 1, 6, 3)));
  }
};

}  // namespace tiered::cpu::avx2
