/// Defines verify: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tiered/core/text.hpp"
#include "tiered/plan/verify_schedule.hpp"

namespace tiered {

std::string verify(ShardPlan const& plan, ShardTable const& table) { return verify(plan, table, ExpertLayers{table.shards}); }

std::string verify(ShardPlan const& plan, ShardTable const& table, ExpertLayers const& experts) {
  if (plan.shards.size() != table.shards.size()) return concat("the plan places ", plan.shards.size(), " shards of ", table.shards.size());
  if (plan.state_in_vram.size() != table.states.size()) {
    return concat("the plan places ", plan.state_in_vram.size(), " states of ", table.states.size());
  }
  bool caches = false;
  for (Shard const& s : table.shards) {
    Placement const& p = plan.shards[std::size_t(s.id)];
    auto broken = [&](char const* rule) {
      return concat("shard ", std::uint32_t(s.id), " (", name(s.kind), " of layer ", s.layer, "): ", rule);
    };
    if (p.home == Tier::disk) return broken("a home on disk is not supported");
    if (!(p.gpu_rows == 0 || p.gpu_rows == 1)) return broken("gpu_rows must be 0 or 1");
    if (p.resident() && p.gpu_rows == 0) return broken("resident in VRAM, but computed by the host");
    if (s.kind == ShardKind::embedding && (p.gpu_rows > 0 || p.resident() || p.cached)) return broken("the embedding stays on the host");
    if (s.kind == ShardKind::expert && p.streamed())
      return broken("an expert is resident, cached or on the host: it has no step, so it cannot be streamed");
    if (p.cached && (s.kind != ShardKind::expert || p.resident() || p.gpu_rows == 0)) {
      return broken("cached is for experts with a home in host memory and gpu_rows 1");
    }
    if (p.streamed() && plan.ring_bytes == 0) return broken("streamed, but the plan has no ring");
    caches |= p.cached;
  }
  for (std::size_t l = 0; l < plan.state_in_vram.size(); ++l) {
    if (!(plan.state_in_vram[l] >= 0 && plan.state_in_vram[l] <= 1)) return concat("state ", l, ": the share in VRAM must be from 0 to 1");
  }
  if (caches) {
    std::size_t const least = experts.min_cache_bytes();
    std::size_t const own = plan.cache_bytes - (std::min)(plan.cache_bytes, plan.shared_bytes);
    if (own < least) return concat("a cache of ", own, " bytes cannot hold the ", least, " bytes of experts that one token may use");
  }
  if (plan.shared_bytes > (std::min)(plan.state_bytes, plan.cache_bytes))
    return concat(plan.shared_bytes, " bytes are shared by states of ", plan.state_bytes, " and a cache of ", plan.cache_bytes);
  if (plan.chunk_tokens < 1 || plan.block_tokens < plan.chunk_tokens || plan.block_tokens % plan.chunk_tokens != 0) {
    return concat("chunks of ", plan.chunk_tokens, " tokens do not divide blocks of ", plan.block_tokens);
  }
  return {};
}

namespace detail {

/// Walks a schedule and remembers what is live; each member returns the broken rule or nothing.
class ScheduleCheck {
 public:
  ScheduleCheck(ShardPlan const& plan, ShardTable const& table) : plan_(plan), table_(table) {}

  std::string operator()(Action const& a) {
    if (std::size_t(a.shard) >= table_.shards.size()) return concat("there is no shard ", std::uint32_t(a.shard));
    if (a.tokens != Range{}) return "a range of tokens is not supported";
    if (owes_fetch_ && a.kind != ActionKind::fetch_routed) return "a router's run is not followed by a fetch_routed";
    switch (a.kind) {
      case ActionKind::copy: return copy(a);
      case ActionKind::run: return run(a);
      case ActionKind::release: return release(a);
      case ActionKind::hop: return hop(a);
      case ActionKind::fetch_routed: return fetch_routed(a);
    }
    return "unknown kind of action";
  }

  std::string end() const {
    if (owes_fetch_) return "a router's run is not followed by a fetch_routed";
    if (done_rows_ > 0 || step_ < table_.steps.size())
      return concat("only ", step_, " of ", table_.steps.size(), " steps are run to their end");
    if (!live_.empty()) return concat("shard ", std::uint32_t(live_.front().action.shard), " is never released");
    return {};
  }

 private:
  struct Live {
    Action action;
    bool has_run = false;
  };

  std::string copy(Action const& a) {
    Shard const& s = table_.shard(a.shard);
    if (!plan_.shards[std::size_t(a.shard)].streamed()) return "copied, but the plan does not stream it";
    if (std::string broken = range(a, s); !broken.empty()) return broken;
    std::size_t const bytes = a.rows == Range{} ? s.bytes : table_.row_offset(s, a.rows.end) - table_.row_offset(s, a.rows.begin);
    if (a.bytes != bytes) return concat("copies ", a.bytes, " bytes, its rows have ", bytes);
    if (a.ring_offset % weight_alignment != 0) return concat("ring offset ", a.ring_offset, " is no multiple of ", weight_alignment);
    if (a.bytes > plan_.ring_bytes || a.ring_offset > plan_.ring_bytes - a.bytes)
      return concat("ends outside the ring of ", plan_.ring_bytes, " bytes");
    for (Live const& live : live_) {
      if (a.ring_offset < live.action.ring_offset + live.action.bytes && live.action.ring_offset < a.ring_offset + a.bytes) {
        return concat("overwrites live bytes of shard ", std::uint32_t(live.action.shard));
      }
      if (live.action.shard == a.shard && live.action.rows == a.rows) return "is already in the ring";
    }
    live_.push_back({a, false});
    return {};
  }

  std::string range(Action const& a, Shard const& s) const {
    if (a.rows == Range{}) return {};
    if (a.rows.begin < 0 || a.rows.end > s.n_rows || a.rows.begin >= a.rows.end) {
      return concat("rows [", a.rows.begin, ", ", a.rows.end, ") are no range of its ", s.n_rows);
    }
    if (plan_.chunk_tokens != plan_.block_tokens && s.kind != ShardKind::output)
      return "goes by rows, but the plan cuts its block into chunks";
    for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
      Weight const& w = table_.weights[std::size_t(i)];
      std::int32_t const first = w.first_row, end = w.first_row + w.rows;
      bool const begins_inside = a.rows.begin > first && a.rows.begin<end, ends_inside = a.rows.end> first && a.rows.end < end;
      if (s.kind == ShardKind::router && (begins_inside || ends_inside)) return "cuts a router's weight";
      if (begins_inside && a.rows.end > end)
        return concat("rows [", a.rows.begin, ", ", a.rows.end, ") begin inside a weight and leave it");
    }
    return {};
  }

  std::string run(Action const& a) {
    if (step_ == table_.steps.size()) return "runs after the last step";
    Shard const& s = table_.shard(table_.steps[step_].shard);
    if (a.shard != s.id) return concat("runs where step ", step_, " is of shard ", std::uint32_t(s.id));
    Placement const& p = plan_.shards[std::size_t(s.id)];
    DeviceId const device = p.gpu_rows > 0 ? first_gpu : host_device;
    if (a.device != device) return concat("runs on device ", a.device.value, ", the plan says ", device.value);
    if (a.device != at_) return concat("runs on device ", a.device.value, ", but the rows are on ", at_.value);
    if (p.streamed()) {
      auto const live = find(a);
      if (live == live_.end()) return "runs, but is not in the ring";
      live->has_run = true;
    } else if (a.rows != Range{}) {
      return "only a streamed shard goes by rows";
    }
    if (a.rows != Range{} && a.rows.begin != done_rows_)
      return concat("runs rows from ", a.rows.begin, ", but row ", done_rows_, " is next");
    if (a.rows == Range{} && done_rows_ > 0) return "runs whole after it began by rows";
    done_rows_ = a.rows == Range{} ? s.n_rows : a.rows.end;
    if (done_rows_ < s.n_rows) return {};
    done_rows_ = 0;
    ++step_;
    owes_fetch_ = s.kind == ShardKind::router;
    return {};
  }

  std::string release(Action const& a) {
    auto const live = find(a);
    if (live == live_.end()) return "releases what is not in the ring";
    if (!live->has_run) return "is released before it has run";
    if (live->action.ring_offset != a.ring_offset || live->action.bytes != a.bytes) return "releases other bytes than were copied";
    live_.erase(live);
    return {};
  }

  std::string hop(Action const& a) {
    if (a.device == at_) return concat("hops to device ", a.device.value, ", where the rows are");
    if (a.device != host_device && a.device != first_gpu) return concat("there is no device ", a.device.value);
    if (done_rows_ > 0) return "hops in the middle of a step";
    at_ = a.device;
    return {};
  }

  std::string fetch_routed(Action const& a) {
    if (!owes_fetch_ || table_.steps[step_ - 1].shard != a.shard) return "fetch_routed stands elsewhere than behind its router's run";
    if (a.device != at_) return "fetch_routed on another device than its router";
    owes_fetch_ = false;
    return {};
  }

  std::vector<Live>::iterator find(Action const& a) {
    return std::find_if(live_.begin(), live_.end(),
                        [&](Live const& live) { return live.action.shard == a.shard && live.action.rows == a.rows; });
  }

  ShardPlan const& plan_;
  ShardTable const& table_;
  std::vector<Live> live_;
  std::size_t step_ = 0;
  std::int32_t done_rows_ = 0;
  DeviceId at_ = host_device;
  bool owes_fetch_ = false;
};

}  // namespace detail

std::string verify(Schedule const& schedule, ShardPlan const& plan, ShardTable const& table) {
  detail::ScheduleCheck check{plan, table};
  for (std::size_t i = 0; i < schedule.size(); ++i) {
    Action const& a = schedule[i];
    if (std::string broken = check(a); !broken.empty())
      return concat("action ", i, " (", name(a.kind), " of shard ", std::uint32_t(a.shard), "): ", broken);
  }
  std::string broken = check.end();
  return broken.empty() ? broken : concat("at the end: ", broken);
}

}  // namespace tiered
