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
                                            std::string const& placement, std::size_t plan_bytes) {
  limited_plan_bytes() = plan_bytes;
  return Engine<LimitedPolicies>(model, options, {.placement = make_placement(placement)});
}

}  // namespace tiered::test
