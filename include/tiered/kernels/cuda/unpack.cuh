/// Weights in blocks, out of shared memory at any alignment, as bytes for integer dot products: formats of 32. [device-visible]
///
/// Unpack<F>::load() reads the 32 weights that one lane takes at a time; element i of them is
///   scale[i / 16 of n_scales] * (q[i] - offset) + sign * min[i / 16 of n_mins], q being bytes, four to a word.
/// `stage` is a multiple of 16, `at` the block's first byte there, `group` which 32 elements of the block.
#pragma once

#include <cstdint>

#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {

template <int n_scales_, int n_mins_, int offset_, int high_shift_ = 0>
struct Unpacked {
  static constexpr int n_scales = n_scales_, n_mins = n_mins_, offset = offset_;
  static constexpr int high_shift = high_shift_;  ///< by which q of elements 16..31 is too far left, as unsigned bytes
  std::uint32_t q[8];
  float scale[n_scales];
  float min[n_mins > 0 ? n_mins : 1];
};

namespace detail {

/// n words from byte `at` of shared memory on. Up to three bytes before and after them are read too.
template <int n>
__device__ __forceinline__ void load_words(unsigned char const* stage, int at, std::uint32_t* words) {
  auto const* const from = reinterpret_cast<std::uint32_t const*>(stage) + (at >> 2);
  unsigned const shift = unsigned(at & 3) * 8;
  std::uint32_t word = from[0];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    std::uint32_t const next = from[i + 1];
    words[i] = __funnelshift_r(word, next, shift);
    word = next;
  }
}
/// The same where a warp's blocks have the same place in their words, which is mostly the first.
template <int n>
__device__ __forceinline__ void load_words_alike(unsigned char const* stage, int at, std::uint32_t* words) {
  if ((at & 3) != 0) return load_words<n>(stage, at, words);
  auto const* const from = reinterpret_cast<std::uint32_t const*>(stage) + (at >> 2);
#pragma unroll
  for (int i = 0; i < n; ++i) words[i] = from[i];
}

__device__ __forceinline__ std::uint32_t load_u16(unsigned char const* stage, int at) {
  return reinterpret_cast<std::uint16_t const*>(stage)[at >> 1];
}

__device__ __forceinline__ float f16_value(std::uint32_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(std::uint16_t(bits)));
  return value;
}
__device__ __forceinline__ float load_f16(unsigned char const* stage, int at) { return f16_value(load_u16(stage, at)); }

/// Bytes of low and high nibbles: elements 0..15 and 16..31.
__device__ __forceinline__ void split_nibbles(std::uint32_t const (&words)[4], std::uint32_t* q) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[i] = words[i] & 0x0f0f0f0fu;
    q[4 + i] = words[i] >> 4 & 0x0f0f0f0fu;
  }
}

/// The same with high nibbles where they are.
__device__ __forceinline__ void mask_nibbles(std::uint32_t const (&words)[4], std::uint32_t* q) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    q[i] = words[i] & 0x0f0f0f0fu;
    q[4 + i] = words[i] & 0xf0f0f0f0u;
  }
}

/// The lowest four bits, bit i into byte i. The multiplication's terms k + 7m meet no other.
__device__ __forceinline__ std::uint32_t spread_bits(std::uint32_t bits) { return (bits & 15u) * 0x00204081u & 0x01010101u; }

/// The codebook's values of nibbles: of a selector's bits prmt takes three, the fourth chooses between two tables.
__device__ __forceinline__ void look_up(std::uint32_t const (&words)[4], tiered::detail::Codebook16 const& codebook, std::uint32_t* q) {
  std::uint32_t const t0 = std::uint32_t(codebook.low), t1 = std::uint32_t(codebook.low >> 32);
  std::uint32_t const t2 = std::uint32_t(codebook.high), t3 = std::uint32_t(codebook.high >> 32);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    std::uint32_t const index = words[i] & 0x77777777u, table = (words[i] >> 1 & 0x44444444u) | 0x32103210u;
    std::uint32_t const first = __byte_perm(__byte_perm(t0, t1, index), __byte_perm(t2, t3, index), table);
    std::uint32_t const second = __byte_perm(__byte_perm(t0, t1, index >> 16), __byte_perm(t2, t3, index >> 16), table >> 16);
    q[i] = __byte_perm(first, second, 0x6420);
    q[4 + i] = __byte_perm(first, second, 0x7531);
  }
}

}  // namespace detail

template <class F>
struct Unpack;

template <>
struct Unpack<Q4_0> {
  using Weights = Unpacked<1, 0, 8, 4>;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int, Weights& w) {
    std::uint32_t words[4];
    detail::load_words<4>(stage, at + 2, words);
    detail::mask_nibbles(words, w.q);
    w.scale[0] = detail::load_f16(stage, at);
  }
};

template <>
struct Unpack<Q4_1> {
  using Weights = Unpacked<1, 1, 0, 4>;
  static constexpr int sign = 1;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int, Weights& w) {
    std::uint32_t words[4];
    detail::load_words_alike<4>(stage, at + 4, words);
    detail::mask_nibbles(words, w.q);
    w.scale[0] = detail::load_f16(stage, at);
    w.min[0] = detail::load_f16(stage, at + 2);
  }
};

template <>
struct Unpack<Q5_0> {
  using Weights = Unpacked<1, 0, 16>;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int, Weights& w) {
    std::uint32_t words[5];
    detail::load_words<5>(stage, at + 2, words);
    std::uint32_t const low[4] = {words[1], words[2], words[3], words[4]};
    detail::split_nibbles(low, w.q);
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] |= detail::spread_bits(words[0] >> 4 * i) << 4;
    w.scale[0] = detail::load_f16(stage, at);
  }
};

template <>
struct Unpack<Q5_1> {
  using Weights = Unpacked<1, 1, 0>;
  static constexpr int sign = 1;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int, Weights& w) {
    std::uint32_t words[5];
    detail::load_words_alike<5>(stage, at + 4, words);
    std::uint32_t const low[4] = {words[1], words[2], words[3], words[4]};
    detail::split_nibbles(low, w.q);
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] |= detail::spread_bits(words[0] >> 4 * i) << 4;
    w.scale[0] = detail::load_f16(stage, at);
    w.min[0] = detail::load_f16(stage, at + 2);
  }
};

template <>
struct Unpack<Q8_0> {
  using Weights = Unpacked<1, 0, 0>;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int, Weights& w) {
    detail::load_words<8>(stage, at + 2, w.q);
    w.scale[0] = detail::load_f16(stage, at);
  }
};

template <>
struct Unpack<IQ4_NL> {
  using Weights = Unpacked<1, 0, 0>;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int, Weights& w) {
    std::uint32_t words[4];
    detail::load_words<4>(stage, at + 2, words);
    detail::look_up(words, IQ4_NL::codebook(), w.q);
    w.scale[0] = detail::load_f16(stage, at);
  }
};

template <>
struct Unpack<MXFP4> {
  using Weights = Unpacked<1, 0, 0>;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int, Weights& w) {
    std::uint32_t words[4];
    detail::load_words<4>(stage, at + 1, words);
    detail::look_up(words, MXFP4::codebook(), w.q);
    w.scale[0] = e8m0_to_half_float(stage[at]);
  }
};

}  // namespace tiered::cuda
