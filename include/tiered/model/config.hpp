/// A model's numbers as they stand in its file: plain data, filled by model/registry.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tiered/kernels/args.hpp"

namespace tiered {

enum class MixerKind : std::uint8_t { attention };
enum class FeedForwardKind : std::uint8_t { dense, experts };

struct AttentionConfig {
  std::int32_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::int32_t window = 0;      ///< sliding window in positions, 0: all
  std::int32_t rope_table = 0;  ///< index into ModelConfig::rope_tables
  float scale = 0;              ///< on q . k
};

struct ExpertsConfig {
  std::int32_t n_experts = 0, n_experts_used = 0;
  Gating gating = Gating::softmax;
  bool normalise = true;  ///< the chosen weights sum to one
  float scale = 1;
};

struct LayerConfig {
  MixerKind mixer = MixerKind::attention;
  FeedForwardKind feed_forward = FeedForwardKind::dense;
  AttentionConfig attention;
  ExpertsConfig experts;
  std::int32_t hidden_dim = 0;  ///< of the dense feed-forward, or of one expert
};

/// Angles per position, with every scaling of the file already in them.
struct RopeTable {
  std::vector<float> inv_freq;             ///< [n_rot / 2]
  std::vector<std::uint8_t> position_row;  ///< likewise, each below rope_position_rows; empty: one position turns all pairs
  float magnitude = 1;
};

/// Rotary positions of a row where a table has position_row: time, height, width.
inline constexpr std::int32_t rope_position_rows = 3;

/// Of a model whose rows come from outside and leave to there, and see each other in any order: an encoder. Bytes are of one row.
struct BlockConfig {
  std::int32_t n_ranges = 0;             ///< of the block's rows that a row may see: AttendRequest::seen; 0: a row sees those before it
  std::vector<std::size_t> input_bytes;  ///< by plane of ExecContext::inputs
  std::size_t output_bytes = 0;          ///< of the widest plane of ExecContext::outputs_to
  std::int32_t rows_per_output = 1;      ///< rows that become one there; chunks are multiples of it
};

struct ModelConfig {
  std::string architecture, name;
  std::int32_t dim = 0, vocab_size = 0, n_layers = 0;
  std::int32_t max_seq_len = 0;  ///< trained context
  float norm_eps = 1e-5f;
  float embedding_scale = 1;
  Activation activation = Activation::silu;
  RopeKind rope = RopeKind::halves;
  std::vector<RopeTable> rope_tables;
  std::vector<LayerConfig> layers;
  /// Behind so many first layers, but the last, more of an encoder's vectors are added to the rows that those entered at (DeepStack).
  std::int32_t n_deepstack_layers = 0;
  BlockConfig block;

  /// Rows of rotary positions that kernels are given.
  std::int32_t n_position_rows() const {
    for (RopeTable const& table : rope_tables) {
      if (!table.position_row.empty()) return rope_position_rows;
    }
    return 1;
  }
};

}  // namespace tiered
