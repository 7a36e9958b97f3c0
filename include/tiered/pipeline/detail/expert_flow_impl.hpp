/// Defines ExpertFlow: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/pipeline/expert_flow.hpp"
#include "tiered/plan/expert_flow.hpp"

namespace tiered {

namespace detail {

inline constexpr auto more = [](auto const& a, auto const& b) { return a > b; };

/// Joins pieces that follow each other in both memories.
inline void add_piece(std::vector<CopyPiece>& pieces, CopyPiece piece) {
  if (!pieces.empty()) {
    CopyPiece& last = pieces.back();
    if (last.dst + last.bytes == piece.dst && last.src + last.bytes == piece.src) {
      last.bytes += piece.bytes;
      return;
    }
  }
  pieces.push_back(piece);
}

}  // namespace detail

void ExpertFlow::prepare(std::span<ShardId const> first_experts) {
  drop_windows();
  layers_.assign(first_experts.size(), {});
  largest_ = all_ = 0;
  step_ = 0;
  seen_.resize(first_experts.size());
  if (env_->device_base == nullptr || env_->cache->bytes() == 0 || env_->device.kernels().expert_window == nullptr) return;
  for (Shard const& router : env_->table.shards) {
    if (router.kind != ShardKind::router || env_->plan->shards[std::size_t(router.id)].gpu_rows == 0) continue;
    Layer& l = layers_[std::size_t(router.layer)];
    l.first = first_experts[std::size_t(router.layer)];
    l.n_experts = env_->config->layers[std::size_t(router.layer)].experts.n_experts;
    auto const placed = std::span(env_->plan->shards).subspan(std::size_t(l.first), std::size_t(l.n_experts));
    l.flows = std::ranges::all_of(placed, [](Placement const& p) { return p.resident() || p.cached; }) &&
              std::ranges::any_of(placed, [](Placement const& p) { return p.cached; });
    if (!l.flows) continue;
    for (std::int32_t e = 0; e < l.n_experts; ++e) {
      ShardId const id = expert(router.layer, e);
      std::size_t const bytes = VramAccount::round_up(shard(id).bytes);
      largest_ = std::max(largest_, bytes);
      if (env_->plan->shards[std::size_t(id)].cached) all_ += bytes;
    }
  }
}

bool ExpertFlow::takes(std::int32_t number, std::int32_t n_rows) const {
  if (std::size_t(number) >= layers_.size() || !layer(number).flows) return false;
  ActivationLayout const& l = *env_->layout;
  std::int32_t const few = env_->device.kernels().fused_rows,  // for whose slots there is another op
      piece_slots = n_rows <= l.expert_rows ? l.window_slots : l.summed_slots;
  return n_rows > few && piece_slots > 0 && uses_whole_layer(shard(layer(number).first), n_rows);
}

// ---- the ring

/// Where not everything that misses has room in what is free.
void ExpertFlow::borrow() {
  ExpertCache& cache = *env_->cache;
  if (cache.lent_bytes() > 0) return;
  std::size_t missing = 0;
  for (std::int32_t l = 0; l < std::int32_t(layers_.size()); ++l) {
    for (std::int32_t e = 0; takes(l, n_rows_) && e < layer(l).n_experts; ++e) {
      ShardId const id = expert(l, e);
      if (env_->plan->shards[std::size_t(id)].cached && cache.peek(id) == nullptr) missing += shard(id).bytes;
    }
  }
  ring_ = ByteRing();
  if (missing <= cache.free_bytes()) return;
  std::size_t const begin = (cache.bytes() - flow_bytes(cache.bytes(), largest_, all_)) / weight_alignment * weight_alignment;
  std::optional<ExpertCache::Loan> const loan = cache.lend(cache.bytes() - begin);
  if (!loan) return;
  ring_ = ByteRing(loan->bytes);
  ring_offset_ = loan->offset;
  ring_head_ = 0;
  last_used_ = loan->after;
  after_.clear();
  ring_.consumer_release(ring_.producer_acquire(0, loan->bytes, after_), loan->after);
}

void ExpertFlow::stop(std::uint64_t step) {
  if (step == step_) return;
  drop_windows();
  env_->cache->take_back(last_used_);
}

/// Copied in vain: the next layer did not come this way after all. What the cache keeps of it is as good as anything it has.
void ExpertFlow::drop_windows() {
  for (Window const& w : windows_) {
    for (ShardId const id : w.pinned) {
      if (ExpertCache::Entry* const entry = env_->cache->peek(id); entry != nullptr && entry->pins > 0) --entry->pins;
    }
    if (w.in_ring) ring_.consumer_release(*w.in_ring, w.ready);
  }
  windows_.clear();
  next_layer_ = -1;
}

/// Where a window of so many bytes would begin; the ring's size where those that are not yet used are in its way.
std::size_t ExpertFlow::ring_place(std::size_t bytes) const {
  std::size_t const begin = ring_head_ + bytes <= ring_.bytes() ? ring_head_ : 0;
  bool const is_free =
      std::ranges::none_of(windows_, [&](Window const& w) { return w.in_ring && w.ring_begin < begin + bytes && begin < w.ring_end; });
  return is_free && begin + bytes <= ring_.bytes() ? begin : ring_.bytes();
}

// ---- windows

void ExpertFlow::begin(std::int32_t number, std::int32_t n_rows, std::uint64_t step) {
  layer_ = number;
  n_rows_ = n_rows;
  if (std::exchange(step_, step) != step) {
    drop_windows();
    borrow();
  }
  if (!windows_.empty() && windows_.front().layer != number) drop_windows();
  if (next_layer_ == number) return;
  start(number);
  if (shared_) fill_ahead();
}

bool ExpertFlow::has_expert(std::int32_t of_layer, std::int32_t e) const {
  ShardId const id = expert(of_layer, e);
  return env_->plan->shards[std::size_t(id)].resident() || env_->cache->peek(id) != nullptr;
}

/// Whether that pays, and both sides can. What the device has of the layer by chance is taken to be what is used most.
bool ExpertFlow::shares(std::int32_t number) {
  ShardPlan const& plan = *env_->plan;
  LayerConfig const& config = env_->config->layers[std::size_t(number)];
  if (!plan.share || plan.deterministic || !env_->host_access.activations || env_->device.kernels().transfer == nullptr ||
      env_->host.kernels().expert_window == nullptr || shared_room(*env_->layout, n_rows_, env_->config->dim, config.hidden_dim).slots == 0)
    return false;
  std::int32_t const n = layer(number).n_experts;
  std::int32_t n_missing = 0;
  for (std::int32_t e = 0; e < n; ++e) n_missing += !has_expert(number, e);
  if (std::exchange(expected_n_rows_, n_rows_) != n_rows_ || expected_.size() != std::size_t(n))
    expected_ = expected_rows(n_rows_, config.experts.n_experts_used, n);
  return expected_share(plan.share, expected_, n_rows_, n_missing).n_host > 0;
}

/// The layer is the next one whose windows are made.
void ExpertFlow::start(std::int32_t number) {
  next_layer_ = number;
  next_rank_ = 0;
  n_device_ = layer(number).n_experts;
  shared_ = shares(number);
  order_.resize(std::size_t(n_device_));
  std::iota(order_.begin(), order_.end(), 0);
  if (shared_) {
    std::vector<float>& seen = seen_[std::size_t(number)];
    seen.resize(order_.size(), 0.0f);
    auto const key = [&](std::int32_t e) { return std::pair(has_expert(number, e), seen[std::size_t(e)]); };
    std::ranges::stable_sort(order_, detail::more, key);
  }
  ranks_.resize(order_.size());
  for (std::size_t r = 0; r < order_.size(); ++r) ranks_[std::size_t(order_[r])] = std::int32_t(r);
}

Range ExpertFlow::arrange(std::span<std::int32_t const> rows) {
  std::vector<float>& seen = seen_[std::size_t(layer_)];
  for (std::size_t e = 0; e < seen.size(); ++e) seen[e] = seen[e] / 2 + float(rows[e]);
  // Behind what was copied ahead: what is there, then what is missing, most rows first, of which the host takes the last.
  auto const rest = std::span(order_).subspan(std::size_t(next_rank_));
  auto const key = [&](std::int32_t e) { return std::pair(has_expert(layer_, e), rows[std::size_t(e)]); };
  std::ranges::sort(rest);
  std::ranges::stable_sort(rest, detail::more, key);
  std::vector<std::int32_t> missing;
  for (auto e = rest.rbegin(); e != rest.rend() && !has_expert(layer_, *e); ++e) missing.push_back(rows[std::size_t(*e)]);
  ExpertShare const& share = env_->plan->share;
  std::int32_t n_ahead = 0;
  for (Window const& w : windows_) n_ahead += w.n_copied;
  double const under_way_s = std::max(n_ahead * share.copy_s - share.lead(n_rows_), 0.0);
  std::int32_t const n_host = std::int32_t(share_experts(share, missing, n_rows_, under_way_s).n_host);
  for (std::int32_t i = 0; i < n_host; ++i) env_->cache->count(false);
  for (std::size_t r = std::size_t(next_rank_); r < order_.size(); ++r) ranks_[std::size_t(order_[r])] = std::int32_t(r);
  n_device_ = std::int32_t(order_.size()) - n_host;
  return {n_device_, std::int32_t(order_.size())};
}

ExpertFlow::Window const* ExpertFlow::next() {
  if (windows_.empty()) {
    if (next_layer_ != layer_ || next_rank_ == n_device_) return nullptr;
    if (!add_window(window_bytes()))
      throw Error(Errc::over_budget, concat("an expert cache of ", env_->cache->bytes(), " bytes cannot hold one expert of ",
                                            shard(expert(layer_, order_[std::size_t(next_rank_)])).bytes));
  }
  return windows_.front().layer == layer_ ? &windows_.front() : nullptr;
}

void ExpertFlow::release(Ticket used) {
  Window const& w = windows_.front();
  for (ShardId const id : w.pinned) {
    ExpertCache::Entry& entry = *env_->cache->peek(id);
    entry.last_use = used;
    --entry.pins;
  }
  if (w.in_ring) ring_.consumer_release(*w.in_ring, used);
  last_used_ = used;
  windows_.erase(windows_.begin());
}

void ExpertFlow::copy_ahead() {
  if (next_layer_ == layer_) {
    std::int32_t next = layer_;
    while (++next < std::int32_t(layers_.size()) && !takes(next, n_rows_)) {
    }
    next_layer_ = next;
    if (next < std::int32_t(layers_.size())) start(next);
  }
  if (next_layer_ < std::int32_t(layers_.size())) fill_ahead();
}

/// Windows of next_layer_ as far as there is room; of a shared layer, what crosses until it is known who takes the rest, and a little
/// more: the link must not wait.
void ExpertFlow::fill_ahead() {
  constexpr double spare = 1.5;
  ExpertShare const& share = env_->plan->share;
  std::size_t most = shared_ ? std::size_t(std::ceil(spare * share.lead(n_rows_) / share.copy_s)) * largest_ : ~std::size_t{0};
  std::size_t const longest = std::max(window_bytes(), largest_);
  auto const has_room = [&] {
    return ring_.bytes() > 0 ? ring_place(longest) < ring_.bytes() : shared_ && std::min(longest, most) <= env_->cache->free_bytes();
  };
  while (most > 0 && windows_.size() < most_ahead && next_rank_ < n_device_ && has_room()) {
    if (!add_window(std::min(longest, most))) return;
    most -= std::min(most, std::size_t(std::max(windows_.back().n_copied, 1)) * largest_);
  }
}

std::size_t ExpertFlow::window_bytes() const { return ring_.bytes() > 0 ? flow_window_bytes(ring_.bytes()) : most_window_bytes; }

/// From next_rank_ on, as many as make a window. False: the cache has no room even for the first.
bool ExpertFlow::add_window(std::size_t most_bytes) {
  Draft d;
  d.most_bytes = most_bytes;
  d.window.layer = next_layer_;
  d.window.experts = {next_rank_, next_rank_};
  d.table.resize(std::size_t(n_device_ - next_rank_));
  after_.clear();
  while (d.window.experts.end < n_device_ && add_expert(d, expert(next_layer_, order_[std::size_t(d.window.experts.end)])))
    ++d.window.experts.end;
  if (d.window.experts.size() == 0) return false;
  next_rank_ = d.window.experts.end;
  submit(d);
  return true;
}

/// False: the window ends before it.
bool ExpertFlow::add_expert(Draft& d, ShardId id) {
  Placement const& p = env_->plan->shards[std::size_t(id)];
  if (p.resident()) {
    set_table(d, id, env_->vram + env_->vram_layout->resident[std::size_t(id)]);
    return true;
  }
  ExpertCache& cache = *env_->cache;
  if (ExpertCache::Entry* const entry = cache.peek(id)) {
    cache.count(true);
    ++entry->pins;
    d.window.pinned.push_back(id);
    set_table(d, id, pool() + entry->offset);
    return true;
  }
  std::size_t const bytes = VramAccount::round_up(shard(id).bytes);
  bool const has_ring = ring_.bytes() > 0;
  if (d.bytes > 0 && d.bytes + bytes > d.most_bytes) return false;
  std::optional<ExpertCache::Room> room;
  if (!has_ring || cache.policy().admit(id)) room = cache.acquire_free(id, shard(id).bytes);
  if (!room && !has_ring) room = cache.acquire(id, shard(id).bytes);
  if (!room && !has_ring) return false;
  cache.count(false);
  d.bytes += bytes;
  ++d.window.n_copied;
  if (room) {
    add_after(after_, room->after);
    d.window.pinned.push_back(id);
    d.filled.push_back(id);
    set_table(d, id, pool() + room->entry->offset);
  } else {
    d.passing.push_back(id);
  }
  return true;
}

ExpertGroup& ExpertFlow::table_of(Draft& d, ShardId id) { return d.table[std::size_t(rank(id) - d.window.experts.begin)]; }

void ExpertFlow::set_table(Draft& d, ShardId id, std::byte const* base) {
  table_of(d, id) = {base + weight(id, 0).offset, base + weight(id, 1).offset, base + weight(id, 2).offset, 0, 0};
}

/// Takes room in the ring: gate of all that pass, up of all, down of all.
void ExpertFlow::lay_out_passing(Draft& d, std::vector<CopyPiece>& pieces) {
  std::size_t bytes = 0;
  for (ShardId const id : d.passing) {
    for (std::int32_t i = 0; i < 3; ++i) bytes += VramAccount::round_up(weight(id, i).bytes());
  }
  std::size_t const begin = ring_place(bytes);
  Window& w = d.window;
  w.in_ring = ring_.producer_acquire(begin, bytes, after_);
  w.ring_begin = begin;
  w.ring_end = ring_head_ = begin + bytes;
  std::byte* at = pool() + ring_offset_ + begin;
  for (std::int32_t i = 0; i < 3; ++i) {
    for (ShardId const id : d.passing) {
      ExpertGroup& group = table_of(d, id);
      (i == 0 ? group.gate : i == 1 ? group.up : group.down) = at;
      detail::add_piece(pieces, {at, weight(id, i).data, weight(id, i).bytes()});
      at += VramAccount::round_up(weight(id, i).bytes());
    }
  }
}

/// Experts that pass, those that the cache keeps from now on, and where all of the window are, in one submission.
void ExpertFlow::submit(Draft& d) {
  std::vector<CopyPiece> pieces;
  std::ranges::sort(d.passing);  // neighbours in the file cross as one piece
  if (!d.passing.empty()) lay_out_passing(d, pieces);
  for (ShardId const id : d.filled) {
    for (std::int32_t i = 0; i < 3; ++i)
      pieces.push_back({pool() + env_->cache->peek(id)->offset + weight(id, i).offset, weight(id, i).data, weight(id, i).bytes()});
  }
  Window& w = d.window;
  std::size_t const in_table =
      env_->layout->expert_tables +
      (std::size_t(w.layer) * std::size_t(env_->layout->n_experts) + std::size_t(w.experts.begin)) * sizeof(ExpertGroup);
  std::copy_n(d.table.begin(), w.experts.size(), reinterpret_cast<ExpertGroup*>(env_->host_base + in_table));
  pieces.push_back({env_->device_base + in_table, env_->host_base + in_table, std::size_t(w.experts.size()) * sizeof(ExpertGroup)});
  Ticket const before = env_->copy->last();
  w.ready = env_->copy->submit(pieces, after_);
  if (w.in_ring) ring_.producer_commit(*w.in_ring, w.ready);
  for (ShardId const id : d.filled) env_->cache->peek(id)->filled = w.ready;
  if (env_->trace != nullptr) {
    for (auto const* const ids : {&d.passing, &d.filled}) {
      for (ShardId const id : *ids) {
        Action const a{ActionKind::copy, first_gpu, id, {0, shard(id).n_rows}, {}, w.ring_begin, shard(id).bytes};
        env_->trace->push_back({a, TraceLane::copy, before, w.ready});
      }
    }
  }
  windows_.push_back(std::move(w));
}

}  // namespace tiered
