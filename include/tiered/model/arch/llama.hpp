/// `llama` files: Llama 1 to 3, Mistral, Minitron, SmolLM2.
#pragma once

#include "tiered/model/arch/common.hpp"

namespace tiered::arch {

/// Rotates neighbours (the converter permutes q and k for it); Llama 3.1 frequency factors come as a tensor.
inline ModelConfig llama(GgufFile const& file) {
  Keys const keys(file, "llama");
  if (keys.get_or<std::int64_t>("expert_count", 0) > 0) {
    throw Error(Errc::unsupported, concat("a llama file with ", keys.get_or<std::int64_t>("expert_count", 0), " experts (Mixtral)"));
  }
  ModelConfig c = read_common(keys);
  c.rope = RopeKind::adjacent;
  std::int32_t const n_rot = read_n_rot(keys, c);
  c.rope_tables.push_back(make_rope_table(read_rope_base(keys), n_rot, rope_scaling_factor(keys), read_rope_factors(file, n_rot)));
  return c;
}

}  // namespace tiered::arch
