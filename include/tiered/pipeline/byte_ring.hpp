/// A ring of bytes through which weights stream: who may write where, and after whom.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/memory/copy.hpp"

namespace tiered {

/// Adds what a copy must come after; of tickets of one lane the last is enough, and each costs a device a wait.
inline void add_after(std::vector<Ticket>& after, Ticket ticket) {
  if (ticket.value == 0) return;
  for (Ticket& t : after) {
    if (t.lane != ticket.lane) continue;
    if (t.value < ticket.value) t = ticket;
    return;
  }
  after.push_back(ticket);
}

/// Ranges move through producer_acquire -> producer_commit -> consumer_wait -> consumer_release, and by nothing else.
/// The schedule chooses offsets; the ring checks that they never overlap what is live, and says which tickets a new copy must
/// wait for: the last uses of the bytes it overwrites. Nothing here waits. One thread.
class ByteRing {
 public:
  using Handle = std::size_t;

  explicit ByteRing(std::size_t bytes = 0) : bytes_(bytes) {}
  std::size_t bytes() const { return bytes_; }

  /// Takes [offset, offset + bytes); appends to `after` what a copy into it must wait for.
  /// Errors  Errc::precondition if the range leaves the ring or overlaps a live one.
  Handle producer_acquire(std::size_t offset, std::size_t bytes, std::vector<Ticket>& after) {
    if (offset > bytes_ || bytes > bytes_ - offset)
      throw Error(Errc::precondition, concat("ring range ", offset, " + ", bytes, " leaves a ring of ", bytes_));
    std::size_t const end = offset + bytes;
    for (Range const& r : ranges_) {
      if (r.begin < end && offset < r.end && r.live) {
        throw Error(Errc::precondition, concat("ring range ", offset, " to ", end, " overlaps the live range ", r.begin, " to ", r.end));
      }
    }
    // What remains of older, released ranges outside the new one still guards its bytes.
    std::size_t kept = 0;
    std::vector<Range> cut;
    for (Range const& r : ranges_) {
      if (r.live || r.end <= offset || end <= r.begin) {
        ranges_[kept++] = r;
        continue;
      }
      add_after(after, r.ticket);
      if (r.begin < offset) cut.push_back({r.begin, offset, r.ticket, false, 0});
      if (end < r.end) cut.push_back({end, r.end, r.ticket, false, 0});
    }
    ranges_.resize(kept);
    ranges_.insert(ranges_.end(), cut.begin(), cut.end());
    ranges_.push_back({offset, end, {}, true, ++last_handle_});
    return last_handle_;
  }
  void producer_commit(Handle h, Ticket copied) { find(h).ticket = copied; }
  /// The ticket after which the bytes may be read.
  Ticket consumer_wait(Handle h) const { return const_cast<ByteRing*>(this)->find(h).ticket; }
  /// The bytes may be overwritten after `used`.
  void consumer_release(Handle h, Ticket used) {
    Range& r = find(h);
    r.ticket = used;
    r.live = false;
    r.handle = 0;
  }
  std::size_t live_bytes() const {
    std::size_t sum = 0;
    for (Range const& r : ranges_) sum += r.live ? r.end - r.begin : 0;
    return sum;
  }

 private:
  struct Range {
    std::size_t begin = 0, end = 0;
    Ticket ticket;  // live: copied; else: last use
    bool live = false;
    Handle handle = 0;
  };
  Range& find(Handle h) {
    for (Range& r : ranges_) {
      if (r.live && r.handle == h) return r;
    }
    throw Error(Errc::precondition, concat("ring handle ", h, " is not live"));
  }

  std::size_t bytes_;
  Handle last_handle_ = 0;
  std::vector<Range> ranges_;  // few: pieces in flight, and what lies between
};

}  // namespace tiered
