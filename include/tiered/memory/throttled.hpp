/// A copy engine whose link is held to a rate: what a slower bus would do, for experiments and tests.
#pragma once

#include <cmath>
#include <cstddef>
#include <ctime>
#include <memory>
#include <span>
#include <utility>

#include "tiered/core/clock.hpp"
#include "tiered/core/error.hpp"
#include "tiered/memory/copy.hpp"
#include "tiered/memory/detail/piece_pack.hpp"
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

/// The engine `E`, whose tickets are done no sooner than a link of `bytes_per_s` would have brought the bytes; 0: as they are. All else is
/// E's, and what it copies crosses at its own rate: in bursts, which pauses follow. Each engine is a link of its own.
/// A lane of its own waits, on a thread where lanes have such: nobody who submits does. Errors, threads: as E.
template <CopyEngine E, class Clock = LinkClock>
class ThrottledCopyEngine : public E {
 public:
  /// `of_engine`: what E is made with behind its lanes. Errors  precondition where the rate is no number of at least 0.
  template <class... Args>
  explicit ThrottledCopyEngine(std::shared_ptr<LaneSet> lanes, double bytes_per_s = 0, Args&&... of_engine)
      : E(lanes, std::forward<Args>(of_engine)...), lanes_(std::move(lanes)) {
    expects(bytes_per_s >= 0 && std::isfinite(bytes_per_s), "a link has a rate of at least 0 bytes per second");
    if (bytes_per_s > 0) link_ = std::make_unique<Link>(lanes_->open("link"), LinkPace(bytes_per_s), Clock());
  }
  /// Its lane refers to what goes with it.
  ~ThrottledCopyEngine() {
    if (link_) lanes_->drain(link_->lane);
  }

  Ticket submit(std::span<CopyPiece const> pieces, std::span<Ticket const> after) {
    if (!link_) return E::submit(pieces, after);
    Ticket const copied = E::submit(pieces, after);
    Link* const link = link_.get();
    for (Ticket const ticket : after) lanes_->wait_for(link->lane, ticket);
    lanes_->submit(link->lane,
                   [link, bytes = detail::total_bytes(pieces)] { link->end_s = link->pace.end_of(bytes, link->clock.seconds()); });
    lanes_->wait_for(link->lane, copied);
    lanes_->submit(link->lane, [link] { link->clock.wait_until(link->end_s); });
    return lanes_->record(link->lane);
  }
  bool done(Ticket ticket) const { return link_ ? lanes_->done(ticket) : E::done(ticket); }
  void wait(Ticket ticket) { link_ ? lanes_->wait(ticket) : E::wait(ticket); }

  /// 0: as it is.
  double link_bytes_per_s() const { return link_ ? link_->pace.bytes_per_s() : 0; }
  /// Of a link that is held to a rate.
  Clock& clock() { return link_->clock; }

 private:
  /// Used by the lane's tasks only.
  struct Link {
    Link(LaneSet::Lane of, LinkPace with, Clock by) : lane(of), pace(with), clock(std::move(by)) {}
    LaneSet::Lane lane;
    LinkPace pace;
    Clock clock;
    double end_s = 0;  // of the transfer that is under way
  };
  std::shared_ptr<LaneSet> lanes_;
  std::unique_ptr<Link> link_;
};

}  // namespace tiered
