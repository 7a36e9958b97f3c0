/// Resident experts of all layers in one pool of VRAM.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
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

  ExpertCache(std::size_t bytes, AnyEviction policy) : bytes_(bytes), policy_(std::move(policy)) { clear({}); }

  std::size_t bytes() const { return bytes_; }
  std::size_t used_bytes() const { return used_; }
  Counters const& counters() const { return counters_; }
  AnyEviction& policy() { return policy_; }

  /// The entry of a shard, or null; counts a hit or a miss and tells the policy.
  Entry* find(ShardId id, std::uint64_t step) {
    policy_.touch(id, step);
    Entry* const entry = at(id);
    ++(entry == nullptr ? counters_.misses : counters_.hits);
    return entry;
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
      if (at(*victim)->pins > 0) {
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

  /// Gives back an entry that is not to stay (not admitted, or its copy failed).
  void drop(ShardId id) {
    policy_.erase(id);
    evict(id);
  }
  /// Forgets all entries; what overwrites the pool must come after `used`.
  void clear(Ticket used) {
    for (std::size_t id = 0; id < entries_.size(); ++id) {
      if (entries_[id]) policy_.erase(ShardId(id));
    }
    entries_.clear();
    holes_.clear();
    if (bytes_ > 0) holes_.push_back({0, bytes_, used});
    n_entries_ = used_ = 0;
  }
  std::size_t size() const { return n_entries_; }

 private:
  struct Hole {
    std::size_t offset = 0, bytes = 0;
    Ticket last_use;
    std::size_t end() const { return offset + bytes; }
  };

  Entry* at(ShardId id) const { return std::size_t(id) < entries_.size() ? entries_[std::size_t(id)].get() : nullptr; }
  std::vector<Hole>::iterator find_hole(std::size_t bytes) {
    return std::ranges::find_if(holes_, [&](Hole const& h) { return h.bytes >= bytes; });
  }
  static Ticket later(Ticket a, Ticket b) { return a.value >= b.value ? a : b; }  // all of the device's one lane

  void evict(ShardId id) {
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

  std::size_t bytes_ = 0, used_ = 0, n_entries_ = 0;
  AnyEviction policy_;
  std::vector<std::unique_ptr<Entry>> entries_;  // by shard id; null where it is not cached
  std::vector<Hole> holes_;                      // ascending, no two touch
  Counters counters_;
};

}  // namespace tiered
