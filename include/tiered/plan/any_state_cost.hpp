/// What states cost by any cost model, its type erased.
#pragma once

#include <memory>
#include <utility>

#include "tiered/plan/cost.hpp"

namespace tiered {

/// Owns a CostModel, of which it gives what states cost, so that whoever runs plans is no template. Copies share the model.
class AnyStateCost {
 public:
  AnyStateCost() : AnyStateCost(AnalyticCost{}) {}
  template <CostModel C>
  explicit AnyStateCost(C model) : model_(std::make_shared<C const>(std::move(model))), cost_(&cost_by<C>) {}

  PassCost cost(LayerState const& state, Rows rows) const { return cost_(model_.get(), state, rows); }

 private:
  template <class C>
  static PassCost cost_by(void const* model, LayerState const& state, Rows rows) {
    return static_cast<C const*>(model)->cost(state, rows);
  }
  std::shared_ptr<void const> model_;
  PassCost (*cost_)(void const* model, LayerState const& state, Rows rows);
};

}  // namespace tiered
