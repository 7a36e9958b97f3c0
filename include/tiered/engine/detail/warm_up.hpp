/// What an engine runs when it is made, so that later steps find all kernels of the device loaded: numbers of rows, and plans of a few
/// layers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "tiered/model/config.hpp"
#include "tiered/model/shard.hpp"
#include "tiered/pipeline/executor.hpp"
#include "tiered/plan/planner.hpp"

namespace tiered::detail {

/// Rows of steps by which products (tiles of 32, 64, 96 and 128 rows, of each expert or of all; cuBLAS, for which powers of two will do:
/// see GemmPlans) and attention take other kernels, the most first.
inline constexpr std::int32_t warm_up_rows[] = {2048, 1536, 1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32, 24, 16, 8, 4, 2, 1};
/// Fewer where weights cross the link for each.
inline constexpr std::int32_t streamed_warm_up_rows[] = {2048, 1024, 512, 256, 128, 96, 64, 32, 16, 8, 4, 2, 1};

/// Plans whose chunks have more rows than any of `widths` (descending), and rows to try them with, up to `most`: one number for each
/// further power of two that rows are asked for by. To load a kernel within a step waits for the whole device.
inline std::vector<std::pair<std::size_t, std::int32_t>> large_chunks(std::span<PlanImage const> images,
                                                                      std::span<std::int32_t const> widths, std::int32_t most) {
  std::vector<std::pair<std::size_t, std::int32_t>> out;
  std::int32_t step = std::int32_t(std::bit_ceil(std::uint32_t(widths.front())));
  for (std::size_t i = 0; i < images.size(); ++i) {
    std::int32_t const n = std::min({images[i].limits.chunk, images[i].limits.block, most});
    for (; images[i].uses_device && n > step; step *= 2) out.emplace_back(i, std::min(n, 2 * step));
  }
  return out;
}

/// The token tier whose bound is the least that n rows do not pass, else the last.
inline std::size_t tier_of(std::span<TierPlan const> tiers, std::int32_t n) {
  auto const it = std::ranges::find_if(tiers, [&](TierPlan const& t) { return t.rows.n >= n; });
  return it == tiers.end() ? tiers.size() - 1 : std::size_t(it - tiers.begin());
}

/// Which layers of a plan are the first of their kind. Two are of one kind where kernels and devices that they take are the same: shapes
/// and types of weights, attention, and what of the layer is in VRAM, streamed, cached, or left to the host.
class LayerKinds {
 public:
  LayerKinds(PlanImage const& image, ShardTable const& table, ModelConfig const& config)
      : image_(image), table_(table), keys_(std::size_t(config.n_layers)), on_device_(std::size_t(config.n_layers), false) {
    for (std::size_t l = 0; l < keys_.size(); ++l) add_config(keys_[l], config.layers[l], l);
    for (Shard const& s : table.shards) {
      if (s.layer >= 0 && s.layer < config.n_layers) add_shard(std::size_t(s.layer), s);
    }
  }
  /// For each layer: whether the device has a part in it and no layer before it is of its kind.
  std::vector<bool> firsts() const {
    std::vector<bool> first(keys_.size(), false);
    std::set<Key> seen;
    for (std::size_t l = 0; l < keys_.size(); ++l) {
      Key key = keys_[l];
      key.insert(key.end(), experts_[l].begin(), experts_[l].end());
      first[l] = on_device_[l] && seen.insert(std::move(key)).second;
    }
    return first;
  }

 private:
  using Key = std::vector<std::int64_t>;

  void add_config(Key& key, LayerConfig const& c, std::size_t layer) {
    AttentionConfig const& a = c.attention;
    float const share = layer < image_.plan.state_in_vram.size() ? image_.plan.state_in_vram[layer] : 0;
    bool const state_in_vram = share > 0;
    key = {std::int64_t(c.mixer),
           std::int64_t(c.feed_forward),
           a.n_heads,
           a.n_kv_heads,
           a.head_dim,
           a.window > 0,
           c.experts.n_experts,
           c.experts.n_experts_used,
           std::int64_t(c.experts.gating),
           c.hidden_dim,
           state_in_vram,
           share < 1};
    on_device_[layer] = state_in_vram;
    experts_.resize(keys_.size());
  }
  void add_shard(std::size_t layer, Shard const& s) {
    Placement const& p = image_.plan.shards[std::size_t(s.id)];
    enum : std::int64_t { host = 1, streamed = 2, resident = 4, cached = 8 };
    std::int64_t const place = p.resident() ? resident : p.cached ? cached : p.gpu_rows > 0 ? streamed : host;
    if (place != host) on_device_[layer] = true;
    if (s.kind == ShardKind::expert) {
      experts_[layer].insert(place);  // of any of them
      if (s.expert != 0) return;      // which are alike but for that
    }
    Key& key = keys_[layer];
    key.insert(key.end(), {std::int64_t(s.kind), s.kind == ShardKind::expert ? 0 : place});
    for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
      Weight const& w = table_.weights[std::size_t(i)];
      key.insert(key.end(), {std::int64_t(w.dtype), w.rows, w.cols});
    }
  }

  PlanImage const& image_;
  ShardTable const& table_;
  std::vector<Key> keys_;
  std::vector<std::set<std::int64_t>> experts_;  ///< places of a layer's experts
  std::vector<bool> on_device_;
};

/// The plan with the first layer of each kind alone: a pass takes every kernel that one of the whole plan takes on the device, and few
/// weights cross the link. What it computes means nothing. Residents are those of the plan.
inline PlanImage sample_of(PlanImage const& image, ShardTable const& table, ModelConfig const& config) {
  std::vector<bool> const taken = LayerKinds(image, table, config).firsts();
  PlanImage sample = image;
  sample.schedule.clear();
  DeviceId at = host_device;
  for (Action const& a : image.schedule) {
    std::int32_t const layer = table.shard(a.shard).layer;
    bool const in_layer = layer >= 0 && layer < config.n_layers;
    if (a.kind == ActionKind::hop || (in_layer && !taken[std::size_t(layer)])) continue;
    if (a.kind == ActionKind::run && a.device != at) {
      sample.schedule.push_back({ActionKind::hop, a.device, a.shard, {}, {}, 0, 0});
      at = a.device;
    }
    sample.schedule.push_back(a);
  }
  return sample;
}

}  // namespace tiered::detail
