/// Tiles of quantised matrix products with many tokens for AMX: 8-bit products on tiles, all else as for AVX-512, with the same bits.
///
/// One instruction of the matrix unit makes the exact totals of a block of 32 elements, for 16 tokens and the 16 rows of a panel of
/// panels_avx512.hpp, whose layout is that of its second operand. They go through a small buffer to the vector units, which scale and
/// add them in the order that stretch_elems documents, while the matrix unit is some blocks ahead.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include <immintrin.h>

#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/matmul_avx512.hpp"
#include "tiered/kernels/cpu/panels_avx512.hpp"
#include "tiered/kernels/cpu/tiles_amx.hpp"

// g++ 12 takes the "undefined" operands of its own intrinsics for mistakes (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace tiered::cpu::amx {

/// How a tile of a product is taken apart; compare Blocking.
struct ByteBlocking {
  /// Of a tile. Panels of so many rows and 16 tokens of one stretch take 0.7 MB, those with scales for 16 weights 1 MB; two threads
  /// share a second-level cache of 2 MB.
  std::int32_t rows = 128, tokens = 512;
  /// Blocks of 16 tokens that should stay in the first-level cache while all panels pass: 9 KiB.
  std::int32_t kept_blocks = 16;
  bool panels_past_first_level = true;  ///< they are read once while these are kept
};

/// Up to 16 tokens of a stretch, block by block; missing ones are the last one again.
struct alignas(64) TokenBlocks {
  std::int8_t q[avx512::stretch_blocks][16][32];
  std::uint64_t heads[avx512::stretch_blocks][16];  ///< the first eight bytes of ActQ8x32
  float scale[avx512::stretch_blocks][16];
  float sums[avx512::stretch_blocks][2][16];  ///< what minima are multiplied with
};

/// In which order the blocks of a stretch are summed: those of lane p are numbers [first[p], first[p + 1]).
struct BlockOrder {
  std::int32_t first[17] = {};
  std::uint8_t block[avx512::stretch_blocks], place[avx512::stretch_blocks];  ///< in the stretch; in the panel
};

/// What a thread needs beside tiles; on the heap as Scratch is.
template <class Panel, std::int32_t rows>
struct alignas(64) ByteScratch {
  Panel panels[rows / 16];
  TokenBlocks x;
  std::int32_t totals[4][2][16][16];  ///< of blocks on their way, halves where weights have scales of 16: token, row
  float four[rows / 16][16][16];      ///< of each panel: sums of up to four lanes; token, row
  float all[rows / 16][16][16];       ///< sums of the lanes before
};
template <class Panel, std::int32_t rows>
ByteScratch<Panel, rows>& byte_scratch_of_thread() {
  thread_local std::unique_ptr<ByteScratch<Panel, rows>> const scratch = std::make_unique<ByteScratch<Panel, rows>>();
  return *scratch;
}

/// One tile of a product.
template <class F, class Tiles, ByteBlocking blocking>
class ByteProduct {
 public:
  ByteProduct(Product const& product, Range rows, Range tokens) : p_(product), rows_(rows), tokens_(tokens) {}

  [[gnu::target("amx-tile")]] void run() {
    for (std::int32_t k = 0; k < p_.dim; k += avx512::stretch_elems) {
      for (std::int32_t r = rows_.begin; r < rows_.end; r += blocking.rows) multiply(k, {r, std::min(rows_.end, r + blocking.rows)});
    }
    Tiles::release();
  }

 private:
  using U = avx512::Unpack<F>;
  using Panel = avx512::PanelOf<F>;
  static constexpr bool has_groups = U::has_groups, is_signed = U::offset != 0;
  static constexpr int n_mins = U::n_mins;
  static constexpr std::uint32_t ahead = 3, n_totals = ahead + 1;  ///< blocks that the matrix unit is ahead

  /// Elements from k on of some rows.
  void multiply(std::int32_t k, Range rows) {
    std::int32_t const n_blocks = std::min(avx512::stretch_elems, p_.dim - k) / 32;
    pack(k, n_blocks, rows);
    set_order(s_.panels[0]);
    std::int32_t lanes = 16;  // whose blocks are kept
    while (lanes > 1 && lanes * n_blocks > blocking.kept_blocks * 16) lanes /= 2;
    std::int32_t const n_panels = (rows.size() + 15) / 16;
    for (std::int32_t t = tokens_.begin; t < tokens_.end; t += 16) {
      std::int32_t const n = std::min(16, tokens_.end - t);
      arrange(t, n, k, n_blocks);
      configure(n);
      for (std::int32_t p = 0; p < 16; p += lanes)
        n > 8 ? multiply_panels<16>(n_panels, {p, p + lanes}) : multiply_panels<8>(n_panels, {p, p + lanes});
      for (std::int32_t i = 0; i < n_panels; ++i) put(s_.all[i], {t, t + n}, {rows.begin + i * 16, rows.end}, k > 0);
    }
  }

  // ---- operands

  void pack(std::int32_t k, std::int32_t n_blocks, Range rows) {
    std::int64_t const row_bytes = std::int64_t(p_.dim / F::block_elems) * F::block_bytes;
    std::byte const* const w = static_cast<std::byte const*>(p_.w) + std::int64_t(k / F::block_elems) * F::block_bytes;
    for (std::int32_t first = rows.begin; first < rows.end; first += 16) {
      std::byte const* row[16];
      for (int i = 0; i < 16; ++i) row[i] = w + std::min(first + i, rows.end - 1) * row_bytes;
      Panel& panel = s_.panels[(first - rows.begin) / 16];
      avx512::pack<F>(row, std::int64_t(n_blocks) * 32 / F::block_elems * F::block_bytes, panel);
      if constexpr (is_signed) remove_offset(panel);
    }
  }
  /// Then totals need no correction.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni")]] static void remove_offset(Panel& panel) {
    for (int p = 0; p < 16; ++p) {
      __m512i const offset = _mm512_set1_epi8(char(U::offset * U::multiple(p % 4)));
      for (std::int32_t place = p * panel.n_groups; place < (p + 1) * panel.n_groups; ++place) {
#pragma GCC unroll 8
        for (auto& w : panel.w[place]) _mm512_store_si512(w, _mm512_sub_epi8(_mm512_load_si512(w), offset));
      }
    }
  }

  void set_order(Panel const& panel) {
    std::int32_t n = 0;
    for (int p = 0; p < 16; ++p) {
      order_.first[p] = n;
      for (std::int32_t g = 0; g < panel.n_blocks[p]; ++g, ++n) {
        order_.block[n] = std::uint8_t(U::block(p) + 16 * g);
        order_.place[n] = std::uint8_t(p * panel.n_groups + g);
      }
    }
    order_.first[16] = n;
  }

  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni")]] void arrange(std::int32_t first, std::int32_t n, std::int32_t k,
                                                                        std::int32_t n_blocks) {
    TokenBlocks& out = s_.x;
    for (std::int32_t t = 0; t < 16; ++t) {
      std::byte const* const row = p_.x_row(first + std::min(t, n - 1), std::size_t(p_.dim / 32) * sizeof(ActQ8x32));
      auto const* const x = reinterpret_cast<ActQ8x32 const*>(row) + k / 32;
      for (std::int32_t b = 0; b < n_blocks; ++b) {
        std::memcpy(&out.heads[b][t], x + b, 8);
        _mm256_store_si256(reinterpret_cast<__m256i*>(out.q[b][t]), _mm256_loadu_si256(reinterpret_cast<__m256i const*>(x[b].q)));
      }
    }
    __m512i const even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    __m512i const odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    for (std::int32_t b = 0; b < n_blocks; ++b) {
      __m512i const low = _mm512_load_si512(out.heads[b]), high = _mm512_load_si512(out.heads[b] + 8);
      __m512 const scale = _mm512_castsi512_ps(_mm512_permutex2var_epi32(low, even, high));
      _mm512_store_ps(out.scale[b], scale);
      if constexpr (n_mins == 0) continue;
      __m512i const both = _mm512_permutex2var_epi32(low, odd, high);
      __m512i whole[2] = {_mm512_madd_epi16(both, _mm512_set1_epi16(1)), _mm512_srai_epi32(both, 16)};
      if constexpr (n_mins == 2) whole[0] = _mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16);
#pragma GCC unroll 2
      for (int i = 0; i < n_mins; ++i) {
        __m512 const sum = _mm512_mul_ps(scale, _mm512_cvtepi32_ps(whole[i]));
        _mm512_store_ps(out.sums[b][i], U::min_sign > 0 ? sum : _mm512_sub_ps(_mm512_set1_ps(-0.0f), sum));
      }
    }
  }

  // ---- products. Tiles: 0, 1 totals; 2, 3 tokens; 4, 5 weights; odd ones for every other block, or for second halves of blocks.

  [[gnu::target("amx-tile")]] void configure(std::int32_t n_tokens) {
    if (n_tokens == configured_) return;
    configured_ = n_tokens;
    constexpr std::uint16_t elems = has_groups ? 16 : 32;
    TileConfig config;
    for (int i = 0; i < 2; ++i) {
      config.rows[i] = config.rows[2 + i] = std::uint8_t(n_tokens);
      config.row_bytes[i] = config.row_bytes[4 + i] = 64;
      config.row_bytes[2 + i] = elems;
      config.rows[4 + i] = elems / 4;
    }
    Tiles::configure(config);
  }

  template <int i>
  [[gnu::target("amx-tile,amx-int8"), gnu::always_inline]] static inline void multiply_block(std::int8_t const* x, std::uint8_t const* w,
                                                                                             std::int32_t* totals) {
    Tiles::template load<2 + i>(x, 32);
    if constexpr (blocking.panels_past_first_level) {
      Tiles::template load_once<4 + i>(w, 64);
    } else {
      Tiles::template load<4 + i>(w, 64);
    }
    Tiles::template zero<i>();
    Tiles::template multiply_bytes<i, 2 + i, 4 + i, is_signed>();
    Tiles::template store<i>(totals, 64);
  }
  /// The totals of block number i, which is the n-th one.
  [[gnu::target("amx-tile,amx-int8"), gnu::always_inline]] inline void begin(Panel const& panel, std::int32_t i, std::uint32_t n) {
    std::int8_t const* const x = s_.x.q[order_.block[i]][0];
    std::uint8_t const* const w = panel.w[order_.place[i]][0][0];
    auto& totals = s_.totals[n % n_totals];
    if constexpr (has_groups) {
      multiply_block<0>(x, w, totals[0][0]);
      multiply_block<1>(x + 16, w + 256, totals[1][0]);
    } else {
      n % 2 == 0 ? multiply_block<0>(x, w, totals[0][0]) : multiply_block<1>(x, w, totals[0][0]);
    }
  }
  /// Adds block number i, its totals being given, to the lanes of n tokens.
  template <int n>
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] inline void finish(Panel const& panel, std::int32_t i,
                                                                                                  std::int32_t const (&totals)[2][16][16],
                                                                                                  __m512 (&lane)[n]) const {
    auto const& factors = panel.factors[order_.place[i]];
    std::int32_t const block = order_.block[i];
    __m512 factor[Panel::n_factors];
#pragma GCC unroll 5
    for (int f = 0; f < Panel::n_factors; ++f) factor[f] = _mm512_load_ps(factors[f]);
#pragma GCC unroll 16
    for (int t = 0; t < n; ++t) {
      __m512 whole = _mm512_cvtepi32_ps(_mm512_load_si512(totals[has_groups][t]));
      if constexpr (has_groups) {
        whole = _mm512_mul_ps(whole, factor[2]);
        whole = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(totals[0][t])), factor[1], whole);
      }
      lane[t] = _mm512_fmadd_ps(whole, _mm512_mul_ps(factor[0], _mm512_set1_ps(s_.x.scale[block][t])), lane[t]);
#pragma GCC unroll 2
      for (int m = 0; m < n_mins; ++m)
        lane[t] = _mm512_fmadd_ps(factor[(has_groups ? 3 : 1) + m], _mm512_set1_ps(s_.x.sums[block][m][t]), lane[t]);
    }
  }

  /// Some lanes of n tokens and the rows of all panels.
  template <int n>
  [[gnu::target("amx-tile,amx-int8,avx512bw,avx512dq,avx512vl,avx512vnni")]] void multiply_panels(std::int32_t n_panels, Range lanes) {
    std::int32_t const first = order_.first[lanes.begin], end = order_.first[lanes.end];
    std::uint32_t const n_blocks = std::uint32_t(end - first) * std::uint32_t(n_panels);
    std::uint32_t begun = 0, finished = 0;
    Panel const* next_panel = s_.panels;
    std::int32_t next = first;
    for (std::int32_t panel = 0; panel < n_panels; ++panel) {
      for (std::int32_t p = lanes.begin; p < lanes.end; ++p) {
        __m512 lane[n];
#pragma GCC unroll 16
        for (int t = 0; t < n; ++t) lane[t] = _mm512_setzero_ps();
        for (std::int32_t i = order_.first[p]; i < order_.first[p + 1]; ++i, ++finished) {
          for (; begun < n_blocks && begun <= finished + ahead; ++begun) {
            begin(*next_panel, next, begun);
            if (++next == end) next = first, ++next_panel;
          }
          finish<n>(s_.panels[panel], i, s_.totals[finished % n_totals], lane);
        }
        join<n>(p, lane, s_.four[panel], s_.all[panel]);
      }
    }
  }
  /// Lane p, all n tokens of it, to the sums of those before.
  template <int n>
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni"), gnu::always_inline]] static inline void join(std::int32_t p,
                                                                                                       __m512 const (&lane)[n],
                                                                                                       float (&four)[16][16],
                                                                                                       float (&all)[16][16]) {
#pragma GCC unroll 16
    for (int t = 0; t < n; ++t) {
      __m512 const sum = p % 4 == 0 ? lane[t] : _mm512_add_ps(_mm512_load_ps(four[t]), lane[t]);
      _mm512_store_ps(four[t], sum);
      if (p % 4 == 3) _mm512_store_ps(all[t], p == 3 ? sum : _mm512_add_ps(_mm512_load_ps(all[t]), sum));
    }
  }

  /// Adds the sums of a stretch to y, the first ones to the bias. rows: from those of the panel on.
  [[gnu::target("avx512bw,avx512dq,avx512vl,avx512vnni")]] void put(float const (&sums)[16][16], Range tokens, Range rows, bool add) const {
    __mmask16 const valid = __mmask16((1u << std::min(16, rows.size())) - 1);
    for (std::int32_t t = tokens.begin; t < tokens.end; ++t) {
      float* const y = p_.y_row(t) + rows.begin;
      float const* const before = add ? y : p_.bias != nullptr ? p_.bias + rows.begin : nullptr;
      __m512 const start = before != nullptr ? _mm512_maskz_loadu_ps(valid, before) : _mm512_setzero_ps();
      _mm512_mask_storeu_ps(y, valid, _mm512_add_ps(start, _mm512_load_ps(sums[t - tokens.begin])));
    }
  }

  Product const& p_;
  Range rows_, tokens_;
  BlockOrder order_;
  ByteScratch<Panel, blocking.rows>& s_ = byte_scratch_of_thread<Panel, blocking.rows>();
  std::int32_t configured_ = 0;  ///< tokens; 0: tiles are not in use
};

/// Few tokens as for AVX-512: panels would have to be packed, and most rows of a tile would be empty.
template <class F, class Tiles, ByteBlocking blocking = ByteBlocking{}>
void byte_tile(Product const& p, Range rows, Range tokens) {
  if (tokens.size() <= 16) return avx512::quantized_tile<F>(p, rows, tokens);
  ByteProduct<F, Tiles, blocking>(p, rows, tokens).run();
}

}  // namespace tiered::cpu::amx

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
