/// Seconds that a shard or a layer's state costs in one pass, wherever it may be computed.
#pragma once

#include <concepts>
#include <cstdint>

#include "tiered/model/shard.hpp"
#include "tiered/plan/hardware.hpp"

namespace tiered {

/// Expected seconds of one pass, probability of use included; infinite where a device has no kernel.
struct PassCost {
  double host_s = 0;  ///< computed by the CPU from host memory
  double gpu_s = 0;   ///< computed by the GPU from VRAM
  double copy_s = 0;  ///< brought over the link
  bool operator==(PassCost const&) const = default;
};

/// | expression            | result   | meaning                                                                          |
/// |-----------------------|----------|----------------------------------------------------------------------------------|
/// | `c.cost(shard, rows)` | PassCost | non-negative, monotone in rows.n                                                 |
/// | `c.cost(state, rows)` | PassCost | of the attention core over rows.context positions; copy_s: bringing the used state |
/// Pure and thread-safe.
template <class C>
concept CostModel = requires(C const& c, Shard const& shard, LayerState const& state, Rows rows) {
  { c.cost(shard, rows) } -> std::same_as<PassCost>;
  { c.cost(state, rows) } -> std::same_as<PassCost>;
};

/// Probability that at least one of `n` rows uses the shard, were rows routed independently.
double use_probability(Shard const& shard, std::int32_t n);

/// Rooflines of a HardwareProfile: a product takes as long as reading its weights or as its arithmetic, whichever is longer.
struct AnalyticCost {
  HardwareProfile hardware = HardwareProfile::simulated();
  Capabilities capabilities;

  PassCost cost(Shard const& shard, Rows rows) const;

  PassCost cost(LayerState const& state, Rows rows) const;
};
static_assert(CostModel<AnalyticCost>);

}  // namespace tiered
