/// Defines FewRouted and ExpertAddresses: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/pipeline/few_routed.hpp"
#include "tiered/pipeline/kernel_transfer.hpp"

namespace tiered {

// ---- where experts are

void ExpertAddresses::prepare(std::span<ShardId const> first_experts) {
  first_experts_.assign(first_experts.begin(), first_experts.end());
  n_there_.assign(first_experts.size(), 0);
  changes_.clear();
  known_ = false;
}

ExpertGroup ExpertAddresses::group_at(ShardId id, std::byte const* base) const {
  Range const w = env_->table.shard(id).weights;
  auto const at = [&](std::int32_t i) { return base + env_->table.weights[std::size_t(w.begin + i)].offset; };
  return {at(0), at(1), at(2), 0, 0};
}

bool ExpertAddresses::refresh() {
  if (known_ && version_ == env_->cache->version()) return false;
  std::size_t const n_layers = env_->config->layers.size();
  for (std::size_t layer = 0; layer < n_layers; ++layer) {
    LayerConfig const& config = env_->config->layers[layer];
    if (config.feed_forward != FeedForwardKind::experts) continue;
    ExpertGroup* const groups = table(env_->host_base, std::int32_t(layer));
    n_there_[layer] = 0;
    for (std::int32_t e = 0; e < config.experts.n_experts; ++e) {
      ShardId const id = ShardId(std::uint32_t(first_experts_[layer]) + std::uint32_t(e));
      Placement const& p = env_->plan->shards[std::size_t(id)];
      ExpertCache::Entry const* const entry = p.cached ? env_->cache->peek(id) : nullptr;  // of a plan without: of another plan's memory
      std::byte const* base = nullptr;
      if (p.resident()) {
        base = env_->vram + env_->vram_layout->resident[std::size_t(id)];
      } else if (entry != nullptr) {
        base = env_->vram + env_->vram_layout->cache_offset + entry->offset;
      }
      groups[e] = base != nullptr ? group_at(id, base) : ExpertGroup{};
      n_there_[layer] += base != nullptr;
    }
  }
  TransferArgs::Part const tables = all();
  CopyPiece const piece{static_cast<std::byte*>(tables.to), static_cast<std::byte const*>(tables.from), std::size_t(tables.bytes)};
  // Copies end in the order of their submission: behind this one all experts are there, too.
  env_->device.wait_for(env_->copy->submit(piece, env_->device.record()));
  is_current();
  return known_ = true;
}

void ExpertAddresses::send_changes() {
  transfer(env_->device, changes_);
  changes_.clear();
}

TransferArgs::Part ExpertAddresses::all() const {
  std::size_t const bytes = env_->config->layers.size() * std::size_t(env_->layout->n_experts) * sizeof(ExpertGroup);
  return {table(env_->host_base, 0), table(env_->device_base, 0), std::int32_t(bytes)};
}

ExpertGroup& ExpertAddresses::change(ShardId id, ExpertGroup group) {
  Shard const& s = env_->table.shard(id);
  ExpertGroup& here = table(env_->host_base, s.layer)[s.expert];
  n_there_[std::size_t(s.layer)] += int(group.gate != nullptr) - int(here.gate != nullptr);
  return here = group;
}

ExpertGroup* ExpertAddresses::on_device(ShardId id) const {
  Shard const& s = env_->table.shard(id);
  return table(env_->device_base, s.layer) + s.expert;
}

void ExpertAddresses::set(ShardId id, std::byte const* base) {
  changes_.push_back({&change(id, group_at(id, base)), on_device(id), std::int32_t(sizeof(ExpertGroup))});
}
void ExpertAddresses::clear(ShardId id) { changes_.push_back({&change(id, {}), on_device(id), std::int32_t(sizeof(ExpertGroup))}); }
void ExpertAddresses::note(ShardId id, std::byte const* base) { change(id, group_at(id, base)); }

// ---- a layer

bool FewRouted::takes(RoutedRows const& rows, ShardId first_expert) const {
  KernelTable const& k = env_->device.kernels();
  // Where text must not depend on what is cached, all of a layer's experts must fit the cache at once: those of a row do.
  if (env_->plan->deterministic && rows.n_rows > 1) return false;
  return rows.home != host_device && env_->host_access.activations && k.transfer != nullptr && k.routed_experts != nullptr &&
         rows.n_rows <= attention_few_rows && type_of(first_expert, 0) == type_of(first_expert, 1) &&
         k.fuses(type_of(first_expert, 0), rows.n_rows, env_->config->dim) &&
         k.fuses(type_of(first_expert, 2), rows.n_rows, rows.config->hidden_dim) &&
         rows.n_rows * rows.config->experts.n_experts_used <= env_->layout->slots_per_launch;
}

void FewRouted::prepare(std::span<ShardId const> first_experts) {
  addresses_.prepare(first_experts);
  forget_coming();
  owed_ = 0;
  has_mail_ = looks_ahead_ = false;
  unproven_.clear();
}

/// Entries that were pinned for a step that was helped may go again.
void FewRouted::forget_coming() {
  for (Coming const& c : coming_) {
    if (c.pinned != nullptr && env_->cache->peek(c.shard) == c.pinned) --c.pinned->pins;
  }
  coming_.clear();
  on_way_.clear();
}

void FewRouted::run(RoutedRows const& rows, ShardId first_expert, std::uint64_t step) {
  rows_ = &rows;
  first_expert_ = first_expert;
  if (addresses_.refresh()) forget_coming();
  publish();
  list_experts();
  find_in_vram(step);
  share_misses();
  run_on_host();  // first: that takes less to enqueue than copies do
  fetch();
  run_fetched();
  add_host_sum();
  release();
}

void FewRouted::publish() {
  std::int32_t const x_bytes = rows_->n_rows * env_->config->dim * std::int32_t(sizeof(float));
  TransferArgs args;
  args.parts[0] = {rows_->ids, host_at<std::int32_t>(env_->layout->expert_ids), n_slots() * std::int32_t(sizeof(std::int32_t))};
  args.parts[1] = {rows_->weights, host_at<float>(env_->layout->expert_weights), n_slots() * std::int32_t(sizeof(float))};
  args.parts[2] = {rows_->x, host_at<float>(env_->layout->expert_x), x_bytes};
  args.n_parts = 3;
  tell_of_arrivals();
  std::vector<TransferArgs::Part>& changes = addresses_.changes();
  for (; !changes.empty() && args.n_parts < TransferArgs::max_parts; changes.pop_back()) args.parts[args.n_parts++] = changes.back();
  expects(changes.empty(), "FewRouted: of a layer's last step at most one expert is on its way");
  tiered::launch(env_->device.kernels().transfer, args, env_->device.queue());
  Ticket const published = env_->device.record();
  if (!env_->plan->deterministic) launch_in_vram();
  env_->copy->wait(published);
}

void FewRouted::launch_in_vram() {
  if (addresses_.has_any(rows_->layer))
    launch(rows_->ids, rows_->weights, addresses_.of_layer(rows_->layer), rows_->config->experts.n_experts);
}

void FewRouted::tell_of_arrivals() {
  std::erase_if(coming_, [&](Coming const& c) {
    if (env_->table.shard(c.shard).layer != rows_->layer) return false;
    env_->device.wait_for(c.filled);
    addresses_.set(c.shard, base_of(*env_->cache->peek(c.shard)));
    if (c.pinned != nullptr) --c.pinned->pins;
    return true;
  });
}

RoutedExpertsArgs FewRouted::launch_args(std::int32_t const* ids, float const* weights, ExpertGroup const* groups,
                                         std::int32_t n_groups) const {
  ActivationLayout const& l = *env_->layout;
  RoutedExpertsArgs args;
  args.experts = shapes();
  args.experts.x = rows_->x;
  args.experts.y = reinterpret_cast<float*>(env_->device_base + l.expert_y);
  args.experts.workspace = env_->device_base + l.expert_workspace;
  args.experts.n_slots = n_slots();
  args.ids = ids;
  args.weights = groups;
  args.groups = reinterpret_cast<ExpertGroup*>(env_->device_base + l.expert_groups);
  args.slots = reinterpret_cast<std::int32_t*>(env_->device_base + l.expert_slots);
  args.counts = reinterpret_cast<std::int32_t*>(env_->device_base + l.expert_counts);
  args.n_experts = n_groups;
  args.layer = rows_->layer;
  args.slot_weights = weights;
  args.sum = rows_->hidden;
  args.absent_slots = true;
  return args;
}

void FewRouted::launch(std::int32_t const* ids, float const* weights, ExpertGroup const* groups, std::int32_t n_groups) {
  tiered::launch(env_->device.kernels().routed_experts, launch_args(ids, weights, groups, n_groups), env_->device.queue());
}

ExpertsArgs FewRouted::shapes() const {
  ExpertsArgs args{};
  args.n_tokens = rows_->n_rows;
  args.n_used = n_used();
  args.dim = env_->config->dim;
  args.hidden_dim = rows_->config->hidden_dim;
  args.activation = rows_->activation;
  args.gate_type = type_of(first_expert_, 0);
  args.up_type = type_of(first_expert_, 1);
  args.down_type = type_of(first_expert_, 2);
  return args;
}

void FewRouted::list_experts() {
  std::int32_t const* const ids = host_at<std::int32_t>(env_->layout->expert_ids);
  std::int32_t const n_experts = rows_->config->experts.n_experts;
  experts_.clear();
  expert_of_.resize(std::size_t(n_slots()));
  for (std::int32_t slot = 0; slot < n_slots(); ++slot) {
    std::int32_t const id = ids[slot];
    if (id < 0 || id >= n_experts)
      throw Error(Errc::device, concat("layer ", rows_->layer, ": the router chose expert ", id, " of ", n_experts));
    auto it = std::ranges::find(experts_, id, &Expert::number);
    if (it == experts_.end()) {
      Expert e;
      e.number = id;
      e.shard = ShardId(std::uint32_t(first_expert_) + std::uint32_t(id));
      it = experts_.insert(it, e);
    }
    expert_of_[std::size_t(slot)] = std::int32_t(it - experts_.begin());
  }
}

/// Those that the device's table had when it looked: they are computed already.
void FewRouted::find_in_vram(std::uint64_t step) {
  for (Expert& e : experts_) {
    if (addresses_.has(rows_->layer, e.number)) e.where = Where::device;
    if (!env_->plan->shards[std::size_t(e.shard)].cached) continue;
    e.entry = env_->cache->find(e.shard, step);
    e.may_be_fetched = e.entry == nullptr;
    if (e.entry != nullptr) ++e.entry->pins;
  }
}

/// The share of what is missing, in whole experts: what is left of a share goes to later layers, so that single misses, too, come into the
/// cache now and then. Those the cache has no room for, or does not admit, are left to the host.
void FewRouted::share_misses() {
  if (env_->plan->deterministic) owed_ = 0;
  owed_ += double(env_->plan->fetched_misses) * double(std::ranges::count_if(experts_, &Expert::may_be_fetched));
  auto n_fetch = std::int64_t(owed_ + 1e-6);
  owed_ -= double(n_fetch);
  evicted_.clear();
  for (Expert& e : experts_) {
    if (n_fetch == 0) break;
    if (!e.may_be_fetched || (!env_->plan->deterministic && !env_->cache->policy().admit(e.shard))) continue;
    if (!take_room(e)) return env_->plan->deterministic ? take_rooms_anew() : void();
    e.where = Where::fetched;
    --n_fetch;
  }
  if (!env_->plan->deterministic) bring_one_for_later();
}

bool FewRouted::take_room(Expert& e) {
  std::optional<ExpertCache::Room> const room = env_->cache->acquire(e.shard, shard(e).bytes, &evicted_);
  if (!room) return false;
  e.entry = room->entry;
  after_.push_back(room->after);
  return true;
}

/// The plan's cache has room for all that a token uses of a layer. But where sizes differ from layer to layer, those that are there may lie
/// so that no hole between them is large enough: then they come anew, too, one behind the other. All others have gone already. It does not
/// show in a text: one launch takes all of them, in the order of their ids.
void FewRouted::take_rooms_anew() {
  for (Expert& e : experts_) {
    if (e.entry == nullptr) continue;
    env_->cache->drop(e.shard);  // what was the room's, and what it is to come after, are in after_ and with the hole
    e.entry = nullptr;
    e.may_be_fetched = true;
  }
  for (Expert& e : experts_) {
    if (!e.may_be_fetched) continue;
    if (!take_room(e)) {
      throw Error(Errc::over_budget, concat("layer ", rows_->layer, ": the expert cache of ", env_->cache->bytes(),
                                            " bytes has no room for one more expert of ", shard(e).bytes, " bytes"));
    }
    e.where = Where::fetched;
  }
}

/// Where there is free room, or most of what this layer asked for was there: where a cache hits rarely, what is brought is gone before it
/// is used. Not where nothing is to be fetched at all: then the link is no help.
void FewRouted::bring_one_for_later() {
  if (env_->plan->fetched_misses <= 0) return;
  auto const is_missing = [](Expert const& e) { return e.where == Where::host && e.may_be_fetched; };
  auto const next = std::ranges::find_if(experts_, is_missing);
  if (next == experts_.end()) return;
  std::ptrdiff_t const n_missing = std::ranges::count_if(experts_, &Expert::may_be_fetched), n = std::ssize(experts_);
  bool const pays = env_->cache->free_bytes() >= shard(*next).bytes + reserve_bytes_ || 2 * n_missing <= n;
  if (pays && env_->cache->policy().admit(next->shard)) next->for_later = take_room(*next);
}

// ---- the host

/// Slots of the host side by side, as many for each row as the row that has most, which is returned: what fills up is 0 with weight 0.
std::int32_t FewRouted::place_host_slots() {
  auto const on_host = [&](std::int32_t slot) { return experts_[std::size_t(expert_of_[std::size_t(slot)])].where == Where::host; };
  std::int32_t most = 0;
  for (std::int32_t row = 0; row < rows_->n_rows; ++row) {
    std::int32_t n = 0;
    for (std::int32_t j = 0; j < n_used(); ++j) n += on_host(row * n_used() + j);
    most = std::max(most, n);
  }
  std::size_t const dim = std::size_t(env_->config->dim);
  float const* const routed = host_at<float>(env_->layout->expert_weights);
  float *const y = host_at<float>(env_->layout->expert_y), *const weights = list_at(env_->host_base, 1).weights;
  places_.assign(expert_of_.size(), -1);
  for (std::int32_t row = 0; row < rows_->n_rows; ++row) {
    std::int32_t place = row * most;
    for (std::int32_t j = 0; j < n_used(); ++j) {
      std::int32_t const slot = row * n_used() + j;
      if (!on_host(slot)) continue;
      weights[place] = routed[slot];
      places_[std::size_t(slot)] = place++;
    }
    for (; place < (row + 1) * most; ++place) {
      weights[place] = 0;
      std::fill_n(y + std::size_t(place) * dim, dim, 0.0f);
    }
  }
  return most;
}

void FewRouted::run_on_host() {
  HostWork work;
  uses_host_ = list_host_work(work);
  if (!uses_host_) return;
  Ticket const begin = env_->trace != nullptr ? env_->host.record() : Ticket{};
  tiered::launch(env_->host.kernels().experts, work.experts, env_->host.queue());
  tiered::launch(env_->host.kernels().combine, work.sum, env_->host.queue());
  host_done_ = env_->host.record();
  if (env_->trace == nullptr) return;
  Action const a{ActionKind::fetch_routed, host_device, first_expert_, {}, {0, rows_->n_rows}, 0, 0};
  env_->trace->push_back({a, TraceLane::host, begin, host_done_});
}

/// False where nothing is the host's.
bool FewRouted::list_host_work(HostWork& work) {
  std::int32_t const most = place_host_slots();
  if (most == 0) return false;
  ActivationLayout const& l = *env_->layout;
  ExpertsArgs& args = work.experts = shapes();
  auto* const groups = host_at<ExpertGroup>(l.expert_groups);
  auto* const slots = host_at<std::int32_t>(l.expert_slots);
  for (std::size_t e = 0; e < experts_.size(); ++e) {
    if (experts_[e].where != Where::host) continue;
    Range const w = shard(experts_[e]).weights;
    auto const data = [&](std::int32_t i) { return env_->table.weights[std::size_t(w.begin + i)].data; };
    ExpertGroup group{data(0), data(1), data(2), args.n_slots, 0};
    for (std::size_t slot = 0; slot < expert_of_.size(); ++slot) {
      if (expert_of_[slot] == std::int32_t(e)) slots[group.first + group.n++] = places_[slot];
    }
    args.n_slots += group.n;
    groups[args.n_groups++] = group;
  }
  args.x = host_at<float>(l.expert_x);
  args.y = host_at<float>(l.expert_y);
  args.groups = groups;
  args.slots = slots;
  args.workspace = env_->host_base + l.expert_workspace;
  args.n_used = most;
  work.sum = {args.y, list_at(env_->host_base, 1).weights, host_at<float>(l.expert_sum), rows_->n_rows, most, env_->config->dim};
  return true;
}

/// The device reads the sum where the host wrote it.
void FewRouted::add_host_sum() {
  if (!uses_host_) return;
  env_->device.wait_for(host_done_);
  std::int64_t const n = std::int64_t(rows_->n_rows) * env_->config->dim;
  tiered::launch(env_->device.kernels().add, AddArgs{host_at<float>(env_->layout->expert_sum), rows_->hidden, n}, env_->device.queue());
}

// ---- what is fetched

void FewRouted::fetch() {
  if (after_.empty() && evicted_.empty()) return;
  clear_evicted();
  submit(false);
  submit(true);
  after_.clear();
  addresses_.is_current();
}

void FewRouted::clear_evicted() {
  for (ShardId const id : evicted_) {
    addresses_.clear(id);
    std::erase_if(coming_, [&](Coming const& c) { return c.shard == id; });
  }
}

void FewRouted::submit(bool for_later) {
  pieces_.clear();
  Ticket const before = env_->copy->last();
  auto const is_meant = [&](Expert const& e) { return for_later ? e.for_later : e.where == Where::fetched; };
  for (Expert const& e : experts_) {
    if (!is_meant(e)) continue;
    for (std::int32_t i = shard(e).weights.begin; i < shard(e).weights.end; ++i) {
      Weight const& w = env_->table.weights[std::size_t(i)];
      pieces_.push_back({base_of(*e.entry) + w.offset, w.data, w.bytes()});
    }
  }
  if (pieces_.empty()) return;
  Ticket const filled = env_->copy->submit(pieces_, after_);
  if (!for_later) fetched_ = filled;
  for (Expert const& e : experts_) {
    if (!is_meant(e)) continue;
    e.entry->filled = filled;
    if (for_later) {
      coming_.push_back({e.shard, filled});
    } else {
      addresses_.set(e.shard, base_of(*e.entry));
    }
    if (env_->trace == nullptr) continue;
    Action const a{ActionKind::copy, first_gpu, e.shard, {0, shard(e).n_rows}, {}, e.entry->offset, shard(e).bytes};
    env_->trace->push_back({a, TraceLane::copy, before, filled});
  }
}

/// List 0: fetched experts, in either memory. List 1: the host's own weights of its slots.
FewRouted::List FewRouted::list_at(std::byte* base, std::size_t number) const {
  std::size_t const n = std::size_t(n_slots()), bytes = n * (sizeof(std::int32_t) + sizeof(float) + sizeof(ExpertGroup));
  std::byte* const at = base + env_->layout->few_lists + number * bytes;
  List list;
  list.groups = reinterpret_cast<ExpertGroup*>(at);
  list.ids = reinterpret_cast<std::int32_t*>(at + n * sizeof(ExpertGroup));
  list.weights = reinterpret_cast<float*>(list.ids + n);
  return list;
}

std::int32_t FewRouted::fill_list(List const& list) {
  float const* const routed = host_at<float>(env_->layout->expert_weights);
  std::int32_t n_groups = 0;
  for (Expert& e : experts_) {
    if (e.where != Where::fetched) continue;
    list.groups[n_groups] = addresses_.group_at(e.shard, base_of(*e.entry));
    e.group = n_groups++;
  }
  for (std::size_t slot = 0; slot < expert_of_.size(); ++slot) {
    list.ids[slot] = experts_[std::size_t(expert_of_[slot])].group;
    list.weights[slot] = list.ids[slot] < 0 ? 0.0f : routed[slot];
  }
  return n_groups;
}

/// With the list go the changes of the tables. No launch before reads them, and those of later layers come behind.
void FewRouted::run_fetched() {
  bool const any = std::ranges::any_of(experts_, [](Expert const& e) { return e.where == Where::fetched; });
  List const here = list_at(env_->host_base, 0), there = list_at(env_->device_base, 0);
  std::int32_t const n_groups = any ? fill_list(here) : 0;
  std::ptrdiff_t const bytes = reinterpret_cast<std::byte*>(here.weights + n_slots()) - reinterpret_cast<std::byte*>(here.groups);
  if (any && !env_->plan->deterministic) addresses_.changes().push_back({here.groups, there.groups, std::int32_t(bytes)});
  addresses_.send_changes();
  if (any) env_->device.wait_for(fetched_);
  if (env_->plan->deterministic) return launch_in_vram();  // all of them, in the order of their ids, wherever they were
  if (any) launch(there.ids, there.weights, there.groups, n_groups);
}

void FewRouted::release() {
  if (std::ranges::none_of(experts_, [](Expert const& e) { return e.entry != nullptr; })) return;
  Ticket const used = env_->device.record();
  for (Expert const& e : experts_) {
    if (e.entry == nullptr) continue;
    e.entry->last_use = used;
    --e.entry->pins;
  }
}

}  // namespace tiered
