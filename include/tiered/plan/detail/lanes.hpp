/// Lanes of an estimate on one virtual clock: what each device and the link is busy with, and how link and host slow each other.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tiered/plan/estimate.hpp"

namespace tiered::detail {

struct Lane {
  double free_s = 0;
  double* busy_s = nullptr;
  ActionTime take(double from_s, double seconds) {
    double const begin = (std::max)(free_s, from_s);
    free_s = begin + seconds;
    *busy_s += seconds;
    return {begin, free_s};
  }
};

/// The host and the copies to the device, which read the same memory: while both do, each has its share of the rate that it has alone. A
/// copy's end is known only when whatever the host does beside it is, so copies wait here, in order, until somebody asks for one.
/// Callers ask for times that do not go back: rows are at one place at a time.
class HostAndLink {
 public:
  HostAndLink(MutualRates mutual, double& host_busy_s, double& copy_busy_s)
      : mutual_(mutual), alike_(mutual == MutualRates{}), host_busy_s_(&host_busy_s), copy_busy_s_(&copy_busy_s) {}

  /// `seconds`: alone. Returns the number to ask for.
  std::size_t copy(double from_s, double seconds) {
    *copy_busy_s_ += seconds;
    copies_.push_back({from_s, seconds, {-1, -1}});
    return copies_.size() - 1;
  }
  /// With nothing on the host from where that is known to be busy on.
  ActionTime copied(std::size_t number) {
    while (next_ <= number) finish(copies_[next_], copies_[next_].left_s);
    return copies_[number].time;
  }
  double copy_now(double from_s, double seconds) { return copied(copy(from_s, seconds)).end_s; }

  ActionTime run(double from_s, double seconds) {
    *host_busy_s_ += seconds;
    double const begin = (std::max)(host_free_s_, from_s);
    host_free_s_ = alike_ ? begin + seconds : beside_copies(begin, seconds);
    return {begin, host_free_s_};
  }

 private:
  struct Copy {
    double from_s = 0, left_s = 0;
    ActionTime time;
  };

  void start(Copy& c) {
    if (c.time.begin_s < 0) c.time.begin_s = link_s_ = (std::max)(link_s_, c.from_s);
  }
  void finish(Copy& c, double seconds) {
    start(c);
    c.time.end_s = link_s_ += seconds;
    c.left_s = 0;
    ++next_;
  }

  double beside_copies(double at_s, double left_s) {
    while (next_ < copies_.size()) {
      Copy& c = copies_[next_];
      double const begin_s = (std::max)(link_s_, c.from_s);
      if (begin_s + c.left_s <= at_s) {  // over before the host begins
        finish(c, c.left_s);
      } else if (begin_s >= at_s + left_s) {
        break;
      } else if (begin_s < at_s) {  // alone until the host begins
        start(c);
        c.left_s -= at_s - link_s_;
        link_s_ = at_s;
      } else {
        left_s -= begin_s - at_s;
        start(c);
        double const copy_s = c.left_s / mutual_.h2d_share, host_s = left_s / mutual_.host_share;
        if (host_s < copy_s) {
          c.left_s -= host_s * mutual_.h2d_share;
          return link_s_ = begin_s + host_s;
        }
        finish(c, copy_s);
        left_s -= copy_s * mutual_.host_share;
        at_s = link_s_;
      }
    }
    return at_s + left_s;
  }

  MutualRates mutual_;
  bool alike_;
  double *host_busy_s_, *copy_busy_s_;
  double host_free_s_ = 0, link_s_ = 0;
  std::vector<Copy> copies_;
  std::size_t next_ = 0;  ///< of copies_: those before it are done
};

}  // namespace tiered::detail
