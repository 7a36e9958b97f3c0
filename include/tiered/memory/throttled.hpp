/// A copy engine whose link is held to a rate: what a slower bus would do, for experiments and tests.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "tiered/core/clock.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/lane.hpp"

namespace tiered {

/// When bytes that cross a link of a rate are over, one transfer behind the other. Whose times are given it is free to choose.
class LinkPace {
 public:
  /// A transfer that begins so soon after the one before stood behind it: what hand-overs take is no time of the link's.
  static constexpr double slack_s = 200e-6;

  explicit LinkPace(double bytes_per_s) : bytes_per_s_(bytes_per_s) {}
  /// When a transfer ends that is ready to begin at `now_s`.
  double end_of(std::size_t bytes, double now_s) {
    double const begin_s = now_s - free_s_ <= slack_s ? free_s_ : now_s;
    return free_s_ = begin_s + double(bytes) / bytes_per_s_;
  }
  double bytes_per_s() const { return bytes_per_s_; }

 private:
  double bytes_per_s_, free_s_ = -1;  // the link is free from then on
};

/// The machine's own clock.
struct LinkClock {
  double seconds() const { return steady_seconds(); }
  /// Sleeps, and watches the clock for the end of it: who sleeps wakes some 60 us late.
  void wait_until(double at_s) const {
    constexpr double watched_s = 80e-6;
    for (double left_s = 0; (left_s = at_s - steady_seconds() - watched_s) > 0;) {  // a signal may wake it
      double const sleep_s = left_s < 1 ? left_s : 1;
      std::timespec const time{std::time_t(sleep_s), long(1e9 * (sleep_s - std::floor(sleep_s)))};
      static_cast<void>(::nanosleep(&time, nullptr));
    }
    while (steady_seconds() < at_s) {
    }
  }
};

/// A link that is held to a rate each way, for all engines whose bytes cross it: one transfer stands behind the other, whoever began it.
/// Any thread; so may `Clock` be asked.
template <class Clock = LinkClock>
class HeldLink {
 public:
  /// Errors  precondition where the rate is no number above 0.
  explicit HeldLink(double bytes_per_s, Clock clock = Clock())
      : paces_{LinkPace(bytes_per_s), LinkPace(bytes_per_s)}, clock_(std::move(clock)) {
    expects(bytes_per_s > 0 && std::isfinite(bytes_per_s), "a held link has a rate of more than 0 bytes per second");
  }
  HeldLink(HeldLink const&) = delete;
  HeldLink& operator=(HeldLink const&) = delete;

  /// When bytes that are ready now will have crossed it, if nobody else's come before.
  double reserve(LinkWay way, std::size_t bytes) {
    std::lock_guard const turn(mutex_);
    double const now_s = clock_.seconds();
    return way == LinkWay::none ? now_s : paces_[std::size_t(way)].end_of(bytes, now_s);
  }
  double bytes_per_s() const { return paces_.front().bytes_per_s(); }
  Clock& clock() { return clock_; }

 private:
  std::mutex mutex_;
  std::array<LinkPace, n_link_ways> paces_;  // by way
  Clock clock_;
};

/// The engine `E`, whose tickets are done no sooner than a link of so many bytes per second would have brought the bytes, behind those of
/// all engines that share it. All else is E's, and what it copies crosses at its own rate: in bursts, which pauses follow. What one submit
/// has for both ways crosses one way after the other.
/// A lane of its own waits, on a thread where lanes have such: nobody who submits does. Errors, threads: as E.
template <CopyEngine E, class Clock = LinkClock>
class ThrottledCopyEngine : public E {
 public:
  using Link = HeldLink<Clock>;
  /// Large transfers stand behind others' in parts of this size: so a small one of another engine waits for one of them, and not for all.
  static constexpr std::size_t part_bytes = std::size_t{4} << 20;

  /// For several engines: one link of this rate; null where it is 0, which holds nobody. Errors  precondition where the rate is no number
  /// of at least 0.
  static std::shared_ptr<Link> make_link(double bytes_per_s) {
    expects(bytes_per_s >= 0 && std::isfinite(bytes_per_s), "a link has a rate of at least 0 bytes per second");
    return bytes_per_s > 0 ? std::make_shared<Link>(bytes_per_s) : nullptr;
  }

  /// `of_engine`: what E is made with behind its lanes.
  template <class... Args>
  ThrottledCopyEngine(std::shared_ptr<LaneSet> lanes, std::shared_ptr<Link> link, Args&&... of_engine)
      : E(lanes, std::forward<Args>(of_engine)...), lanes_(std::move(lanes)) {
    if (link) held_ = std::make_unique<Held>(lanes_->open("link"), std::move(link));
  }
  /// With a link of its own. Errors  as make_link().
  template <class... Args>
  explicit ThrottledCopyEngine(std::shared_ptr<LaneSet> lanes, double bytes_per_s = 0, Args&&... of_engine)
      : ThrottledCopyEngine(std::move(lanes), make_link(bytes_per_s), std::forward<Args>(of_engine)...) {}
  /// Its lane refers to what goes with it.
  ~ThrottledCopyEngine() {
    if (held_) lanes_->drain(held_->lane);
  }

  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    if (!held_) return E::submit(pieces, after);
    Ticket const copied = E::submit(pieces, after);
    std::array<std::size_t, n_link_ways + 1> bytes{};
    for (CopyPiece const& piece : pieces) bytes[std::size_t(way_across(piece))] += piece.bytes;
    Held* const held = held_.get();
    for (Ticket const ticket : after) lanes_->wait_for(held->lane, ticket);
    lanes_->submit(held->lane, [held] { held->end_s = 0; });
    for (LinkWay const way : {LinkWay::to_device, LinkWay::to_host}) cross(way, bytes[std::size_t(way)]);
    lanes_->wait_for(held->lane, copied);
    lanes_->submit(held->lane, [held] { held->wait(); });
    return lanes_->record(held->lane);
  }
  bool done(Ticket ticket) const { return held_ ? lanes_->done(ticket) : E::done(ticket); }
  void wait(Ticket ticket) { held_ ? lanes_->wait(ticket) : E::wait(ticket); }

  /// 0: as it is.
  double link_bytes_per_s() const { return held_ ? held_->link->bytes_per_s() : 0; }
  /// Of a link that is held to a rate.
  Clock& clock() { return held_->link->clock(); }

 private:
  /// Used by the lane's tasks only.
  struct Held {
    Held(LaneSet::Lane of, std::shared_ptr<Link> on) : lane(of), link(std::move(on)) {}
    void wait() {
      if (end_s > 0) link->clock().wait_until(end_s);
    }
    LaneSet::Lane lane;
    std::shared_ptr<Link> link;
    double end_s = 0;  // of the transfer that is under way, as far as it came; 0: nothing crosses the link
  };

  LinkWay way_across(CopyPiece const& piece) {
    if constexpr (requires(E & e) { e.way_of(piece); }) {
      return E::way_of(piece);
    } else {
      return LinkWay::to_device;
    }
  }
  /// Tasks of the lane, each of which waits for the part before it.
  void cross(LinkWay way, std::size_t bytes) {
    Held* const held = held_.get();
    for (std::size_t done = 0; done < bytes; done += part_bytes) {
      lanes_->submit(held->lane, [held, way, part = std::min(part_bytes, bytes - done)] {
        held->wait();
        held->end_s = held->link->reserve(way, part);
      });
    }
  }

  std::shared_ptr<LaneSet> lanes_;
  std::unique_ptr<Held> held_;
};

}  // namespace tiered
