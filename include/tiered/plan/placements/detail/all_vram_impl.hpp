/// Defines AllVram: for one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/plan/placements/all_vram.hpp"
#include "tiered/plan/placements/order.hpp"

namespace tiered {

Placements AllVram::place(PlanRequest const& r) const {
  Placements out{r};
  out.declined = r.ring_bytes > 0;  // it never streams
  if (out.declined || detail::nothing_fits(r)) return out;
  VramAccount vram{r};
  detail::ExpertsOf const of{r};
  ExpertLayers const& experts = of.layers;
  auto layer = experts.layers.begin();
  for (std::uint32_t const id : experts.dense) {
    detail::try_with_state(r, id, vram, out);
    if (r.shards[id].kind != ShardKind::router) continue;
    while (layer != experts.layers.end() && layer->layer < r.shards[id].layer) ++layer;
    if (layer == experts.layers.end() || layer->layer != r.shards[id].layer || !out.shards[id].resident()) continue;
    for (std::size_t i = layer->begin; i < layer->end; ++i) detail::try_with_state(r, experts.ids[i], vram, out);
  }
  return out;
}

}  // namespace tiered
