/// Defines ExpertCache: for one source file of a program.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/pipeline/expert_cache.hpp"

namespace tiered {

ExpertCache::ExpertCache(std::size_t bytes, AnyEviction policy) : end_(bytes), policy_(std::move(policy)) { clear({}); }

ExpertCache::Entry* ExpertCache::find(ShardId id, std::uint64_t step) {
  policy_.touch(id, step);
  Entry* const entry = at(id);
  ++(entry == nullptr ? counters_.misses : counters_.hits);
  return entry;
}

/// The policy's next victim, unless it is pinned: then it is among `skipped`. False where there is none.
bool ExpertCache::evict_next(std::vector<ShardId>& skipped, std::vector<ShardId>* evicted) {
  std::optional<ShardId> const victim = policy_.victim();
  if (!victim) return false;
  Entry const* const entry = at(*victim);
  if (entry == nullptr)
    throw Error(Errc::precondition, concat("the eviction policy names shard ", std::uint32_t(*victim), ", which is not in the cache"));
  if (std::ranges::find(skipped, *victim) != skipped.end()) {
    throw Error(Errc::precondition, concat("the eviction policy names shard ", std::uint32_t(*victim), " again after erase()"));
  }
  policy_.erase(*victim);
  if (entry->pins > 0) {
    skipped.push_back(*victim);
    return true;
  }
  evict(*victim);
  if (evicted != nullptr) evicted->push_back(*victim);
  return true;
}

std::optional<ExpertCache::Room> ExpertCache::acquire(ShardId id, std::size_t bytes, std::vector<ShardId>* evicted) {
  std::vector<ShardId> skipped;
  auto hole = find_hole(bytes);
  while (hole == holes_.end() && evict_next(skipped, evicted)) hole = find_hole(bytes);
  for (ShardId s : skipped) policy_.insert(s);
  if (hole == holes_.end()) return std::nullopt;
  return take(hole, id, bytes);
}

bool ExpertCache::make_free(std::size_t bytes, std::vector<ShardId>& evicted) {
  std::vector<ShardId> skipped;
  while (free_bytes() < bytes && evict_next(skipped, &evicted)) continue;
  for (ShardId s : skipped) policy_.insert(s);
  return free_bytes() >= bytes;
}

std::optional<ExpertCache::Room> ExpertCache::acquire_free(ShardId id, std::size_t bytes) {
  auto const hole = find_hole(bytes);
  if (hole == holes_.end()) return std::nullopt;
  return take(hole, id, bytes);
}

ExpertCache::Room ExpertCache::take(std::vector<Hole>::iterator hole, ShardId id, std::size_t bytes) {
  Ticket const last_use = hole->last_use;
  auto entry = std::make_unique<Entry>(Entry{hole->offset, bytes, {}, {}, 1});
  if (hole->bytes > bytes) {
    hole->offset += bytes;
    hole->bytes -= bytes;
  } else {
    holes_.erase(hole);
  }
  if (entries_.size() <= std::size_t(id)) entries_.resize(std::size_t(id) + 1);
  Entry* const stored = (entries_[std::size_t(id)] = std::move(entry)).get();
  ++n_entries_;
  ++version_;
  used_ += bytes;
  policy_.insert(id);
  return Room{stored, last_use};
}

void ExpertCache::drop(ShardId id) {
  policy_.erase(id);
  evict(id);
}

void ExpertCache::clear(Ticket used) {
  for (std::size_t id = 0; id < entries_.size(); ++id) {
    if (entries_[id]) policy_.erase(ShardId(id));
  }
  entries_.clear();
  holes_.clear();
  if (end_ > begin_) holes_.push_back({begin_, end_ - begin_, used});
  n_entries_ = used_ = lent_ = 0;
  ++version_;
}

Ticket ExpertCache::resize(std::size_t end, std::size_t begin) {
  expects(begin <= end, "ExpertCache::resize: the pool does not end before its begin");
  if (end == end_ && begin == begin_) return {};
  take_back({});
  Ticket filled;
  for (std::size_t id = 0; id < entries_.size(); ++id) {
    Entry const* const e = entries_[id].get();
    if (e == nullptr || (e->offset >= begin && e->offset + e->bytes <= end)) continue;
    filled = later(filled, e->filled);
    drop(ShardId(id));
  }
  keep_holes(begin, end);
  std::size_t const old_begin = std::exchange(begin_, begin), old_end = std::exchange(end_, end);
  auto const add = [&](std::size_t from, std::size_t to) {
    if (from < to) add_hole({from, to - from, {}});
  };
  add(begin, std::min(old_begin, end));
  add(std::max({old_end, old_begin, begin}), end);
  ++version_;
  return filled;
}

/// Of holes only what is inside: no entry reaches across either place.
void ExpertCache::keep_holes(std::size_t begin, std::size_t end) {
  for (Hole& h : holes_) {
    std::size_t const from = std::clamp(h.offset, begin, end), to = std::clamp(h.end(), begin, end);
    h.offset = from;
    h.bytes = to - from;
  }
  std::erase_if(holes_, [](Hole const& h) { return h.bytes == 0; });
}

std::vector<ExpertCache::Hole>::iterator ExpertCache::find_hole(std::size_t bytes) {
  return std::ranges::find_if(holes_, [&](Hole const& h) { return h.bytes >= bytes; });
}

void ExpertCache::evict(ShardId id) {
  std::unique_ptr<Entry> const entry = std::move(entries_[std::size_t(id)]);
  --n_entries_;
  ++version_;
  used_ -= entry->bytes;
  ++counters_.evictions;
  add_hole({entry->offset, entry->bytes, entry->last_use});
}

void ExpertCache::add_hole(Hole freed) {
  auto const after = std::ranges::find_if(holes_, [&](Hole const& h) { return h.offset > freed.offset; });
  auto hole = holes_.insert(after, freed);
  auto const merge_with_next = [&](std::vector<Hole>::iterator h) {
    if (h + 1 == holes_.end() || h->end() != (h + 1)->offset) return;
    h->bytes += (h + 1)->bytes;
    h->last_use = later(h->last_use, (h + 1)->last_use);
    holes_.erase(h + 1);
  };
  merge_with_next(hole);
  if (hole != holes_.begin()) merge_with_next(hole - 1);
}

std::optional<ExpertCache::Loan> ExpertCache::lend(std::size_t bytes) {
  if (lent_ > 0 || bytes == 0 || bytes > this->bytes()) return std::nullopt;
  std::size_t const begin = end_ - bytes;
  auto const is_there = [&](std::unique_ptr<Entry> const& e) { return e != nullptr && e->offset + e->bytes > begin; };
  if (std::ranges::any_of(entries_, [&](auto const& e) { return is_there(e) && e->pins > 0; })) return std::nullopt;
  for (std::size_t id = 0; id < entries_.size(); ++id) {
    if (is_there(entries_[id])) drop(ShardId(id));
  }
  Hole& last = holes_.back();  // reaches from begin, or before, to the end
  Ticket const after = last.last_use;
  last.bytes = begin - last.offset;
  if (last.bytes == 0) holes_.pop_back();
  lent_ = bytes;
  return Loan{begin, bytes, after};
}

void ExpertCache::take_back(Ticket used) {
  if (lent_ > 0) add_hole({end_ - lent_, std::exchange(lent_, 0), used});
}

}  // namespace tiered
