/// Defines pass_costs and Estimator: for one source file of a program.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/function_ref.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/plan/detail/lanes.hpp"
#include "tiered/plan/estimate.hpp"
#include "tiered/plan/expert_decode.hpp"
#include "tiered/plan/expert_flow.hpp"
#include "tiered/plan/experts.hpp"
#include "tiered/plan/helped_layer.hpp"

namespace tiered {

PassCosts pass_costs(ShardTable const& table, Rows rows, std::int32_t chunk_tokens, std::int32_t block_tokens,
                     FunctionRef<PassCost(Shard const&, Rows)> shard_cost, FunctionRef<PassCost(LayerState const&, Rows)> state_cost,
                     std::int32_t expert_tokens, bool same_for_alike) {
  auto with_n = [&](std::int32_t n) { return Rows{(std::min)(n, rows.n), rows.context, rows.n_sequences}; };
  Rows const block = with_n(block_tokens), chunk = with_n(chunk_tokens), part = expert_tokens > 0 ? with_n(expert_tokens) : block;
  Rows const outputs = with_n((std::min)(block.n, (std::max)(most_output_rows, rows.n_sequences)));
  auto const parts_of = [&](Rows one) { return double((block.n + one.n - 1) / one.n); };
  double const n_chunks = parts_of(chunk), n_parts = parts_of(part), share = double(block.n) / double(rows.n);
  PassCosts out;
  out.shards.reserve(table.shards.size());
  out.read_bytes.reserve(table.shards.size());
  struct Priced {
    Shard const* shard = nullptr;
    PassCost cost;
    double read_bytes = 0;
  };
  auto const price = [&](Shard const& s) {
    bool const at_once = s.kind == ShardKind::expert || s.kind == ShardKind::output || s.kind == ShardKind::embedding;
    PassCost cost = shard_cost(s, s.kind == ShardKind::output ? outputs : at_once ? block : chunk);
    if (!at_once) {
      cost.host_s *= n_chunks;
      cost.gpu_s *= n_chunks;
    } else if (n_parts > 1 && s.kind == ShardKind::expert) {
      cost.gpu_s = n_parts * shard_cost(s, part).gpu_s;
    }
    return Priced{&s, cost, s.kind == ShardKind::embedding ? 0 : use_probability(s, block.n) * double(s.bytes)};
  };
  std::array<Priced, n_shard_kinds> last;  // by kind: most are alike
  for (Shard const& s : table.shards) {
    Priced& priced = last[std::size_t(s.kind)];
    if (!same_for_alike || priced.shard == nullptr || !alike(*priced.shard, s)) priced = price(s);
    out.shards.push_back(priced.cost);
    out.read_bytes.push_back(priced.read_bytes);
  }
  for (LayerState const& state : table.states) {
    PassCost const cost = state_cost(state, rows);
    out.states.push_back({cost.host_s * share, cost.gpu_s * share, cost.copy_s * n_chunks});
  }
  return out;
}

namespace detail {

struct RingRange {
  std::size_t begin = 0, end = 0;
  double ready_s = 0;    ///< released: when free
  std::size_t copy = 0;  ///< live: which of the link's copies fills it
  ShardId shard{};
  Range rows;
};

}  // namespace detail

struct Estimator::Walk {
  using RingRange = detail::RingRange;

  Estimator const& owner;
  ShardPlan const& plan;
  PassCosts const& costs;
  double hop_s;
  std::int32_t rows_per_step, rows_per_block;
  Estimate out{};
  double rows_ready_s = 0, arithmetic_s = 0;  ///< arithmetic_s: of host_s, what does not wait for memory
  detail::Lane gpu{0, &out.gpu_s};
  detail::HostAndLink shared{owner.hardware_->mutual, out.host_s, out.copy_s};
  std::vector<RingRange> live{}, released{};
  std::vector<std::pair<std::size_t, std::size_t>> copies{};  // action and number of each copy

  Walk(Walk const&) = delete;
  Walk(Estimator const& e, ShardPlan const& p, PassCosts const& c, double hop, std::int32_t chunk, std::int32_t block)
      : owner(e), plan(p), costs(c), hop_s(hop), rows_per_step(chunk), rows_per_block(block) {}

  ActionTime take(bool on_host, double from_s, double seconds) { return on_host ? shared.run(from_s, seconds) : gpu.take(from_s, seconds); }

  void act(Action const& a) {
    ActionTime time{rows_ready_s, rows_ready_s};
    switch (a.kind) {
      case ActionKind::copy: submit_copy(a); break;
      case ActionKind::run: time = run_step(a); break;
      case ActionKind::release: release(a); break;
      case ActionKind::hop: time.end_s = rows_ready_s += hop_s; break;
      case ActionKind::fetch_routed: time = run_experts(a); break;
    }
    out.actions.push_back(time);
  }

  void submit_copy(Action const& a) {
    std::size_t const end = a.ring_offset + a.bytes;
    double from = 0;
    std::erase_if(released, [&](RingRange const& r) {
      if (r.end <= a.ring_offset || r.begin >= end) return false;
      from = (std::max)(from, r.ready_s);
      return r.begin >= a.ring_offset && r.end <= end;
    });
    HardwareProfile const& hardware = *owner.hardware_;
    std::size_t const number = shared.copy(from, hardware.copy_latency_s + hardware.h2d.seconds(double(a.bytes)));
    out.copied_bytes += double(a.bytes);
    live.push_back({a.ring_offset, end, 0, number, a.shard, a.rows});
    copies.emplace_back(out.actions.size(), number);
  }
  void end_copies() {
    for (auto const& [action, number] : copies) out.actions[action] = shared.copied(number);
  }

  void release(Action const& a) {
    std::erase_if(live, [&](RingRange const& r) { return r.begin == a.ring_offset; });
    released.push_back({a.ring_offset, a.ring_offset + a.bytes, rows_ready_s, 0, a.shard, a.rows});
  }

  ActionTime run_step(Action const& a) {
    Shard const& s = owner.table_.shard(a.shard);
    PassCost const& cost = costs.shards[std::size_t(a.shard)];
    bool const on_host = a.device == host_device;
    bool const last = a.rows == Range{} || a.rows.end == s.n_rows;
    double const share = a.rows == Range{} ? 1 : double(a.rows.size()) / double(s.n_rows);
    double from = rows_ready_s;
    for (RingRange const& r : live) {
      if (r.shard == a.shard && r.rows == a.rows) from = (std::max)(from, shared.copied(r.copy).end_s);
    }
    ActionTime time = take(on_host, from, share * (on_host ? cost.host_s : cost.gpu_s));
    if (on_host) out.host_bytes += share * costs.read_bytes[std::size_t(a.shard)];
    if (s.kind == ShardKind::attention && last && s.layer >= 0 && std::size_t(s.layer) < costs.states.size()) {
      time.end_s = attend(std::size_t(s.layer), on_host, time.end_s);
    }
    rows_ready_s = time.end_s;
    return time;
  }

  /// Attention runs where the state lies, on both devices at once where it is in two places: queries go to the other device and results
  /// come back; or what lies in host memory is brought, behind attention to it.
  double attend(std::size_t layer, bool on_host, double ready_s) {
    if (plan.state_read_share > 0 && plan.state_in_vram[layer] < 1 && !on_host && rows_per_step == 1) return attend_at_once(layer, ready_s);
    PassCost const& all = costs.states[layer];
    AttendedTo const to = attended(layer);
    double const in_vram = attended_in_vram(to.share, to.used, to.window, to.grown);
    auto const share = [&](double x, double of) { return of > 0 ? of * x : 0; };  // an infinite cost of nothing is none
    PassCost const there{share(all.host_s, 1 - in_vram), share(all.gpu_s, 1 - in_vram), share(all.copy_s, 1 - in_vram)};
    bool const brings = !on_host && costs.streams_states && host_attention(there, hop_s, rows_per_step).streams;
    double end_s = ready_s;
    auto const on_host_now = [&] { end_s = (std::max)(end_s, core(true, there.host_s, on_host ? 0 : hop_s, ready_s)); };
    if (in_vram < 1 && on_host) on_host_now();  // the step's own part first: that of the other device comes back to it
    if (in_vram > 0) end_s = (std::max)(end_s, core(false, share(all.gpu_s, in_vram), on_host ? hop_s : 0, ready_s));
    if (in_vram < 1 && !on_host && !brings) on_host_now();
    if (brings && in_vram < 1) {
      double const brought_s = shared.copy_now(ready_s, there.copy_s);
      gpu.free_s = (std::max)(gpu.take(ready_s, there.gpu_s).end_s, brought_s);
      out.copied_bytes += there.copy_s * owner.hardware_->h2d.peak_per_s();
      end_s = (std::max)(end_s, gpu.free_s);
    }
    // Lanes are busy for the mean of contexts, and what follows comes no sooner than the mean of their times.
    return (std::max)(end_s, ready_s + attention_s(all, to, !on_host, hop_s, rows_per_step, costs.streams_states));
  }
  AttendedTo attended(std::size_t layer) const {
    return {double(plan.state_in_vram[layer]), costs.states_used, owner.table_.states[layer].window, costs.grown};
  }
  /// Within the step's one launch, in which nothing else is on its way but what comes ahead: see read_attention(), run_helped().
  double attend_at_once(std::size_t layer, double ready_s) {
    LaunchedAttention const a = launched_attention(costs.states[layer], attended(layer), hop_s, attention_beside_link(*owner.hardware_));
    out.copy_s += a.copy_s;
    out.host_s += a.host_s;
    out.copied_bytes += a.copy_s * owner.hardware_->h2d.peak_per_s();
    states_read_s += a.link_s;
    return gpu.free_s = (std::max)(ready_s + a.seconds, gpu.take(ready_s, a.gpu_s).end_s);
  }
  double core(bool on_host, double seconds, double hop, double ready_s) {
    double const end_s = take(on_host, ready_s + hop, seconds).end_s;
    return hop == 0 ? end_s : take(!on_host, end_s + hop, 0).end_s;
  }

  /// Resident, fetched and host experts of one layer at the same time.
  ActionTime run_experts(Action const& a) {
    std::int32_t const layer_number = owner.table_.shard(a.shard).layer;
    auto const layer = std::lower_bound(owner.experts_.layers.begin(), owner.experts_.layers.end(), layer_number,
                                        [](ExpertLayer const& l, std::int32_t n) { return l.layer < n; });
    ActionTime time{rows_ready_s, rows_ready_s};
    if (layer == owner.experts_.layers.end() || layer->layer != layer_number) return time;
    if (comes_ahead(*layer, a.device)) return run_ahead(*layer);
    if (asks(*layer, a.device)) return run_helped(*layer);
    double resident_s = 0, cached_s = 0, fetch_s = 0, host_s = 0, used = 0, used_on_host = 0, missed = 0;
    double const hit = plan.cache_bytes > 0 ? hits() : 0, fetched = (1 - hit) * double(plan.fetched_misses), computed = 1 - hit - fetched;
    double copied_bytes = out.copied_bytes, host_bytes = out.host_bytes;
    double of_probability = -1, by_block = 0;  // mostly the same as of the expert before
    for (std::uint32_t const id : owner.experts_.ids_of(*layer)) {
      Placement const& p = plan.shards[id];
      PassCost const& cost = costs.shards[id];
      double const probability = owner.table_.shards[id].use_probability;
      used += probability;
      if (probability != of_probability) by_block = use_probability(owner.table_.shards[id], rows_per_block);
      of_probability = probability;
      if (p.gpu_rows == 0) {
        used_on_host += probability;
        host_s += cost.host_s;
        missed += by_block;
        host_bytes += costs.read_bytes[id];
      } else if (p.cached) {
        missed += (1 - hit) * by_block;
        cached_s += (1 - computed) * cost.gpu_s;
        fetch_s += fetched * cost.copy_s;
        copied_bytes += fetched * costs.read_bytes[id];
        if (computed > 0) host_s += computed * cost.host_s;
        used_on_host += computed * probability;
        host_bytes += computed * costs.read_bytes[id];
      } else {
        resident_s += cost.gpu_s;
      }
    }
    out.copied_bytes = copied_bytes;
    out.host_bytes = host_bytes;
    double const to_host = a.device == host_device ? 0 : hop_s, to_gpu = hop_s - to_host;
    double end = time.begin_s;
    double const gpu_s = resident_s + cached_s, waits = a.device == host_device ? 1 : layers_with_misses(missed, used);
    double const from_s = time.begin_s + (1 - waits) * gpu_s;  // averages: layers that wait for nothing are the GPU's alone
    bool const fetches = gpu_s > 0 && fetch_s > 0;
    std::size_t const fetch = fetches ? shared.copy(from_s + waits * owner.hardware_->hop_latency_s, fetch_s) : 0;
    if (host_s > 0) end = (std::max)(end, shared.run(from_s + waits * to_host, host_s).end_s + waits * to_host);
    if (gpu_s > 0) {
      gpu.free_s = (std::max)(gpu.take(time.begin_s + to_gpu, gpu_s).end_s, fetches ? shared.copied(fetch).end_s : 0);
      end = (std::max)(end, gpu.free_s + to_gpu);
    }
    if (cached_s > 0) end += waits * missed_layer_s + (1 - waits) * found_layer_s;
    double const back_s = slots_back_s(rows_per_block, a.device == host_device ? used - used_on_host : used_on_host);
    if (back_s > 0) end = shared.copy_now(end, back_s);
    time.end_s = rows_ready_s = experts_end_s = end;
    states_read_s = 0;
    return time;
  }
  double experts_end_s = 0, states_read_s = 0;  ///< states_read_s: since then the link read these, for launched attention

  /// Whether the layer is one of a step in which the device asks the host, as far as a plan tells: see FewRouted. Where it is told not to
  /// look ahead it asks, too, and is priced as if it did not.
  bool asks(ExpertLayer const& layer, DeviceId home) {
    if (!costs.looks_ahead || rows_per_block > 1 || home == host_device || plan.deterministic || plan.cache_bytes == 0) return false;
    std::span<std::uint32_t const> const ids = owner.experts_.ids_of(layer);
    auto const on_device = [&](std::uint32_t id) { return plan.shards[id].gpu_rows > 0; };
    auto const cached = [&](std::uint32_t id) { return plan.shards[id].cached; };
    return dense_are_resident() && std::all_of(ids.begin(), ids.end(), on_device) && std::any_of(ids.begin(), ids.end(), cached);
  }
  ActionTime run_helped(ExpertLayer const& layer) {
    double cached = 0, read_bytes = 0;
    PassCost sum;
    HelpedLayer l;
    l.reads_ahead = costs.reads_ahead;
    for (std::uint32_t const id : owner.experts_.ids_of(layer)) {
      PassCost const& cost = costs.shards[id];
      double const probability = owner.table_.shards[id].use_probability;
      l.used += probability;
      cached += plan.shards[id].cached ? probability : 0;
      sum = {sum.host_s + cost.host_s, sum.gpu_s + cost.gpu_s, sum.copy_s + cost.copy_s};
      read_bytes += costs.read_bytes[id];
    }
    PassCost const one{sum.host_s / l.used, sum.gpu_s / l.used, sum.copy_s / l.used};
    l.expert = helped_expert(machine_, owner.table_.shards[owner.experts_.ids[layer.begin]], one);
    l.missing = (1 - hits()) * cached;
    l.device_s = (std::max)(rows_ready_s - experts_end_s, 0.0);
    l.states_s = states_read_s;
    l.link_share = double(plan.fetched_misses);
    HelpedTime const t = helped_time(l);
    double const crossed = t.ahead + t.fetched, bytes = read_bytes / l.used;
    ActionTime const time{rows_ready_s, rows_ready_s - l.device_s + t.seconds};
    out.gpu_s += (l.used - t.on_host) * one.gpu_s;
    out.copy_s += crossed > 0 ? crossed * one.copy_s : 0;
    out.host_s += t.on_host > 0 ? t.on_host * one.host_s : 0;
    out.copied_bytes += crossed * bytes;
    out.host_bytes += t.on_host * bytes;
    gpu.free_s = rows_ready_s = experts_end_s = time.end_s;
    states_read_s = 0;
    return time;
  }
  HelpedMachine machine_ = helped_machine(*owner.hardware_);

  /// Then a step is the device's alone, but for experts.
  bool dense_are_resident() {
    if (dense_are_resident_ < 0) {
      dense_are_resident_ = std::all_of(owner.table_.shards.begin(), owner.table_.shards.end(), [&](Shard const& s) {
        return s.kind == ShardKind::expert || s.kind == ShardKind::embedding || plan.shards[std::size_t(s.id)].resident();
      });
    }
    return dense_are_resident_ > 0;
  }
  int dense_are_resident_ = -1;

  /// Whether all experts are brought without waiting for the router, behind the layers before: see pipeline/expert_flow.hpp.
  bool comes_ahead(ExpertLayer const& layer, DeviceId home) const {
    std::span<std::uint32_t const> const ids = owner.experts_.ids_of(layer);
    auto const on_device = [&](std::uint32_t id) { return plan.shards[id].gpu_rows > 0; };
    auto const cached = [&](std::uint32_t id) { return plan.shards[id].cached; };
    return home != host_device && uses_whole_layer(owner.table_.shards[ids.front()], rows_per_block) &&
           std::all_of(ids.begin(), ids.end(), on_device) && std::any_of(ids.begin(), ids.end(), cached);
  }

  /// Copies go on from layer to layer, as far ahead of what computes as the flow has room; the last window computes when it is there.
  ActionTime run_ahead(ExpertLayer const& layer) {
    double compute_s = 0, bytes = 0;
    std::size_t const largest = layer.largest_bytes;
    for (std::uint32_t const id : owner.experts_.ids_of(layer)) {
      compute_s += costs.shards[id].gpu_s;
      if (plan.shards[id].cached) bytes += double(VramAccount::round_up(owner.table_.shards[id].bytes));
    }
    if (cached_ < 0) cached_ = cached_bytes();
    double const flow = double(flow_bytes(plan.cache_bytes, largest, std::size_t(cached_)));
    double const window = (std::max)(double(flow_window_bytes(std::size_t(flow))), double(largest));
    double const missing = 1 - kept(flow);
    bytes *= missing;
    ActionTime time{rows_ready_s, rows_ready_s};
    double copied_s = 0, last_share = 1;
    HostPart const host = host_part(layer, missing);
    bytes *= 1 - host.experts;
    compute_s *= 1 - host.slots;
    if (bytes > 0) {
      double const n_windows = std::ceil(bytes / window);
      double const alone_s = owner.hardware_->h2d.seconds(bytes) + n_windows * owner.hardware_->copy_latency_s,
                   copy_s = alone_s * host.slows_link + host.back_s;
      out.copy_s -= alone_s * (host.slows_link - 1);
      double const ahead_s = copy_s * flow / bytes;
      copied_s = shared.copy_now((std::max)(0.0, ahead_end_s - ahead_s), copy_s);
      last_share = 1 / n_windows;
      compute_s += windows_s(n_windows);
    }
    time.end_s = (std::max)({gpu.take(time.begin_s, compute_s).end_s, copied_s + last_share * compute_s, time.begin_s + host.end_s});
    gpu.free_s = ahead_end_s = rows_ready_s = time.end_s;
    out.copied_bytes += bytes;
    return time;
  }
  double ahead_end_s = 0;

  /// Of a layer that comes in windows, see plan/expert_share.hpp.
  struct HostPart {
    double experts = 0, slots = 0;      ///< of those that are missing; of all rows' uses
    double slows_link = 1, back_s = 0;  ///< the link, beside the host's reading; for the sum
    double end_s = 0;                   ///< of the host's part, counted from the router's end
  };
  HostPart host_part(ExpertLayer const& layer, double missing) {
    if (!plan.share) return {};
    double const n = double(layer.size()), n_missing = std::round(missing * n);
    double const used = n * owner.table_.shards[owner.experts_.ids[layer.begin]].use_probability;
    if (expected_.size() != layer.size())
      expected_ = expected_rows(rows_per_block, std::int32_t(std::lround(used)), std::int32_t(layer.size()));
    LayerShare const share = expected_share(plan.share, expected_, rows_per_block, std::int32_t(n_missing));
    if (share.n_host == 0) return {};
    HardwareProfile const& hardware = *owner.hardware_;
    double const read_s = double(share.n_host) * plan.share.read_s * hardware.mutual.host_share;
    out.host_s += (std::max)(share.products_s, read_s);
    arithmetic_s += (std::max)(share.products_s - read_s, 0.0);
    for (std::size_t e = 0; e < share.n_host; ++e) out.host_bytes += double(owner.table_.shards[owner.experts_.ids[layer.begin + e]].bytes);
    return {double(share.n_host) / n_missing, double(share.host_rows) / (double(rows_per_block) * used), 1 / hardware.mutual.h2d_share,
            double(rows_per_block) * plan.share.back_row_s, 2 * hardware.hop_latency_s + share.host_s};
  }

  std::vector<std::int32_t> expected_;  // rows, of layers of so many experts

  double cached_bytes() const {
    double sum = 0;
    for (std::uint32_t id : owner.experts_.ids)
      sum += plan.shards[id].cached ? double(VramAccount::round_up(owner.table_.shards[id].bytes)) : 0;
    return sum;
  }
  /// The share of all that may be cached which stays from one block to the next: all of it where nothing has to pass.
  double kept(double flow) const {
    if (double(plan.cache_bytes) >= cached_) return 1;
    return (double(plan.cache_bytes) - flow) / cached_;
  }
  double cached_ = -1;

  double hits() {
    if (hits_ < 0) {
      if (cached_ < 0) cached_ = cached_bytes();
      Shard const& expert = owner.table_.shards[owner.experts_.ids.front()];
      hits_ = cache_hits(expected_hits(plan.cache_bytes, std::size_t(cached_)), expert.use_probability, rows_per_block);
    }
    return hits_;
  }
  double hits_ = -1;
};

Estimator::Estimator(ShardTable const& table, HardwareProfile const& hardware)
    : table_(table), hardware_(&hardware), experts_(table.shards) {
  if (table.steps.empty()) return;
  Shard const& first = table.shard(table.steps[0].shard);  // whatever it is, its first weight has the width of the hidden rows
  if (first.weights.size() > 0) dim_ = table.weights[std::size_t(first.weights.begin)].cols;
}

double Estimator::hop_s(std::int32_t n) const {
  return hardware_->hop_latency_s + hardware_->d2h.seconds(double(n) * double(dim_) * sizeof(float));
}

double Estimator::least_seconds(ShardPlan const& plan, PassCosts const& costs, Rows rows) const {
  double run_s = 0, bytes = 0;
  for (Step const& step : table_.steps) {
    Placement const& p = plan.shards[std::size_t(step.shard)];
    PassCost const& cost = costs.shards[std::size_t(step.shard)];
    run_s += p.gpu_rows > 0 ? cost.gpu_s : cost.host_s;
    bytes += p.streamed() ? double(table_.shard(step.shard).bytes) : 0;
  }
  double const n_copies = bytes > 0 ? bytes / double(plan.ring_bytes) : 0;  // at least
  double const copy_s = bytes > 0 ? bytes / hardware_->h2d.peak_per_s() + n_copies * hardware_->copy_latency_s : 0;
  std::int32_t const block = (std::min)(plan.block_tokens, rows.n);
  constexpr double rounding = 1e-9;  // a schedule's sums are made in another order
  return (1 - rounding) * (std::max)(run_s, copy_s) * double((rows.n + block - 1) / block);
}

Estimate Estimator::operator()(Schedule const& schedule, ShardPlan const& plan, PassCosts const& costs, Rows rows, double enough_s) const {
  std::int32_t const block = (std::min)(plan.block_tokens, rows.n);
  Walk walk{*this, plan, costs, hop_s(block), (std::min)(plan.chunk_tokens, rows.n), block};
  walk.out.actions.reserve(schedule.size());
  double const n_blocks = double((rows.n + block - 1) / block);
  for (Action const& a : schedule) {
    walk.act(a);
    if (walk.rows_ready_s * n_blocks < enough_s) continue;
    Estimate slow;
    slow.seconds = walk.rows_ready_s * n_blocks;
    return slow;
  }
  walk.end_copies();
  Estimate out = std::move(walk.out);
  for (double* value : {&walk.rows_ready_s, &walk.arithmetic_s, &out.copy_s, &out.gpu_s, &out.host_s, &out.copied_bytes, &out.host_bytes})
    *value *= n_blocks;
  double const memory_s = hardware_->mutual == MutualRates{} ? (out.copied_bytes + out.host_bytes) / hardware_->dram_bytes_per_s
                                                             : shared_s(hardware_->mutual, out.host_s - walk.arithmetic_s, out.copy_s);
  out.bound_s = (std::max)({out.copy_s, out.gpu_s, out.host_s, memory_s});
  out.seconds = (std::max)(walk.rows_ready_s, out.bound_s);
  return out;
}

Estimate estimate(Schedule const& schedule, ShardPlan const& plan, ShardTable const& table, PassCosts const& costs,
                  HardwareProfile const& hardware, Rows rows) {
  return Estimator{table, hardware}(schedule, plan, costs, rows);
}

}  // namespace tiered
