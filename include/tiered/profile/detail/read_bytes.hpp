/// Loops that only read, for each width of loads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tiered/kernels/cpu/table.hpp"

namespace tiered::detail {

using ReadBytes = std::uint64_t (*)(std::byte const* p, std::size_t n);

/// The exclusive or of the 8-byte words of n bytes. Few instructions a cache line matter: a core has as many lines on the way as fit
/// between two of its ends (eight 8-byte loads a line reach half of what four of 16 bytes do).
inline std::uint64_t fold_bytes(std::byte const* p, std::size_t n) {
  using Words = std::uint64_t __attribute__((vector_size(16)));
  Words sums[4] = {};
  std::size_t i = 0;
  for (; i + sizeof sums <= n; i += sizeof sums) {
    Words line[4];
    std::memcpy(line, p + i, sizeof line);
    for (int k = 0; k < 4; ++k) sums[k] ^= line[k];
  }
  Words const all = sums[0] ^ sums[1] ^ sums[2] ^ sums[3];
  std::uint64_t sum = all[0] ^ all[1];
  for (; i < n; i += 8) {
    std::uint64_t last = 0;
    std::memcpy(&last, p + i, std::min<std::size_t>(8, n - i));
    sum ^= last;
  }
  return sum;
}

#if defined(__x86_64__)
/// How far ahead one line in four is fetched, to the second level: as products of quantised weights do.
inline constexpr std::size_t read_ahead_bytes = 4096, read_step = 256;

/// With `n_words` vectors, of the compiler's own, since the header of the intrinsics is long; inlined into what has their instructions.
template <class Words, int n_words>
[[gnu::always_inline]] inline std::uint64_t fold_words(std::byte const* p, std::size_t n) {
  static_assert(sizeof(Words) * n_words == read_step);
  Words sums[n_words] = {};
  std::size_t i = 0;
  for (; i + read_step <= n; i += read_step) {
    __builtin_prefetch(p + i + read_ahead_bytes, 0, 2);
    Words line[n_words];
    std::memcpy(line, p + i, sizeof line);
#pragma GCC unroll 8
    for (int k = 0; k < n_words; ++k) sums[k] ^= line[k];
  }
  return fold_bytes(reinterpret_cast<std::byte const*>(sums), sizeof sums) ^ fold_bytes(p + i, n - i);
}

using Words256 = std::uint64_t __attribute__((vector_size(32)));
using Words512 = std::uint64_t __attribute__((vector_size(64)));

[[gnu::target("avx2")]] inline std::uint64_t fold_bytes_256(std::byte const* p, std::size_t n) { return fold_words<Words256, 8>(p, n); }
[[gnu::target("avx512f")]] inline std::uint64_t fold_bytes_512(std::byte const* p, std::size_t n) { return fold_words<Words512, 4>(p, n); }
#endif

/// With the widest loads that this machine's kernels have, or those of an instruction set that is available.
inline ReadBytes widest_reader(Isa isa = best_isa()) {
#if defined(__x86_64__)
  if (isa == Isa::avx2) return &fold_bytes_256;
  if (isa != Isa::baseline) return &fold_bytes_512;
#else
  (void)isa;
#endif
  return &fold_bytes;
}

}  // namespace tiered::detail
