/// Resident experts of all layers in one pool of VRAM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/ids.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/plan/any_eviction.hpp"

namespace tiered {

/// Ids to bytes. Sizes may differ (types differ from layer to layer): the pool is one address range, first fit, neighbours
/// merged; to make room, victims of the eviction policy go until one hole is large enough. An entry in use (pinned) stays.
/// Nothing here copies or waits: an entry carries the ticket of the copy that fills it; what overwrites freed bytes must come
/// after the ticket that acquire() names. One thread.
class ExpertCache {
 public:
  struct Entry {
    std::size_t offset = 0, bytes = 0;
    Ticket filled;    ///< readable after this
    Ticket last_use;  ///< overwritable after this
    int pins = 0;
  };
  struct Counters {
    std::uint64_t hits = 0, misses = 0, evictions = 0;
  };

  ExpertCache(std::size_t bytes, AnyEviction policy) : policy_(std::move(policy)) {
    if (bytes > 0) holes_[0] = {bytes, {}};
    bytes_ = bytes;
  }

  std::size_t bytes() const { return bytes_; }
  std::size_t used_bytes() const { return used_; }
  Counters const& counters() const { return counters_; }
  AnyEviction& policy() { return policy_; }

  /// The entry of a shard, or null; counts a hit or a miss and tells the policy.
  Entry* find(ShardId id, std::uint64_t step) {
    policy_.touch(id, step);
    auto const it = entries_.find(id);
    ++(it == entries_.end() ? counters_.misses : counters_.hits);
    return it == entries_.end() ? nullptr : &it->second;
  }

  struct Room {
    Entry* entry = nullptr;
    Ticket after;  ///< a copy into it must come after this
  };
  /// Room for a shard that is not in the cache, pinned once. Nothing if pinned entries leave no hole large enough: then
  /// unpin and ask again.
  std::optional<Room> acquire(ShardId id, std::size_t bytes) {
    auto hole = find_hole(bytes);
    std::vector<ShardId> skipped;
    while (hole == holes_.end()) {
      std::optional<ShardId> const victim = policy_.victim();
      if (!victim) break;
      policy_.erase(*victim);
      if (entries_.at(*victim).pins > 0) {
        skipped.push_back(*victim);
        continue;
      }
      evict(*victim);
      hole = find_hole(bytes);
    }
    for (ShardId s : skipped) policy_.insert(s);
    if (hole == holes_.end()) return std::nullopt;
    auto const [offset, free] = *hole;
    holes_.erase(hole);
    if (free.bytes > bytes) holes_[offset + bytes] = {free.bytes - bytes, free.last_use};
    Entry& entry = entries_[id];
    entry = {offset, bytes, {}, {}, 1};
    used_ += bytes;
    policy_.insert(id);
    return Room{&entry, free.last_use};
  }

  /// Gives back an entry that is not to stay (not admitted, or its copy failed).
  void drop(ShardId id) {
    policy_.erase(id);
    evict(id);
  }
  /// Forgets all entries; what overwrites the pool must come after `used`.
  void clear(Ticket used) {
    for (auto const& [id, entry] : entries_) policy_.erase(id);
    entries_.clear();
    holes_.clear();
    if (bytes_ > 0) holes_[0] = {bytes_, used};
    used_ = 0;
  }
  std::size_t size() const { return entries_.size(); }

 private:
  struct Hole {
    std::size_t bytes = 0;
    Ticket last_use;
  };
  using Holes = std::map<std::size_t, Hole>;

  Holes::iterator find_hole(std::size_t bytes) {
    auto it = holes_.begin();
    while (it != holes_.end() && it->second.bytes < bytes) ++it;
    return it;
  }
  static Ticket later(Ticket a, Ticket b) { return a.value >= b.value ? a : b; }  // all of the device's one lane

  void evict(ShardId id) {
    Entry const entry = entries_.at(id);
    entries_.erase(id);
    used_ -= entry.bytes;
    ++counters_.evictions;
    auto it = holes_.emplace(entry.offset, Hole{entry.bytes, entry.last_use}).first;
    auto const merge = [&](Holes::iterator a, Holes::iterator b) {
      a->second = {a->second.bytes + b->second.bytes, later(a->second.last_use, b->second.last_use)};
      holes_.erase(b);
    };
    if (auto const next = std::next(it); next != holes_.end() && it->first + it->second.bytes == next->first) merge(it, next);
    if (it != holes_.begin()) {
      if (auto const before = std::prev(it); before->first + before->second.bytes == it->first) merge(before, it);
    }
  }

  std::size_t bytes_ = 0, used_ = 0;
  AnyEviction policy_;
  std::unordered_map<ShardId, Entry> entries_;
  Holes holes_;
  Counters counters_;
};

}  // namespace tiered
