/// Products on f32 activations for AVX2 and FMA. A piece is summed in the eight lanes of one vector: see matmul_f32.hpp.
#pragma once

#include <cstdint>
#include <type_traits>

#include <immintrin.h>

#include "tiered/kernels/cpu/matmul_avx2.hpp"
#include "tiered/kernels/cpu/matmul_f32.hpp"
#include "tiered/kernels/format/bf16.hpp"
#include "tiered/kernels/format/f16.hpp"

namespace tiered::cpu::avx2 {

/// All ones in the first n (1..8) of eight lanes. Ends of rows go through masks, not through other code: an element's value must
/// not depend on where a thread's part of a row ends.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256i first_lanes(std::int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n < 8 ? std::int32_t(n) : 8), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/// Eight weights of a float format.
template <class F>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 eight_floats(std::byte const* src) {
  if constexpr (std::is_same_v<F, F16>) return _mm256_cvtph_ps(load_16(src));
  if constexpr (std::is_same_v<F, BF16>) return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_16(src)), 16));
  if constexpr (std::is_same_v<F, F32>) return _mm256_castsi256_ps(load_32(src));
}

/// Fewer than eight, then zeros.
template <class F>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 last_floats(std::byte const* src, std::int32_t n) {
  float values[8] = {};
  decode_any<F>(src, n, values);
  return _mm256_loadu_ps(values);
}

/// What the compiler vectorises for this target.
template <class F>
[[gnu::target("avx2,fma,f16c")]] void decode(std::byte const* src, std::int32_t n, float* dst) {
  std::int32_t i = 0;
  if constexpr (F::block_elems == 1) {
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(dst + i, eight_floats<F>(src + std::int64_t(i) * F::block_bytes));
  }
  decode_any<F>(src + std::int64_t(i) * F::block_bytes, n - i, dst + i);
}

/// sum_lanes() of v[0..4), by the same additions.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m128 sums_of_four(__m128 const* v) {
  __m128 const low = _mm_add_ps(_mm_shuffle_ps(v[0], v[1], 0x44), _mm_shuffle_ps(v[0], v[1], 0xee));
  __m128 const high = _mm_add_ps(_mm_shuffle_ps(v[2], v[3], 0x44), _mm_shuffle_ps(v[2], v[3], 0xee));
  return _mm_add_ps(_mm_shuffle_ps(low, high, 0x88), _mm_shuffle_ps(low, high, 0xdd));
}

/// sum_lanes() of a[0..4) in the lower half, of b[0..4) in the upper one.
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline __m256 sums_of_eight(__m256 const* a, __m256 const* b) {
  __m256 v[4];
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) v[i] = _mm256_add_ps(_mm256_permute2f128_ps(a[i], b[i], 0x20), _mm256_permute2f128_ps(a[i], b[i], 0x31));
  __m256 const low = _mm256_add_ps(_mm256_shuffle_ps(v[0], v[1], 0x44), _mm256_shuffle_ps(v[0], v[1], 0xee));
  __m256 const high = _mm256_add_ps(_mm256_shuffle_ps(v[2], v[3], 0x44), _mm256_shuffle_ps(v[2], v[3], 0xee));
  return _mm256_add_ps(_mm256_shuffle_ps(low, high, 0x88), _mm256_shuffle_ps(low, high, 0xdd));
}

/// sums[t][r] += sum_lanes(lanes[t][r]).
template <int n_tokens>
[[gnu::target("avx2,fma,f16c"), gnu::always_inline]] inline void add_lanes(__m256 const (&lanes)[n_tokens][f32_rows], float* sums) {
#pragma GCC unroll 8
  for (int t = 0; t + 2 <= n_tokens; t += 2) {
    _mm256_storeu_ps(sums + t * 4, _mm256_add_ps(_mm256_loadu_ps(sums + t * 4), sums_of_eight(lanes[t], lanes[t + 1])));
  }
  if constexpr (n_tokens % 2 == 1) {
    float* const last = sums + (n_tokens - 1) * 4;
    __m128 halves[4];
#pragma GCC unroll 8
    for (int r = 0; r < 4; ++r) {
      __m256 const v = lanes[n_tokens - 1][r];
      halves[r] = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    }
    _mm_storeu_ps(last, _mm_add_ps(_mm_loadu_ps(last), sums_of_four(halves)));
  }
}

/// Four rows and up to three tokens: 12 sums, three tokens and a row are the 16 registers.
template <class F, int n_tokens>
[[gnu::target("avx2,fma,f16c")]] void dots(std::byte const* const* w, std::int32_t n, float const* const* x, float* sums) {
  __m256 lanes[n_tokens][f32_rows], tokens[n_tokens];
#pragma GCC unroll 8
  for (int t = 0; t < n_tokens; ++t) {
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) lanes[t][r] = _mm256_setzero_ps();
  }
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
#pragma GCC unroll 8
    for (int t = 0; t < n_tokens; ++t) tokens[t] = _mm256_loadu_ps(x[t] + i);
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) {
      __m256 const row = eight_floats<F>(w[r] + i * F::block_bytes);
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; ++t) lanes[t][r] = _mm256_fmadd_ps(row, tokens[t], lanes[t][r]);
    }
  }
  if (i < n) {
    __m256i const mask = first_lanes(n - i);
#pragma GCC unroll 8
    for (int r = 0; r < f32_rows; ++r) {
      __m256 const row = last_floats<F>(w[r] + i * F::block_bytes, std::int32_t(n - i));
#pragma GCC unroll 8
      for (int t = 0; t < n_tokens; ++t) lanes[t][r] = _mm256_fmadd_ps(row, _mm256_maskload_ps(x[t] + i, mask), lanes[t][r]);
    }
  }
  add_lanes(lanes, sums);
}

}  // namespace tiered::cpu::avx2
