/// Tiles of matrix products for AMX: weights, unpacked to bfloat16, times bfloat16 panels of activations.
///
/// A block is 32 weight rows and a stretch of their elements; it is unpacked once, into the caches, and multiplied with all tokens of
/// the tile, 32 at a time. The vector units unpack the next block meanwhile: some of its rows stand between any two steps of
/// products. Sums stay f32 in tile registers, or in a buffer while other blocks pass, and grow by 32 elements a step in ascending
/// order: the same for any number of rows and tokens.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/panels_amx.hpp"
#include "tiered/kernels/cpu/tiles_amx.hpp"
#include "tiered/kernels/cpu/unpack_amx.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::cpu::amx {

inline constexpr std::int32_t block_rows = 32, pair_tokens = 32;

/// How a tile of a product is taken apart, so that what is read again is still near. Sizes are for a core whose two threads share a
/// first-level cache of 48 KiB and a second-level cache of 2 MiB.
struct Blocking {
  /// Of a tile: its sums take 256 KiB, the panels of a stretch 128 KiB. The more rows, the less
  /// often panels come from the third level; the more tokens, the less there is to unpack.
  std::int32_t rows = 256, tokens = 256;
  /// Elements of a block. Unpacked it takes 16 KiB and should stay in the first level while all tokens pass. Half as long, and sums
  /// move as much as panels do; twice as long, and blocks come from the second level like panels.
  std::int32_t stretch = 256;
};
// TFLOP/s of bfloat16, 16 threads of the reference machine. Tiles that stay in registers 20 to 22.5; with all operands loaded from the
// first level, four loads for four products, as eight tiles hold no larger block, 8.7 to 8.9 (16.8 in a later run); with panels from
// the second level and sums moved every 256 elements 6.4. Products of 4096 x 4096 and 512 tokens here 6.5 to 7.0, PyTorch's (oneDNN) 3.2.
// Of other blockings, with F16 and an earlier version at 5.3: panels of the next stretch fetched meanwhile 4.2; panels loaded past the
// first level (TILELOADDT1) 3.1; with both, stretches of 128 or 512 and tiles of 384 x 256 or 128 x 512 2.7 to 3.6.

inline constexpr std::int32_t tile_bytes = 1024;                 // 16 rows of 64
inline constexpr std::int32_t pair_floats = 4 * tile_bytes / 4;  // sums of a block and 32 tokens: four tiles
static_assert(step_stride == block_rows / 16 * tile_bytes);

/// What a thread needs beside tiles. On the heap, made with the thread's first product: as part of its thread-local storage, it would
/// count against the stacks of all threads of the program, and those of 256 KiB would not start.
template <Blocking blocking>
struct alignas(64) Scratch {
  /// Two blocks: for each 32 elements a tile of the first 16 rows, one of the next.
  std::byte weights[2][blocking.stretch / 32 * step_stride];
  float sums[blocking.rows / block_rows * (blocking.tokens / pair_tokens) * pair_floats];
};
template <Blocking blocking>
Scratch<blocking>& scratch_of_thread() {
  thread_local std::unique_ptr<Scratch<blocking>> const scratch = std::make_unique<Scratch<blocking>>();
  return *scratch;
}

/// One tile of a product, at most blocking.rows x blocking.tokens. `Tiles`: see tiles_amx.hpp.
template <class Tiles, Blocking blocking>
class PanelProduct {
 public:
  PanelProduct(Product const& product, Unpack unpack, Range rows, Range tokens)
      : p_(product),
        unpack_(unpack),
        rows_(rows),
        tokens_(tokens),
        n_row_blocks_((rows.size() + block_rows - 1) / block_rows),
        n_pairs_((tokens.size() + pair_tokens - 1) / pair_tokens),
        n_stretches_((product.dim + stretch - 1) / stretch) {}

  [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void run() {
    std::int32_t const n_blocks = n_row_blocks_ * n_stretches_;
    fetch(block(0));
    begin_unpacking(0, 1);
    finish_unpacking();
    for (std::int32_t i = 0; i < n_blocks; ++i) {
      Block const current = block(i);
      begin_unpacking(i + 1, n_pairs_ * n_steps(current));
      for (std::int32_t pair = 0; pair < n_pairs_; ++pair) multiply(i, current, pair);
      finish_unpacking();
    }
    Tiles::release();
  }

 private:
  static constexpr std::int32_t stretch = blocking.stretch;

  /// Rows from `row` on, elements from `k` on.
  struct Block {
    std::int32_t row = 0, k = 0;
  };
  /// Sizes of the halves of a block and of a pair of panels: what the tiles must be configured for. 0: there is none.
  struct Shape {
    std::int32_t rows[2] = {}, tokens[2] = {};
    bool operator==(Shape const&) const = default;
  };

  // ---- order of blocks

  /// Few tokens: a block's rows from end to end, as memory is the limit, and their sums never leave the tiles. Many: all rows for each
  /// stretch, whose panels then come from the second-level cache.
  Block block(std::int32_t i) const {
    std::int32_t const row_block = n_pairs_ == 1 ? i / n_stretches_ : i % n_row_blocks_;
    std::int32_t const k = (n_pairs_ == 1 ? i % n_stretches_ : i / n_row_blocks_) * stretch;
    return {rows_.begin + row_block * block_rows, k};
  }
  std::int32_t n_rows(Block b) const { return std::min(block_rows, rows_.end - b.row); }
  std::int32_t n_elems(Block b) const { return std::min(stretch, p_.dim - b.k); }
  std::int32_t n_steps(Block b) const { return (n_elems(b) + 31) / 32; }
  std::int64_t row_bytes() const { return std::int64_t(p_.dim) * 2; }
  std::byte const* source(Block b) const { return static_cast<std::byte const*>(p_.w) + b.row * row_bytes() + b.k * 2; }

  // ---- unpacking, row by row

  /// So that a tile does not begin with a miss for each row, one after another.
  void fetch(Block b) const {
    for (std::int32_t i = 0; i < n_rows(b); ++i) fetch_row(reinterpret_cast<std::uintptr_t>(source(b)) + std::uintptr_t(i * row_bytes()));
  }
  /// To the second level: the first has no room. An address and no pointer, as it may be past the end.
  static void fetch_row(std::uintptr_t row) {
    for (std::uintptr_t at = 0; at < stretch * 2; at += 64) __builtin_prefetch(reinterpret_cast<void const*>(row + at), 0, 2);
  }

  /// Block i comes next, if there is one; advance() is called n_calls times until it is needed.
  void begin_unpacking(std::int32_t i, std::int32_t n_calls) {
    n_rows_ = row_ = credit_ = 0;
    if (i >= n_row_blocks_ * n_stretches_) return;
    Block const next = block(i);
    from_ = source(next);
    to_ = scratch_.weights[i % 2];
    n_elems_ = n_elems(next);
    n_rows_ = n_rows(next);
    n_calls_ = n_calls;
    // A thread's next tile usually has the rows after this one's.
    Block const after = i + 1 < n_row_blocks_ * n_stretches_ ? block(i + 1) : Block{rows_.end, 0};
    ahead_ = after.row < p_.rows ? reinterpret_cast<std::intptr_t>(source(after)) - reinterpret_cast<std::intptr_t>(from_) : 0;
  }
  /// Every call the same share of the rows: in a burst the vector units would be slower than the matrix unit.
  void advance() {
    for (credit_ += n_rows_; credit_ >= n_calls_ && row_ < n_rows_; credit_ -= n_calls_) unpack_row();
  }
  void finish_unpacking() {
    while (row_ < n_rows_) unpack_row();
  }
  /// The same row of the block after is fetched meanwhile.
  void unpack_row() {
    std::byte const* const from = from_ + row_ * row_bytes();
    fetch_row(reinterpret_cast<std::uintptr_t>(from) + std::uintptr_t(ahead_));
    unpack_(from, n_elems_, to_ + row_ / 16 * tile_bytes + row_ % 16 * 64);
    ++row_;
  }

  // ---- products. Tiles: 0..3 sums, number 2 * half of the rows + panel of the pair; 4, 5 weights; 6, 7 panels.

  Shape shape(Block b, std::int32_t pair) const {
    std::int32_t const rows = n_rows(b), tokens = std::min(pair_tokens, tokens_.size() - pair * pair_tokens);
    return {{std::min(rows, 16), std::max(rows - 16, 0)}, {std::min(tokens, 16), std::max(tokens - 16, 0)}};
  }

  [[gnu::target("amx-tile")]] void configure(Shape const& shape) {
    if (shape == configured_) return;
    configured_ = shape;
    TileConfig config;
    auto const set = [&](int tile, std::int32_t rows, std::int32_t bytes) {
      config.rows[tile] = std::uint8_t(rows > 0 && bytes > 0 ? rows : 0);
      config.row_bytes[tile] = std::uint16_t(rows > 0 && bytes > 0 ? bytes : 0);
    };
    for (int i = 0; i < 2; ++i) {
      for (int j = 0; j < 2; ++j) set(2 * i + j, shape.rows[i], shape.tokens[j] * 4);
      set(4 + i, shape.rows[i], 64);
      set(6 + i, 16, shape.tokens[i] * 4);
    }
    Tiles::configure(config);
  }

  /// Block i times a pair of panels.
  [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void multiply(std::int32_t i, Block b,
                                                                                                            std::int32_t pair) {
    Shape const sizes = shape(b, pair);
    configure(sizes);
    std::byte const* const weights = scratch_.weights[i % 2];
    if (sizes.rows[1] == 0) {
      sizes.tokens[1] == 0 ? multiply_as<1, 1>(weights, b, pair) : multiply_as<1, 2>(weights, b, pair);
    } else {
      sizes.tokens[1] == 0 ? multiply_as<2, 1>(weights, b, pair) : multiply_as<2, 2>(weights, b, pair);
    }
  }

  template <int n_halves, int n_panels>
  [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void multiply_as(std::byte const* weights,
                                                                                                               Block b, std::int32_t pair) {
    bool const alone = n_pairs_ == 1, last = b.k + stretch >= p_.dim;
    float* const sums = scratch_.sums + (alone ? 0 : (b.row - rows_.begin) / block_rows * n_pairs_ + pair) * pair_floats;
    if (b.k == 0) {
      zero_sums<n_halves, n_panels>();
    } else if (!alone) {
      load_sums<n_halves, n_panels>(sums);
    }
    std::int32_t const token = tokens_.begin + pair * pair_tokens;
    Panel first = panel(token, b, 0), second = n_panels == 2 ? panel(token + 16, b, 1) : Panel{};
    add_steps<n_halves, n_panels>(weights, first, second, n_steps(b));
    if (last || !alone) store_sums<n_halves, n_panels>(sums);
    if (last) put_result(sums, b.row, token);
  }

  struct Panel {
    std::uint16_t const* x = nullptr;
    std::int64_t stride = 0;  ///< bytes between pairs of elements

    /// 32 elements further.
    void step() { x += stride * 8; }
  };
  Panel panel(std::int32_t token, Block b, int i) const {
    return {static_cast<std::uint16_t const*>(p_.x) + panel_index(p_.n_tokens, p_.dim, token, b.k),
            configured_.tokens[i] * std::int64_t{4}};
  }

  template <int n_halves, int n_panels>
  [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] void add_steps(std::byte const* weights,
                                                                                                             Panel first, Panel second,
                                                                                                             std::int32_t n) {
    for (std::int32_t i = 0; i < n; ++i, weights += step_stride) {
      advance();
      Tiles::template load<4>(weights, 64);
      Tiles::template load<6>(first.x, first.stride);
      Tiles::template multiply<0, 4, 6>();
      if constexpr (n_halves == 2) {
        Tiles::template load<5>(weights + tile_bytes, 64);
        Tiles::template multiply<2, 5, 6>();
      }
      if constexpr (n_panels == 2) {
        Tiles::template load<7>(second.x, second.stride);
        Tiles::template multiply<1, 4, 7>();
      }
      if constexpr (n_halves == 2 && n_panels == 2) Tiles::template multiply<3, 5, 7>();
      first.step();
      second.step();
    }
  }

  template <int n_halves, int n_panels>
  [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] static void zero_sums() {
    Tiles::template zero<0>();
    if constexpr (n_panels == 2) Tiles::template zero<1>();
    if constexpr (n_halves == 2) Tiles::template zero<2>();
    if constexpr (n_halves == 2 && n_panels == 2) Tiles::template zero<3>();
  }
  template <int n_halves, int n_panels>
  [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] static void load_sums(float const* sums) {
    Tiles::template load<0>(sums, 64);
    if constexpr (n_panels == 2) Tiles::template load<1>(sums + 256, 64);
    if constexpr (n_halves == 2) Tiles::template load<2>(sums + 512, 64);
    if constexpr (n_halves == 2 && n_panels == 2) Tiles::template load<3>(sums + 768, 64);
  }
  template <int n_halves, int n_panels>
  [[gnu::target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")]] static void store_sums(float* sums) {
    Tiles::template store<0>(sums, 64);
    if constexpr (n_panels == 2) Tiles::template store<1>(sums + 256, 64);
    if constexpr (n_halves == 2) Tiles::template store<2>(sums + 512, 64);
    if constexpr (n_halves == 2 && n_panels == 2) Tiles::template store<3>(sums + 768, 64);
  }

  /// Finished sums of the tiles that are configured, from row `row` and token `token` on.
  void put_result(float const* sums, std::int32_t row, std::int32_t token) const {
    for (std::int32_t panel = 0; panel < 2; ++panel) {
      float* y[16] = {};
      for (std::int32_t half = 0; half < 2 && configured_.tokens[panel] > 0; ++half) {
        std::int32_t const first_row = row + half * 16, n = configured_.tokens[panel];
        if (configured_.rows[half] == 0) continue;
        for (std::int32_t t = 0; t < n; ++t) y[t] = p_.y_row(token + panel * 16 + t) + first_row;
        put_sums(sums + (2 * half + panel) * 256, configured_.rows[half], p_.bias != nullptr ? p_.bias + first_row : nullptr, n, y);
      }
    }
  }

  Product const& p_;
  Unpack unpack_;
  Range rows_, tokens_;
  std::int32_t n_row_blocks_, n_pairs_, n_stretches_;
  Scratch<blocking>& scratch_ = scratch_of_thread<blocking>();
  Shape configured_;  ///< nothing: tiles are not in use

  // Of the block that is being unpacked.
  std::byte const* from_ = nullptr;
  std::byte* to_ = nullptr;
  std::int32_t n_rows_ = 0, n_elems_ = 0, row_ = 0, n_calls_ = 1, credit_ = 0;
  std::intptr_t ahead_ = 0;  ///< from a row to the same of the block after, in bytes
};

/// x in panels, of all tokens of the product; x_rows null. rows and tokens begin at multiples of 16.
template <class F, class Tiles, Blocking blocking = Blocking{}>
void panel_tile(Product const& p, Range rows, Range tokens) {
  for (std::int32_t t = tokens.begin; t < tokens.end; t += blocking.tokens) {
    Range const some_tokens{t, std::min(tokens.end, t + blocking.tokens)};
    for (std::int32_t r = rows.begin; r < rows.end; r += blocking.rows) {
      PanelProduct<Tiles, blocking>(p, &unpack<F>, {r, std::min(rows.end, r + blocking.rows)}, some_tokens).run();
    }
  }
}

}  // namespace tiered::cpu::amx
