/// One prompt and the tokens behind it, timed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "../kernels/measure.hpp"
#include "ids.hpp"
#include "peer.hpp"
#include "tiered/tiered.hpp"

namespace bench {

template <class Engine>
Speed run_once(Engine& engine, int n_prompt, int n_decode, TokenIds& ids) {
  std::vector<std::int32_t> const prompt = ids.next(n_prompt), more = ids.next(n_decode);
  tiered::Sequence const sequence = engine.new_sequence();
  double const begin = now_s();
  engine.prefill(sequence, prompt);
  double const between = now_s();
  for (std::int32_t token : more) engine.decode(sequence, token);
  double const end = now_s();
  return {n_prompt / (between - begin), n_decode > 0 ? n_decode / (end - between) : 0};
}

}  // namespace bench
