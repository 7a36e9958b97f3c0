/// Rows of formats with blocks of 32 as vectors for AVX-512 with VNNI, 16 blocks at a time. See quants_k_avx512.hpp for the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include <immintrin.h>

#include "tiered/kernels/format/format.hpp"

// g++ 12 takes the "undefined" operands of its own intrinsics for mistakes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tiered::cpu::avx512 {

// Functions here are inlined into functions of the same target; without always_inline compilers call them.

/// What a group of 512 weights is multiplied with besides its bytes. Lane p is for block Unpack<F>::block(p).
struct Factors {
  __m512 scale;      ///< of each block; of its super-block where `even` and `odd` are used
  __m512 even, odd;  ///< whole numbers: the scales of the first and second 16 weights of each block
  __m512 min, min_odd;
  __m512i both;  ///< where is_small: `even` in lower halves, `odd` in upper ones
};

/// | Unpack<F>::           | meaning                                                                                             |
/// |-----------------------|-----------------------------------------------------------------------------------------------------|
/// | `bytes`               | of 512 weights                                                                                      |
/// | `parts`               | so many parts of a row, one after the other, are a group: of 4 blocks, or super-blocks              |
/// | `any_stride`          | factors() take parts from anywhere; else they must lie one behind the other                         |
/// | `joined<m>(a, b)`     | with two parts, of 4 units of lanes, two for each part: units m of a, a, b, b                       |
/// | `block(p)`            | block of 32 weights, 0..15, whose sum comes out in lane p                                           |
/// | `multiple(i)`         | the bytes of lanes p % 4 == i are this many times the weights: saves shifting them down             |
/// | `offset`              | what was added to weights to make them unsigned, before that                                        |
/// | `has_groups`          | scales are for 16 weights                                                                           |
/// | `is_small`            | besides, these bytes are at most 15, and so are multiples of offsets                                |
/// | `n_mins`, `min_sign`  | minima of a block (0, 1, 2); whether they are added or subtracted                                   |
/// | `bytes_of(p, w)`      | w[2i + h], 16 bytes j: half h of block(4j + i), unsigned                                            |
/// | `factors(p)`          | their Factors                                                                                       |
/// Neither reads beyond its parts.
template <class F>
struct Unpack;

/// The parts of a group, `stride` bytes apart: of one row, or the ends of several.
struct Parts {
  std::byte const* first;
  std::int64_t stride;
  std::byte const* operator[](int i) const { return first + i * stride; }
};

struct UnpackBlocks {
  static constexpr int block(int p) { return p % 4 * 4 + p / 4; }
  static constexpr int multiple(int) { return 1; }
  static constexpr bool has_groups = false, is_small = false, any_stride = false;
  static constexpr int parts = 4, n_mins = 0, min_sign = 1;
};

[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m128i load_128(std::byte const* p) {
  return _mm_loadu_si128(reinterpret_cast<__m128i const*>(p));
}
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m256i load_256(std::byte const* p) {
  return _mm256_loadu_si256(reinterpret_cast<__m256i const*>(p));
}
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i load_512(void const* p) {
  return _mm512_loadu_si512(p);
}

/// 16 bytes from each of four places. By halves: of vectors of 512 bits Zen 4 makes half as many a cycle.
template <int stride>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i four_of_16(std::byte const* p) {
  __m256i const low = _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(p)), load_128(p + stride), 1);
  __m256i const high = _mm256_inserti128_si256(_mm256_castsi128_si256(load_128(p + 2 * stride)), load_128(p + 3 * stride), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i low_nibbles(__m512i v) {
  return _mm512_and_si512(v, _mm512_set1_epi8(15));
}
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i high_nibbles(__m512i v) {
  return low_nibbles(_mm512_srli_epi16(v, 4));
}

/// w | (v & mask).
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i or_masked(__m512i w, __m512i v, int mask) {
  return _mm512_ternarylogic_epi32(w, v, _mm512_set1_epi8(char(mask)), 0xf8);
}

/// A codebook with `offset` added, for byte shuffles.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512i table_of(tiered::detail::Codebook16 values,
                                                                                                     int offset) {
  std::uint64_t const added = 0x0101010101010101u * std::uint64_t(offset);
  // Without carries between bytes: a sum of the lower seven bits, then the upper ones without carry.
  auto const sum = [](std::uint64_t a, std::uint64_t b) {
    std::uint64_t const low = 0x7f7f7f7f7f7f7f7fu;
    return ((a & low) + (b & low)) ^ ((a ^ b) & ~low);
  };
  return _mm512_broadcast_i32x4(_mm_set_epi64x(std::int64_t(sum(values.high, added)), std::int64_t(sum(values.low, added))));
}

// Scales lie `stride` bytes apart. As the stride in units of their size is odd, the scales of 16 blocks have different places
// modulo a vector: loads under masks bring all of them into one vector, and one permutation into order.

/// Of n blocks. Bit u of chunk c: whether unit u of the 64 bytes from 64c on is what lies at `at` in a block.
template <int stride, int at, int unit, int n>
struct Chunks {
  static constexpr int count = ((n - 1) * stride + at) / 64 + 1;
  std::uint64_t mask[count] = {};
  constexpr Chunks() {
    for (int b = 0; b < n; ++b) mask[(b * stride + at) / 64] |= std::uint64_t{1} << ((b * stride + at) % 64 / unit);
  }
};
/// Where the binary16 at `at` of lane p's block comes to lie, and 16 lanes further that at `high_at`.
struct WordOrder {
  std::uint16_t index[32] = {};
  constexpr WordOrder(int stride, int at, int high_at) {
    for (int p = 0; p < 16; ++p) {
      index[p] = std::uint16_t((UnpackBlocks::block(p) * stride + at) / 2 % 32);
      index[p + 16] = std::uint16_t((UnpackBlocks::block(p) * stride + high_at) / 2 % 32);
    }
  }
};

/// The binary16 at `at` of 16 blocks.
template <int stride, int at>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline __m512 halves(std::byte const* p) {
  static_assert(stride % 4 == 2);
  static constexpr WordOrder order(stride, at, at);
  constexpr Chunks<stride, at, 2, 16> words;
  __m512i v = _mm512_setzero_si512();
#pragma GCC unroll 9
  for (int c = 0; c < words.count; ++c) v = _mm512_mask_loadu_epi16(v, __mmask32(words.mask[c]), p + 64 * c);
  return _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(load_512(order.index), v)));
}

/// Binary16 pairs, one of each block in the lower half of `pairs`, the other in the upper.
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline Factors scale_and_min(__m512i pairs) {
  Factors f = {};
  f.scale = _mm512_cvtph_ps(_mm512_castsi512_si256(pairs));
  f.min = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(pairs, 1));
  return f;
}

template <int block_bytes>
struct UnpackNibbles : UnpackBlocks {
  static constexpr int bytes = 16 * block_bytes;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    Factors f = {};
    f.scale = halves<block_bytes, 0>(p.first);
    return f;
  }
};

/// Blocks of 18 bytes. The scales of a part are 9 words apart: loads that begin i words before part i bring them to different places.
struct Unpack18 : UnpackBlocks {
  static constexpr int bytes = 16 * 18;
  static constexpr bool any_stride = true;
  struct Order {
    std::uint16_t index[16] = {};
    constexpr Order() {
      for (int p = 0; p < 16; ++p) index[p] = std::uint16_t(block(p) % 4 * 9 + block(p) / 4);
    }
  };
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    static constexpr Order order;
    __m512i v = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v = _mm512_mask_loadu_epi16(v, __mmask32(0x08040201u << i), p[i] - 2 * i);
    __m512i const index = _mm512_castsi256_si512(load_256(reinterpret_cast<std::byte const*>(order.index)));
    Factors f = {};
    f.scale = _mm512_cvtph_ps(_mm512_castsi512_si256(_mm512_permutexvar_epi16(index, v)));
    return f;
  }
};

template <>
struct Unpack<Q4_0> : Unpack18 {
  static constexpr int offset = 8;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i const packed = four_of_16<18>(p[i] + 2);
      w[2 * i] = low_nibbles(packed);
      w[2 * i + 1] = high_nibbles(packed);
    }
  }
};

template <>
struct Unpack<IQ4_NL> : Unpack18 {
  static constexpr int offset = 128;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
    __m512i const table = table_of(IQ4_NL::codebook(), offset);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i const packed = four_of_16<18>(p[i] + 2);
      w[2 * i] = _mm512_shuffle_epi8(table, low_nibbles(packed));
      w[2 * i + 1] = _mm512_shuffle_epi8(table, high_nibbles(packed));
    }
  }
};

template <>
struct Unpack<MXFP4> : UnpackBlocks {
  static constexpr int bytes = 16 * 17, offset = 12;
  static constexpr bool any_stride = true;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
    __m512i const table = table_of(MXFP4::codebook(), offset);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i const packed = four_of_16<17>(p[i] + 1);
      w[2 * i] = _mm512_shuffle_epi8(table, low_nibbles(packed));
      w[2 * i + 1] = _mm512_shuffle_epi8(table, high_nibbles(packed));
    }
  }
  /// The exponent of block b of a row is byte b of the b-th 16 bytes. Of four loads of 64, each from 4 bytes less before its part than
  /// the one before, dword i of 16 bytes j gets that of block 4i + j, at byte j: the order of the lanes.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    constexpr Chunks<17, 0, 1, 16> exponents;
    __m512i v = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v = _mm512_mask_loadu_epi8(v, exponents.mask[i], p[i] - 4 * i);
    __m512i const e = _mm512_srlv_epi32(v, _mm512_set_epi32(24, 24, 24, 24, 16, 16, 16, 16, 8, 8, 8, 8, 0, 0, 0, 0));
    Factors f = {};
    f.scale = _mm512_scalef_ps(_mm512_set1_ps(1), _mm512_cvtepi32_ps(_mm512_sub_epi32(e, _mm512_set1_epi32(128))));
    return f;
  }
};

template <>
struct Unpack<Q8_0> : UnpackNibbles<34> {
  static constexpr int offset = 128;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static __m512i two_blocks(std::byte const* p) {
    __m512i const both = _mm512_inserti64x4(_mm512_castsi256_si512(load_256(p)), load_256(p + 34), 1);
    return _mm512_xor_si512(both, _mm512_set1_epi8(char(128)));
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i const a = two_blocks(p[i] + 2), b = two_blocks(p[i] + 70);
      w[2 * i] = _mm512_shuffle_i32x4(a, b, 0x88);
      w[2 * i + 1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    }
  }
};

template <>
struct Unpack<Q4_1> : UnpackBlocks {
  static constexpr int bytes = 16 * 20, offset = 0, n_mins = 1;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      __m512i const packed = four_of_16<20>(p[i] + 4);
      w[2 * i] = low_nibbles(packed);
      w[2 * i + 1] = high_nibbles(packed);
    }
  }
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    static constexpr WordOrder order(20, 0, 2);
    constexpr Chunks<20, 0, 4, 16> pairs;
    __m512i v = _mm512_setzero_si512();
#pragma GCC unroll 5
    for (int c = 0; c < 5; ++c) v = _mm512_mask_loadu_epi32(v, __mmask16(pairs.mask[c]), p.first + 64 * c);
    return scale_and_min(_mm512_permutexvar_epi16(load_512(order.index), v));
  }
};

/// Nibbles with a fifth bit, of blocks whose 32 such bits lie at `bits_at`, four bytes before the nibbles.
template <int stride, int bits_at>
[[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void five_bits(Parts p, __m512i (&w)[8]) {
  __m512i const first = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0101010101010101, 0));
  __m512i const second = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0303030303030303, 0x0202020202020202));
  __m512i const bit = _mm512_set1_epi64(std::int64_t(0x8040201008040201u)), sixteen = _mm512_set1_epi8(16);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512i const bits = four_of_16<stride>(p[i] + bits_at), packed = four_of_16<stride>(p[i] + bits_at + 4);
    __m512i const low = low_nibbles(packed), high = high_nibbles(packed);
    w[2 * i] = _mm512_mask_add_epi8(low, _mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, first), bit), low, sixteen);
    w[2 * i + 1] = _mm512_mask_add_epi8(high, _mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, second), bit), high, sixteen);
  }
}

template <>
struct Unpack<Q5_0> : UnpackNibbles<22> {
  static constexpr int offset = 16;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
    five_bits<22, 2>(p, w);
  }
};

template <>
struct Unpack<Q5_1> : UnpackBlocks {
  static constexpr int bytes = 16 * 24, offset = 0, n_mins = 1;
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static void bytes_of(Parts p, __m512i (&w)[8]) {
    five_bits<24, 4>(p, w);
  }
  /// Three 8 bytes a block: their places repeat after eight blocks.
  struct Order {
    std::uint16_t index[32] = {};
    constexpr Order() {
      for (int p = 0; p < 16; ++p) {
        int const word = block(p) % 8 * 3 % 8 * 4 + block(p) / 8 * 32;
        index[p] = std::uint16_t(word);
        index[p + 16] = std::uint16_t(word + 1);
      }
    }
  };
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static Factors factors(Parts p) {
    static constexpr Order order;
    constexpr Chunks<24, 0, 8, 8> heads;
    __m512i a = _mm512_setzero_si512(), b = a;
#pragma GCC unroll 3
    for (int c = 0; c < 3; ++c) {
      a = _mm512_mask_loadu_epi64(a, __mmask8(heads.mask[c]), p.first + 64 * c);
      b = _mm512_mask_loadu_epi64(b, __mmask8(heads.mask[c]), p.first + 192 + 64 * c);
    }
    return scale_and_min(_mm512_permutex2var_epi16(a, load_512(order.index), b));
  }
};

}  // namespace tiered::cpu::avx512

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
