/// Super-blocks of 256 as operands of a tensor core: tile_decode.cuh for Q2_K to Q6_K and IQ4_XS. [device-visible]
///
/// Scales of groups take more bits than binary16 has, so values are made in f32 and rounded once.
#pragma once

#include <cstdint>

#include "tiered/kernels/cuda/tile_decode.cuh"

namespace tiered::cuda {

template <>
struct TileDecoder<Q2_K> {
  TIERED_HD static void decode(std::uint8_t const* p, int chunk, int j, Pairs& out) {
    Q2_K::Block const& block = detail::as_block<Q2_K>(p);
    float const d = detail::half_value(block.d), dmin = detail::half_value(block.dmin);
    std::uint32_t const scales = detail::load_u16(block.scales + chunk * 2);
    std::uint8_t const* const qs = block.qs + (chunk >> 2) * 32 + j * 2;
    int const shift = (chunk & 3) * 2;
    for (int i = 0; i < 4; ++i) {
      std::uint32_t const group = scales >> (i >> 1) * 8;
      __half2 const q = detail::minus(detail::spread(detail::load_u16(qs + i * 8) >> shift & 0x0303u), 0);
      out[i] = detail::scaled(q, d * float(group & 15), dmin * float(group >> 4 & 15));
    }
  }
};

template <>
struct TileDecoder<Q3_K> {
  TIERED_HD static void decode(std::uint8_t const* p, int chunk, int j, Pairs& out) {
    Q3_K::Block const& block = detail::as_block<Q3_K>(p);
    float const d = detail::half_value(block.d);
    std::uint8_t const *const qs = block.qs + (chunk >> 2) * 32 + j * 2, *const high = block.hmask + j * 2;
    int const shift = (chunk & 3) * 2;
    for (int i = 0; i < 4; ++i) {
      std::uint32_t const low = detail::load_u16(qs + i * 8) >> shift & 0x0303u;
      std::uint32_t const top = (detail::load_u16(high + i * 8) >> chunk & 0x0101u) << 2;
      out[i] = detail::scaled(detail::minus(detail::spread(low | top), 4), d * float(Q3_K::scale(block, chunk * 2 + (i >> 1))));
    }
  }
};

namespace detail {

/// Scale and minimum of a group of Q4_K or Q5_K.
template <class Block>
TIERED_HD inline void group_scale(Block const& block, int group, float& scale, float& min) {
  auto const packed = tiered::detail::scale_min_k4(block.scales, group);
  scale = half_value(block.d) * float(packed.scale);
  min = half_value(block.dmin) * float(packed.min);
}

}  // namespace detail

template <>
struct TileDecoder<Q4_K> {
  TIERED_HD static void decode(std::uint8_t const* p, int chunk, int j, Pairs& out) {
    Q4_K::Block const& block = detail::as_block<Q4_K>(p);
    float scale, min;
    detail::group_scale(block, chunk, scale, min);
    std::uint8_t const* const qs = block.qs + (chunk >> 1) * 32 + j * 2;
    int const shift = (chunk & 1) * 4;
    for (int i = 0; i < 4; ++i) {
      std::uint32_t const q = detail::load_u16(qs + i * 8) >> shift & 0x0f0fu;
      out[i] = detail::scaled(detail::minus(detail::spread(q), 0), scale, min);
    }
  }
};

template <>
struct TileDecoder<Q5_K> {
  TIERED_HD static void decode(std::uint8_t const* p, int chunk, int j, Pairs& out) {
    Q5_K::Block const& block = detail::as_block<Q5_K>(p);
    float scale, min;
    detail::group_scale(block, chunk, scale, min);
    std::uint8_t const *const qs = block.qs + (chunk >> 1) * 32 + j * 2, *const high = block.qh + j * 2;
    int const shift = (chunk & 1) * 4;
    for (int i = 0; i < 4; ++i) {
      std::uint32_t const low = detail::load_u16(qs + i * 8) >> shift & 0x0f0fu;
      std::uint32_t const top = (detail::load_u16(high + i * 8) >> chunk & 0x0101u) << 4;
      out[i] = detail::scaled(detail::minus(detail::spread(low | top), 0), scale, min);
    }
  }
};

template <>
struct TileDecoder<Q6_K> {
  TIERED_HD static void decode(std::uint8_t const* p, int chunk, int j, Pairs& out) {
    Q6_K::Block const& block = detail::as_block<Q6_K>(p);
    int const half = chunk >> 2, part = chunk & 3, low_shift = (part >> 1) * 4, high_shift = part * 2;
    std::uint8_t const *const ql = block.ql + half * 64 + (part & 1) * 32 + j * 2, *const qh = block.qh + half * 32 + j * 2;
    float const d = detail::half_value(block.d);
    for (int i = 0; i < 4; ++i) {
      std::uint32_t const low = detail::load_u16(ql + i * 8) >> low_shift & 0x0f0fu;
      std::uint32_t const top = (detail::load_u16(qh + i * 8) >> high_shift & 0x0303u) << 4;
      out[i] = detail::scaled(detail::minus(detail::spread(low | top), 32), d * float(block.scales[chunk * 2 + (i >> 1)]));
    }
  }
};

template <>
struct TileDecoder<IQ4_XS> {
  TIERED_HD static void decode(std::uint8_t const* p, int chunk, int j, Pairs& out) {
    IQ4_XS::Block const& block = detail::as_block<IQ4_XS>(p);
    float const factor = detail::half_value(block.d) * float(IQ4_XS::scale(block, chunk));
    for (int i = 0; i < 2; ++i) {
      std::uint32_t const four = detail::look_up(detail::load_u16(block.qs + chunk * 16 + i * 8 + j * 2), IQ4_NL::codebook());
      out[i] = detail::scaled(detail::low_entries(four), factor);
      out[2 + i] = detail::scaled(detail::high_entries(four), factor);
    }
  }
};

}  // namespace tiered::cuda
