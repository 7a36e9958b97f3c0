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
  std::vector<float> inv_freq;  ///< [n_rot / 2]
  float magnitude = 1;
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
};

}  // namespace tiered
