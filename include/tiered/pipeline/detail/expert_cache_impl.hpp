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

ExpertCache::ExpertCache(std::size_t bytes, AnyEviction policy) : bytes_(bytes), policy_(std::move(policy)) { clear({}); }

ExpertCache::Entry* ExpertCache::find(ShardId id, std::uint64_t step) {
  policy_.touch(id, step);
  Entry* const entry = at(id);
  ++(entry == nullptr ? counters_.misses : counters_.hits);
  return entry;
}

std::optional<ExpertCache::Room> ExpertCache::acquire(ShardId id, std::size_t bytes) {
  auto hole = find_hole(bytes);
  std::vector<ShardId> skipped;
  while (hole == holes_.end()) {
    std::optional<ShardId> const victim = policy_.victim();
    if (!victim) break;
    Entry const* const entry = at(*victim);
    if (entry == nullptr)
      throw Error(Errc::precondition, concat("the eviction policy names shard ", std::uint32_t(*victim), ", which is not in the cache"));
    if (std::ranges::find(skipped, *victim) != skipped.end()) {
      throw Error(Errc::precondition, concat("the eviction policy names shard ", std::uint32_t(*victim), " again after erase()"));
    }
    policy_.erase(*victim);
    if (entry->pins > 0) {
      skipped.push_back(*victim);
      continue;
    }
    evict(*victim);
    hole = find_hole(bytes);
  }
  for (ShardId s : skipped) policy_.insert(s);
  if (hole == holes_.end()) return std::nullopt;
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
  if (bytes_ > 0) holes_.push_back({0, bytes_, used});
  n_entries_ = used_ = 0;
}

std::vector<ExpertCache::Hole>::iterator ExpertCache::find_hole(std::size_t bytes) {
  return std::ranges::find_if(holes_, [&](Hole const& h) { return h.bytes >= bytes; });
}

void ExpertCache::evict(ShardId id) {
  std::unique_ptr<Entry> const entry = std::move(entries_[std::size_t(id)]);
  --n_entries_;
  used_ -= entry->bytes;
  ++counters_.evictions;
  auto const after = std::ranges::find_if(holes_, [&](Hole const& h) { return h.offset > entry->offset; });
  auto hole = holes_.insert(after, Hole{entry->offset, entry->bytes, entry->last_use});
  auto const merge_with_next = [&](std::vector<Hole>::iterator h) {
    if (h + 1 == holes_.end() || h->end() != (h + 1)->offset) return;
    h->bytes += (h + 1)->bytes;
    h->last_use = later(h->last_use, (h + 1)->last_use);
    holes_.erase(h + 1);
  };
  merge_with_next(hole);
  if (hole != holes_.begin()) merge_with_next(hole - 1);
}

}  // namespace tiered
