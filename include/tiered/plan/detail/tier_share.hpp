/// What host and link may share of the experts of one shape of a token tier's plan.
#pragma once

#include <cmath>
#include <cstdint>

#include "tiered/core/function_ref.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/plan/estimate.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/plan/expert_share.hpp"

namespace tiered::detail {

/// `costs`: of a block of `block.n` rows. Nothing where that pays for no number of rows up to these.
inline ExpertShare tier_share(HardwareProfile const& hardware, ShardTable const& table, ExpertLayers const& experts, PassCosts const& costs,
                              std::int32_t dim, Rows block, FunctionRef<PassCost(Shard const&, Rows)> shard_cost) {
  if (experts.layers.empty()) return {};
  ExpertShareCosts c;
  double const n_layers = double(experts.layers.size()), layer_rows = n_layers * double(block.n);
  for (ExpertLayer const& layer : experts.layers) {
    Shard const& expert = table.shards[experts.ids[layer.begin]];
    auto const on_host = [&](std::int32_t n) {
      Rows const rows{std::int32_t(std::lround(double(n) / expert.use_probability)), block.context, block.n_sequences};
      return shard_cost(expert, rows).host_s / use_probability(expert, rows.n) / n_layers;
    };
    c.few_s += on_host(ExpertShareCosts::few_rows);
    c.some_s += on_host(ExpertShareCosts::some_rows);
    c.many_s += on_host(ExpertShareCosts::many_rows);
    c.bytes += double(VramAccount::round_up(expert.bytes)) / n_layers;
  }
  for (std::uint32_t const id : experts.ids) c.experts_row_s += costs.shards[id].gpu_s / layer_rows;
  for (Step const& step : table.steps) {
    ShardKind const kind = table.shard(step.shard).kind;
    if (kind == ShardKind::attention || kind == ShardKind::router)
      c.attention_row_s += costs.shards[std::size_t(step.shard)].gpu_s / layer_rows;
  }
  for (PassCost const& state : costs.states) c.attention_row_s += state.gpu_s / layer_rows;
  c.row_bytes = double(dim) * sizeof(float);

  ExpertShare const share = make_expert_share(hardware, c);
  ExpertLayer const& first = experts.layers.front();
  Shard const& expert = table.shards[experts.ids[first.begin]];
  std::int32_t const n_experts = std::int32_t(first.size()), n_used = std::int32_t(std::lround(expert.use_probability * n_experts));
  for (std::int32_t n = block.n; n > 0 && uses_whole_layer(expert, n); n /= 2) {
    if (expected_share(share, expected_rows(n, n_used, n_experts), n, n_experts).n_host > 0) return share;
  }
  return {};
}

}  // namespace tiered::detail
