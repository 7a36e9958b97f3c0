/// Tiles of matrix products in plain C++, for every machine: integer dot products on 8-bit activations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/format/activation.hpp"
#include "tiered/kernels/format/format.hpp"

namespace tiered::cpu::baseline {

/// A block of 32 weights, each scale * q + min.
struct Quants32 {
  std::int8_t q[32];
  float scale, min;
};

/// A super-block of 256 weights in groups of 16, each scale * scales[g] * q - min * mins[g].
struct Quants256 {
  std::int8_t q[256];
  std::int8_t scales[16], mins[16];
  float scale, min;
};

template <class F>
constexpr bool has_min = requires(typename F::Block const& b) {
  b.m;
}
|| requires(typename F::Block const& b) { b.dmin; };

inline float block_scale(MXFP4::Block const& block) { return e8m0_to_half_float(block.e); }
template <class Block>
float block_scale(Block const& block) {
  return half_to_float(block.d);
}

template <class F>
void unpack(typename F::Block const& block, Quants32& out) {
  for (int i = 0; i < 16; ++i) {
    out.q[i] = std::int8_t(F::quant(block, i));
    out.q[i + 16] = std::int8_t(F::quant(block, i + 16));
  }
  out.scale = block_scale(block);
  if constexpr (has_min<F>) out.min = half_to_float(block.m);
}

template <class Block>
void unpack_scales(Block const& block, Quants256& out, Q4_K) {
  for (int i = 0; i < 8; ++i) {
    tiered::detail::ScaleMin const packed = tiered::detail::scale_min_k4(block.scales, i);
    out.scales[2 * i] = out.scales[2 * i + 1] = std::int8_t(packed.scale);
    out.mins[2 * i] = out.mins[2 * i + 1] = std::int8_t(packed.min);
  }
}
inline void unpack_scales(Q5_K::Block const& block, Quants256& out, Q5_K) { unpack_scales(block, out, Q4_K{}); }
inline void unpack_scales(Q2_K::Block const& block, Quants256& out, Q2_K) {
  for (int g = 0; g < 16; ++g) {
    out.scales[g] = std::int8_t(block.scales[g] & 15);
    out.mins[g] = std::int8_t(block.scales[g] >> 4);
  }
}
inline void unpack_scales(Q3_K::Block const& block, Quants256& out, Q3_K) {
  for (int g = 0; g < 16; ++g) out.scales[g] = std::int8_t(Q3_K::scale(block, g));
}
inline void unpack_scales(Q6_K::Block const& block, Quants256& out, Q6_K) {
  for (int g = 0; g < 16; ++g) out.scales[g] = block.scales[g];
}
inline void unpack_scales(IQ4_XS::Block const& block, Quants256& out, IQ4_XS) {
  for (int g = 0; g < 16; ++g) out.scales[g] = std::int8_t(IQ4_XS::scale(block, g / 2));
}

template <class F, int part>
void unpack_part(typename F::Block const& block, Quants256& out) {  // the part a constant: shifts and offsets are, too
  for (int i = 0; i < 16; ++i) {
    out.q[part * 32 + i] = std::int8_t(F::quant(block, part * 32 + i));
    out.q[part * 32 + i + 16] = std::int8_t(F::quant(block, part * 32 + i + 16));
  }
}

template <class F>
void unpack(typename F::Block const& block, Quants256& out) {
  [&]<int... part>(std::integer_sequence<int, part...>) { (unpack_part<F, part>(block, out), ...); }
  (std::make_integer_sequence<int, 8>());
  unpack_scales(block, out, F{});
  out.scale = block_scale(block);
  if constexpr (has_min<F>) out.min = half_to_float(block.dmin);
}

/// sum + what one block of one row adds to the product with one token, whose activations for that block begin at *blocks.
/// Not inlined: where the compiler's flags let it fuse multiplications and additions, it must choose alike for one token and for many.
template <class F>
[[gnu::noinline]] float add_block(float sum, Quants32 const& w, ActQ8x32 const* blocks) {
  ActQ8x32 const& x = *blocks;
  std::int32_t dot = 0;
  for (int i = 0; i < 32; ++i) dot += std::int32_t(w.q[i]) * x.q[i];
  sum += w.scale * x.scale * float(dot);
  if constexpr (has_min<F>) sum += w.min * (x.scale * float(x.sums[0] + x.sums[1]));
  return sum;
}

/// Eight blocks of activations, each an exact integer times its scale; then the weights' own scales.
template <class F>
[[gnu::noinline]] float add_block(float sum, Quants256 const& w, ActQ8x32 const* x) {
  float scaled = 0, scaled_mins = 0;
  for (int part = 0; part < 8; ++part) {
    ActQ8x32 const& block = x[part];
    std::int8_t const* const q = w.q + part * 32;
    std::int32_t first = 0, second = 0;
    for (int i = 0; i < 16; ++i) {
      first += std::int32_t(q[i]) * block.q[i];
      second += std::int32_t(q[i + 16]) * block.q[i + 16];
    }
    scaled += block.scale * float(first * w.scales[2 * part] + second * w.scales[2 * part + 1]);
    if constexpr (has_min<F>) {
      scaled_mins += block.scale * float(block.sums[0] * w.mins[2 * part] + block.sums[1] * w.mins[2 * part + 1]);
    }
  }
  sum += w.scale * scaled;
  if constexpr (has_min<F>) sum -= w.min * scaled_mins;
  return sum;
}

/// Tile of a quantised format: a block is unpacked once for up to eight tokens.
template <class F>
void quantized_tile(Product const& p, Range rows, Range tokens) {
  using Quants = std::conditional_t<F::block_elems == 256, Quants256, Quants32>;
  constexpr std::int32_t most_tokens = 8, x_per_block = F::block_elems / 32;
  std::int32_t const n_blocks = p.dim / F::block_elems;
  auto const* const w = static_cast<typename F::Block const*>(p.w);
  for (std::int32_t t0 = tokens.begin; t0 < tokens.end; t0 += most_tokens) {
    std::int32_t const n = std::min(most_tokens, tokens.end - t0);
    ActQ8x32 const* x[most_tokens];
    float* y[most_tokens];
    for (std::int32_t t = 0; t < n; ++t) {
      x[t] = reinterpret_cast<ActQ8x32 const*>(p.x_row(t0 + t, std::size_t(p.dim / 32) * sizeof(ActQ8x32)));
      y[t] = p.y_row(t0 + t);
    }
    for (std::int32_t r = rows.begin; r < rows.end; ++r) {
      typename F::Block const* const row = w + std::int64_t(r) * n_blocks;
      float sums[most_tokens] = {};
      Quants quants;
      for (std::int32_t b = 0; b < n_blocks; ++b) {
        unpack<F>(row[b], quants);
        for (std::int32_t t = 0; t < n; ++t) sums[t] = add_block<F>(sums[t], quants, x[t] + b * x_per_block);
      }
      for (std::int32_t t = 0; t < n; ++t) y[t][r] = p.bias != nullptr ? sums[t] + p.bias[r] : sums[t];
    }
  }
}

}  // namespace tiered::cpu::baseline
