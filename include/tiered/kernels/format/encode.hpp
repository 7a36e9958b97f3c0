/// Rows of f32 to every weight format: plain rounding, for tests and tools that make models.
///
/// Per group: the scale spans the group's values, quants are rounded to nearest. No search for smaller errors and no importance
/// weights, so files made by quantising tools with such searches are somewhat better. Scales beyond the range of binary16
/// saturate. Elements that are not finite give nonsense in quantised formats, nothing worse. The same bits on every machine.
#pragma once

#include <cmath>
#include <cstdint>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/format/dispatch.hpp"

namespace tiered {
namespace detail {

inline float inverse_or_zero(float value) { return value == 0 ? 0.0f : 1.0f / value; }

inline int clamped_quant(float value, int low, int high) {
  return value >= float(high) ? high : value > float(low) ? nearest_int(value) : low;  // NaN: low
}

inline std::uint16_t half_scale(float value) { return float_to_half(value > 65504.0f ? 65504.0f : value < -65504.0f ? -65504.0f : value); }

/// The element of largest magnitude, with its sign.
inline float extreme(float const* x, int n) {
  float best = 0;
  for (int i = 0; i < n; ++i) best = std::fabs(x[i]) > std::fabs(best) ? x[i] : best;
  return best;
}

struct Bounds {
  float low, high;
};
inline Bounds bounds(float const* x, int n) {
  Bounds b{x[0], x[0]};
  for (int i = 1; i < n; ++i) b = {x[i] < b.low ? x[i] : b.low, x[i] > b.high ? x[i] : b.high};
  return b;
}

/// q[0..n): index of the entry nearest to x in units of d; the first of equals.
inline void codebook_quants(float const* x, int n, float d, Codebook16 const& codebook, std::uint8_t* q) {
  float entries[16];
  for (int k = 0; k < 16; ++k) entries[k] = float(codebook[k]);
  float const inverse = inverse_or_zero(d);
  for (int i = 0; i < n; ++i) {
    float const value = rounded_product(x[i], inverse);
    float error = std::fabs(value - entries[0]);
    q[i] = 0;
    for (int k = 1; k < 16; ++k) {
      float const other = std::fabs(value - entries[k]);
      q[i] = other < error ? std::uint8_t(k) : q[i];
      error = other < error ? other : error;
    }
  }
}

/// Elements l and l + 16 of 32 into byte l.
inline void pack_nibbles(std::uint8_t const* q, std::uint8_t* out) {
  for (int l = 0; l < 16; ++l) out[l] = std::uint8_t((q[l] & 15) | (q[l + 16] & 15) << 4);
}

/// q[0..n) of x in units of d, counted from -offset.
inline void symmetric_quants(float const* x, int n, float d, int offset, std::uint8_t* q) {
  float const inverse = inverse_or_zero(d);
  for (int i = 0; i < n; ++i) q[i] = std::uint8_t(clamped_quant(rounded_product(x[i], inverse), -offset, offset - 1) + offset);
}
inline void affine_quants(float const* x, int n, float d, float low, int largest, std::uint8_t* q) {
  float const inverse = inverse_or_zero(d);
  for (int i = 0; i < n; ++i) q[i] = std::uint8_t(clamped_quant(rounded_product(rounded_difference(x[i], low), inverse), 0, largest));
}

/// Scales and minima of the groups of 256 elements (Q2_K, Q4_K, Q5_K): value = (d * scale) * q - (dmin * min), min >= 0.
template <int n_groups>
struct AffineGroups {
  std::uint16_t d = 0, dmin = 0;
  std::uint8_t scale[n_groups] = {}, min[n_groups] = {};
  std::uint8_t q[256] = {};

  AffineGroups(float const* x, int largest_scale, int largest_quant) {
    constexpr int size = 256 / n_groups;
    float wanted_scale[n_groups], wanted_min[n_groups], top_scale = 0, top_min = 0;
    for (int g = 0; g < n_groups; ++g) {
      Bounds const b = bounds(x + g * size, size);
      wanted_min[g] = b.low < 0 ? -b.low : 0.0f;
      wanted_scale[g] = rounded_sum(b.high > 0 ? b.high : 0.0f, wanted_min[g]) / float(largest_quant);
      top_scale = wanted_scale[g] > top_scale ? wanted_scale[g] : top_scale;
      top_min = wanted_min[g] > top_min ? wanted_min[g] : top_min;
    }
    d = half_scale(top_scale / float(largest_scale));
    dmin = half_scale(top_min / float(largest_scale));
    float const inverse_d = inverse_or_zero(half_to_float(d)), inverse_dmin = inverse_or_zero(half_to_float(dmin));
    for (int g = 0; g < n_groups; ++g) {
      scale[g] = std::uint8_t(clamped_quant(rounded_product(wanted_scale[g], inverse_d), 0, largest_scale));
      min[g] = std::uint8_t(clamped_quant(rounded_product(wanted_min[g], inverse_dmin), 0, largest_scale));
      float const low = -exact_product(half_to_float(dmin), float(min[g]));
      affine_quants(x + g * size, size, exact_product(half_to_float(d), float(scale[g])), low, largest_quant, q + g * size);
    }
  }
};

/// Signed scales of the groups of 256 elements (Q3_K, Q6_K, IQ4_XS): value = (d * scale) * q, `q_extreme` the q of the largest value.
template <int n_groups>
struct SymmetricGroups {
  std::uint16_t d = 0;
  int scale[n_groups] = {};
  float factor[n_groups] = {};  ///< d * scale

  SymmetricGroups(float const* x, int scale_offset, float q_extreme) {
    constexpr int size = 256 / n_groups;
    float wanted[n_groups];
    for (int g = 0; g < n_groups; ++g) wanted[g] = extreme(x + g * size, size) / q_extreme;
    d = half_scale(extreme(wanted, n_groups) / float(-scale_offset));
    float const inverse = inverse_or_zero(half_to_float(d));
    for (int g = 0; g < n_groups; ++g) {
      scale[g] = clamped_quant(rounded_product(wanted[g], inverse), -scale_offset, scale_offset - 1);
      factor[g] = exact_product(half_to_float(d), float(scale[g]));
    }
  }
};

inline void pack_scale_min_k4(AffineGroups<8> const& groups, std::uint8_t (&out)[12]) {
  for (int g = 0; g < 4; ++g) {
    out[g] = std::uint8_t(groups.scale[g] | groups.scale[g + 4] >> 4 << 6);
    out[g + 4] = std::uint8_t(groups.min[g] | groups.min[g + 4] >> 4 << 6);
    out[g + 8] = std::uint8_t((groups.scale[g + 4] & 15) | (groups.min[g + 4] & 15) << 4);
  }
}

/// Elements 64p + l and 64p + 32 + l into byte l of part p.
inline void pack_nibbles_k(std::uint8_t const* q, std::uint8_t (&out)[128]) {
  for (int i = 0; i < 128; ++i) {
    std::uint8_t const* const pair = q + i / 32 * 64 + i % 32;
    out[i] = std::uint8_t((pair[0] & 15) | (pair[32] & 15) << 4);
  }
}

/// Two bits of each element: 128h + 32k + l into bits 2k, 2k + 1 of byte l of half h.
inline void pack_pairs_of_bits(std::uint8_t const* q, int shift, std::uint8_t (&out)[64]) {
  for (int i = 0; i < 64; ++i) {
    std::uint8_t const* const four = q + i / 32 * 128 + i % 32;
    int byte = 0;
    for (int k = 0; k < 4; ++k) byte |= (four[32 * k] >> shift & 3) << 2 * k;
    out[i] = std::uint8_t(byte);
  }
}

/// One bit of each element: 32k + l into bit k of byte l.
inline void pack_bits_k(std::uint8_t const* q, int shift, std::uint8_t (&out)[32]) {
  for (int l = 0; l < 32; ++l) {
    int byte = 0;
    for (int k = 0; k < 8; ++k) byte |= (q[32 * k + l] >> shift & 1) << k;
    out[l] = std::uint8_t(byte);
  }
}

/// The fifth bits of 32 elements: element i into bit i.
inline void pack_fifth_bits(std::uint8_t const* q, std::uint8_t (&out)[4]) {
  for (int i = 0; i < 4; ++i) out[i] = 0;
  for (int i = 0; i < 32; ++i) out[i / 8] = std::uint8_t(out[i / 8] | (q[i] >> 4 & 1) << i % 8);
}

}  // namespace detail

/// One block of the format from block_elems values.
inline void encode_block(F32, float const* x, F32::Block& block) { block.value = *x; }
inline void encode_block(F16, float const* x, F16::Block& block) { block.value = float_to_half(*x); }
inline void encode_block(BF16, float const* x, BF16::Block& block) { block.value = float_to_bfloat16(*x); }

inline void encode_block(Q4_0, float const* x, Q4_0::Block& block) {
  std::uint8_t q[32];
  block.d = detail::half_scale(detail::extreme(x, 32) / -8.0f);
  detail::symmetric_quants(x, 32, half_to_float(block.d), 8, q);
  detail::pack_nibbles(q, block.qs);
}

inline void encode_block(Q4_1, float const* x, Q4_1::Block& block) {
  std::uint8_t q[32];
  detail::Bounds const b = detail::bounds(x, 32);
  block.d = detail::half_scale(detail::rounded_difference(b.high, b.low) / 15.0f);
  block.m = detail::half_scale(b.low);
  detail::affine_quants(x, 32, half_to_float(block.d), half_to_float(block.m), 15, q);
  detail::pack_nibbles(q, block.qs);
}

inline void encode_block(Q5_0, float const* x, Q5_0::Block& block) {
  std::uint8_t q[32];
  block.d = detail::half_scale(detail::extreme(x, 32) / -16.0f);
  detail::symmetric_quants(x, 32, half_to_float(block.d), 16, q);
  detail::pack_nibbles(q, block.qs);
  detail::pack_fifth_bits(q, block.qh);
}

inline void encode_block(Q5_1, float const* x, Q5_1::Block& block) {
  std::uint8_t q[32];
  detail::Bounds const b = detail::bounds(x, 32);
  block.d = detail::half_scale(detail::rounded_difference(b.high, b.low) / 31.0f);
  block.m = detail::half_scale(b.low);
  detail::affine_quants(x, 32, half_to_float(block.d), half_to_float(block.m), 31, q);
  detail::pack_nibbles(q, block.qs);
  detail::pack_fifth_bits(q, block.qh);
}

inline void encode_block(Q8_0, float const* x, Q8_0::Block& block) {
  block.d = detail::half_scale(std::fabs(detail::extreme(x, 32)) / 127.0f);
  float const inverse = detail::inverse_or_zero(half_to_float(block.d));
  for (int i = 0; i < 32; ++i) block.qs[i] = std::int8_t(detail::clamped_quant(detail::rounded_product(x[i], inverse), -127, 127));
}

inline void encode_block(Q2_K, float const* x, Q2_K::Block& block) {
  detail::AffineGroups<16> const groups(x, 15, 3);
  block.d = groups.d;
  block.dmin = groups.dmin;
  for (int g = 0; g < 16; ++g) block.scales[g] = std::uint8_t(groups.scale[g] | groups.min[g] << 4);
  detail::pack_pairs_of_bits(groups.q, 0, block.qs);
}

inline void encode_block(Q3_K, float const* x, Q3_K::Block& block) {
  detail::SymmetricGroups<16> const groups(x, 32, -4);
  std::uint8_t q[256];
  block.d = groups.d;
  for (std::uint8_t& byte : block.scales) byte = 0;
  for (int g = 0; g < 16; ++g) {
    detail::symmetric_quants(x + g * 16, 16, groups.factor[g], 4, q + g * 16);
    int const scale = groups.scale[g] + 32;
    std::uint8_t &low = block.scales[g & 7], &high = block.scales[8 + (g & 3)];
    low = std::uint8_t(low | (scale & 15) << (g < 8 ? 0 : 4));
    high = std::uint8_t(high | scale >> 4 << (g >> 2) * 2);
  }
  detail::pack_pairs_of_bits(q, 0, block.qs);
  detail::pack_bits_k(q, 2, block.hmask);
}

inline void encode_block(Q4_K, float const* x, Q4_K::Block& block) {
  detail::AffineGroups<8> const groups(x, 63, 15);
  block.d = groups.d;
  block.dmin = groups.dmin;
  detail::pack_scale_min_k4(groups, block.scales);
  detail::pack_nibbles_k(groups.q, block.qs);
}

inline void encode_block(Q5_K, float const* x, Q5_K::Block& block) {
  detail::AffineGroups<8> const groups(x, 63, 31);
  block.d = groups.d;
  block.dmin = groups.dmin;
  detail::pack_scale_min_k4(groups, block.scales);
  detail::pack_nibbles_k(groups.q, block.qs);
  detail::pack_bits_k(groups.q, 4, block.qh);
}

inline void encode_block(Q6_K, float const* x, Q6_K::Block& block) {
  detail::SymmetricGroups<16> const groups(x, 128, -32);
  std::uint8_t q[256];
  block.d = groups.d;
  for (int g = 0; g < 16; ++g) {
    block.scales[g] = std::int8_t(groups.scale[g]);
    detail::symmetric_quants(x + g * 16, 16, groups.factor[g], 32, q + g * 16);
  }
  for (int i = 0; i < 128; ++i) {
    std::uint8_t const* const pair = q + i / 64 * 128 + i % 64;
    block.ql[i] = std::uint8_t((pair[0] & 15) | (pair[64] & 15) << 4);
  }
  detail::pack_pairs_of_bits(q, 4, block.qh);
}

inline void encode_block(IQ4_NL, float const* x, IQ4_NL::Block& block) {
  std::uint8_t q[32];
  block.d = detail::half_scale(detail::extreme(x, 32) / -127.0f);
  detail::codebook_quants(x, 32, half_to_float(block.d), IQ4_NL::codebook(), q);
  detail::pack_nibbles(q, block.qs);
}

inline void encode_block(IQ4_XS, float const* x, IQ4_XS::Block& block) {
  detail::SymmetricGroups<8> const groups(x, 32, -127);
  block.d = groups.d;
  block.scales_h = 0;
  for (std::uint8_t& byte : block.scales_l) byte = 0;
  for (int g = 0; g < 8; ++g) {
    int const scale = groups.scale[g] + 32;
    block.scales_l[g >> 1] = std::uint8_t(block.scales_l[g >> 1] | (scale & 15) << (g & 1) * 4);
    block.scales_h = std::uint16_t(block.scales_h | scale >> 4 << g * 2);
    std::uint8_t q[32];
    detail::codebook_quants(x + g * 32, 32, groups.factor[g], IQ4_NL::codebook(), q);
    detail::pack_nibbles(q, block.qs + g * 16);
  }
}

inline void encode_block(MXFP4, float const* x, MXFP4::Block& block) {
  // The largest E2M1 value is 6 = 1.5 * 2^2: the shared exponent is that of the largest element less 2 (OCP MX 1.0, 6.3).
  int const e = int(float_to_e8m0_floor(detail::extreme(x, 32))) - 2;
  block.e = std::uint8_t(e < 2 ? 2 : e > 252 ? 252 : e);  // scales whose inverse is finite
  std::uint8_t q[32];
  detail::codebook_quants(x, 32, e8m0_to_half_float(block.e), MXFP4::codebook(), q);
  detail::pack_nibbles(q, block.qs);
}

/// Shapes   src [n] f32; dst: row_bytes(dtype, n) bytes, aligned to 2 (f32: to 4; mxfp4: to 1).
/// Errors   Errc::unsupported where there is no such format; Errc::precondition where n is no whole number of blocks.
/// Threads  any.
inline void encode_row(DType dtype, float const* src, std::int64_t n, void* dst) {
  dispatch_format(dtype, [=](auto format) {
    using F = decltype(format);
    if (n < 0 || n % F::block_elems != 0)
      throw Error(Errc::precondition, concat(n, " elements are no whole number of blocks of ", F::block_elems, " of ", name(F::dtype)));
    auto* const blocks = static_cast<typename F::Block*>(dst);
    for (std::int64_t i = 0; i < n / F::block_elems; ++i) encode_block(format, src + i * F::block_elems, blocks[i]);
  });
}

}  // namespace tiered
