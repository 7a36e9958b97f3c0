/// Defines pass_costs and Estimator: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/plan/estimate.hpp"
#include "tiered/plan/experts.hpp"

namespace tiered {

PassCosts pass_costs(ShardTable const& table, Rows rows, std::int32_t chunk_tokens, std::int32_t block_tokens,
                     FunctionRef<PassCost(Shard const&, Rows)> shard_cost, FunctionRef<PassCost(LayerState const&, Rows)> state_cost) {
  auto with_n = [&](std::int32_t n) { return Rows{(std::min)(n, rows.n), rows.context, rows.n_sequences}; };
  Rows const block = with_n(block_tokens), chunk = with_n(chunk_tokens);
  double const n_chunks = double((block.n + chunk.n - 1) / chunk.n), share = double(block.n) / double(rows.n);
  PassCosts out;
  out.shards.reserve(table.shards.size());
  out.read_bytes.reserve(table.shards.size());
  double used = 0, of_probability = -1;  // mostly the same as of the shard before
  for (Shard const& s : table.shards) {
    bool const at_once = s.kind == ShardKind::expert || s.kind == ShardKind::output || s.kind == ShardKind::embedding;
    PassCost cost = shard_cost(s, at_once ? block : chunk);
    if (!at_once) {
      cost.host_s *= n_chunks;
      cost.gpu_s *= n_chunks;
    }
    out.shards.push_back(cost);
    if (s.use_probability != of_probability) used = use_probability(s, block.n);
    of_probability = s.use_probability;
    out.read_bytes.push_back(s.kind == ShardKind::embedding ? 0 : used * double(s.bytes));
  }
  for (LayerState const& state : table.states) {
    PassCost const cost = state_cost(state, rows);
    out.states.push_back({cost.host_s * share, cost.gpu_s * share, cost.copy_s});
  }
  return out;
}

namespace detail {

struct Lane {
  double free_s = 0;
  double* busy_s = nullptr;
  ActionTime take(double from_s, double seconds) {
    double const begin = (std::max)(free_s, from_s);
    free_s = begin + seconds;
    *busy_s += seconds;
    return {begin, free_s};
  }
};

struct RingRange {
  std::size_t begin = 0, end = 0;
  double ready_s = 0;
  ShardId shard{};
  Range rows;
};

}  // namespace detail

struct Estimator::Walk {
  using Lane = detail::Lane;
  using RingRange = detail::RingRange;

  Estimator const& owner;
  ShardPlan const& plan;
  PassCosts const& costs;
  double hop_s;
  Estimate out{};
  double rows_ready_s = 0;
  Lane copy{0, &out.copy_s}, gpu{0, &out.gpu_s}, host{0, &out.host_s};
  std::vector<RingRange> live{}, released{};  // live: when copied; released: when free

  Walk(Walk const&) = delete;
  Walk(Estimator const& e, ShardPlan const& p, PassCosts const& c, double hop) : owner(e), plan(p), costs(c), hop_s(hop) {}

  Lane& lane(DeviceId device) { return device == host_device ? host : gpu; }

  void act(Action const& a) {
    ActionTime time{rows_ready_s, rows_ready_s};
    switch (a.kind) {
      case ActionKind::copy: time = run_copy(a); break;
      case ActionKind::run: time = run_step(a); break;
      case ActionKind::release: release(a); break;
      case ActionKind::hop: time.end_s = rows_ready_s += hop_s; break;
      case ActionKind::fetch_routed: time = run_experts(a); break;
    }
    out.actions.push_back(time);
  }

  ActionTime run_copy(Action const& a) {
    std::size_t const end = a.ring_offset + a.bytes;
    double from = 0;
    std::erase_if(released, [&](RingRange const& r) {
      if (r.end <= a.ring_offset || r.begin >= end) return false;
      from = (std::max)(from, r.ready_s);
      return r.begin >= a.ring_offset && r.end <= end;
    });
    HardwareProfile const& hardware = *owner.hardware_;
    ActionTime const time = copy.take(from, hardware.copy_latency_s + hardware.h2d.seconds(double(a.bytes)));
    out.copied_bytes += double(a.bytes);
    live.push_back({a.ring_offset, end, time.end_s, a.shard, a.rows});
    return time;
  }

  void release(Action const& a) {
    std::erase_if(live, [&](RingRange const& r) { return r.begin == a.ring_offset; });
    released.push_back({a.ring_offset, a.ring_offset + a.bytes, rows_ready_s, a.shard, a.rows});
  }

  ActionTime run_step(Action const& a) {
    Shard const& s = owner.table_.shard(a.shard);
    PassCost const& cost = costs.shards[std::size_t(a.shard)];
    bool const on_host = a.device == host_device;
    bool const last = a.rows == Range{} || a.rows.end == s.n_rows;
    double const share = a.rows == Range{} ? 1 : double(a.rows.size()) / double(s.n_rows);
    double from = rows_ready_s;
    for (RingRange const& r : live) {
      if (r.shard == a.shard && r.rows == a.rows) from = (std::max)(from, r.ready_s);
    }
    ActionTime time = lane(a.device).take(from, share * (on_host ? cost.host_s : cost.gpu_s));
    if (on_host) out.host_bytes += share * costs.read_bytes[std::size_t(a.shard)];
    if (s.kind == ShardKind::attention && last && s.layer >= 0 && std::size_t(s.layer) < costs.states.size()) {
      time.end_s = attend(std::size_t(s.layer), on_host, time.end_s);
    }
    rows_ready_s = time.end_s;
    return time;
  }

  /// Attention runs where the state lies; if that is the other device, queries go there and results come back.
  double attend(std::size_t layer, bool on_host, double ready_s) {
    bool const state_on_host = plan.state_in_vram[layer] == 0;
    double const hop = state_on_host == on_host ? 0 : hop_s;
    PassCost const& cost = costs.states[layer];
    ActionTime const core = (state_on_host ? host : gpu).take(ready_s + hop, state_on_host ? cost.host_s : cost.gpu_s);
    if (hop == 0) return core.end_s;
    return lane(on_host ? host_device : first_gpu).take(core.end_s + hop, 0).end_s;
  }

  /// Resident, fetched and host experts of one layer at the same time.
  ActionTime run_experts(Action const& a) {
    std::int32_t const layer_number = owner.table_.shard(a.shard).layer;
    auto const layer = std::lower_bound(owner.experts_.layers.begin(), owner.experts_.layers.end(), layer_number,
                                        [](ExpertLayer const& l, std::int32_t n) { return l.layer < n; });
    ActionTime time{rows_ready_s, rows_ready_s};
    if (layer == owner.experts_.layers.end() || layer->layer != layer_number) return time;
    double resident_s = 0, cached_s = 0, fetch_s = 0, host_s = 0;
    for (std::size_t i = layer->begin; i < layer->end; ++i) {
      std::uint32_t const id = owner.experts_.ids[i];
      Placement const& p = plan.shards[id];
      PassCost const& cost = costs.shards[id];
      if (p.gpu_rows == 0) {
        host_s += cost.host_s;
        out.host_bytes += costs.read_bytes[id];
      } else if (p.cached) {
        cached_s += cost.gpu_s;
        fetch_s += (1 - hits()) * cost.copy_s;
        out.copied_bytes += (1 - hits()) * costs.read_bytes[id];
      } else {
        resident_s += cost.gpu_s;
      }
    }
    double const to_host = a.device == host_device ? 0 : hop_s, to_gpu = hop_s - to_host;
    double end = time.begin_s;
    if (resident_s + cached_s > 0) {
      double const copied = fetch_s > 0 ? copy.take(time.begin_s + owner.hardware_->hop_latency_s, fetch_s).end_s : 0;
      double const ran = gpu.take(time.begin_s + to_gpu, resident_s + cached_s).end_s;
      gpu.free_s = (std::max)(ran, copied);
      end = (std::max)(end, gpu.free_s + to_gpu);
    }
    if (host_s > 0) end = (std::max)(end, host.take(time.begin_s + to_host, host_s).end_s + to_host);
    time.end_s = rows_ready_s = end;
    return time;
  }

  double hits() {
    if (hits_ < 0) {
      std::size_t cached = 0;
      for (std::uint32_t id : owner.experts_.ids)
        cached += plan.shards[id].cached ? VramAccount::round_up(owner.table_.shards[id].bytes) : 0;
      hits_ = expected_hits(plan.cache_bytes, cached);
    }
    return hits_;
  }
  double hits_ = -1;
};

Estimator::Estimator(ShardTable const& table, HardwareProfile const& hardware) : table_(table), hardware_(&hardware), experts_(table.shards) {
  if (table.steps.empty()) return;
  Shard const& first = table.shard(table.steps[0].shard);  // whatever it is, its first weight has the width of the hidden rows
  if (first.weights.size() > 0) dim_ = table.weights[std::size_t(first.weights.begin)].cols;
}

double Estimator::hop_s(std::int32_t n) const { return hardware_->hop_latency_s + hardware_->d2h.seconds(double(n) * double(dim_) * sizeof(float)); }

Estimate Estimator::operator()(Schedule const& schedule, ShardPlan const& plan, PassCosts const& costs, Rows rows) const {
  std::int32_t const block = (std::min)(plan.block_tokens, rows.n);
  Walk walk{*this, plan, costs, hop_s(block)};
  walk.out.actions.reserve(schedule.size());
  for (Action const& a : schedule) walk.act(a);
  Estimate out = std::move(walk.out);
  double const n_blocks = double((rows.n + block - 1) / block);
  for (double* value : {&walk.rows_ready_s, &out.copy_s, &out.gpu_s, &out.host_s, &out.copied_bytes, &out.host_bytes}) *value *= n_blocks;
  out.bound_s = (std::max)({out.copy_s, out.gpu_s, out.host_s, (out.copied_bytes + out.host_bytes) / hardware_->dram_bytes_per_s});
  out.seconds = (std::max)(walk.rows_ready_s, out.bound_s);
  return out;
}

Estimate estimate(Schedule const& schedule, ShardPlan const& plan, ShardTable const& table, PassCosts const& costs,
                  HardwareProfile const& hardware, Rows rows) {
  return Estimator{table, hardware}(schedule, plan, costs, rows);
}

}  // namespace tiered
