/// Defines the part of FewRouted that brings experts ahead of their layers: for one source file of a program.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tiered/core/clock.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/detail/lane_wait.hpp"
#include "tiered/pipeline/few_routed.hpp"
#include "tiered/plan/expert_decode.hpp"

namespace tiered {

// ---- for a plan

bool FewRouted::pays_to_look_ahead() const {
  if (env_->device.kernels().router_ahead == nullptr || env_->plan->fetched_misses <= 0 || env_->look_ahead == LookAhead::never)
    return false;
  if (env_->look_ahead == LookAhead::always) return true;
  double bytes = 0, used = 0, n = 0, n_layers = 0;
  for (Shard const& s : env_->table.shards) {
    if (s.kind != ShardKind::expert || !env_->plan->shards[std::size_t(s.id)].cached) continue;
    bytes += double(s.bytes);
    used += s.use_probability;
    n += 1;
    n_layers += s.expert == 0 ? 1 : 0;
  }
  if (n_layers == 0) return false;
  double const missed = (1 - cache_hits(std::min(double(env_->vram_layout->cache_bytes) / bytes, 1.0))) * used / n_layers;
  return tiered::pays_to_look_ahead(missed, bytes / n);
}

void FewRouted::set_reserve() {
  std::size_t largest = 0;
  for (Shard const& s : env_->table.shards) {
    if (s.kind == ShardKind::expert && env_->plan->shards[std::size_t(s.id)].cached) largest = std::max(largest, s.bytes);
  }
  std::size_t const n = largest == 0 || !looks_ahead_ ? 0 : reserved_experts(env_->cache->bytes() / largest);
  reserve_bytes_ = n * largest;
}

void FewRouted::enqueue_router(RouterAheadArgs args, GuessArgs guesses, std::span<std::int32_t const> targets) {
  auto* const row = reinterpret_cast<float*>(env_->device_base + env_->layout->help_row);
  args.state = reinterpret_cast<HelpState*>(env_->device_base + env_->layout->help);
  args.experts = addresses_.of_layer(args.layer);
  args.seen = seen_by_device();
  args.row = targets.empty() ? nullptr : row;
  for (std::size_t i = 0; i < targets.size(); ++i) guesses.layers[i].guesses = ahead_.guesses(args.layer, std::int32_t(i));
  guesses.row = row;
  guesses_ = guesses;
  ahead_.set_targets(args.layer, targets);
  tiered::launch(env_->device.kernels().router_ahead, args, env_->device.queue());
}

// ---- a step

/// What nobody had a use for goes first, then whom the policy names. Where entries may go: see FewRouted.
void FewRouted::keep_reserve() {
  if (reserve_bytes_ == 0) return;
  std::size_t n = 0;
  for (; n < unproven_.size() && env_->cache->free_bytes() < reserve_bytes_; ++n) {
    ExpertCache::Entry const* const entry = env_->cache->peek(unproven_[n]);
    if (entry == nullptr || entry->pins > 0) continue;
    env_->cache->drop(unproven_[n]);
    evicted_.push_back(unproven_[n]);
  }
  unproven_.erase(unproven_.begin(), unproven_.begin() + std::ptrdiff_t(n));
  env_->cache->make_free(reserve_bytes_, evicted_);
}

/// Not one that the newest request took out, as long as the device may still be at it.
bool FewRouted::is_wanted(ShardId id) const {
  bool const is_passed = ahead_.reached() > requested_layer_;
  return env_->plan->shards[std::size_t(id)].cached && env_->cache->peek(id) == nullptr && env_->cache->policy().admit(id) &&
         (is_passed || std::ranges::find(evicted_, id) == evicted_.end());
}

/// For the nearest layer that it comes in time for; where the link has nothing to do, for a nearer one, too: it is there the next time.
bool FewRouted::look_ahead() {
  if (!looks_ahead_) return false;
  take_done();
  bool const any = ahead_.look(addresses_.first_experts());
  if (any) note_reached(steady_seconds());
  if (on_way_.size() >= std::size_t(most_on_way)) return any;
  auto const next = [&](std::int32_t distance) { return ahead_.next(distance, [&](ShardId s) { return is_wanted(s); }); };
  std::int32_t const distance = distance_ahead(steady_seconds());
  std::optional<ShardId> id = next(distance);
  if (!id && distance > 1 && on_way_.empty()) id = next(1);
  if (!id) return any;
  std::optional<ExpertCache::Room> const room = env_->cache->acquire_free(*id, env_->table.shard(*id).bytes);
  if (!room) return any;
  bring_ahead(*id, *room->entry, {&room->after, 1});
  addresses_.is_current();
  guessed_.push_back(*id);
  return true;
}

/// Layers from the one that the device is at to the first that looks after a copy submitted now is done.
std::int32_t FewRouted::distance_ahead(double now_s) const {
  if (copies_.each_s() <= 0 || layers_.each_s() <= 0) return on_way_.empty() ? 1 : 2;
  double const before_s = on_way_.empty() ? 0 : copies_.left_s(now_s) + double(on_way_.size() - 1) * copies_.each_s();
  double const later_s = before_s + copies_.each_s() - layers_.left_s(now_s);  // than the next layer looks
  return std::int32_t(std::clamp(1 + std::ceil(later_s / layers_.each_s()), 1.0, double(GuessArgs::max_layers)));
}

void FewRouted::note_reached(double now_s) {
  if (ahead_.reached() <= paced_) return;
  paced_ < 0 ? layers_.begin(now_s) : layers_.end(now_s, ahead_.reached() - paced_);
  paced_ = ahead_.reached();
}

/// Their experts are as all others that are coming.
void FewRouted::take_done() {
  for (; !on_way_.empty() && env_->copy->done(on_way_.front()); on_way_.erase(on_way_.begin())) copies_.end(steady_seconds());
}

/// Whether one more may be on its way beside those of look_ahead(): each has an entry of help_entries until its copy is done.
bool FewRouted::may_bring_ahead() {
  take_done();
  return !looks_ahead_ || on_way_.size() + std::size_t(most_on_way) < std::size_t(ahead_entries);
}

/// The entry of the device's table comes behind the weights in the same lane, its gate by itself and last: whoever sees it sees the rest.
void FewRouted::bring_ahead(ShardId id, ExpertCache::Entry& entry, std::span<Ticket const> after) {
  Shard const& s = env_->table.shard(id);
  pieces_.clear();
  for (std::int32_t i = s.weights.begin; i < s.weights.end; ++i) {
    Weight const& w = env_->table.weights[std::size_t(i)];
    pieces_.push_back({base_of(entry) + w.offset, w.data, w.bytes()});
  }
  ExpertGroup& from = host_at<ExpertGroup>(env_->layout->help_entries)[n_entries_++ % std::size_t(ahead_entries)];
  from = addresses_.group_at(id, base_of(entry));
  auto const from_at = [&](std::size_t offset) { return reinterpret_cast<std::byte const*>(&from) + offset; };
  auto const to_at = [&](std::size_t offset) { return reinterpret_cast<std::byte*>(addresses_.on_device(id)) + offset; };
  constexpr std::size_t gate = offsetof(ExpertGroup, gate), up = offsetof(ExpertGroup, up);
  static_assert(gate == 0 && up == sizeof(ExpertGroup::gate));
  pieces_.push_back({to_at(up), from_at(up), sizeof(ExpertGroup) - up});
  pieces_.push_back({to_at(gate), from_at(gate), sizeof(ExpertGroup::gate)});
  if (on_way_.empty()) copies_.begin(steady_seconds());
  Ticket const before = env_->copy->last();
  entry.filled = env_->copy->submit(pieces_, after);
  coming_.push_back({id, entry.filled, &entry, true});
  on_way_.push_back(entry.filled);
  if (env_->trace == nullptr) return;
  Action const a{ActionKind::copy, first_gpu, id, {0, s.n_rows}, {}, entry.offset, s.bytes};
  env_->trace->push_back({a, TraceLane::copy, before, entry.filled});
}

// ---- a request

/// Those that the device had when its layer looked are computed already. What came too late for that it computes with the fetched ones; of
/// what is still on its way, only what comes next, if it does before the host would have all that is missing.
void FewRouted::find_helped(std::uint32_t missing) {
  bool const copies = env_->plan->fetched_misses > 0;
  bool const comes_soon = copies_.left_s(steady_seconds()) <= host_each_s_ * std::popcount(missing) || host_each_s_ == 0;
  for (std::size_t slot = 0; slot < expert_of_.size(); ++slot) {
    Expert& e = experts_[std::size_t(expert_of_[slot])];
    bool const is_missing = (missing >> slot & 1u) != 0;
    if (!is_missing) e.where = Where::device;
    if (!env_->plan->shards[std::size_t(e.shard)].cached) continue;
    e.entry = env_->cache->find(e.shard, step_);
    e.may_be_fetched = is_missing && e.entry == nullptr;
    e.may_be_read = copies && e.may_be_fetched && is_readable(e);
    if (e.entry == nullptr) continue;
    ++e.entry->pins;
    Coming const* const c = coming(e.shard);
    e.late = is_missing && copies && (c == nullptr || is_there(*c) || (comes_soon && !on_way_.empty() && c->filled == on_way_.front()));
    if (e.late) e.where = Where::fetched;
  }
}

/// Asked anew each time: memory becomes readable in the background, piece by piece.
bool FewRouted::is_readable(Expert const& e) const {
  for (std::int32_t i = shard(e).weights.begin; i < shard(e).weights.end; ++i) {
    Weight const& w = env_->table.weights[std::size_t(i)];
    if (!env_->host_access.weights.has(w.data, w.bytes())) return false;
  }
  return true;
}

FewRouted::Coming const* FewRouted::coming(ShardId id) const {
  auto const it = std::ranges::find(coming_, id, &Coming::shard);
  return it == coming_.end() ? nullptr : &*it;
}

/// The device has been told of none of them that waits: they are in no table yet.
void FewRouted::wait_for_late() {
  for (Expert const& e : experts_) {
    Coming const* const c = e.late ? coming(e.shard) : nullptr;
    while (c != nullptr && !env_->copy->done(c->filled) && std::atomic_ref(mail().given_up).load(std::memory_order_relaxed) == 0)
      detail::pause_briefly();
  }
}

/// One that this layer's host computes now.
void FewRouted::bring_for_later() {
  if (!looks_ahead_) return submit(true);
  for (Expert const& e : experts_) {
    if (e.for_later) bring_ahead(e.shard, *e.entry, after_);
  }
}

// ---- after a step

void FewRouted::settle_ahead() {
  on_way_.clear();
  std::erase_if(coming_, [&](Coming const& c) {
    if (!c.tells) return false;
    addresses_.note(c.shard, base_of(*env_->cache->peek(c.shard)));
    --c.pinned->pins;
    return true;
  });
}

/// What was brought on a guess, against what the layers chose.
void FewRouted::count_guessed() {
  enum class Use : std::uint8_t { none, late, in_time };
  auto const use_of = [&](ShardId id) {
    Shard const& s = env_->table.shard(id);
    HelpLog const& used = log(s.layer);
    for (std::int32_t j = 0; j < env_->config->layers[std::size_t(s.layer)].experts.n_experts_used; ++j) {
      if (used.ids[j] == s.expert) return (used.missing >> j & 1u) != 0 ? Use::late : Use::in_time;
    }
    return Use::none;
  };
  std::erase_if(unproven_, [&](ShardId id) { return env_->cache->peek(id) == nullptr || use_of(id) != Use::none; });
  for (ShardId const id : guessed_) {
    Use const use = use_of(id);
    ++help_counters_.n_guessed;
    help_counters_.n_right += use != Use::none;
    help_counters_.n_in_time += use == Use::in_time;
    if (use != Use::none) continue;
    help_counters_.wasted_bytes += env_->table.shard(id).bytes;
    unproven_.push_back(id);
  }
}

}  // namespace tiered
