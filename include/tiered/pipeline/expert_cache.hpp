/// Resident experts of all layers in one pool of VRAM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tiered/core/ids.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/plan/any_eviction.hpp"

namespace tiered {

/// Ids to bytes. Sizes may differ (types differ from layer to layer): the pool is one address range, first fit, neighbours
/// merged; to make room, victims of the eviction policy go until one hole is large enough. An entry in use (pinned) stays.
/// Both ends of the range may move; offsets count from one place whatever it is.
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

  ExpertCache(std::size_t bytes, AnyEviction policy);

  std::size_t bytes() const { return end_ - begin_; }
  std::size_t used_bytes() const { return used_; }
  Counters const& counters() const { return counters_; }
  AnyEviction& policy() { return policy_; }

  /// The entry of a shard, or null; counts a hit or a miss and tells the policy.
  Entry* find(ShardId id, std::uint64_t step);

  struct Room {
    Entry* entry = nullptr;
    Ticket after;  ///< a copy into it must come after this
  };
  /// Room for a shard that is not in the cache, pinned once. Nothing if pinned entries leave no hole large enough: then
  /// unpin and ask again. Who went is appended to `evicted`.
  std::optional<Room> acquire(ShardId id, std::size_t bytes, std::vector<ShardId>* evicted = nullptr);

  /// Entries of the policy's choice go, until so many bytes are free, in one place or in several; false where pinned ones leave less.
  bool make_free(std::size_t bytes, std::vector<ShardId>& evicted);
  /// Room as acquire() gives it, in bytes that are free: no entry goes.
  std::optional<Room> acquire_free(ShardId id, std::size_t bytes);
  /// The entry of a shard, or null; nobody is told.
  Entry* peek(ShardId id) const { return at(id); }
  /// A use by a pass over all experts, which says nothing about their worth: counted, not told to the policy.
  void count(bool hit) { ++(hit ? counters_.hits : counters_.misses); }

  struct Loan {
    std::size_t offset = 0, bytes = 0;
    Ticket after;  ///< what is copied there must come after this
  };
  /// The last `bytes` of the pool, for what only passes: entries there go. Nothing if one of them is pinned, or a part is lent already.
  std::optional<Loan> lend(std::size_t bytes);
  /// What overwrites the loan must come after `used`.
  void take_back(Ticket used);
  std::size_t lent_bytes() const { return lent_; }
  std::size_t free_bytes() const { return bytes() - lent_ - used_; }

  /// The pool is offsets [begin, end) from here on. Where nobody reads it any more: what is not wholly inside goes, pinned or not, and
  /// nothing is lent then. What overwrites bytes outside must come after the copy that is returned: it may yet fill some.
  Ticket resize(std::size_t end, std::size_t begin = 0);

  /// Gives back an entry that is not to stay (not admitted, or its copy failed).
  void drop(ShardId id);
  /// Forgets all entries and what was lent; what overwrites the pool must come after `used`.
  void clear(Ticket used);
  std::size_t size() const { return n_entries_; }
  /// Another number whenever an entry came or went.
  std::uint64_t version() const { return version_; }

 private:
  struct Hole {
    std::size_t offset = 0, bytes = 0;
    Ticket last_use;
    std::size_t end() const { return offset + bytes; }
  };

  Entry* at(ShardId id) const { return std::size_t(id) < entries_.size() ? entries_[std::size_t(id)].get() : nullptr; }
  std::vector<Hole>::iterator find_hole(std::size_t bytes);
  static Ticket later(Ticket a, Ticket b) { return a.value >= b.value ? a : b; }  // all of the device's one lane

  bool evict_next(std::vector<ShardId>& skipped, std::vector<ShardId>* evicted);
  void evict(ShardId id);
  void add_hole(Hole freed);
  Room take(std::vector<Hole>::iterator hole, ShardId id, std::size_t bytes);

  void keep_holes(std::size_t begin, std::size_t end);

  std::size_t begin_ = 0, end_ = 0, used_ = 0, lent_ = 0, n_entries_ = 0;
  AnyEviction policy_;
  std::vector<std::unique_ptr<Entry>> entries_;  // by shard id; null where it is not cached
  std::vector<Hole> holes_;                      // ascending, no two touch
  Counters counters_;
  std::uint64_t version_ = 0;
};

}  // namespace tiered
