/// Where each shard and each layer's state has its home and who computes it: what a placement policy is asked and answers.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/core/ids.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/plan/cost.hpp"
#include "tiered/plan/expert_share.hpp"
#include "tiered/plan/experts.hpp"

namespace tiered {

struct Budget {
  std::size_t vram_bytes = 0, pinned_bytes = 0, pageable_bytes = 0;
  bool operator==(Budget const&) const = default;
};

struct PlanRequest {
  std::span<Shard const> shards;
  std::span<PassCost const> costs;        ///< same order as shards
  std::span<LayerState const> states;     ///< one per layer
  std::span<PassCost const> state_costs;  ///< same order as states
  Budget budget;
  Rows rows;                      ///< context: the positions that VRAM must be able to hold for a state placed there
  std::size_t ring_bytes = 0;     ///< tried in several sizes by the planner; 0: nothing can be streamed
  std::size_t scratch_bytes = 0;  ///< activations and workspaces of these rows on the device
  /// Share of each layer's state in VRAM as another token tier's plan has it, to be kept; empty: free to choose.
  std::span<float const> fixed_state_in_vram;
  double hop_s = 0;  ///< seconds to move these rows from one device to the other
  /// Pages that a sequence's state is cut into: shares are in whole ones, see pages_in_vram(). 0: any share.
  std::int32_t state_pages = 0;
  double states_used = 1;       ///< share of the context that costs are for
  bool streams_states = false;  ///< as in PassCosts
  /// One row that has the device to itself, all weights but experts there, may attend to states in host memory within its launch.
  bool launches_attention = false;
  bool looks_ahead = true;                    ///< as in PassCosts
  bool reads_ahead = false;                   ///< likewise
  bool deterministic = false;                 ///< who computes an expert must not depend on what is cached
  MutualRates mutual = {};                    ///< of host and link where both are busy
  MutualRates mutual_attention = {};          ///< and where the host attends to states
  HelpedMachine helped = {};                  ///< for steps of one row whose device asks the host
  ExpertLayers const* experts = nullptr;      ///< of these shards, where somebody has them already
  ExpertCosts const* expert_costs = nullptr;  ///< of these costs; likewise
  ExpertShare expert_share = {};              ///< of those that come in windows

  std::size_t state_bytes(std::size_t layer) const {
    return states[layer].bytes_per_token * std::size_t(rows.context) + states[layer].bytes_per_sequence * std::size_t(rows.n_sequences);
  }
  /// Of a share of it.
  std::size_t state_bytes(std::size_t layer, double share) const {
    std::size_t const all = state_bytes(layer);
    if (state_pages <= 0) return std::size_t(share * double(all));
    std::size_t const pages = std::size_t(pages_in_vram(float(share), state_pages));
    return (all + std::size_t(state_pages) - 1) / std::size_t(state_pages) * pages;
  }
};

struct Placement {
  Tier home = Tier::pageable;
  float gpu_rows = 0;   ///< share of the rows that the GPU computes, the CPU does the others meanwhile; today 0 or 1
  bool cached = false;  ///< an expert that may live in the cache; which do is the EvictionPolicy's choice
  bool resident() const { return home == Tier::vram; }
  bool streamed() const { return gpu_rows > 0 && home != Tier::vram && !cached; }
  bool operator==(Placement const&) const = default;
};

struct Placements {
  std::vector<Placement> shards;     ///< default: host memory, computed by the host
  std::vector<float> state_in_vram;  ///< per layer: share of the positions, the first ones
  std::size_t cache_bytes = 0;       ///< for cached experts, however long contexts are: what states do not use comes to it
  float fetched_misses = 1;          ///< of cached experts that are not in the cache: this share is fetched, the host computes the others
  bool declined = false;             ///< no answer for a ring of this size (nothing would go through it, say); the planner tries others
  explicit Placements(PlanRequest const& r) : shards(r.shards.size()), state_in_vram(r.states.size(), 0.f) {}
};

/// | expression         | result     | meaning                                                                                     |
/// |--------------------|------------|---------------------------------------------------------------------------------------------|
/// | `p.place(request)` | Placements | pure, deterministic; asks a VramAccount what fits; what does not fit is data, never an error |
template <class P>
concept PlacementPolicy = requires(P const& p, PlanRequest const& r) {
  { p.place(r) } -> std::same_as<Placements>;
};

}  // namespace tiered
