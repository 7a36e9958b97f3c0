/// `qwen2`, `qwen3` and `qwen3moe` files, and their vision-language models' text part: `qwen2vl`, `qwen3vl` and `qwen3vlmoe`.
#pragma once

#include "tiered/model/arch/common.hpp"

namespace tiered::arch {

namespace detail {
inline ModelConfig read_qwen(Keys const& keys) {
  ModelConfig c = read_common(keys);
  c.rope_tables.push_back(make_rope_table(read_rope_base(keys), read_n_rot(keys, c), rope_scaling_factor(keys)));
  return c;
}
inline void read_sections(Keys const& keys, bool interleaved, ModelConfig& c) {
  RopeTable& table = c.rope_tables.front();
  table.position_row = read_position_row(keys, std::int32_t(table.inv_freq.size()), interleaved);
}
inline void read_qwen_experts(Keys const& keys, ModelConfig& c) {
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
}
inline ModelConfig read_qwen3vl(Keys const& keys) {
  ModelConfig c = read_qwen(keys);
  read_sections(keys, true, c);
  c.n_deepstack_layers = keys.count_or("n_deepstack_layers", 0, 0, c.n_layers - 1);
  return c;
}
}  // namespace detail

/// Biases on q, k and v.
inline ModelConfig qwen2(GgufFile const& file) { return detail::read_qwen(Keys(file, "qwen2")); }

/// qwen2 with three rotary positions of each row; also of Qwen2.5-VL.
inline ModelConfig qwen2vl(GgufFile const& file) {
  Keys const keys(file, "qwen2vl");
  ModelConfig c = detail::read_qwen(keys);
  detail::read_sections(keys, false, c);
  return c;
}

/// A norm on every head of q and k.
inline ModelConfig qwen3(GgufFile const& file) { return detail::read_qwen(Keys(file, "qwen3")); }

/// qwen3 with three rotary positions of each row, interleaved.
inline ModelConfig qwen3vl(GgufFile const& file) { return detail::read_qwen3vl(Keys(file, "qwen3vl")); }

/// qwen3 with routed experts. The architecture means normalised weights (norm_topk_prob); no key says so.
inline ModelConfig qwen3moe(GgufFile const& file) {
  Keys const keys(file, "qwen3moe");
  ModelConfig c = detail::read_qwen(keys);
  detail::read_qwen_experts(keys, c);
  return c;
}

/// Likewise of qwen3vl.
inline ModelConfig qwen3vlmoe(GgufFile const& file) {
  Keys const keys(file, "qwen3vlmoe");
  ModelConfig c = detail::read_qwen3vl(keys);
  detail::read_qwen_experts(keys, c);
  return c;
}

}  // namespace tiered::arch
