/// Virtual time, one clock a lane, tied together by tickets.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "tiered/memory/copy.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {

/// From when to when something ran, in virtual seconds.
struct SimSpan {
  double begin_s = 0, end_s = 0;
  bool operator==(SimSpan const&) const = default;
};

/// What the lanes' work would take on a machine of given speeds. Time passes by charge() alone, in the order of submission,
/// never by the machine that simulates: the same program has the same times. Any thread.
class SimClock {
 public:
  /// Later charges of `lane` begin no earlier than `ticket` is done.
  void wait_for(LaneSet::Lane lane, Ticket ticket) {
    std::lock_guard lock(mutex_);
    LaneTime& own = time_of(lane);
    own.now_s = std::max(own.now_s, done_at(ticket));
  }

  /// `seconds` of work for `lane`, after all that it was charged or waits for.
  SimSpan charge(LaneSet::Lane lane, double seconds) {
    std::lock_guard lock(mutex_);
    LaneTime& own = time_of(lane);
    double const begin_s = own.now_s;
    own.now_s += seconds;
    return {begin_s, own.now_s};
  }

  /// `ticket` is done at its lane's present time.
  void stamp(Ticket ticket) {
    if (ticket.value == 0) return;
    std::lock_guard lock(mutex_);
    LaneTime& own = time_of(ticket.lane);
    if (!own.stamps.empty() && own.stamps.back().value == ticket.value) own.stamps.pop_back();
    if (own.stamps.size() >= n_kept) own.stamps.erase(own.stamps.begin(), own.stamps.begin() + std::ptrdiff_t(n_kept / 2));
    own.stamps.push_back({ticket.value, own.now_s});
  }

  /// When `ticket` is done: as stamped; a ticket in between counts like the next that was stamped, one after all like its lane.
  double seconds(Ticket ticket) const {
    std::lock_guard lock(mutex_);
    return done_at(ticket);
  }
  double lane_seconds(LaneSet::Lane lane) const {
    std::lock_guard lock(mutex_);
    return lane < lanes_.size() ? lanes_[lane].now_s : 0;
  }
  /// The latest of all lanes.
  double seconds() const {
    std::lock_guard lock(mutex_);
    double latest = 0;
    for (LaneTime const& lane : lanes_) latest = std::max(latest, lane.now_s);
    return latest;
  }

 private:
  static constexpr std::size_t n_kept = 8192;  // stamps of a lane; who waits for older ones waits for the oldest kept
  struct Stamp {
    std::uint64_t value = 0;
    double at_s = 0;
  };
  struct LaneTime {
    double now_s = 0;
    std::vector<Stamp> stamps;  // ascending
  };

  LaneTime& time_of(LaneSet::Lane lane) {
    if (lane >= lanes_.size()) lanes_.resize(lane + 1);
    return lanes_[lane];
  }
  double done_at(Ticket ticket) const {
    if (ticket.value == 0 || ticket.lane >= lanes_.size()) return 0;
    LaneTime const& lane = lanes_[ticket.lane];
    auto const stamp = std::lower_bound(lane.stamps.begin(), lane.stamps.end(), ticket.value,
                                        [](Stamp const& s, std::uint64_t value) { return s.value < value; });
    return stamp == lane.stamps.end() ? lane.now_s : stamp->at_s;
  }

  mutable std::mutex mutex_;
  std::vector<LaneTime> lanes_;
};

}  // namespace tiered
