/// `gemma3` files (text part).
#pragma once

#include <cmath>

#include "tiered/model/arch/common.hpp"

namespace tiered::arch {

/// Five local layers (sliding window, own rope base) before each global one; embeddings scaled by sqrt(dim); GELU; norms after
/// attention and feed-forward too. Files name neither the 5:1 pattern nor, mostly, the local base of 10,000.
inline ModelConfig gemma3(GgufFile const& file) {
  Keys const keys(file, "gemma3");
  if (keys.has("final_logit_softcapping"))
    throw Error(Errc::unsupported, concat(keys.full("final_logit_softcapping"), " (soft caps on logits)"));
  ModelConfig c = read_common(keys);
  c.activation = Activation::gelu_tanh;
  c.embedding_scale = std::sqrt(float(c.dim));
  std::int32_t const n_rot = read_n_rot(keys, c);
  float const local_base = require_positive(keys, "rope.freq_base_swa", keys.get_or<float>("rope.freq_base_swa", 10000.f));
  c.rope_tables.push_back(make_rope_table(read_rope_base(keys), n_rot, rope_scaling_factor(keys)));
  c.rope_tables.push_back(make_rope_table(local_base, n_rot, 1));
  std::int32_t const window = keys.count_or("attention.sliding_window", 0, 0, max_context);
  std::int32_t const pattern = keys.count_or("attention.sliding_window_pattern", 6, 1, max_layers);
  for (std::int32_t l = 0; l < c.n_layers; ++l) {
    AttentionConfig& a = c.layers[std::size_t(l)].attention;
    if (window > 0 && (l + 1) % pattern != 0) {
      a.window = window;
      a.rope_table = 1;
    }
    // Gemma 3 27B scales queries by dim / n_heads instead of the head size; its files tell it by nothing but the depth.
    if (c.n_layers == 62 && !keys.has("attention.scale")) a.scale = float(1 / std::sqrt(double(c.dim) / a.n_heads));
  }
  return c;
}

}  // namespace tiered::arch
