/// How long a pass takes by an answer of SecondsPerByte in the making, and what is streamed, decided on the way.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/plan/expert_decode.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/plan/placements/order.hpp"

namespace tiered::detail {

enum class Where : std::uint8_t { host, streamed, resident };

/// How the experts are spread; the same for every layer, so that no layer is the slow one.
struct ExpertSplit {
  double device_share = 0;       ///< of the experts: resident, or cached if cache_bytes > 0
  std::size_t cache_bytes = 0;   ///< 0: those on the device are resident
  std::size_t shared_bytes = 0;  ///< of these, what states have where contexts are longer than costs are for
  double hits = 1;
  double fetched = 1;  ///< of what misses; the host computes the rest of it
};

/// One answer in the making: where each dense shard and each state is, in the order of use, and how long a pass then takes.
struct Draft {
  std::vector<Where> dense;
  std::vector<float> state_in_vram;  ///< by layer; 0 or 1 where not fixed
  ExpertSplit experts;
  double seconds = HUGE_VAL;
};

/// What walks ask of a dense shard, side by side for all: between these a mixture has the shards of thousands of experts.
struct DenseShard {
  std::uint32_t id = 0;  ///< index into PlanRequest::shards
  ShardKind kind{};
  bool with_state = false;
  std::size_t bytes = 0, layer = 0;
  PassCost cost;
  double attention_s[2][2] = {};  ///< of its state: [moved to VRAM][rows on the device]
  PassCost experts = {};          ///< a router's, all together
  int expert_layer = -1;          ///< of these, in ExpertLayers::layers; -1: none
};

/// One PlanRequest, as drafts see it: dense shards in the order of use, and experts by layer.
class SecondsPerByteWalk {
 public:
  explicit SecondsPerByteWalk(PlanRequest const& r)
      : r_(r),
        own_experts_(r.experts != nullptr ? std::span<Shard const>{} : r.shards),
        experts_(r.experts != nullptr ? *r.experts : own_experts_) {
    if (!experts_.ids.empty()) {
      used_by_all_ = use_probability(r.shards[experts_.ids.front()], r.rows.n);
      whole_layers_ = uses_whole_layer(r.shards[experts_.ids.front()], r.rows.n);
    }
    for (std::uint32_t id : dense_order(r)) dense_.push_back(dense_shard(id));
    in_ring_.resize(dense_.size());
  }

 protected:
  bool fixed() const { return !r_.fixed_state_in_vram.empty(); }
  bool whole_layers() const { return whole_layers_; }

  /// Seconds of a pass, or any that are not below `enough`, if there it ends.
  double walk(Draft const& d, double enough = HUGE_VAL) const {
    Clocks clocks;
    double const in_cache = found_in_cache(d.experts);
    for (std::size_t i = 0; i < dense_.size() && clocks.rows_s < enough; ++i) {
      clocks = after(d, clocks, i);
      run_experts(d, clocks, i, in_cache);
    }
    if (r_.mutual == MutualRates{}) return clocks.rows_s;
    return (std::max)(clocks.rows_s, shared_s(r_.mutual, clocks.host_busy_s, clocks.link_busy_s));
  }

  /// Shards on the host are made streamed where that ends them sooner by the factor `margin`, and their states are moved to VRAM where
  /// there is room.
  void stream_some(Draft& d, VramAccount& vram, double margin, MutualRates beside) const {
    Clocks clocks;
    clocks.beside = beside;
    double const in_cache = found_in_cache(d.experts);
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      clocks = d.dense[i] == Where::host ? choose(d, vram, clocks, i, margin) : after(d, clocks, i);
      run_experts(d, clocks, i, in_cache);
    }
  }

 private:
  struct Clocks {
    double rows_s = 0, link_s = 0, experts_s = 0;  ///< experts_s: end of the last layer's
    bool on_device = false;
    double host_busy_s = 0, link_busy_s = 0;                  ///< with dense shards, alone
    MutualRates beside;                                       ///< decisions may be for both lanes being busy all the time
    std::size_t ring_begin = 0, ring_end = 0, ring_used = 0;  ///< a range of in_ring_
  };

  DenseShard dense_shard(std::uint32_t id) const {
    Shard const& shard = r_.shards[id];
    DenseShard s{id, shard.kind, has_state(shard, r_), shard.bytes, std::size_t(shard.layer), r_.costs[id]};
    if (s.with_state) {
      for (int moved = 0; moved < 2; ++moved) {
        double const share = fixed() ? double(r_.fixed_state_in_vram[s.layer]) : moved;
        double const in_vram = attended_in_vram(share, r_.states_used, r_.states[s.layer].window);
        for (int on_device = 0; on_device < 2; ++on_device)
          s.attention_s[moved][on_device] =
              attention_s(r_.state_costs[s.layer], in_vram, on_device != 0, r_.hop_s, r_.rows.n, r_.streams_states);
      }
    }
    if (s.kind != ShardKind::router) return s;
    auto const found = std::ranges::lower_bound(experts_.layers, shard.layer, {}, &ExpertLayer::layer);
    if (found == experts_.layers.end() || found->layer != shard.layer) return s;
    s.expert_layer = int(found - experts_.layers.begin());
    for (std::size_t i = found->begin; i < found->end; ++i) {
      PassCost const& cost = r_.costs[experts_.ids[i]];
      s.experts = {s.experts.host_s + cost.host_s, s.experts.gpu_s + cost.gpu_s, s.experts.copy_s + cost.copy_s};
    }
    return s;
  }

  /// The clocks behind dense shard i, where that is better.
  Clocks choose(Draft& d, VramAccount& vram, Clocks const& clocks, std::size_t i, double margin) const {
    DenseShard const& s = dense_[i];
    Clocks const on_host = after(d, clocks, i);
    if (!std::isfinite(s.cost.gpu_s)) return on_host;
    double const host_s = on_host.rows_s + (clocks.on_device ? r_.hop_s : 0);
    bool moves_state = false;
    VramAccount trial = vram;
    if (s.with_state && !fixed() && d.state_in_vram[s.layer] == 0 && std::isfinite(r_.state_costs[s.layer].gpu_s)) {
      moves_state = trial.try_state(s.layer);
    }
    d.dense[i] = Where::streamed;
    if (moves_state) d.state_in_vram[s.layer] = 1;
    Clocks const streamed = after(d, clocks, i);
    double const device_s = streamed.rows_s + (clocks.on_device ? 0 : r_.hop_s);
    if (margin * (device_s - clocks.rows_s) < host_s - clocks.rows_s) {
      if (moves_state) vram = trial;
      return streamed;
    }
    d.dense[i] = Where::host;
    if (moves_state) d.state_in_vram[s.layer] = 0;
    return on_host;
  }

  /// The clocks behind dense shard i. in_ring_ is written at one place only, so a trial leaves nothing behind.
  Clocks after(Draft const& d, Clocks c, std::size_t i) const {
    DenseShard const& s = dense_[i];
    bool const on_device = d.dense[i] != Where::host;
    if (on_device != c.on_device) c.rows_s += r_.hop_s;
    c.on_device = on_device;
    if (d.dense[i] == Where::streamed) {
      stream(c, s);
    } else {
      c.rows_s += on_device ? s.cost.gpu_s : s.cost.host_s / c.beside.host_share;
      c.host_busy_s += on_device ? 0 : s.cost.host_s;
    }
    if (s.with_state) c.rows_s += s.attention_s[d.state_in_vram[s.layer] > 0][on_device];
    return c;
  }

  /// The copy begins when the link is free and what the ring held before is used; a shard larger than half the ring goes by rows.
  void stream(Clocks& c, DenseShard const& s) const {
    std::size_t const bytes = s.bytes, half = r_.ring_bytes / 2;
    bool const whole = bytes <= half;
    std::size_t const needed = whole ? bytes : half;
    for (; c.ring_begin < c.ring_end && c.ring_used + needed > r_.ring_bytes; ++c.ring_begin) {
      c.link_s = (std::max)(c.link_s, in_ring_[c.ring_begin].second);
      c.ring_used -= in_ring_[c.ring_begin].first;
    }
    c.link_s += s.cost.copy_s / c.beside.h2d_share;
    c.link_busy_s += s.cost.copy_s;
    if (whole) {
      c.rows_s = (std::max)(c.rows_s, c.link_s) + s.cost.gpu_s;
    } else {
      double const last = s.cost.gpu_s * (std::min)(1.0, double(half) / double(bytes));
      c.rows_s = (std::max)(c.rows_s + s.cost.gpu_s, c.link_s + last);
    }
    in_ring_[c.ring_end++] = {needed, c.rows_s};
    c.ring_used += needed;
  }

  void run_experts(Draft const& d, Clocks& c, std::size_t i, double in_cache) const {
    if (dense_[i].expert_layer < 0) return;
    std::size_t const found = std::size_t(dense_[i].expert_layer);
    PassCost const& sum = dense_[i].experts;
    ExpertSplit const& split = d.experts;
    double const begin = c.rows_s;
    double end = begin;
    if (split.device_share >= 1 && split.hits < 1 && c.on_device && whole_layers()) return run_ahead(split, sum, c, found);
    // As in the estimate: layers that wait for nothing are the device's alone, and what misses comes in the others.
    double const missed = split.device_share * (1 - in_cache), on_host = 1 - split.device_share;
    double const used = n_used(found);
    double const gpu_s = split.device_share > 0 ? split.device_share * sum.gpu_s : 0;  // an infinite cost of nothing is none
    double const waits = c.on_device ? layers_with_misses((missed + on_host) * n_used_by_all(found), used) : 1;
    double const from = begin + (1 - waits) * gpu_s, hops_s = c.on_device ? 2 * waits * r_.hop_s : 0;
    double host_s = (missed * (1 - split.fetched) + on_host) * sum.host_s, copy_s = missed * split.fetched * sum.copy_s;
    if (host_s > 0 && copy_s > 0) host_s /= r_.mutual.host_share, copy_s /= r_.mutual.h2d_share;
    if (split.device_share > 0) end = begin + gpu_s + (c.on_device ? 0 : 2 * r_.hop_s);
    if (missed > 0) end = (std::max)(end, c.link_s = (std::max)(c.link_s, from) + copy_s);
    if (host_s > 0) end = (std::max)(end, from + host_s + hops_s);
    if (split.cache_bytes > 0) end += waits * missed_layer_s + (1 - waits) * found_layer_s;
    double const away = c.on_device ? missed * (1 - split.fetched) + on_host : split.device_share;
    c.rows_s = end + slots_back_s(r_.rows.n, away * used);
  }

  /// Experts that a row uses of a layer, and that all rows do.
  double n_used(std::size_t found) const {
    ExpertLayer const& l = experts_.layers[found];
    return double(l.size()) * r_.shards[experts_.ids[l.begin]].use_probability;
  }
  double n_used_by_all(std::size_t found) const { return double(experts_.layers[found].size()) * used_by_all_; }
  /// Of what may be in the cache.
  double found_in_cache(ExpertSplit const& split) const {
    if (split.cache_bytes == 0) return split.hits;
    return cache_hits(split.hits, r_.shards[experts_.ids.front()].use_probability, r_.rows.n);
  }
  /// All experts cross ahead of the router, as far ahead as the flow has room: see plan/expert_flow.hpp.
  void run_ahead(ExpertSplit const& split, PassCost const& sum, Clocks& c, std::size_t found) const {
    ExpertLayer const& l = experts_.layers[found];
    std::size_t const largest = VramAccount::round_up(r_.shards[experts_.ids[l.begin]].bytes);
    double const flow = double(flow_bytes(split.cache_bytes, largest, experts_.bytes));
    double const missing = 1 - (double(split.cache_bytes) - flow) / double(experts_.bytes);
    double const copy_s = missing * sum.copy_s, ahead_s = copy_s * flow / (missing * double(l.size() * largest));
    c.link_s = (std::max)(c.link_s, c.experts_s - ahead_s) + copy_s;
    double const window = (std::max)(double(flow_window_bytes(std::size_t(flow))), double(largest));
    double const n_windows = std::ceil(missing * double(l.size() * largest) / window);
    c.rows_s = c.experts_s = (std::max)(c.rows_s + sum.gpu_s + windows_s(n_windows), c.link_s);
  }

 protected:
  PlanRequest const& r_;
  ExpertLayers own_experts_;  ///< nothing where the request has them
  ExpertLayers const& experts_;
  std::vector<DenseShard> dense_;  ///< in the order of use

 private:
  double used_by_all_ = 0;                                       ///< an expert, by any row
  bool whole_layers_ = false;                                    ///< see uses_whole_layer()
  mutable std::vector<std::pair<std::size_t, double>> in_ring_;  ///< bytes and end of use of what was streamed, in order
};

}  // namespace tiered::detail
