/// Defines ExpertLayers: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/plan/account.hpp"
#include "tiered/plan/experts.hpp"

namespace tiered {

ExpertLayers::ExpertLayers(std::span<Shard const> shards) {
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].kind == ShardKind::expert)
      ids.push_back(std::uint32_t(i));
    else if (shards[i].kind != ShardKind::embedding)
      dense.push_back(std::uint32_t(i));
  }
  std::stable_sort(dense.begin(), dense.end(), [&](std::uint32_t a, std::uint32_t b) {
    Shard const &x = shards[a], &y = shards[b];
    return x.layer != y.layer ? x.layer < y.layer : x.kind < y.kind;
  });
  auto const by_layer = [&](std::uint32_t a, std::uint32_t b) { return shards[a].layer < shards[b].layer; };
  if (!std::is_sorted(ids.begin(), ids.end(), by_layer)) std::stable_sort(ids.begin(), ids.end(), by_layer);
  std::vector<std::size_t> sizes;
  for (std::size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
    sizes.clear();
    double used = 0;
    for (end = begin; end < ids.size() && shards[ids[end]].layer == shards[ids[begin]].layer; ++end) {
      sizes.push_back(VramAccount::round_up(shards[ids[end]].bytes));
      used += shards[ids[end]].use_probability;
      bytes += sizes.back();
    }
    std::size_t const n_used = (std::min)(sizes.size(), (std::max)(std::size_t{1}, std::size_t(std::lround(used))));
    std::partial_sort(sizes.begin(), sizes.begin() + std::ptrdiff_t(n_used), sizes.end(), [](auto a, auto b) { return a > b; });
    ExpertLayer layer{shards[ids[begin]].layer, begin, end, sizes.front(), 0};
    for (std::size_t i = 0; i < n_used; ++i) layer.working_bytes += sizes[i];
    min_cache_bytes_ = (std::max)(min_cache_bytes_, layer.working_bytes);
    layers.push_back(layer);
  }
}

ExpertCosts::ExpertCosts(ExpertLayers const& experts, std::span<PassCost const> shard_costs) {
  auto const add = [](PassCost& sum, PassCost const& c) { sum = {sum.host_s + c.host_s, sum.gpu_s + c.gpu_s, sum.copy_s + c.copy_s}; };
  layers.reserve(experts.layers.size());
  for (ExpertLayer const& layer : experts.layers) {
    PassCost of_layer;
    for (std::uint32_t id : experts.ids_of(layer)) {
      add(of_layer, shard_costs[id]);
      add(all, shard_costs[id]);
    }
    layers.push_back(of_layer);
  }
}

std::size_t ExpertLayers::min_left_bytes(bool whole_layers) const {
  return whole_layers && !layers.empty() ? (std::max)(min_cache_bytes(), bytes / layers.size() / 4 * 3) : min_cache_bytes();
}

double expected_hits(std::size_t cache_bytes, std::size_t cached_bytes) {
  return cached_bytes == 0 ? 0 : (std::min)(1.0, double(cache_bytes) / double(cached_bytes));
}

}  // namespace tiered
