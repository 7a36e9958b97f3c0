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

/// One PlanRequest, as drafts see it: dense shards in the order of use, and experts by layer.
class SecondsPerByteWalk {
 public:
  explicit SecondsPerByteWalk(PlanRequest const& r)
      : r_(r),
        order_(dense_order(r)),
        own_experts_(r.experts != nullptr ? std::span<Shard const>{} : r.shards),
        experts_(r.experts != nullptr ? *r.experts : own_experts_),
        first_expert_layer_(r.states.size() + 1, -1),
        in_ring_(order_.size()) {
    if (!experts_.ids.empty()) {
      used_by_all_ = use_probability(r.shards[experts_.ids.front()], r.rows.n);
      whole_layers_ = uses_whole_layer(r.shards[experts_.ids.front()], r.rows.n);
    }
    for (std::size_t l = 0; l < experts_.layers.size(); ++l) {
      ExpertLayer const& layer = experts_.layers[l];
      PassCost sum;
      for (std::size_t i = layer.begin; i < layer.end; ++i) {
        PassCost const& cost = r.costs[experts_.ids[i]];
        sum = {sum.host_s + cost.host_s, sum.gpu_s + cost.gpu_s, sum.copy_s + cost.copy_s};
      }
      layer_sums_.push_back(sum);
      if (layer.layer >= 0 && std::size_t(layer.layer) < first_expert_layer_.size()) first_expert_layer_[std::size_t(layer.layer)] = int(l);
    }
  }

 protected:
  bool fixed() const { return !r_.fixed_state_in_vram.empty(); }
  Shard const& dense(std::size_t i) const { return r_.shards[order_[i]]; }
  PassCost const& cost(std::size_t i) const { return r_.costs[order_[i]]; }
  bool with_state(std::size_t i) const { return has_state(dense(i), r_); }
  std::size_t layer(std::size_t i) const { return std::size_t(dense(i).layer); }
  bool whole_layers() const { return whole_layers_; }

  /// Seconds of a pass. With a margin, shards on the host are made streamed where that ends them sooner by this factor, and their states
  /// are moved to VRAM where there is room.
  static constexpr double never = HUGE_VAL;
  double walk(Draft& d, VramAccount& vram, double margin, MutualRates beside = {}) const {
    Clocks clocks;
    bool const decide = margin != never;
    clocks.beside = beside;
    clocks.launches = r_.launches_attention && !r_.deterministic && r_.rows.n == 1 && !decide &&
                      (experts_.ids.empty() || d.experts.device_share >= 1) &&
                      std::ranges::all_of(d.dense, [](Where w) { return w == Where::resident; });
    double const in_cache = found_in_cache(d.experts);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (decide && d.dense[i] == Where::host) choose(d, vram, clocks, i, margin);
      clocks = after(d, clocks, i);
      if (dense(i).kind == ShardKind::router) run_experts(d, clocks, i, in_cache);
    }
    if (r_.mutual == MutualRates{}) return clocks.rows_s;
    return (std::max)(clocks.rows_s, shared_s(r_.mutual, clocks.host_busy_s, clocks.link_busy_s));
  }

 private:
  struct Clocks {
    double rows_s = 0, link_s = 0, experts_s = 0;  ///< experts_s: end of the last layer's
    bool on_device = false;
    bool launches = false;                                    ///< one launch is all of the pass
    double host_busy_s = 0, link_busy_s = 0;                  ///< with dense shards, alone
    MutualRates beside;                                       ///< decisions may be for both lanes being busy all the time
    std::size_t ring_begin = 0, ring_end = 0, ring_used = 0;  ///< a range of in_ring_
  };

  void choose(Draft& d, VramAccount& vram, Clocks const& clocks, std::size_t i, double margin) const {
    if (!std::isfinite(cost(i).gpu_s)) return;
    double const host_s = after(d, clocks, i).rows_s + (clocks.on_device ? r_.hop_s : 0);
    bool moves_state = false;
    VramAccount trial = vram;
    if (with_state(i) && !fixed() && d.state_in_vram[layer(i)] == 0 && std::isfinite(r_.state_costs[layer(i)].gpu_s)) {
      moves_state = trial.try_state(layer(i));
    }
    d.dense[i] = Where::streamed;
    if (moves_state) d.state_in_vram[layer(i)] = 1;
    double const device_s = after(d, clocks, i).rows_s + (clocks.on_device ? 0 : r_.hop_s);
    if (margin * (device_s - clocks.rows_s) < host_s - clocks.rows_s) {
      if (moves_state) vram = trial;
      return;
    }
    d.dense[i] = Where::host;
    if (moves_state) d.state_in_vram[layer(i)] = 0;
  }

  /// The clocks behind dense shard i. in_ring_ is written at one place only, so a trial leaves nothing behind.
  Clocks after(Draft const& d, Clocks c, std::size_t i) const {
    bool const on_device = d.dense[i] != Where::host;
    if (on_device != c.on_device) c.rows_s += r_.hop_s;
    c.on_device = on_device;
    if (d.dense[i] == Where::streamed) {
      stream(c, i);
    } else {
      c.rows_s += on_device ? cost(i).gpu_s : cost(i).host_s / c.beside.host_share;
      c.host_busy_s += on_device ? 0 : cost(i).host_s;
    }
    if (with_state(i)) {
      double const in_vram = attended_in_vram(double(d.state_in_vram[layer(i)]), r_.states_used, r_.states[layer(i)].window);
      PassCost const& state = r_.state_costs[layer(i)];
      c.rows_s += c.launches ? launched_attention_s(state, in_vram, r_.hop_s, r_.mutual_attention)
                             : attention_s(state, in_vram, on_device, r_.hop_s, r_.rows.n, r_.streams_states);
    }
    return c;
  }

  /// The copy begins when the link is free and what the ring held before is used; a shard larger than half the ring goes by rows.
  void stream(Clocks& c, std::size_t i) const {
    std::size_t const bytes = dense(i).bytes, half = r_.ring_bytes / 2;
    bool const whole = bytes <= half;
    std::size_t const needed = whole ? bytes : half;
    for (; c.ring_begin < c.ring_end && c.ring_used + needed > r_.ring_bytes; ++c.ring_begin) {
      c.link_s = (std::max)(c.link_s, in_ring_[c.ring_begin].second);
      c.ring_used -= in_ring_[c.ring_begin].first;
    }
    c.link_s += cost(i).copy_s / c.beside.h2d_share;
    c.link_busy_s += cost(i).copy_s;
    if (whole) {
      c.rows_s = (std::max)(c.rows_s, c.link_s) + cost(i).gpu_s;
    } else {
      double const last = cost(i).gpu_s * (std::min)(1.0, double(half) / double(bytes));
      c.rows_s = (std::max)(c.rows_s + cost(i).gpu_s, c.link_s + last);
    }
    in_ring_[c.ring_end++] = {needed, c.rows_s};
    c.ring_used += needed;
  }

  void run_experts(Draft const& d, Clocks& c, std::size_t i, double in_cache) const {
    int const found = layer(i) < first_expert_layer_.size() ? first_expert_layer_[layer(i)] : -1;
    if (found < 0) return;
    PassCost const& sum = layer_sums_[std::size_t(found)];
    ExpertSplit const& split = d.experts;
    double const begin = c.rows_s;
    double end = begin;
    if (split.device_share >= 1 && split.hits < 1 && c.on_device && whole_layers()) return run_ahead(split, sum, c, std::size_t(found));
    // As in the estimate: layers that wait for nothing are the device's alone, and what misses comes in the others.
    double const missed = split.device_share * (1 - in_cache), on_host = 1 - split.device_share;
    double const used = n_used(std::size_t(found));
    double const gpu_s = split.device_share > 0 ? split.device_share * sum.gpu_s : 0;  // an infinite cost of nothing is none
    double const waits = c.on_device ? layers_with_misses((missed + on_host) * n_used_by_all(std::size_t(found)), used) : 1;
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
  std::vector<std::uint32_t> order_;
  ExpertLayers own_experts_;  ///< nothing where the request has them
  ExpertLayers const& experts_;

 private:
  double used_by_all_ = 0;                                       ///< an expert, by any row
  bool whole_layers_ = false;                                    ///< see uses_whole_layer()
  std::vector<PassCost> layer_sums_;                             ///< by ExpertLayers::layers
  std::vector<int> first_expert_layer_;                          ///< layer -> index there, -1: none
  mutable std::vector<std::pair<std::size_t, double>> in_ring_;  ///< bytes and end of use of what was streamed, in order
};

}  // namespace tiered::detail
