/// What AVX2 products read of activations, and the order of their sums.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include <immintrin.h>

#include "tiered/kernels/cpu/unpack_avx2.hpp"
#include "tiered/kernels/cpu/unpack_k_avx2.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::cpu::avx2 {

/// Elements of a row that are summed by themselves; the sums of stretches are added in ascending order.
///
/// The sum of a stretch, the same in every kernel: blocks b and b + 8 of it meet in one lane. A lane is a chain over its blocks,
/// ascending, of add_whole(): the whole numbers are exact sums of a block's products. Lanes p = 4q + c are then added over c, and
/// these sums over q, both ascending. So with few tokens 8 blocks of one row advance at once, with many tokens 8 rows, without a
/// shuffle between product and chain.
inline constexpr std::int32_t stretch_elems = 4096;
inline constexpr std::int32_t stretch_blocks = stretch_elems / 32, stretch_groups = stretch_elems / 256;

/// What a vector of blocks adds to a sum, whatever its lanes are.
struct Whole {
  __m256i products;  ///< sum of (weight as unpacked) * q, times its scale where there is one for 16 weights
  __m256i sums;      ///< offset * (sum of q), with scales like the products; or, with minima, (scale of x) * (sum of q) as floats
};

/// sum + what the blocks add. scale, min: of the weights; x_scale: of the activations.
template <class U>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 add_whole(__m256 sum, Whole const& whole, __m256 scale, __m256 min,
                                                                             __m256 x_scale) {
  __m256i const exact = U::offset > 0 ? _mm256_sub_epi32(whole.products, whole.sums) : whole.products;  // below 2^24
  sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), _mm256_mul_ps(scale, x_scale), sum);
  if constexpr (U::min_sign == 0) return sum;
  if constexpr (U::has_groups) return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(whole.sums), _mm256_mul_ps(min, x_scale), sum);
  __m256 const sums = _mm256_castsi256_ps(whole.sums);
  return U::min_sign > 0 ? _mm256_fmadd_ps(min, sums, sum) : _mm256_fnmadd_ps(min, sums, sum);
}

/// Whole::sums of one block, where scales are for 32 weights.
template <class U>
std::int32_t sums_of(ActQ8x32 const& x) {
  std::int32_t const sum = x.sums[0] + x.sums[1];
  return U::min_sign != 0 ? __builtin_bit_cast(std::int32_t, x.scale * float(sum)) : U::offset * sum;
}

/// Whole::sums where scales are for 16 weights. groups: scales, or minima, as Factors has them; x: 16-bit sums in the same order.
template <class U>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i group_sums(__m256i groups, __m256i x) {
  __m256i const sums = _mm256_madd_epi16(groups, x);
  return U::offset > 0 ? _mm256_mullo_epi32(sums, _mm256_set1_epi32(U::offset)) : sums;
}

/// Activations of a token for 256 weights, as the weights come out of bytes_of().
struct alignas(32) Group {
  std::int8_t q[8][32];
  float scale[8];
  std::int32_t sums[8];  ///< Whole::sums, or pairs of 16-bit sums of q where scales are for 16 weights
};

template <class U>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void arrange(ActQ8x32 const* x, Group& out) {
#pragma GCC unroll 8
  for (int b = 0; b < 8; ++b) {
    auto* const q = reinterpret_cast<__m128i*>(out.q[b % 4 * 2] + b / 4 * 16);
    _mm_store_si128(q, load_16(x[b].q));
    _mm_store_si128(q + 2, load_16(x[b].q + 16));
    out.scale[b] = x[b].scale;
    if constexpr (U::has_groups) {
      std::memcpy(&out.sums[b], x[b].sums, sizeof x[b].sums);
    } else {
      out.sums[b] = sums_of<U>(x[b]);
    }
  }
}

/// x[0..8), with zeros from x[n] on.
inline ActQ8x32 const* padded(ActQ8x32 const* x, std::int32_t n, ActQ8x32 (&space)[8]) {
  if (n >= 8) return x;
  std::memcpy(static_cast<void*>(space), x, std::size_t(n) * sizeof *x);
  std::memset(static_cast<void*>(space + n), 0, std::size_t(8 - n) * sizeof *x);
  return space;
}
/// The bytes of 256 weights, with zeros from byte n on.
template <class F>
std::byte const* padded(std::byte const* p, std::int64_t n, std::byte (&space)[Unpack<F>::bytes]) {
  if (n >= Unpack<F>::bytes) return p;
  std::memcpy(space, p, std::size_t(n));
  std::memset(space + n, 0, Unpack<F>::bytes - std::size_t(n));
  return space;
}

/// Groups of n_blocks blocks; missing ones are zero.
template <class F>
[[gnu::target("avx2,fma,f16c")]] void arrange(ActQ8x32 const* x, std::int32_t n_blocks, Group* out) {
  for (std::int32_t b = 0; b < n_blocks; b += 8) {
    ActQ8x32 space[8];
    arrange<Unpack<F>>(padded(x + b, n_blocks - b, space), out[b / 8]);
  }
}

}  // namespace tiered::cpu::avx2
