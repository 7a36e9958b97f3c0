/// What the machine can do at most, measured: reading memory, and multiplying f32.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/measure.hpp"
#include "tiered/kernels/cpu/table.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace bench {

/// One thread's loop: ten chains of multiply-adds in registers, which the compiler must neither join nor drop.
inline constexpr int peak_chains = 10, peak_rounds = 50'000;

#define BENCH_PEAK_LOOP(name, Vector, attributes, one, multiply_add, constraint)                                             \
  attributes inline void name() {                                                                                            \
    Vector const c = one;                                                                                                    \
    Vector v0 = c, v1 = c, v2 = c, v3 = c, v4 = c, v5 = c, v6 = c, v7 = c, v8 = c, v9 = c;                                   \
    for (int i = 0; i < peak_rounds; ++i) {                                                                                  \
      multiply_add(v0), multiply_add(v1), multiply_add(v2), multiply_add(v3), multiply_add(v4);                              \
      multiply_add(v5), multiply_add(v6), multiply_add(v7), multiply_add(v8), multiply_add(v9);                              \
      asm volatile("" : "+" constraint(v0), "+" constraint(v1), "+" constraint(v2), "+" constraint(v3), "+" constraint(v4)); \
      asm volatile("" : "+" constraint(v5), "+" constraint(v6), "+" constraint(v7), "+" constraint(v8), "+" constraint(v9)); \
    }                                                                                                                        \
  }
#if defined(__x86_64__)
#define BENCH_FMA_128(v) v = _mm_add_ps(_mm_mul_ps(v, c), c)
#define BENCH_FMA_256(v) v = _mm256_fmadd_ps(v, c, c)
#define BENCH_FMA_512(v) v = _mm512_fmadd_ps(v, c, c)
BENCH_PEAK_LOOP(peak_loop_128, __m128, , _mm_set1_ps(0.5f), BENCH_FMA_128, "x")
BENCH_PEAK_LOOP(peak_loop_256, __m256, [[gnu::target("avx2,fma")]], _mm256_set1_ps(0.5f), BENCH_FMA_256, "x")
BENCH_PEAK_LOOP(peak_loop_512, __m512, [[gnu::target("avx512f")]], _mm512_set1_ps(0.5f), BENCH_FMA_512, "v")
#undef BENCH_FMA_128
#undef BENCH_FMA_256
#undef BENCH_FMA_512
#endif
#undef BENCH_PEAK_LOOP

/// f32 operations per second of the team with the vectors of an instruction set (AMX: those of AVX-512); 0 where it is not known.
/// A multiplication and an addition are two.
inline double peak_rate(Team& team, Isa isa) {
#if defined(__x86_64__)
  std::int64_t const n_parts = std::int64_t{4} * team.size();
  auto const rate = [&](void (*loop)(), int lanes) {
    double const s = best_s(0.2, [&] {
      team.parallel_for(n_parts, 1, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) loop();
      });
    });
    return 2.0 * peak_chains * peak_rounds * lanes * double(n_parts) / s;
  };
  if (isa == Isa::avx2) return rate(&peak_loop_256, 8);
  if (isa != Isa::baseline) return rate(&peak_loop_512, 16);
  return rate(&peak_loop_128, 4);
#else
  (void)team, (void)isa;
  return 0;
#endif
}

}  // namespace bench
