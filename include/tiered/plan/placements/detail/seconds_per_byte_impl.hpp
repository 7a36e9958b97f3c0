/// Defines SecondsPerByte: for one source file of a program.
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
#include "tiered/plan/placements/seconds_per_byte.hpp"

namespace tiered {

namespace detail {

enum class Where : std::uint8_t { host, streamed, resident };
/// In which order residents are tried: by seconds per byte; by layer, which hops least; by kind, which knows that a copy hidden
/// behind compute costs nothing while a head on the host does.
enum class FillOrder : std::uint8_t { density, layer, kind };

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

/// Solves one PlanRequest. Three ideas:
/// - a knapsack: shards and states become resident in the order of seconds saved per byte against the best other way;
/// - list scheduling: walking the steps with one clock for the link and one for the rows, a shard is streamed where its copy,
///   begun as soon as the link and the ring are free, lets it end sooner than the host would. So link and host work at the
///   same time on different shards, in about the ratio of their rates, though either alone may be slower;
/// - experts: as many on the device as makes fetching the missing ones as long as the host's share.
/// Few variants of each are drafted and the fastest is taken.
class SecondsPerByteSolver {
 public:
  SecondsPerByteSolver(PlanRequest const& r, double margin)
      : r_(r),
        margin_(margin),
        order_(dense_order(r)),
        own_experts_(r.experts != nullptr ? std::span<Shard const>{} : r.shards),
        experts_(r.experts != nullptr ? *r.experts : own_experts_),
        sums_(r, experts_),
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

  Placements solve() const {
    Draft best = on_host();
    if (nothing_fits(r_)) return materialise(best);
    for (FillOrder const order : {FillOrder::density, FillOrder::layer, FillOrder::kind}) {
      for (std::size_t const reserve : reserves()) {
        draft_variants(order, reserve, best);
        if (experts_.ids.empty()) break;
      }
    }
    return materialise(best);
  }

 private:
  bool fixed() const { return !r_.fixed_state_in_vram.empty(); }
  Shard const& dense(std::size_t i) const { return r_.shards[order_[i]]; }
  PassCost const& cost(std::size_t i) const { return r_.costs[order_[i]]; }
  bool with_state(std::size_t i) const { return has_state(dense(i), r_); }
  std::size_t layer(std::size_t i) const { return std::size_t(dense(i).layer); }

  Draft blank() const {
    Draft d;
    d.dense.assign(order_.size(), Where::host);
    d.state_in_vram.assign(r_.states.size(), 0.f);
    for (std::size_t l = 0; l < r_.fixed_state_in_vram.size(); ++l) d.state_in_vram[l] = r_.fixed_state_in_vram[l];
    return d;
  }
  Draft on_host() const {
    Draft d = blank();
    VramAccount none{r_};
    d.seconds = walk(d, none, never);
    return d;
  }

  /// What is kept from dense weights for experts: nothing, the least cache, and the least that shares its room with states.
  std::vector<std::size_t> reserves() const {
    std::vector<std::size_t> out{0, experts_.min_cache_bytes()};
    std::size_t const left = experts_.min_left_bytes(whole_layers());
    if (left > out.back() && unused_state_bytes(r_, std::vector<float>(r_.states.size(), 1.f)) > 0) out.push_back(left);
    return out;
  }

  void draft_variants(FillOrder order, std::size_t reserve, Draft& best) const {
    VramAccount vram{r_};
    if (!vram.try_bytes(reserve)) return;
    Draft d = blank();
    fill(d, vram, order);
    if (std::ranges::any_of(
            drafted_, [&](Filled const& f) { return f.reserve == reserve && f.dense == d.dense && f.state_in_vram == d.state_in_vram; }))
      return;  // as another order did
    drafted_.push_back({reserve, d.dense, d.state_in_vram});
    for (bool const streams : {false, true}) {
      if (streams && r_.ring_bytes == 0) continue;
      // What is streamed depends on how long the experts keep the host busy, and what they get on what streaming leaves.
      // Real routing is skewed, and then a cache for all experts hits more often than is promised: others must be clearly faster.
      for (double const aim : {shared_misses, 0.0, 0.5, 1.0, 2.0}) {
        Draft variant = d;
        VramAccount left = vram;
        if (streams) {
          variant.experts = split(variant, left.free_bytes() + reserve, aim);
          walk(variant, left, margin_, r_.mutual);
        }
        variant.experts = split(variant, left.free_bytes() + reserve, aim);
        variant.seconds = walk(variant, left, never);
        double const clear = best.experts.fetched < 1 ? 0.95 : 1;
        if (variant.seconds < clear * best.seconds) best = std::move(variant);
        if (experts_.ids.empty()) break;
      }
    }
    if (experts_.ids.empty() && r_.ring_bytes > 0 && r_.mutual != MutualRates{}) stream_less(d, vram, best);
  }

  /// Rows wait for a copy while the host is idle, so what is streamed only because it ends a little sooner makes all that follows later:
  /// without experts, whose products fill such gaps, a shard must be clearly faster streamed, that is, be nearly there already.
  void stream_less(Draft const& filled, VramAccount const& vram, Draft& best) const {
    MutualRates const alone;
    for (auto const& [margin, rates] : {std::pair{1.5, r_.mutual}, {3.0, r_.mutual}, {1.0, alone}, {2.0, alone}}) {
      Draft variant = filled;
      VramAccount left = vram;
      walk(variant, left, margin * margin_, rates);
      variant.seconds = walk(variant, left, never);
      if (variant.seconds < best.seconds) best = std::move(variant);
    }
  }

  struct Filled {
    std::size_t reserve = 0;
    std::vector<Where> dense;
    std::vector<float> state_in_vram;
  };
  struct Item {
    double seconds_per_byte = 0;
    std::size_t index = 0;  ///< into order_
    bool weights = false, state = false;
  };

  /// Residents. Attention and its state are offered together and each alone: a hop dearer, but
  /// a long context's state is worth more than its layer's weights, which may be streamed.
  void fill(Draft& d, VramAccount& vram, FillOrder order) const {
    std::vector<Item> items;
    for (std::size_t i = 0; i < order_.size(); ++i) add_items(i, items);
    std::stable_sort(items.begin(), items.end(), [&](Item const& a, Item const& b) {
      if (order == FillOrder::density) return a.seconds_per_byte > b.seconds_per_byte;
      return order == FillOrder::kind && rank(dense(a.index).kind) < rank(dense(b.index).kind);
    });
    for (Item const& item : items) {
      bool const needs_weights = item.weights && d.dense[item.index] != Where::resident;
      bool const needs_state = item.state && d.state_in_vram[layer(item.index)] == 0;
      VramAccount trial = vram;
      if (needs_weights && !trial.try_resident(order_[item.index])) continue;
      if (needs_state && !trial.try_state(layer(item.index))) continue;
      vram = trial;
      if (needs_weights) d.dense[item.index] = Where::resident;
      if (needs_state) d.state_in_vram[layer(item.index)] = 1;
    }
  }

  static constexpr int rank(ShardKind kind) { return kind == ShardKind::ffn ? 1 : 0; }

  void add_items(std::size_t i, std::vector<Item>& items) const {
    PassCost const& c = cost(i);
    double const other_s = (std::min)(c.host_s, r_.ring_bytes > 0 ? (std::max)(c.copy_s, c.gpu_s) + c.gpu_s : HUGE_VAL);
    double const bytes = double((std::max)(dense(i).bytes, std::size_t{1}));
    if (!with_state(i)) {
      if (other_s > c.gpu_s) items.push_back({(other_s - c.gpu_s) / bytes, i, true, false});
      return;
    }
    PassCost const& state = r_.state_costs[layer(i)];
    double const state_bytes = double(r_.state_bytes(layer(i)));
    HostAttention const on_host = host_attention(state, r_.hop_s, r_.streams_states ? r_.rows.n : 1);
    double const state_s = on_host.streams ? on_host.streamed_s : state.host_s;
    double const weights_gain = other_s - c.gpu_s - 2 * r_.hop_s, state_gain = state_s - state.gpu_s - 2 * r_.hop_s;
    double const pair_gain = other_s + state_s - c.gpu_s - state.gpu_s;
    if (fixed()) {
      double const gain = r_.fixed_state_in_vram[layer(i)] > 0 ? other_s + 2 * r_.hop_s - c.gpu_s : weights_gain;
      if (gain > 0) items.push_back({gain / bytes, i, true, false});
      return;
    }
    if (pair_gain > 0) items.push_back({pair_gain / (bytes + state_bytes), i, true, true});
    if (weights_gain > 0) items.push_back({weights_gain / bytes, i, true, false});
    if (state_gain > 0) items.push_back({state_gain / (state_bytes + 1), i, false, true});
  }

  static constexpr double shared_misses = -1;

  /// Experts for `room` bytes, and for a cache besides what the states do not use. `aim` 1: fetching what misses takes as long as the
  /// host's share; more: more is fetched; 0: nothing. shared_misses: any expert may be in the cache, and of those that are not there link
  /// and host take as much as they can meanwhile.
  ExpertSplit split(Draft const& d, std::size_t room, double aim) const {
    room = room / weight_alignment * weight_alignment;
    if (experts_.ids.empty() || !std::isfinite(sums_.gpu_s)) return {};
    double const fits = double(room) / double(experts_.bytes);
    if (fits >= 1) return {1, 0, 0, 1};
    if (room < experts_.min_cache_bytes()) return {fits, 0, 0, 1};
    std::size_t const shared = unused_state_bytes(r_, d.state_in_vram), cache = room + shared;
    if (shared > 0 && room < experts_.min_left_bytes(whole_layers())) return {fits, 0, 0, 1};
    double const cached = (std::min)(1.0, double(cache) / double(experts_.bytes));
    if (aim == shared_misses) {
      if (!std::isfinite(sums_.host_s) || sums_.host_s + sums_.copy_s <= 0) return {fits, 0, 0, 1};
      if (whole_layers() || r_.deterministic) return {1, cache, shared, cached, 1};
      double const host_s = sums_.host_s / r_.mutual.host_share, copy_s = sums_.copy_s / r_.mutual.h2d_share;
      return {1, cache, shared, cached, host_s / (host_s + copy_s)};
    }
    double const both = sums_.host_s + sums_.copy_s;
    double const balanced = aim == 0 ? fits : std::isfinite(sums_.host_s) ? cached + aim * sums_.host_s * (1 - cached) / both : 1;
    if (balanced <= fits) return {fits, 0, 0, 1};
    return {(std::min)(balanced, 1.0), cache, shared, cached / (std::min)(balanced, 1.0)};
  }

  /// Seconds of a pass. With a margin, shards on the host are made streamed where that ends them sooner by this factor, and their states
  /// are moved to VRAM where there is room.
  static constexpr double never = HUGE_VAL;
  double walk(Draft& d, VramAccount& vram, double margin, MutualRates beside = {}) const {
    Clocks clocks;
    bool const decide = margin != never;
    clocks.beside = beside;
    double const in_cache = found_in_cache(d.experts);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (decide && d.dense[i] == Where::host) choose(d, vram, clocks, i, margin);
      clocks = after(d, clocks, i);
      if (dense(i).kind == ShardKind::router) run_experts(d, clocks, i, in_cache);
    }
    if (r_.mutual == MutualRates{}) return clocks.rows_s;
    return (std::max)(clocks.rows_s, shared_s(r_.mutual, clocks.host_busy_s, clocks.link_busy_s));
  }

  struct Clocks {
    double rows_s = 0, link_s = 0, experts_s = 0;  ///< experts_s: end of the last layer's
    bool on_device = false;
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
      c.rows_s += attention_s(r_.state_costs[layer(i)], in_vram, on_device, r_.hop_s, r_.rows.n, r_.streams_states);
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
    double const used = n_used(std::size_t(found)), gpu_s = split.device_share * sum.gpu_s;
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

  bool whole_layers() const { return whole_layers_; }
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
    double const window = (std::max)(double(flow_window_bytes(std::size_t(flow))), double(largest)), n = r_.rows.n;
    double const n_windows = std::ceil(missing * double(l.size() * largest) / window);
    c.rows_s = c.experts_s = (std::max)(c.rows_s + sum.gpu_s + windows_s(n_windows, n, n_used(found)), c.link_s);
  }

  Placements materialise(Draft const& d) const {
    Placements out{r_};
    HostHomes homes{r_};
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (d.dense[i] == Where::resident) out.shards[order_[i]] = {Tier::vram, 1};
      if (d.dense[i] == Where::streamed) out.shards[order_[i]] = {homes.take(dense(i).bytes), 1};
    }
    for (std::size_t l = 0; l < d.state_in_vram.size(); ++l) out.state_in_vram[l] = d.state_in_vram[l];
    if (d.experts.device_share > 0) place(d.experts, homes, out);
    return out;
  }

  void place(ExpertSplit const& split, HostHomes& homes, Placements& out) const {
    out.cache_bytes = split.cache_bytes - split.shared_bytes;
    out.fetched_misses = float(split.fetched);
    std::size_t left = std::size_t(split.device_share * double(experts_.bytes));
    for (std::size_t k = 0, seen = 1; seen > 0; ++k) {
      seen = 0;
      for (ExpertLayer const& layer : experts_.layers) {
        if (k >= layer.size()) continue;
        ++seen;
        std::uint32_t const id = experts_.ids[layer.begin + k];
        std::size_t const bytes = VramAccount::round_up(r_.shards[id].bytes);
        if (split.device_share < 1) {
          if (bytes > left) return;
          left -= bytes;
        }
        out.shards[id] = split.cache_bytes > 0 ? Placement{homes.take(bytes), 1, true} : Placement{Tier::vram, 1};
      }
    }
  }

  PlanRequest const& r_;
  double margin_;
  std::vector<std::uint32_t> order_;
  ExpertLayers own_experts_;
  ExpertLayers const& experts_;
  double used_by_all_ = 0;     ///< an expert, by any row
  bool whole_layers_ = false;  ///< see uses_whole_layer()
  ExpertSums sums_;
  std::vector<PassCost> layer_sums_;     ///< by ExpertLayers::layers
  std::vector<int> first_expert_layer_;  ///< layer -> index there, -1: none
  mutable std::vector<Filled> drafted_;
  mutable std::vector<std::pair<std::size_t, double>> in_ring_;  ///< bytes and end of use of what was streamed, in order
};

}  // namespace detail

Placements SecondsPerByte::place(PlanRequest const& r) const { return detail::answer(r, detail::SecondsPerByteSolver{r, margin}.solve()); }

}  // namespace tiered
