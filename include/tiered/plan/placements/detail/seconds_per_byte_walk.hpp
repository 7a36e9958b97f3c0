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
#include "tiered/plan/helped_layer.hpp"
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
  bool operator==(ExpertSplit const&) const = default;
};

/// One answer in the making: where each dense shard and each state is, in the order of use, and how long a pass then takes.
struct Draft {
  std::vector<Where> dense;
  std::vector<float> state_in_vram;  ///< by layer; 0 or 1 where not fixed
  std::size_t unused_bytes = 0;      ///< of these states: see unused_state_bytes()
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
  double launched_attention_s[2] = {}, launched_link_s[2] = {};
  std::size_t n_experts = 0;  ///< of a router's layer
  std::size_t expert_bytes = 0;
  double n_used = 0, n_used_by_all = 0;  ///< of these, by a row and by all rows
  PassCost experts;                      ///< all together
  HelpedExpert helped;                   ///< one of them
};

/// One PlanRequest, as drafts see it: dense shards in the order of use, and experts by layer.
class SecondsPerByteWalk {
 public:
  explicit SecondsPerByteWalk(PlanRequest const& r) : r_(r), all_experts_(r), experts_(all_experts_.layers) {
    if (!experts_.ids.empty()) {
      used_by_all_ = use_probability(r.shards[experts_.ids.front()], r.rows.n);
      whole_layers_ = uses_whole_layer(r.shards[experts_.ids.front()], r.rows.n);
      if (r.expert_share && whole_layers_)
        expected_rows_ = expected_rows(r.rows.n, n_used_of(experts_.layers.front()), std::int32_t(experts_.layers.front().size()));
    }
    for (std::uint32_t id : experts_.dense) dense_.push_back(dense_shard(id));
    in_ring_.resize(dense_.size());
  }

 protected:
  bool fixed() const { return !r_.fixed_state_in_vram.empty(); }
  bool whole_layers() const { return whole_layers_; }

  /// Seconds of a pass, or any that are not below `enough`, if there it ends.
  double walk(Draft const& d, double enough = HUGE_VAL) const {
    Clocks clocks;
    clocks.launches = is_one_launch(d);
    double const in_cache = found_in_cache(d.experts);
    for (std::size_t i = 0; i < dense_.size() && clocks.rows_s < enough; ++i) {
      pass(d, dense_[i], d.dense[i], {}, clocks);
      run_experts(d, dense_[i], in_cache, clocks);
    }
    if (r_.mutual == MutualRates{}) return clocks.rows_s;
    return (std::max)(clocks.rows_s, shared_s(r_.mutual, clocks.host_busy_s, clocks.link_busy_s));
  }

  /// Shards on the host are made streamed where that ends them sooner by the factor `margin`, and their states are moved to VRAM where
  /// there is room. Decisions may be for host and link `beside` each other all the time.
  void stream_some(Draft& d, VramAccount& vram, double margin, MutualRates beside) const {
    Clocks clocks;
    double const in_cache = found_in_cache(d.experts);
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      if (d.dense[i] == Where::host) choose(d, vram, clocks, i, margin, beside);
      pass(d, dense_[i], d.dense[i], beside, clocks);
      run_experts(d, dense_[i], in_cache, clocks);
    }
  }

 private:
  struct Clocks {
    double rows_s = 0, link_s = 0, experts_s = 0;             ///< experts_s: end of the last layer's
    double states_read_s = 0;                                 ///< since then by the link, for launched attention
    double host_busy_s = 0, link_busy_s = 0;                  ///< with dense shards, alone
    std::size_t ring_begin = 0, ring_end = 0, ring_used = 0;  ///< a range of in_ring_
    bool on_device = false, all_resident = true;              ///< dense shards so far
    bool launches = false;                                    ///< one launch is all of the pass
  };

  std::int32_t n_used_of(ExpertLayer const& l) const {
    return std::int32_t(std::lround(double(l.size()) * r_.shards[experts_.ids[l.begin]].use_probability));
  }
  bool is_one_launch(Draft const& d) const {
    if (!r_.launches_attention || r_.deterministic || r_.rows.n != 1 || (!experts_.ids.empty() && d.experts.device_share < 1)) return false;
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      if (d.dense[i] != Where::resident && dense_[i].kind != ShardKind::embedding) return false;
    }
    return true;
  }

  DenseShard dense_shard(std::uint32_t id) const {
    Shard const& shard = r_.shards[id];
    DenseShard s;
    s.id = id;
    s.kind = shard.kind;
    s.with_state = has_state(shard, r_);
    s.bytes = shard.bytes;
    s.layer = std::size_t(shard.layer);
    s.cost = r_.costs[id];
    if (s.with_state) {
      for (int moved = 0; moved < 2; ++moved) {
        AttendedTo const to{fixed() ? double(r_.fixed_state_in_vram[s.layer]) : moved, r_.states_used, r_.states[s.layer].window};
        for (int on_device = 0; on_device < 2; ++on_device)
          s.attention_s[moved][on_device] =
              attention_s(r_.state_costs[s.layer], to, on_device != 0, r_.hop_s, r_.rows.n, r_.streams_states);
        LaunchedAttention const launched = launched_attention(r_.state_costs[s.layer], to, r_.hop_s, r_.mutual_attention);
        s.launched_attention_s[moved] = launched.seconds;
        s.launched_link_s[moved] = launched.link_s;
      }
    }
    if (s.kind != ShardKind::router) return s;
    auto const found = std::ranges::lower_bound(experts_.layers, shard.layer, {}, &ExpertLayer::layer);
    if (found == experts_.layers.end() || found->layer != shard.layer) return s;
    Shard const& expert = r_.shards[experts_.ids[found->begin]];
    s.n_experts = found->size();
    s.n_used = double(s.n_experts) * expert.use_probability;
    s.n_used_by_all = double(s.n_experts) * used_by_all_;
    s.expert_bytes = VramAccount::round_up(expert.bytes);
    s.experts = all_experts_.costs.layers[std::size_t(found - experts_.layers.begin())];
    s.helped = helped_expert(r_.helped, expert, {s.experts.host_s / s.n_used, s.experts.gpu_s / s.n_used, s.experts.copy_s / s.n_used});
    return s;
  }

  void choose(Draft& d, VramAccount& vram, Clocks const& clocks, std::size_t i, double margin, MutualRates beside) const {
    DenseShard const& s = dense_[i];
    if (!std::isfinite(s.cost.gpu_s)) return;
    auto const rows_s = [&](Where where) {
      Clocks trial = clocks;
      pass(d, s, where, beside, trial);
      return trial.rows_s;
    };
    double const host_s = rows_s(Where::host) + (clocks.on_device ? r_.hop_s : 0);
    bool moves_state = false;
    VramAccount trial = vram;
    if (s.with_state && !fixed() && d.state_in_vram[s.layer] == 0 && std::isfinite(r_.state_costs[s.layer].gpu_s)) {
      moves_state = trial.try_state(s.layer);
    }
    if (moves_state) d.state_in_vram[s.layer] = 1;
    double const device_s = rows_s(Where::streamed) + (clocks.on_device ? 0 : r_.hop_s);
    if (margin * (device_s - clocks.rows_s) < host_s - clocks.rows_s) {
      d.dense[i] = Where::streamed;
      if (moves_state) vram = trial;
    } else if (moves_state) {
      d.state_in_vram[s.layer] = 0;
    }
  }

  /// Moves the clocks behind a dense shard. in_ring_ is written at one place only, so a trial leaves nothing behind.
  void pass(Draft const& d, DenseShard const& s, Where where, MutualRates beside, Clocks& c) const {
    bool const on_device = where != Where::host;
    c.all_resident = c.all_resident && (where == Where::resident || s.kind == ShardKind::embedding);
    if (on_device != c.on_device) c.rows_s += r_.hop_s;
    c.on_device = on_device;
    if (where == Where::streamed) {
      stream(c, s, beside);
    } else {
      c.rows_s += on_device ? s.cost.gpu_s : s.cost.host_s / beside.host_share;
      c.host_busy_s += on_device ? 0 : s.cost.host_s;
    }
    if (s.with_state) {
      bool const moved = d.state_in_vram[s.layer] > 0;
      c.rows_s += c.launches ? s.launched_attention_s[moved] : s.attention_s[moved][on_device];
      c.states_read_s += c.launches ? s.launched_link_s[moved] : 0;
    }
  }

  /// The copy begins when the link is free and what the ring held before is used; a shard larger than half the ring goes by rows.
  void stream(Clocks& c, DenseShard const& s, MutualRates beside) const {
    std::size_t const bytes = s.bytes, half = r_.ring_bytes / 2;
    bool const whole = bytes <= half;
    std::size_t const needed = whole ? bytes : half;
    for (; c.ring_begin < c.ring_end && c.ring_used + needed > r_.ring_bytes; ++c.ring_begin) {
      c.link_s = (std::max)(c.link_s, in_ring_[c.ring_begin].second);
      c.ring_used -= in_ring_[c.ring_begin].first;
    }
    c.link_s += s.cost.copy_s / beside.h2d_share;
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

  void run_experts(Draft const& d, DenseShard const& router, double in_cache, Clocks& c) const {
    if (router.n_experts == 0) return;
    PassCost const& sum = router.experts;
    ExpertSplit const& split = d.experts;
    double const begin = c.rows_s;
    double end = begin;
    if (split.device_share >= 1 && split.hits < 1 && c.on_device && whole_layers()) return run_ahead(split, router, c);
    if (asks(split, c)) return run_helped(split, router, in_cache, c);
    // As in the estimate: layers that wait for nothing are the device's alone, and what misses comes in the others.
    double const missed = split.device_share * (1 - in_cache);
    double const on_host = 1 - split.device_share;
    double const gpu_s = split.device_share > 0 ? split.device_share * sum.gpu_s : 0;  // an infinite cost of nothing is none
    double const waits = c.on_device ? layers_with_misses((missed + on_host) * router.n_used_by_all, router.n_used) : 1;
    double const from = begin + (1 - waits) * gpu_s, hops_s = c.on_device ? 2 * waits * r_.hop_s : 0;
    double host_s = (missed * (1 - split.fetched) + on_host) * sum.host_s, copy_s = missed * split.fetched * sum.copy_s;
    if (host_s > 0 && copy_s > 0) host_s /= r_.mutual.host_share, copy_s /= r_.mutual.h2d_share;
    if (split.device_share > 0) end = begin + gpu_s + (c.on_device ? 0 : 2 * r_.hop_s);
    if (missed > 0) end = (std::max)(end, c.link_s = (std::max)(c.link_s, from) + copy_s);
    if (host_s > 0) end = (std::max)(end, from + host_s + hops_s);
    if (split.cache_bytes > 0) end += waits * missed_layer_s + (1 - waits) * found_layer_s;
    double const away = c.on_device ? missed * (1 - split.fetched) + on_host : split.device_share;
    c.states_read_s = 0;
    c.rows_s = c.experts_s = end + slots_back_s(r_.rows.n, away * router.n_used);
  }

  /// As in the estimate.
  bool asks(ExpertSplit const& split, Clocks const& c) const {
    return r_.looks_ahead && r_.rows.n == 1 && c.all_resident && c.on_device && split.cache_bytes > 0 && split.device_share >= 1 &&
           !r_.deterministic;
  }
  void run_helped(ExpertSplit const& split, DenseShard const& router, double in_cache, Clocks& c) const {
    HelpedLayer l;
    l.expert = router.helped;
    l.used = router.n_used;
    l.missing = (1 - in_cache) * router.n_used;
    l.device_s = (std::max)(c.rows_s - c.experts_s, 0.0);
    l.states_s = c.states_read_s;
    l.link_share = split.fetched;
    l.reads_ahead = r_.reads_ahead;
    c.rows_s = c.experts_s = c.rows_s - l.device_s + helped_time(l).seconds;
    c.states_read_s = 0;
  }

  /// Of what may be in the cache.
  double found_in_cache(ExpertSplit const& split) const {
    if (split.cache_bytes == 0) return split.hits;
    return cache_hits(split.hits, r_.shards[experts_.ids.front()].use_probability, r_.rows.n);
  }
  /// All experts cross ahead of the router, as far ahead as the flow has room: see plan/expert_flow.hpp.
  void run_ahead(ExpertSplit const& split, DenseShard const& router, Clocks& c) const {
    PassCost const& sum = router.experts;
    std::size_t const largest = router.expert_bytes;
    double const flow = double(flow_bytes(split.cache_bytes, largest, experts_.bytes));
    double const missing = 1 - (double(split.cache_bytes) - flow) / double(experts_.bytes);
    double const n_missing = missing * double(router.n_experts);
    LayerShare const share = expected_share(r_.expert_share, expected_rows_, r_.rows.n, std::int32_t(std::lround(n_missing)));
    bool const shares = share.n_host > 0 && n_missing > 0;
    double copy_s = missing * sum.copy_s;
    double const ahead_s = copy_s * flow / (missing * double(router.n_experts * largest));
    if (shares) copy_s *= (std::max)(1 - double(share.n_host) / n_missing, 0.0) / r_.mutual.h2d_share;
    if (shares) copy_s += double(r_.rows.n) * r_.expert_share.back_row_s;
    c.link_s = (std::max)(c.link_s, c.experts_s - ahead_s) + copy_s;
    double const host_end_s = shares ? c.rows_s + r_.expert_share.lead_s + share.host_s : 0;
    double const window = (std::max)(double(flow_window_bytes(std::size_t(flow))), double(largest));
    double const n_windows = std::ceil(missing * double(router.n_experts * largest) / window);
    c.rows_s = c.experts_s = (std::max)({c.rows_s + sum.gpu_s + windows_s(n_windows), c.link_s, host_end_s});
  }

 protected:
  PlanRequest const& r_;
  ExpertsOf all_experts_;
  ExpertLayers const& experts_;
  std::vector<DenseShard> dense_;  ///< in the order of use

 private:
  double used_by_all_ = 0;                                       ///< an expert, by any row
  bool whole_layers_ = false;                                    ///< see uses_whole_layer()
  std::vector<std::int32_t> expected_rows_;                      ///< with a share
  mutable std::vector<std::pair<std::size_t, double>> in_ring_;  ///< bytes and end of use of what was streamed, in order
};

}  // namespace tiered::detail
