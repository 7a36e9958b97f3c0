/// Routed experts as plans see them: by layer, with what they cost together, what a cache must hold and what it may be expected to hit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/model/shard.hpp"
#include "tiered/plan/cost.hpp"

namespace tiered {

/// The experts of one layer: ids[begin, end) of ExpertLayers.
struct ExpertLayer {
  std::int32_t layer = 0;
  std::size_t begin = 0, end = 0;
  std::size_t largest_bytes = 0;  ///< of an expert, rounded up
  std::size_t working_bytes = 0;  ///< of the largest experts that one token may use, each rounded up
  std::size_t size() const { return end - begin; }
};

struct ExpertLayers {
  std::vector<ExpertLayer> layers;   ///< ascending
  std::vector<std::uint32_t> ids;    ///< indices of the shards, by layer and then by expert
  std::size_t bytes = 0;             ///< of all, each rounded up
  std::vector<std::uint32_t> dense;  ///< shards that have a step on either device, in the order of use: neither embedding nor experts

  explicit ExpertLayers(std::span<Shard const> shards);
  std::span<std::uint32_t const> ids_of(ExpertLayer const& l) const { return std::span(ids).subspan(l.begin, l.size()); }

  /// The least that a cache may have: what one token uses of any one layer. 0 for a model without experts.
  std::size_t min_cache_bytes() const { return min_cache_bytes_; }
  /// The least that is left of one that gives room to states. Where blocks use whole layers that is as much as lets a layer pass in so few
  /// windows that they cost nothing (plan/expert_flow.hpp): three quarters of it.
  std::size_t min_left_bytes(bool whole_layers) const;

 private:
  std::size_t min_cache_bytes_ = 0;
};

/// Costs of experts together, infinite where one's is.
struct ExpertCosts {
  PassCost all;
  std::vector<PassCost> layers;  ///< as ExpertLayers::layers

  ExpertCosts() = default;
  ExpertCosts(ExpertLayers const& experts, std::span<PassCost const> shard_costs);
};

/// Share of uses that find their expert in a cache of `cache_bytes`, were all `cached_bytes` that may enter it used alike.
/// Real routing is skewed and hits more often; the promise made by a plan is the cautious one.
double expected_hits(std::size_t cache_bytes, std::size_t cached_bytes);

}  // namespace tiered
