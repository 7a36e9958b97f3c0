/// A decoder's weights by role, and the table of shards that they form.
#pragma once

#include <memory>
#include <vector>

#include "tiered/core/ids.hpp"
#include "tiered/model/shard.hpp"

namespace tiered {

inline constexpr WeightId no_weight{0xffffffffu};
constexpr bool has(WeightId id) { return id != no_weight; }

/// no_weight where the architecture has none. `rope`: RopeTable::inv_freq, and behind it position_row, where the table has that.
struct LayerWeights {
  ShardId attention{}, feed_forward{};  ///< feed_forward: the dense one, or the router's
  WeightId attn_norm = no_weight, rope = no_weight, q = no_weight, k = no_weight, v = no_weight, q_bias = no_weight, k_bias = no_weight,
           v_bias = no_weight, q_norm = no_weight, k_norm = no_weight, attn_out = no_weight, attn_out_bias = no_weight,
           attn_post_norm = no_weight;
  WeightId ffn_norm = no_weight, gate = no_weight, up = no_weight, down = no_weight, ffn_post_norm = no_weight, router = no_weight;
};

struct ModelWeights {
  WeightId embedding = no_weight, output_norm = no_weight, output = no_weight;
  std::vector<LayerWeights> layers;
  std::vector<Weight> weights;
  std::vector<Shard> shards;
  std::vector<Step> steps;
  std::vector<LayerState> states;
  std::vector<std::unique_ptr<float[]>> owned;  ///< vectors that the file does not hold in f32, and rope tables
};

}  // namespace tiered
