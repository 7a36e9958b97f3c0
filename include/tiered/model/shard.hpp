/// The unit of placement and of streaming, its weights, and the steps of one pass: plain data that a model hands out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tiered/core/dtype.hpp"
#include "tiered/core/ids.hpp"

namespace tiered {

enum class ShardKind : std::uint8_t {
  embedding,  ///< looked up row by row in host memory, never placed
  attention,  ///< a layer's mixer with its norms
  ffn,        ///< a layer's dense feed-forward with its norms
  router,     ///< a layer's router and what else every token of an expert layer needs: norms, shared experts
  expert,     ///< one routed expert of one layer
  output,     ///< last norm and head
};
inline constexpr std::size_t n_shard_kinds = 6;
constexpr std::string_view name(ShardKind kind) {
  switch (kind) {
    case ShardKind::embedding: return "embedding";
    case ShardKind::attention: return "attention";
    case ShardKind::ffn: return "ffn";
    case ShardKind::router: return "router";
    case ShardKind::expert: return "expert";
    case ShardKind::output: return "output";
  }
  return "?";
}

/// One matrix [rows, cols], or one vector as [1, cols], as it lies in the file (an expert's is a slice of a tensor).
struct Weight {
  std::byte const* data = nullptr;  ///< in the model's host memory
  DType dtype{};
  std::int32_t rows = 0, cols = 0;
  ShardId shard{};
  std::int32_t first_row = 0;  ///< its first row among all rows of its shard
  std::size_t offset = 0;      ///< bytes from the shard's begin to its first row, where the shard lies whole
  std::int32_t row_bits = 0;   ///< significant bits that rows in products with it must keep, where kernels can: KernelTable::product
  std::size_t row_bytes() const { return tiered::row_bytes(dtype, std::uint64_t(cols)); }
  std::size_t bytes() const { return row_bytes() * std::size_t(rows); }
};
/// Every weight of a shard begins at a multiple of this, counted from the shard's begin.
inline constexpr std::size_t weight_alignment = 256;

/// The bit of a file's type in Shard::dtypes.
constexpr std::uint64_t dtype_bit(DType type) { return std::uint64_t{1} << std::uint32_t(type); }

/// A shard is laid out as its weights one after another, each aligned to weight_alignment, in order of use.
struct Shard {
  ShardId id{};
  std::int32_t layer = 0;  ///< -1 for embedding, n_layers for output
  ShardKind kind{};
  std::size_t bytes = 0;       ///< with the gaps of alignment
  std::int32_t n_rows = 0;     ///< rows of all its weights; it may be streamed in row ranges (experts go whole)
  Range weights;               ///< WeightIds
  std::int32_t expert = -1;    ///< number within the layer
  double macs_per_token = 0;   ///< multiply-adds for one row that goes through it
  double use_probability = 1;  ///< that one token needs it: n_experts_used / n_experts for an expert
  std::uint64_t dtypes = 0;    ///< dtype_bit of every matrix in it: what a device must have products for
  std::int32_t n_passes = 1;  ///< of its step: all rows of a block go through one before any does the next; the last may change hidden rows
};

/// What a sequence keeps for one layer: KV that grows with its length, or a recurrent state of fixed size.
struct LayerState {
  std::size_t bytes_per_token = 0, bytes_per_sequence = 0;
  std::size_t elems_per_token = 0;  ///< keys and values; how many bytes they take, the engine's KV type says
  double macs_per_position = 0;     ///< multiply-adds for one row and one position it attends to
  std::int32_t window = 0;          ///< positions that matter, 0: all
};

/// How many of a state's n_pages are in VRAM, those of the first positions, where `share` of it is: plans count with it, KvCache lays out.
constexpr std::int32_t pages_in_vram(float share, std::int32_t n_pages) {
  double const pages = double(share) * double(n_pages) + 0.5;
  return pages < 1 ? 0 : pages >= double(n_pages) ? n_pages : std::int32_t(pages);
}

/// One pass over a layer's weights: rows that go through it, positions kept by all sequences together, and how many those are.
struct Rows {
  std::int32_t n = 1, context = 0, n_sequences = 1;
  bool operator==(Rows const&) const = default;
};

/// One shard's turn. The experts of a layer have none: they run inside their router's.
struct Step {
  std::int32_t layer = 0;
  ShardId shard{};
};

/// All that a plan needs to know of a model; the model owns what the spans show.
struct ShardTable {
  std::span<Shard const> shards;
  std::span<Step const> steps;
  std::span<LayerState const> states;  ///< one per layer
  std::span<Weight const> weights;

  Shard const& shard(ShardId id) const { return shards[std::size_t(id)]; }
  Weight const& weight(WeightId id) const { return weights[std::size_t(id)]; }

  /// Where row `row` (counted over the whole shard; n_rows for the end) begins, in bytes from the shard's begin.
  std::size_t row_offset(Shard const& s, std::int32_t row) const {
    if (row >= s.n_rows) return s.bytes;
    std::int32_t low = s.weights.begin, high = s.weights.end;  // the last weight with first_row <= row
    while (high - low > 1) {
      std::int32_t const middle = low + (high - low) / 2;
      (weights[std::size_t(middle)].first_row <= row ? low : high) = middle;
    }
    Weight const& w = weights[std::size_t(low)];
    return w.offset + std::size_t(row - w.first_row) * w.row_bytes();
  }
};

}  // namespace tiered
