/// Defines SecondsPerByte: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tiered/plan/placements/detail/seconds_per_byte_walk.hpp"
#include "tiered/plan/placements/order.hpp"
#include "tiered/plan/placements/seconds_per_byte.hpp"

namespace tiered {

namespace detail {

/// In which order residents are tried: by seconds per byte; by layer, which hops least; by kind, which knows that a copy hidden
/// behind compute costs nothing while a head on the host does.
enum class FillOrder : std::uint8_t { density, layer, kind };

/// Solves one PlanRequest. Three ideas:
/// - a knapsack: shards and states become resident in the order of seconds saved per byte against the best other way;
/// - list scheduling: walking the steps with one clock for the link and one for the rows, a shard is streamed where its copy,
///   begun as soon as the link and the ring are free, lets it end sooner than the host would. So link and host work at the
///   same time on different shards, in about the ratio of their rates, though either alone may be slower;
/// - experts: as many on the device as makes fetching the missing ones as long as the host's share.
/// Few variants of each are drafted and the fastest is taken.
class SecondsPerByteSolver : SecondsPerByteWalk {
 public:
  SecondsPerByteSolver(PlanRequest const& r, double margin) : SecondsPerByteWalk(r), margin_(margin), sums_(all_experts_.costs.all) {}

  Placements solve() const {
    Draft best = on_host();
    if (nothing_fits(r_)) return materialise(best);
    std::vector<std::size_t> const reserves = reserves_for_experts();
    std::vector<Item> const offers = items();
    for (FillOrder const order : {FillOrder::density, FillOrder::layer, FillOrder::kind}) {
      std::vector<Item> const in_order = sorted(offers, order);
      for (std::size_t const reserve : reserves) {
        draft_variants(in_order, reserve, best);
        if (experts_.ids.empty()) break;
      }
    }
    return materialise(best);
  }

 private:
  struct Item {
    double seconds_per_byte = 0;
    std::size_t index = 0;  ///< into dense_
    bool weights = false, state = false;
  };

  Draft blank() const {
    Draft d;
    d.dense.assign(dense_.size(), Where::host);
    d.state_in_vram.assign(r_.states.size(), 0.f);
    for (std::size_t l = 0; l < r_.fixed_state_in_vram.size(); ++l) d.state_in_vram[l] = r_.fixed_state_in_vram[l];
    return d;
  }
  Draft on_host() const {
    Draft d = blank();
    d.seconds = walk(d);
    return d;
  }

  /// What is kept from dense weights for experts: nothing, the least cache, and the least that shares its room with states.
  std::vector<std::size_t> reserves_for_experts() const {
    std::vector<std::size_t> out{0, experts_.min_cache_bytes()};
    std::size_t const left = experts_.min_left_bytes(whole_layers());
    if (left > out.back() && unused_state_bytes(r_, std::vector<float>(r_.states.size(), 1.f)) > 0) out.push_back(left);
    return out;
  }

  void draft_variants(std::vector<Item> const& items, std::size_t reserve, Draft& best) const {
    VramAccount vram{r_};
    if (!vram.try_bytes(reserve)) return;
    Draft d = blank();
    fill(d, vram, items);
    if (std::ranges::any_of(
            drafted_, [&](Filled const& f) { return f.reserve == reserve && f.dense == d.dense && f.state_in_vram == d.state_in_vram; }))
      return;  // as another order did
    drafted_.push_back({reserve, d.dense, d.state_in_vram});
    for (bool const streams : {false, true}) {
      if (streams && r_.ring_bytes == 0) continue;
      // What is streamed depends on how long the experts keep the host busy, and what they get on what streaming leaves. Several aims may
      // come to the same.
      Draft variant = d;
      VramAccount left = vram;
      constexpr ExpertSplit none{-1};
      ExpertSplit streamed_for = none, tried = none;
      for (double const aim : {shared_misses, 0.0, 0.5, 1.0, 2.0}) {
        if (ExpertSplit const expected = split(d, vram.free_bytes() + reserve, aim); streams && expected != streamed_for) {
          variant = d;
          left = vram;
          variant.experts = expected;
          stream_some(variant, left, margin_, r_.mutual);
          if (variant.state_in_vram != d.state_in_vram) variant.unused_bytes = unused_state_bytes(r_, variant.state_in_vram);
          streamed_for = expected;
          tried = none;
        }
        variant.experts = split(variant, left.free_bytes() + reserve, aim);
        if (variant.experts == tried || (streams && variant.dense == d.dense)) continue;
        tried = variant.experts;
        // Real routing is skewed, and then a cache for all experts hits more often than is promised: others must be clearly faster.
        double const clear = best.experts.fetched < 1 ? 0.95 : 1, enough = clear * best.seconds;
        variant.seconds = walk(variant, enough);
        if (variant.seconds < enough) best = variant;
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
      stream_some(variant, left, margin * margin_, rates);
      variant.seconds = walk(variant, best.seconds);
      if (variant.seconds < best.seconds) best = std::move(variant);
    }
  }

  struct Filled {
    std::size_t reserve = 0;
    std::vector<Where> dense;
    std::vector<float> state_in_vram;
  };
  /// Residents. Attention and its state are offered together and each alone: a hop dearer, but
  /// a long context's state is worth more than its layer's weights, which may be streamed.
  void fill(Draft& d, VramAccount& vram, std::vector<Item> const& items) const {
    for (Item const& item : items) {
      bool const needs_weights = item.weights && d.dense[item.index] != Where::resident;
      bool const needs_state = item.state && d.state_in_vram[dense_[item.index].layer] == 0;
      VramAccount trial = vram;
      if (needs_weights && !trial.try_resident(dense_[item.index].id)) continue;
      if (needs_state && !trial.try_state(dense_[item.index].layer)) continue;
      vram = trial;
      if (needs_weights) d.dense[item.index] = Where::resident;
      if (needs_state) d.state_in_vram[dense_[item.index].layer] = 1;
    }
    d.unused_bytes = unused_state_bytes(r_, d.state_in_vram);
  }

  std::vector<Item> items() const {
    std::vector<Item> out;
    for (std::size_t i = 0; i < dense_.size(); ++i) add_items(i, out);
    return out;
  }
  std::vector<Item> sorted(std::vector<Item> items, FillOrder order) const {
    auto const denser = [](Item const& a, Item const& b) { return a.seconds_per_byte > b.seconds_per_byte; };
    auto const of_kind = [&](Item const& a, Item const& b) { return rank(dense_[a.index].kind) < rank(dense_[b.index].kind); };
    if (order == FillOrder::density) std::stable_sort(items.begin(), items.end(), denser);
    if (order == FillOrder::kind) std::stable_sort(items.begin(), items.end(), of_kind);
    return items;
  }
  static constexpr int rank(ShardKind kind) { return kind == ShardKind::ffn ? 1 : 0; }

  void add_items(std::size_t i, std::vector<Item>& items) const {
    DenseShard const& s = dense_[i];
    PassCost const& c = s.cost;
    double const other_s = (std::min)(c.host_s, r_.ring_bytes > 0 ? (std::max)(c.copy_s, c.gpu_s) + c.gpu_s : HUGE_VAL);
    double const bytes = double((std::max)(s.bytes, std::size_t{1}));
    if (!s.with_state) {
      if (other_s > c.gpu_s) items.push_back({(other_s - c.gpu_s) / bytes, i, true, false});
      return;
    }
    PassCost const& state = r_.state_costs[s.layer];
    double const state_bytes = double(r_.state_bytes(s.layer));
    HostAttention const on_host = host_attention(state, r_.hop_s, r_.streams_states ? r_.rows.n : 1);
    double const state_s = on_host.streams ? on_host.streamed_s : state.host_s;
    double const weights_gain = other_s - c.gpu_s - 2 * r_.hop_s, state_gain = state_s - state.gpu_s - 2 * r_.hop_s;
    double const pair_gain = other_s + state_s - c.gpu_s - state.gpu_s;
    if (fixed()) {
      double const gain = r_.fixed_state_in_vram[s.layer] > 0 ? other_s + 2 * r_.hop_s - c.gpu_s : weights_gain;
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
    std::size_t const shared = d.unused_bytes, cache = room + shared;
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

  Placements materialise(Draft const& d) const {
    Placements out{r_};
    out.declined = r_.ring_bytes > 0 && std::ranges::find(d.dense, Where::streamed) == d.dense.end();
    if (out.declined) return out;
    HostHomes homes{r_};
    for (std::size_t i = 0; i < dense_.size(); ++i) {
      if (d.dense[i] == Where::resident) out.shards[dense_[i].id] = {Tier::vram, 1};
      if (d.dense[i] == Where::streamed) out.shards[dense_[i].id] = {homes.take(dense_[i].bytes), 1};
    }
    for (std::size_t l = 0; l < d.state_in_vram.size(); ++l) out.state_in_vram[l] = d.state_in_vram[l];
    if (d.experts.device_share > 0) place(d.experts, homes, out);
    return out;
  }

  void place(ExpertSplit const& split, HostHomes& homes, Placements& out) const {
    out.cache_bytes = split.cache_bytes - split.shared_bytes;
    out.fetched_misses = float(split.fetched);
    if (split.device_share >= 1 && r_.budget.pinned_bytes == 0) {  // then in any order
      for (std::uint32_t id : experts_.ids)
        out.shards[id] = split.cache_bytes > 0 ? Placement{Tier::pageable, 1, true} : Placement{Tier::vram, 1};
      return;
    }
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

  double margin_;
  PassCost const& sums_;  ///< of all experts
  mutable std::vector<Filled> drafted_;
};

}  // namespace detail

Placements SecondsPerByte::place(PlanRequest const& r) const { return detail::SecondsPerByteSolver{r, margin}.solve(); }

}  // namespace tiered
