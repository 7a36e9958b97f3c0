/// A vision encoder's weights by role, and the table of shards that they form.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tiered/model/shard.hpp"
#include "tiered/model/weights.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered {

/// no_weight where the projector has none. Matrices are [outputs, inputs] in the file's type, all else is f32.
struct VisionLayerWeights {
  ShardId attention{}, feed_forward{};
  WeightId rope = no_weight;  ///< of vision_rope(): inv_freq, behind it the bytes of position_row
  WeightId norm1 = no_weight, norm1_bias = no_weight, k = no_weight, k_bias = no_weight, v = no_weight, v_bias = no_weight, q = no_weight,
           q_bias = no_weight, out = no_weight, out_bias = no_weight;  ///< q, k, v, out [dim, dim]
  WeightId norm2 = no_weight, norm2_bias = no_weight, gate = no_weight, gate_bias = no_weight, up = no_weight, up_bias = no_weight,
           down = no_weight, down_bias = no_weight;  ///< gate, up [hidden_dim, dim], down [dim, hidden_dim]
};

/// merge_size^2 neighbouring patches to one token.
struct VisionMergerWeights {
  ShardId shard{};
  bool merge_first = false;  ///< the norm is over merged_dim, else over each patch's dim
  WeightId norm = no_weight, norm_bias = no_weight;
  WeightId up = no_weight, up_bias = no_weight;      ///< [merged_dim, merged_dim]
  WeightId down = no_weight, down_bias = no_weight;  ///< [output_dim, merged_dim]
};

/// Shards in order of use: patches (layer -1), each layer's attention, feed-forward and deepstack merger, the merger (layer n_layers).
/// Their kinds are attention or ffn, whatever is products of rows being the latter. One row is a patch, of a merger a token. Attention has
/// two passes (Shard::n_passes): keys and values of all rows first, then what attends to them.
struct VisionWeights {
  ShardId patches{};
  WeightId patch = no_weight;  ///< [dim, patch_elems], columns as a patch's values are: the file has a matrix for each frame
  WeightId patch_bias = no_weight;
  WeightId positions = no_weight;  ///< [position_side^2, dim] f32, rows of the square one after another
  std::vector<VisionLayerWeights> layers;
  std::vector<VisionMergerWeights> deepstack;  ///< one for each layer with VisionLayerConfig::deepstack, in their order
  VisionMergerWeights merger;
  std::vector<Weight> weights;
  std::vector<Shard> shards;
  std::vector<Step> steps;
  std::vector<std::unique_ptr<float[]>> owned;  ///< what the file does not hold in f32 and is used so

  ShardTable table() const { return {shards, steps, {}, weights}; }
  Weight const& operator[](WeightId id) const { return weights[std::size_t(id)]; }
};

/// Every tensor of the file, checked; they lie in the file's mapping, so that the file must outlive them. `config` is the same file's.
/// Errors  as read_vision_config; unsupported names a tensor, too, that nothing would read.
VisionWeights read_vision_weights(GgufFile const& file, VisionConfig const& config);

}  // namespace tiered
