/// Weights for benches: every bit random, but for scales, which are of a sensible size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "tiered/kernels/format/dispatch.hpp"
#include "tiered/kernels/format/half.hpp"
#include "tiered/sim/split_mix.hpp"

namespace bench {

/// `bytes` bytes: one megabyte or so of blocks over and over.
inline std::vector<std::byte> random_blocks(tiered::DType type, std::size_t bytes, std::uint64_t seed = 1) {
  using namespace tiered;
  SplitMix64 random(seed);
  std::size_t const block = block_bytes(type), period = std::min(bytes, (std::size_t{1} << 20) / block * block);
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < period; ++i) out[i] = std::byte(random.next() >> 56);
  dispatch_format(type, [&](auto format) {
    using F = decltype(format);
    for (std::size_t at = 0; at + sizeof(typename F::Block) <= period; at += sizeof(typename F::Block)) {
      typename F::Block b;
      std::memcpy(&b, out.data() + at, sizeof b);
      std::uint16_t const scale = float_to_half(random.between(0.005f, 0.02f));
      if constexpr (std::is_same_v<F, F32>) {
        b.value = random.between(-1, 1);
      } else if constexpr (std::is_same_v<F, F16>) {
        b.value = float_to_half(random.between(-1, 1));
      } else if constexpr (std::is_same_v<F, BF16>) {
        b.value = float_to_bfloat16(random.between(-1, 1));
      } else if constexpr (std::is_same_v<F, MXFP4>) {
        b.e = std::uint8_t(118 + random.below(6));
      } else {
        b.d = scale;
        if constexpr (requires { b.m; }) b.m = scale;
        if constexpr (requires { b.dmin; }) b.dmin = scale;
      }
      std::memcpy(out.data() + at, &b, sizeof b);
    }
  });
  for (std::size_t at = period; at < bytes; at += period) std::memcpy(out.data() + at, out.data(), std::min(period, bytes - at));
  return out;
}

}  // namespace bench
