/// Defines RoutedExperts: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/pipeline/routed_experts.hpp"

namespace tiered {

void RoutedExperts::prepare(std::span<ShardId const> first_experts) {
  ActivationLayout const& l = *env_->layout;
  std::size_t const n_layers = env_->config->layers.size();
  flow_.prepare(first_experts);
  few_.prepare(first_experts);
  places_.assign(n_layers, Place::mixed);
  auto* const staged = at<ExpertGroup>(env_->host_base, l.expert_tables);
  bool any = false;
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    LayerConfig const& config = env_->config->layers[layer];
    if (config.feed_forward != FeedForwardKind::experts) continue;
    std::int32_t const n_experts = config.experts.n_experts;
    std::size_t const first = std::size_t(first_experts[layer]);
    auto const placed = [&](auto const& is) {
      return std::ranges::all_of(std::span(env_->plan->shards).subspan(first, std::size_t(n_experts)), is);
    };
    if (placed([](Placement const& p) { return !p.resident() && !p.cached; })) places_[layer] = Place::host;
    if (env_->device_base == nullptr || !placed([](Placement const& p) { return p.resident(); })) continue;
    places_[layer] = Place::device;
    any = true;
    for (std::int32_t e = 0; e < n_experts; ++e) {
      std::size_t const s = first + std::size_t(e);
      staged[layer * std::size_t(l.n_experts) + std::size_t(e)] =
          group_at({e, 0, 0, ShardId(s)}, env_->vram + env_->vram_layout->resident[s]);
    }
  }
  tables_ready_ = {};
  if (!any) return;
  // Copies end in the order of their submission: behind this one all residents are there, too.
  std::size_t const bytes = n_layers * std::size_t(l.n_experts) * sizeof(ExpertGroup);
  tables_ready_ = env_->copy->submit({env_->device_base + l.expert_tables, env_->host_base + l.expert_tables, bytes}, Ticket{});
}

bool RoutedExperts::at_once(std::int32_t layer, DeviceId home) const {
  bool const on_device = home != host_device;
  Side const& side = on_device ? env_->device : env_->host;
  return side.kernels().routed_experts != nullptr && places_[std::size_t(layer)] == (on_device ? Place::device : Place::host);
}

bool RoutedExperts::norms(std::int32_t layer, std::int32_t n_rows, DeviceId home) const {
  Side const& side = home != host_device ? env_->device : env_->host;
  std::int32_t const used = env_->config->layers[std::size_t(layer)].experts.n_experts_used;
  return n_rows <= side.kernels().fused_rows && n_rows * used <= env_->layout->slots_per_launch && (at_once(layer, home) || env_->helps);
}

void RoutedExperts::run(RoutedRows const& rows, ShardId first_expert, std::uint64_t step) {
  rows_ = &rows;
  first_expert_ = first_expert;
  step_ = step;
  n_groups_ = n_slots_listed_ = 0;
  if (all_at_home()) return compute_at_home();
  if (env_->helps) return few_.enqueue(rows, first_expert);
  if (flow_.takes(rows)) return compute_flow();
  if (rows.n_rows > env_->layout->expert_rows)
    throw Error(Errc::precondition, concat("experts of layer ", rows.layer, " do not come in windows: there is room for ",
                                           env_->layout->expert_rows, " rows, not ", rows.n_rows));
  flow_.stop(step);
  if (few_.takes(rows, first_expert)) return few_.run(rows, first_expert, step);
  group_slots_by_expert(read_ids());
  decide();
  start_host();
  compute_in_vram();
  compute_fetched();
  finish_host();
  combine();
}

bool RoutedExperts::all_at_home() const {
  // The host takes whole blocks expert by expert instead: it reads each expert's weights once then.
  return at_once(rows_->layer, rows_->home) && (home_is_device() || n_slots() <= std::size_t(env_->layout->slots_per_launch));
}

ExpertGroup const* RoutedExperts::weights_at_home() {
  std::size_t const layer = std::size_t(rows_->layer);
  if (home_is_device()) {
    if (Ticket const t = std::exchange(tables_ready_, {}); t.value != 0) home().wait_for(t);  // once: what comes later comes after
    return at<ExpertGroup>(env_->device_base, env_->layout->expert_tables) + layer * std::size_t(env_->layout->n_experts);
  }
  host_weights_.resize(env_->config->layers.size());
  std::vector<ExpertGroup>& weights = host_weights_[layer];
  for (std::int32_t e = std::int32_t(weights.size()); e < rows_->config->experts.n_experts; ++e)
    weights.push_back(group_on_host({e, 0, 0, ShardId(std::uint32_t(first_expert_) + std::uint32_t(e))}));
  return weights.data();
}

void RoutedExperts::compute_flow() {
  // Work for some layers is enqueued, no more: a prompt that is cancelled ends soon.
  Ticket& done = flowed_[n_flowed_++ % flowed_.size()];
  if (done.value != 0) env_->copy->wait(done);
  flow_.begin(rows_->layer, rows_->n_rows, step_);
  if (flow_.is_shared()) {
    done = shared_.run(*rows_, first_expert_, flow_);
    return;
  }
  auto const* const table = at<ExpertGroup const>(env_->device_base, env_->layout->expert_tables) +
                            std::size_t(rows_->layer) * std::size_t(env_->layout->n_experts);
  ExpertWindowArgs args = begin_windows(table);
  while (ExpertFlow::Window const* const window = flow_.next()) {
    env_->device.wait_for(window->ready);
    launch_window(args, window->experts);
    flow_.release(done = env_->device.record());
  }
  flow_.copy_ahead();
  if (has_room()) combine();
}

ExpertWindowArgs RoutedExperts::begin_windows(ExpertGroup const* weights) {
  ActivationLayout const& l = *env_->layout;
  std::byte* const base = home_is_device() ? env_->device_base : env_->host_base;
  ExpertWindowArgs args;
  args.experts = common_args(rows_->x, home_is_device());
  args.experts.n_slots = l.window_slots;
  args.ids = rows_->ids;
  args.weights = weights;
  args.begins = at<std::int32_t>(base, l.expert_counts);
  args.slots = at<std::int32_t>(base, l.expert_slots);
  args.places = at<std::int32_t>(base, l.expert_places);
  args.x_rows = base + l.expert_x_rows;
  args.n_experts = rows_->config->experts.n_experts;
  args.layer = rows_->layer;
  if (!has_room()) {
    args.slot_weights = rows_->weights;
    args.sum = rows_->hidden;
    args.experts.y = nullptr;
    args.experts.workspace = base + l.expert_y;
    args.experts.n_slots = l.summed_slots;
  }
  tiered::launch(home().kernels().group_slots, args, home().queue());
  return args;
}

void RoutedExperts::launch_window(ExpertWindowArgs& args, Range experts) {
  args.first_expert = experts.begin;
  args.end_expert = experts.end;
  tiered::launch(home().kernels().expert_window, args, home().queue());
}

void RoutedExperts::compute_at_home() {
  ExpertGroup const* const weights = weights_at_home();
  if (at_home_in_pieces()) {
    ExpertWindowArgs args = begin_windows(weights);
    launch_window(args, {0, rows_->config->experts.n_experts});
    if (has_room()) combine();
    return;
  }
  launch_routed(weights);
  if (!adds_itself()) combine();
}

bool RoutedExperts::at_home_in_pieces() const {
  if (!has_room()) return !adds_itself();
  return home_is_device() && home().kernels().expert_window != nullptr && n_slots() > std::size_t(env_->layout->slots_per_launch) &&
         env_->layout->window_slots >= std::max(env_->layout->slots_per_launch / 2, 1);
}

void RoutedExperts::launch_routed(ExpertGroup const* weights) {
  std::byte* const base = home_is_device() ? env_->device_base : env_->host_base;
  bool const norm = rows_->norm.x != nullptr;
  std::size_t const dim = std::size_t(env_->config->dim), used = std::size_t(n_used());
  RoutedExpertsArgs args;
  args.weights = weights;
  args.groups = at<ExpertGroup>(base, env_->layout->expert_groups);
  args.counts = at<std::int32_t>(base, env_->layout->expert_counts);
  args.slots = at<std::int32_t>(base, env_->layout->expert_slots);
  args.n_experts = rows_->config->experts.n_experts;
  args.layer = rows_->layer;
  args.route = rows_->route;
  if (norm) {
    args.norm = true;
    args.norm_weight = rows_->norm.weight;
    args.eps = rows_->norm.eps;
  }
  // Rows do not depend on each other: as many at once as the workspace is for, in equal parts, none of which is few rows.
  std::int32_t const most = std::max(env_->layout->slots_per_launch / n_used(), 1), n_parts = (rows_->n_rows + most - 1) / most;
  for (std::int32_t part = 0; part < n_parts; ++part) {
    auto const begin_of = [&](std::int32_t i) { return std::int32_t(std::int64_t(rows_->n_rows) * i / n_parts); };
    std::size_t const row = std::size_t(begin_of(part));
    args.experts = common_args((norm ? rows_->norm.x : rows_->x) + row * dim, home_is_device());
    if (has_room()) args.experts.y += row * used * dim;
    args.experts.n_tokens = begin_of(part + 1) - begin_of(part);
    args.experts.n_slots = args.experts.n_tokens * n_used();
    args.ids = rows_->ids + row * used;
    if (adds_itself()) {
      args.slot_weights = rows_->weights + row * used;
      args.sum = rows_->hidden + row * dim;
    }
    tiered::launch(home().kernels().routed_experts, args, home().queue());
  }
}

std::int32_t const* RoutedExperts::read_ids() {
  Ticket const routed = home().record();
  if (!home_is_device()) {
    home().synchronize();
    return rows_->ids;
  }
  std::int32_t* const ids = at<std::int32_t>(env_->host_base, env_->layout->expert_ids);
  env_->copy->wait(env_->copy->submit(
      {reinterpret_cast<std::byte*>(ids), reinterpret_cast<std::byte const*>(rows_->ids), n_slots() * sizeof(std::int32_t)}, routed));
  return ids;
}

void RoutedExperts::group_slots_by_expert(std::int32_t const* ids) {
  std::int32_t const n_experts = rows_->config->experts.n_experts;
  begins_.assign(std::size_t(n_experts) + 1, 0);
  for (std::size_t i = 0; i < n_slots(); ++i) {
    if (ids[i] < 0 || ids[i] >= n_experts)
      throw Error(Errc::device, concat("layer ", rows_->layer, ": the router chose expert ", ids[i], " of ", n_experts));
    ++begins_[std::size_t(ids[i]) + 1];
  }
  for (std::size_t e = 0; e < std::size_t(n_experts); ++e) begins_[e + 1] += begins_[e];
  experts_.clear();
  for (std::int32_t e = 0; e < n_experts; ++e) {
    std::int32_t const first = begins_[std::size_t(e)], n = begins_[std::size_t(e) + 1] - first;
    if (n > 0) experts_.push_back({e, first, n, ShardId(std::uint32_t(first_expert_) + std::uint32_t(e))});
  }
  slots_.resize(n_slots());
  for (std::size_t i = 0; i < n_slots(); ++i) slots_[std::size_t(begins_[std::size_t(ids[i])]++)] = std::int32_t(i);
}

void RoutedExperts::decide() {
  on_host_.clear();
  in_vram_.clear();
  missing_.clear();
  for (Expert const& e : experts_) {
    Placement const& p = env_->plan->shards[std::size_t(e.shard)];
    if (p.resident()) {
      in_vram_.push_back(e);
    } else if (!p.cached) {
      on_host_.push_back(e);
    } else if (ExpertCache::Entry* const entry = env_->cache->find(e.shard, step_)) {
      ++entry->pins;
      in_vram_.push_back(e);
      hits_.push_back(entry);
    } else {
      missing_.push_back(e);
    }
  }
  // The host computes what is not worth fetching for these rows.
  std::size_t const n_fetch = std::size_t(std::lround(double(env_->plan->fetched_misses) * double(missing_.size())));
  on_host_.insert(on_host_.end(), missing_.begin() + std::ptrdiff_t(n_fetch), missing_.end());
  missing_.resize(n_fetch);
}

ExpertGroup RoutedExperts::group_at(Expert const& e, std::byte const* base) const {
  Range const w = shard(e).weights;
  auto const offset = [&](std::int32_t i) { return env_->table.weights[std::size_t(w.begin + i)].offset; };
  return {base + offset(0), base + offset(1), base + offset(2), 0, 0};
}

ExpertGroup RoutedExperts::group_on_host(Expert const& e) const {
  Range const w = shard(e).weights;
  auto const data = [&](std::int32_t i) { return env_->table.weights[std::size_t(w.begin + i)].data; };
  return {data(0), data(1), data(2), 0, 0};
}

std::int32_t RoutedExperts::add_slots(Batch& b, Expert const& e, ExpertGroup group, std::int32_t done) const {
  std::int32_t const room = env_->layout->slots_per_launch - std::int32_t(b.slots.size());
  std::int32_t const n = std::min(room, e.n - done);
  if (n <= 0) return done;
  group.first = std::int32_t(b.slots.size());
  group.n = n;
  b.groups.push_back(group);
  auto const begin = slots_.begin() + e.first + done;
  b.slots.insert(b.slots.end(), begin, begin + n);
  return done + n;
}

void RoutedExperts::start_host() {
  if (on_host_.empty()) return;
  float const* x = rows_->x;
  if (home_is_device()) {
    float* const host_x = at<float>(env_->host_base, env_->layout->expert_x);
    env_->host.wait_for(env_->copy->submit({reinterpret_cast<std::byte*>(host_x), reinterpret_cast<std::byte const*>(x), x_bytes()},
                                           env_->device.record()));
    x = host_x;
  }
  Batch b;
  for (Expert const& e : on_host_) {
    for (std::int32_t done = 0; done < e.n;) {
      done = add_slots(b, e, group_on_host(e), done);
      if (done < e.n) launch_groups(b, false, x);
    }
  }
  launch(b, false, x);
  host_done_ = env_->host.record();
}

float const* RoutedExperts::device_x() {
  if (home_is_device()) return rows_->x;
  float* const x = at<float>(env_->device_base, env_->layout->expert_x);
  if (!x_on_device_)
    env_->device.wait_for(env_->copy->submit({reinterpret_cast<std::byte*>(x), reinterpret_cast<std::byte const*>(rows_->x), x_bytes()},
                                             env_->host.record()));
  x_on_device_ = true;
  return x;
}

void RoutedExperts::compute_in_vram() {
  x_on_device_ = false;
  Batch b;
  std::size_t next_hit = 0;
  for (Expert const& e : in_vram_) {
    Placement const& p = env_->plan->shards[std::size_t(e.shard)];
    std::byte const* base = nullptr;
    if (p.resident()) {
      base = env_->vram + env_->vram_layout->resident[std::size_t(e.shard)];
      if (Ticket const t = env_->resident_ready[std::size_t(e.shard)]; t.value != 0) env_->device.wait_for(t);
    } else {
      ExpertCache::Entry* const entry = hits_[next_hit++];
      base = env_->vram + env_->vram_layout->cache_offset + entry->offset;
      env_->device.wait_for(entry->filled);
      b.pinned.push_back(entry);
    }
    add_whole(b, e, base);
  }
  hits_.clear();
  launch(b, true, b.groups.empty() ? nullptr : device_x());
}

void RoutedExperts::add_whole(Batch& b, Expert const& e, std::byte const* base) {
  for (std::int32_t done = 0; done < e.n;) {
    done = add_slots(b, e, group_at(e, base), done);
    if (done < e.n) launch_groups(b, true, device_x());  // still pinned: the rest of its slots comes with the next launch
  }
}

void RoutedExperts::compute_fetched() {
  Batch b;
  std::size_t fetched_bytes = 0;
  for (Expert const& e : missing_) {
    bool const stays = env_->cache->policy().admit(e.shard);
    std::optional<ExpertCache::Room> room = room_for(e, stays);
    if (!room) {
      launch(b, true, device_x());
      fetched_bytes = 0;
      room = room_for(e, stays);
    }
    if (!room) room = env_->cache->acquire(e.shard, shard(e).bytes);
    if (!room)
      throw Error(Errc::over_budget,
                  concat("the expert cache of ", env_->cache->bytes(), " bytes cannot hold one expert of ", shard(e).bytes));
    fetch(b, e, *room);
    b.pinned.push_back(room->entry);
    if (!stays) b.unwanted.push_back(e.shard);
    add_whole(b, e, env_->vram + env_->vram_layout->cache_offset + room->entry->offset);
    fetched_bytes += shard(e).bytes;
    if (fetched_bytes * 4 >= env_->cache->bytes()) {
      launch(b, true, device_x());
      fetched_bytes = 0;
    }
  }
  launch(b, true, b.groups.empty() ? nullptr : device_x());
}

/// One that is not to stay takes the place of no other while there is any else.
std::optional<ExpertCache::Room> RoutedExperts::room_for(Expert const& e, bool stays) {
  return stays ? env_->cache->acquire(e.shard, shard(e).bytes) : env_->cache->acquire_free(e.shard, shard(e).bytes);
}

void RoutedExperts::fetch(Batch& b, Expert const& e, ExpertCache::Room const& room) {
  std::byte* const base = env_->vram + env_->vram_layout->cache_offset + room.entry->offset;
  for (std::int32_t i = shard(e).weights.begin; i < shard(e).weights.end; ++i) {
    Weight const& w = env_->table.weights[std::size_t(i)];
    b.pieces.push_back({base + w.offset, w.data, w.bytes()});
  }
  add_after(b.after, room.after);
  b.fetched.push_back({room.entry, e.shard});
}

/// All of a batch in one submission.
void RoutedExperts::submit_copies(Batch& b) {
  if (b.pieces.empty()) return;
  Ticket const before = env_->copy->last();
  b.ready = env_->copy->submit(b.pieces, b.after);
  for (auto const& [entry, id] : b.fetched) {
    entry->filled = b.ready;
    if (env_->trace == nullptr) continue;
    Shard const& s = env_->table.shard(id);
    env_->trace->push_back(
        {{ActionKind::copy, first_gpu, id, {0, s.n_rows}, {}, entry->offset, s.bytes}, TraceLane::copy, before, b.ready});
  }
  b.pieces.clear();
  b.after.clear();
  b.fetched.clear();
}

void RoutedExperts::launch(Batch& b, bool on_device, float const* x) {
  launch_groups(b, on_device, x);
  retire(b);
}

void RoutedExperts::launch_groups(Batch& b, bool on_device, float const* x) {
  submit_copies(b);
  if (b.groups.empty()) return;
  Side const& side = on_device ? env_->device : env_->host;
  if (on_device) side.wait_for(b.ready);
  ExpertsArgs args = common_args(x, on_device);
  args.groups = upload(std::span<ExpertGroup const>(b.groups), env_->layout->expert_groups, n_groups_, on_device);
  args.slots = upload(std::span<std::int32_t const>(b.slots), env_->layout->expert_slots, n_slots_listed_, on_device);
  args.n_groups = std::int32_t(b.groups.size());
  args.n_slots = std::int32_t(b.slots.size());
  tiered::launch(side.kernels().experts, args, side.queue());
  b.groups.clear();
  b.slots.clear();
}

ExpertsArgs RoutedExperts::common_args(float const* x, bool on_device) const {
  ExpertsArgs args{};
  args.x = x;
  args.y = y_on(on_device);
  args.workspace = (on_device ? env_->device_base : env_->host_base) + env_->layout->expert_workspace;
  args.n_tokens = rows_->n_rows;
  args.n_used = n_used();
  args.dim = env_->config->dim;
  args.hidden_dim = rows_->config->hidden_dim;
  args.activation = rows_->activation;
  Range const w = env_->table.shard(first_expert_).weights;
  args.gate_type = env_->table.weights[std::size_t(w.begin)].dtype;
  args.up_type = env_->table.weights[std::size_t(w.begin + 1)].dtype;
  args.down_type = env_->table.weights[std::size_t(w.begin + 2)].dtype;
  return args;
}

void RoutedExperts::retire(Batch& b) {
  if (!b.pinned.empty()) {
    Ticket const used = env_->device.record();
    for (ExpertCache::Entry* entry : b.pinned) {
      entry->last_use = used;
      --entry->pins;
    }
  }
  for (ShardId s : b.unwanted) env_->cache->drop(s);
  b = Batch{};
}

template <class T>
T const* RoutedExperts::upload(std::span<T const> list, std::size_t offset, std::size_t& n_listed, bool on_device) {
  T* const staged = at<T>(env_->host_base, offset) + n_listed;
  std::memcpy(staged, list.data(), list.size_bytes());
  T* const target = on_device ? at<T>(env_->device_base, offset) + n_listed : staged;
  n_listed += list.size();
  if (on_device) {
    env_->device.wait_for(env_->copy->submit(
        {reinterpret_cast<std::byte*>(target), reinterpret_cast<std::byte const*>(staged), list.size_bytes()}, Ticket{}));
  }
  return target;
}

void RoutedExperts::finish_host() {
  bool const on_host = !on_host_.empty(), on_device = !in_vram_.empty() || !missing_.empty();
  if (home_is_device() && on_host) {
    bring(on_host_, false, host_done_);
  } else if (!home_is_device() && on_device) {
    Ticket const done = env_->device.record();
    bring(in_vram_, true, done);
    bring(missing_, true, done);
  }
}

void RoutedExperts::bring(std::vector<Expert> const& experts, bool from_device, Ticket done) {
  std::size_t const row = std::size_t(env_->config->dim);
  std::vector<CopyPiece> pieces;
  for (Expert const& e : experts) {
    for (std::int32_t i = e.first; i < e.first + e.n; ++i) {
      std::size_t const slot = std::size_t(slots_[std::size_t(i)]);
      pieces.push_back({reinterpret_cast<std::byte*>(y_on(!from_device) + slot * row),
                        reinterpret_cast<std::byte const*>(y_on(from_device) + slot * row), row * sizeof(float)});
    }
  }
  if (!pieces.empty()) home().wait_for(env_->copy->submit(pieces, {&done, 1}));
}

void RoutedExperts::combine() {
  float* const sum = at<float>(home_is_device() ? env_->device_base : env_->host_base, env_->layout->expert_sum);
  KernelTable const& k = home().kernels();
  tiered::launch(k.combine, CombineArgs{y_on(home_is_device()), rows_->weights, sum, rows_->n_rows, n_used(), env_->config->dim},
                 home().queue());
  tiered::launch(k.add, AddArgs{sum, rows_->hidden, std::int64_t(rows_->n_rows) * env_->config->dim}, home().queue());
}

}  // namespace tiered
