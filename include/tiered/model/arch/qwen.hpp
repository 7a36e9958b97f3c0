/// `qwen2`, `qwen3` and `qwen3moe` files.
#pragma once

#include "tiered/model/arch/common.hpp"

namespace tiered::arch {

namespace detail {
inline ModelConfig read_qwen(Keys const& keys) {
  ModelConfig c = read_common(keys);
  c.rope_tables.push_back(make_rope_table(read_rope_base(keys), read_n_rot(keys, c), rope_scaling_factor(keys)));
  return c;
}
}  // namespace detail

/// Biases on q, k and v.
inline ModelConfig qwen2(GgufFile const& file) { return detail::read_qwen(Keys(file, "qwen2")); }

/// A norm on every head of q and k.
inline ModelConfig qwen3(GgufFile const& file) { return detail::read_qwen(Keys(file, "qwen3")); }

/// qwen3 with routed experts. The architecture means normalised weights (norm_topk_prob); no key says so.
inline ModelConfig qwen3moe(GgufFile const& file) {
  Keys const keys(file, "qwen3moe");
  ModelConfig c = detail::read_qwen(keys);
  ExpertsConfig experts;
  experts.n_experts = keys.count("expert_count", 1, 1 << 16);
  if (experts.n_experts > max_experts)
    throw Error(Errc::unsupported, concat(experts.n_experts, " experts in a layer; at most ", max_experts, " are supported"));
  experts.n_experts_used = keys.count("expert_used_count", 1, experts.n_experts);
  for (LayerConfig& layer : c.layers) {
    layer.feed_forward = FeedForwardKind::experts;
    layer.experts = experts;
    layer.hidden_dim =
        keys.count("expert_feed_forward_length", 1, max_dim);  // feed_forward_length speaks of a dense layer that is not there
  }
  return c;
}

}  // namespace tiered::arch
