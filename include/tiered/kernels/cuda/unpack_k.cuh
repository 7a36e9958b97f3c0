/// Weights in blocks of 256, as unpack.cuh has them for blocks of 32. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/unpack.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cuda {
namespace detail {

/// d * scale and dmin * min of a group of Q4_K or Q5_K; the 12 bytes begin at byte 4 of the block. scale_min_k4() says what is where.
template <class Weights>
__device__ __forceinline__ void load_scale_min_k4(unsigned char const* stage, int at, int group, Weights& w) {
  std::uint32_t words[4];  // d and dmin, bytes 0..3, 4..7, 8..11
  load_words_alike<4>(stage, at, words);
  unsigned const shift = unsigned(group & 3) * 8;
  std::uint32_t const first = words[1] >> shift, second = words[2] >> shift, third = words[3] >> shift;
  bool const low = group < 4;
  std::uint32_t const scale = low ? first & 63u : (third & 15u) | (first >> 2 & 0x30u);
  std::uint32_t const min = low ? second & 63u : (third >> 4 & 15u) | (second >> 2 & 0x30u);
  w.scale[0] = f16_value(words[0]) * float(int(scale));
  w.min[0] = f16_value(words[0] >> 16) * float(int(min));
}

}  // namespace detail

template <>
struct Unpack<Q4_K> {
  using Weights = Unpacked<1, 1, 0>;
  static constexpr int sign = -1;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int group, Weights& w) {
    detail::load_words_alike<8>(stage, at + 16 + (group >> 1) * 32, w.q);
    int const shift = (group & 1) * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = w.q[i] >> shift & 0x0f0f0f0fu;
    detail::load_scale_min_k4(stage, at, group, w);
  }
};

template <>
struct Unpack<Q5_K> {
  using Weights = Unpacked<1, 1, 0>;
  static constexpr int sign = -1;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int group, Weights& w) {
    std::uint32_t high[8];
    detail::load_words_alike<8>(stage, at + 48 + (group >> 1) * 32, w.q);
    detail::load_words_alike<8>(stage, at + 16, high);
    int const shift = (group & 1) * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = (w.q[i] >> shift & 0x0f0f0f0fu) | (high[i] >> group & 0x01010101u) << 4;
    detail::load_scale_min_k4(stage, at, group, w);
  }
};

template <>
struct Unpack<Q6_K> {
  using Weights = Unpacked<2, 0, 32>;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int group, Weights& w) {
    int const half = group >> 2, part = group & 3;
    std::uint32_t high[8];
    detail::load_words<8>(stage, at + half * 64 + (part & 1) * 32, w.q);
    detail::load_words<8>(stage, at + 128 + half * 32, high);
    int const low_shift = (part >> 1) * 4, high_shift = part * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = (w.q[i] >> low_shift & 0x0f0f0f0fu) | (high[i] >> high_shift & 0x03030303u) << 4;
    float const d = detail::load_f16(stage, at + 208);
    std::uint32_t const scales = detail::load_u16(stage, at + 192 + group * 2);
    w.scale[0] = d * float(int(std::int8_t(scales)));
    w.scale[1] = d * float(int(std::int8_t(scales >> 8)));
  }
};

template <>
struct Unpack<Q2_K> {
  using Weights = Unpacked<2, 2, 0>;
  static constexpr int sign = -1;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int group, Weights& w) {
    detail::load_words_alike<8>(stage, at + 16 + (group >> 2) * 32, w.q);
    int const shift = (group & 3) * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = w.q[i] >> shift & 0x03030303u;
    std::uint32_t const scales = detail::load_u16(stage, at + group * 2);
    float const d = detail::load_f16(stage, at + 80), dmin = detail::load_f16(stage, at + 82);
    w.scale[0] = d * float(int(scales & 15u));
    w.scale[1] = d * float(int(scales >> 8 & 15u));
    w.min[0] = dmin * float(int(scales >> 4 & 15u));
    w.min[1] = dmin * float(int(scales >> 12));
  }
};

template <>
struct Unpack<Q3_K> {
  using Weights = Unpacked<2, 0, 4>;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int group, Weights& w) {
    std::uint32_t high[8], packed[3];
    detail::load_words<8>(stage, at + 32 + (group >> 2) * 32, w.q);
    detail::load_words<8>(stage, at, high);
    int const shift = (group & 3) * 2;
#pragma unroll
    for (int i = 0; i < 8; ++i) w.q[i] = (w.q[i] >> shift & 0x03030303u) | (high[i] >> group & 0x01010101u) << 2;
    detail::load_words<3>(stage, at + 96, packed);
    float const d = detail::load_f16(stage, at + 108);
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // Q3_K::scale() of group 2 * group + i
      int const index = group * 2 + i;
      std::uint32_t const low = ((index & 4) != 0 ? packed[1] : packed[0]) >> ((index & 3) * 8 + (index >> 3) * 4) & 15u;
      std::uint32_t const top = packed[2] >> ((index & 3) * 8 + (index >> 2) * 2) & 3u;
      w.scale[i] = d * float(int(low | top << 4) - 32);
    }
  }
};

template <>
struct Unpack<IQ4_XS> {
  using Weights = Unpacked<1, 0, 0>;
  __device__ static __forceinline__ void load(unsigned char const* stage, int at, int group, Weights& w) {
    std::uint32_t words[4], packed[2];  // packed: d and scales_h, scales_l
    detail::load_words_alike<4>(stage, at + 8 + group * 16, words);
    detail::look_up(words, IQ4_NL::codebook(), w.q);
    detail::load_words_alike<2>(stage, at, packed);
    std::uint32_t const scale = (packed[1] >> group * 4 & 15u) | (packed[0] >> (16 + group * 2) & 3u) << 4;
    w.scale[0] = detail::f16_value(packed[0]) * float(int(scale) - 32);
  }
};

}  // namespace tiered::cuda
