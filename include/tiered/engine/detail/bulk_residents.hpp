/// Which of an engine's residents are the same for all its plans, and which of these its first steps need.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/model/shard.hpp"
#include "tiered/pipeline/executor.hpp"
#include "tiered/pipeline/residency.hpp"

namespace tiered::detail {

/// Layers that the samples go through, and what belongs to no layer: the steps need these at once.
inline std::vector<bool> shards_of(std::span<PlanImage const> samples, std::span<Shard const> shards) {
  std::int32_t most = 0;
  for (Shard const& s : shards) most = std::max(most, s.layer);
  std::vector<bool> runs(std::size_t(most) + 1, false), out(shards.size(), false);
  for (PlanImage const& sample : samples) {
    for (Action const& a : sample.schedule) {
      if (std::int32_t const layer = shards[std::size_t(a.shard)].layer; layer >= 0) runs[std::size_t(layer)] = true;
    }
  }
  for (std::size_t s = 0; s < shards.size(); ++s) out[s] = shards[s].layer < 0 || runs[std::size_t(shards[s].layer)];
  return out;
}

/// Shards that every plan has in VRAM, and at the same place.
inline std::vector<ShardId> common_residents(std::span<PlanImage const> plans, std::span<Shard const> shards) {
  std::vector<ShardId> out;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    std::size_t const at = plans.front().vram.resident[s];
    bool const is_common = std::ranges::all_of(plans, [&](PlanImage const& p) { return p.vram.resident[s] == at; });
    if (is_common && at != VramLayout::none) out.push_back(ShardId(s));
  }
  return out;
}

/// Without those that the samples need.
inline std::vector<ShardId> residents_beside(std::span<PlanImage const> samples, std::span<PlanImage const> plans,
                                             std::span<Shard const> shards) {
  std::vector<bool> const needed = shards_of(samples, shards);
  std::vector<ShardId> out = common_residents(plans, shards);
  std::erase_if(out, [&](ShardId id) { return needed[std::size_t(id)]; });
  return out;
}

}  // namespace tiered::detail
