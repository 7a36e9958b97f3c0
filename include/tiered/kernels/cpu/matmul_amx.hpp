/// Tiles of matrix products for AMX: weights, unpacked to bfloat16, times bfloat16 panels of activations.
///
/// A block is 32 weight rows and a stretch of their elements; it is unpacked once, into the caches, and multiplied with all tokens of
/// the tile, 32 at a time. The vector units unpack the next block meanwhile: a piece of a row or some stand between any two steps of
/// products. Sums stay f32 in tile registers, or in a buffer while other blocks pass, and grow by 32 elements a step in ascending
/// order: the same for any number of rows and tokens. Operands in two parts are as rows that are three times as long: parts of both that
/// meet are the passes of a product, the least products first.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/panels_amx.hpp"
#include "tiered/kernels/cpu/tiles_amx.hpp"
#include "tiered/kernels/cpu/unpack_amx.hpp"
#include "tiered/kernels/format/activation.hpp"

namespace tiered::cpu::amx {

inline constexpr std::int32_t block_rows = 32, pair_tokens = 32;

/// How a tile of a product is taken apart, so that what is read again is still near. Sizes are for a core that has a first-level cache of
/// 48 KiB and a second-level cache of 2 MiB to itself.
struct Blocking {
  /// Of a tile, at most: its sums take 576 KiB, the panels of a stretch 1 MiB. make_block_tiling() chooses.
  std::int32_t rows = 288, tokens = 512;
  /// Elements of a block, which takes 64 KiB unpacked. The longer, the less often sums are moved.
  std::int32_t stretch = panel_stretch;
  /// The same where sums are never moved, as one pair of panels is all: so little of a tile is unpacked before its products begin.
  std::int32_t few_stretch = 256;
};
// TFLOP/s, 16 threads of the reference machine, one a core: products of F16 weights and 512 tokens in a program of its own, which hands
// tiles out in turn; best and median of 12. Registers alone 14.9. Before (stretches of 256, panels of whole rows, rows unpacked at once,
// tiles of 256 x 256 or 256 x 128): 4096 x 4096 8.0 and 6.6, 9216 x 3072 9.7 and 8.9, 3072 x 9216 8.1 and 7.6. With stretches of 512 or
// 1024, and `piece` elements unpacked at a time, tiles of R x T:
//   4096 x 4096  256 x 256, a row at a time, 512: 6.9, 6.4; 1024: 9.7, 7.1. In pieces, 512: 9.5, 7.0; 1024: 9.9, 7.5. 1024 and pieces:
//                128 x 256 11.1, 8.6; 128 x 512 10.6, 9.9; 256 x 512 6.8, 6.6; 512 x 256 6.2, 5.6. Nothing unpacked, 256 x 256: 13.9, 13.1
//   9216 x 3072  1024 and pieces, 288 x 256 11.6, 10.6; 288 x 512 11.3, 10.5; 192 x 256 10.5, 10.1; 384 x 256 9.4, 8.6
//   3072 x 9216  1024 and pieces, 192 x 256 9.6, 6.9; 256 x 256 9.5, 7.9; 192 x 512 7.3, 6.5
// No faster: loads of the next step among the products of this one, panels of the next stretch fetched meanwhile, a part of a block
// unpacked before each pair, tiles of 64 x 16 or 16 x 64 in registers. On another day registers did 20 to 22.5, PyTorch's (oneDNN) 3.2.

inline constexpr std::int32_t tile_bytes = 1024;                 // 16 rows of 64
inline constexpr std::int32_t pair_floats = 4 * tile_bytes / 4;  // sums of a block and 32 tokens: four tiles
static_assert(step_stride == block_rows / 16 * tile_bytes);

/// Elements of a row that are unpacked at a time: a row of a block would keep products waiting.
inline constexpr std::int32_t piece = 128;

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
  thread_local std::unique_ptr<Scratch<blocking>> const scratch = std::make_unique_for_overwrite<Scratch<blocking>>();
  return *scratch;
}

/// A part of the weights and one of the rows, which meet.
struct Pass {
  Unpack unpack = nullptr;     ///< makes that of the weights
  std::uint64_t x_offset = 0;  ///< of that of the rows, in half-words
};

/// One tile of a product, at most blocking.rows x blocking.tokens. `Tiles`: see tiles_amx.hpp.
template <class Tiles, Blocking blocking>
class PanelProduct {
  // A panel's elements of a block lie together.
  static_assert(panel_stretch % blocking.stretch == 0 && panel_stretch % blocking.few_stretch == 0);
  static_assert(blocking.few_stretch <= blocking.stretch);

 public:
  /// The passes must outlive it.
  PanelProduct(Product const& product, std::span<Pass const> passes, Range rows, Range tokens)
      : p_(product),
        passes_(passes),
        rows_(rows),
        tokens_(tokens),
        n_row_blocks_((rows.size() + block_rows - 1) / block_rows),
        n_pairs_((tokens.size() + pair_tokens - 1) / pair_tokens),
        stretch_(n_pairs_ == 1 ? blocking.few_stretch : blocking.stretch),
        n_of_pass_((product.dim + stretch_ - 1) / stretch_),
        n_stretches_(n_of_pass_ * std::int32_t(passes.size())) {}

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
  /// Rows from `row` on, elements from `k` on.
  struct Block {
    std::int32_t row = 0, k = 0;
    std::size_t pass = 0;
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
    std::int32_t const stretch = n_pairs_ == 1 ? i % n_stretches_ : i / n_row_blocks_;
    return {rows_.begin + row_block * block_rows, stretch % n_of_pass_ * stretch_, std::size_t(stretch / n_of_pass_)};
  }
  std::int32_t n_rows(Block b) const { return std::min(block_rows, rows_.end - b.row); }
  std::int32_t n_elems(Block b) const { return std::min(stretch_, p_.dim - b.k); }
  std::int32_t n_steps(Block b) const { return (n_elems(b) + 31) / 32; }
  std::int64_t row_bytes() const { return std::int64_t(p_.dim) * 2; }
  std::byte const* source(Block b) const { return static_cast<std::byte const*>(p_.w) + b.row * row_bytes() + b.k * 2; }

  // ---- unpacking, piece by piece

  /// So that a tile does not begin with a miss for each row, one after another.
  void fetch(Block b) const {
    for (std::int32_t i = 0; i < n_rows(b); ++i) {
      std::uintptr_t const row = reinterpret_cast<std::uintptr_t>(source(b)) + std::uintptr_t(i * row_bytes());
      for (std::int32_t k = 0; k < n_elems(b); k += piece) fetch_piece(row + std::uintptr_t(k) * 2);
    }
  }
  /// To the second level: the first has no room. An address and no pointer, as it may be past the end.
  static void fetch_piece(std::uintptr_t begin) {
    for (std::uintptr_t at = 0; at < piece * 2; at += 64) __builtin_prefetch(reinterpret_cast<void const*>(begin + at), 0, 2);
  }

  /// Block i comes next, if there is one; advance() is called n_calls times until it is needed.
  void begin_unpacking(std::int32_t i, std::int32_t n_calls) {
    n_pieces_ = row_ = k_ = credit_ = 0;
    if (i >= n_row_blocks_ * n_stretches_) return;
    Block const next = block(i);
    unpack_ = passes_[next.pass].unpack;
    from_ = source(next);
    to_ = scratch_.weights[i % 2];
    n_elems_ = n_elems(next);
    left_ = n_pieces_ = n_rows(next) * ((n_elems_ + piece - 1) / piece);
    n_calls_ = n_calls;
    // A thread's next tile usually has the rows after this one's.
    Block const after = i + 1 < n_row_blocks_ * n_stretches_ ? block(i + 1) : Block{rows_.end};
    ahead_ = after.row < p_.rows ? reinterpret_cast<std::intptr_t>(source(after)) - reinterpret_cast<std::intptr_t>(from_) : 0;
  }
  /// Every call the same share of the pieces: in a burst the vector units would be slower than the matrix unit.
  void advance() {
    for (credit_ += n_pieces_; credit_ >= n_calls_ && left_ > 0; credit_ -= n_calls_) unpack_piece();
  }
  void finish_unpacking() {
    while (left_ > 0) unpack_piece();
  }
  /// The same piece of the block after is fetched meanwhile.
  void unpack_piece() {
    std::byte const* const from = from_ + k_ * 2;
    fetch_piece(reinterpret_cast<std::uintptr_t>(from) + std::uintptr_t(ahead_));
    unpack_(from, std::min(piece, n_elems_ - k_), to_ + row_ / 16 * tile_bytes + row_ % 16 * 64 + k_ / 32 * step_stride);
    --left_;
    k_ += piece;
    if (k_ < n_elems_) return;
    k_ = 0;
    ++row_;
    from_ += row_bytes();
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
    bool const alone = n_pairs_ == 1, first_block = b.k == 0 && b.pass == 0,
               last = b.k + stretch_ >= p_.dim && b.pass + 1 == passes_.size();
    float* const sums = scratch_.sums + (alone ? 0 : (b.row - rows_.begin) / block_rows * n_pairs_ + pair) * pair_floats;
    if (first_block) {
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
    std::uint16_t const* const x = static_cast<std::uint16_t const*>(p_.x) + passes_[b.pass].x_offset;
    return {x + panel_index(p_.n_tokens, p_.dim, token, b.k), configured_.tokens[i] * std::int64_t{4}};
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
  std::span<Pass const> passes_;
  Range rows_, tokens_;
  std::int32_t n_row_blocks_, n_pairs_, stretch_, n_of_pass_, n_stretches_;
  Scratch<blocking>& scratch_ = scratch_of_thread<blocking>();
  Shape configured_;  ///< nothing: tiles are not in use

  // Of the block that is being unpacked.
  Unpack unpack_ = nullptr;
  std::byte const* from_ = nullptr;  ///< row row_
  std::byte* to_ = nullptr;
  std::int32_t n_pieces_ = 0, left_ = 0, n_elems_ = 0, row_ = 0, k_ = 0, n_calls_ = 1, credit_ = 0;
  std::intptr_t ahead_ = 0;  ///< from a row to the same of the block after, in bytes
};

/// Part by part of a tile, each at most blocking.rows x blocking.tokens.
template <class Tiles, Blocking blocking>
void multiply_passes(Product const& p, std::span<Pass const> passes, Range rows, Range tokens) {
  for (std::int32_t t = tokens.begin; t < tokens.end; t += blocking.tokens) {
    Range const some_tokens{t, std::min(tokens.end, t + blocking.tokens)};
    for (std::int32_t r = rows.begin; r < rows.end; r += blocking.rows) {
      PanelProduct<Tiles, blocking>(p, passes, {r, std::min(rows.end, r + blocking.rows)}, some_tokens).run();
    }
  }
}

/// x in panels, of all tokens of the product; x_rows null. rows and tokens begin at multiples of 16.
template <class F, class Tiles, Blocking blocking = Blocking{}>
void panel_tile(Product const& p, Range rows, Range tokens) {
  constexpr Pass passes[] = {{&unpack<F>, 0}};
  multiply_passes<Tiles, blocking>(p, passes, rows, tokens);
}

/// The same for x in panels of two parts; so are weights, exactly, whose second parts do not meet those of x: 2^-16 of a product at most.
template <class F, class Tiles, Blocking blocking = Blocking{}>
void two_panels_tile(Product const& p, Range rows, Range tokens) {
  std::uint64_t const second = act_second_offset(DType::act_bf16_two, std::uint64_t(p.n_tokens), std::uint64_t(p.dim)) / 2;
  Pass const passes[] = {{&unpack<F, true>, 0}, {&unpack<F>, second}, {&unpack<F>, 0}};
  multiply_passes<Tiles, blocking>(p, passes, rows, tokens);
}

}  // namespace tiered::cpu::amx
