/// A GPU of which a plan gets a part, beside what the context, libraries and workspaces take: small models have small budgets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "golden/engine_helpers.hpp"
#include "tiered/cuda.hpp"

namespace tiered::test {

struct LimitedGpu : CudaMachine {
  std::size_t limit = 0;
  std::size_t plan_bytes() const { return std::min(limit, CudaMachine::plan_bytes()); }
};

/// Of engines that are made from here on.
inline std::size_t& limited_plan_bytes() {
  static std::size_t bytes = 0;
  return bytes;
}

struct LimitedPolicies : CudaPolicies {
  using Placement = AnyPlacement;
  static LimitedGpu make_machine(MachineOptions const& o) { return {CudaPolicies::make_machine(o), limited_plan_bytes()}; }
};

/// `options.vram_bytes` holds the context, too.
inline Engine<LimitedPolicies> make_limited(std::shared_ptr<Transformer const> const& model, EngineOptions const& options,
                                            AnyPlacement placement, std::size_t plan_bytes) {
  limited_plan_bytes() = plan_bytes;
  return Engine<LimitedPolicies>(model, options, {.placement = std::move(placement)});
}
inline Engine<LimitedPolicies> make_limited(std::shared_ptr<Transformer const> const& model, EngineOptions const& options,
                                            std::string const& placement, std::size_t plan_bytes) {
  return make_limited(model, options, make_placement(placement), plan_bytes);
}

/// All weights but experts in VRAM, whatever that costs; experts in a cache of a share of their bytes; of keys and values a share.
struct ExpertsInCache {
  double share = 0.4, states = 1;

  Placements place(PlanRequest const& r) const {
    Placements out{r};
    out.declined = r.ring_bytes > 0;
    VramAccount vram{r};
    double expert_bytes = 0;
    for (std::size_t i = 0; i < r.shards.size(); ++i) {
      Shard const& shard = r.shards[i];
      if (shard.kind == ShardKind::expert) {
        out.shards[i] = {.gpu_rows = 1, .cached = true};
        expert_bytes += double(shard.bytes);
        continue;
      }
      if (shard.kind == ShardKind::embedding || !vram.try_resident(i)) continue;  // an embedding stays on the host
      out.shards[i] = {.home = Tier::vram, .gpu_rows = 1};
    }
    out.cache_bytes = std::size_t(share * expert_bytes);
    out.declined = out.declined || !vram.try_bytes(out.cache_bytes);
    for (std::size_t l = 0; l < r.states.size(); ++l) {
      if (vram.try_state(l, states)) out.state_in_vram[l] = float(states);
    }
    return out;
  }
};

}  // namespace tiered::test
