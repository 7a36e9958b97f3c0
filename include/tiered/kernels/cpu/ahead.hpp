/// Weights that come to the caches before a thread reads them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiered/core/ids.hpp"
#include "tiered/kernels/cpu/matmul.hpp"

namespace tiered::cpu {

/// Fetches every line of what the calling thread reads `bytes` further on: of its tile, then what Product::then says.
///
/// Instructions that unpack wait in the core's queue for their bytes, and there is room for few of them: too few lines of memory are on
/// their way so, unless the core foresees them. Fetching waits for nothing. To the second level, as the first has room for too few lines
/// on their way. GB/s of one Zen 4 core from DRAM with AVX-512, rows of 2048, with nothing fetched, with one line of 288 to 420 bytes
/// 4096 bytes ahead, and so: Q4_0 26 25 27, Q4_K 22 23 28, Q6_K 26 25 28, IQ4_NL 23 23 25, MXFP4 18 19 23, Q2_K 14 14 16. 6144 bytes
/// ahead they lose 1 to 3, to the first level 2 to 10, and with every other line alone, which the core takes for a pattern, half.
class Ahead {
 public:
  Ahead(Product const& p, Range rows, std::int64_t row_bytes) {
    std::uintptr_t const w = reinterpret_cast<std::uintptr_t>(p.w);
    begin_ = w + std::uintptr_t(rows.begin * row_bytes);
    end_ = w + std::uintptr_t(rows.end * row_bytes);
    std::uintptr_t const then = p.then != nullptr ? reinterpret_cast<std::uintptr_t>(p.then) : rows.end < p.rows ? end_ : begin_;
    to_then_ = then - end_;
  }

  /// The tile's beginning, which nobody may have fetched.
  void fetch_first() const {
    for (std::uintptr_t at = begin_; at < std::min(end_, begin_ + bytes); at += line) fetch(at);
  }
  /// What is fetched while [p, p + size) is multiplied lies here, as an address and no pointer: it may be past the end.
  [[gnu::always_inline]] std::uintptr_t of(std::byte const* p, std::int64_t size) const {
    std::uintptr_t const at = reinterpret_cast<std::uintptr_t>(p) + bytes;
    return at + (at + std::uintptr_t(size) > end_ ? to_then_ : 0);
  }
  template <int size>
  [[gnu::always_inline]] void fetch_for(std::byte const* p) const {
    std::uintptr_t const at = of(p, size);
#pragma GCC unroll 10
    for (std::uintptr_t i = 0; i < size; i += line) fetch(at + i);
  }
  [[gnu::always_inline]] static void fetch(std::uintptr_t at) { __builtin_prefetch(reinterpret_cast<void const*>(at), 0, 2); }

  static constexpr std::uintptr_t line = 64;

 private:
  static constexpr std::uintptr_t bytes = 8192;
  std::uintptr_t begin_, end_, to_then_;
};

}  // namespace tiered::cpu
