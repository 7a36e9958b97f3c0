/// How long things take that follow each other.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tiered {

/// When the thing that is going on will be done, a copy say, or a layer: those before took about as long. Plain data.
class Pace {
 public:
  /// One begins, as there was none.
  void begin(double now_s) { since_s_ = now_s; }
  /// n are done, and the next one begins.
  void end(double now_s, std::int32_t n = 1) {
    double const took_s = (now_s - since_s_) / n;
    each_s_ += (took_s - each_s_) * (each_s_ > 0 ? 1.0 / 16 : 1.0);
    since_s_ = now_s;
  }
  /// 0 before the first is done.
  double each_s() const { return each_s_; }
  /// Of the one that is going on: 0 where it takes longer than those before.
  double left_s(double now_s) const { return std::max(0.0, since_s_ + each_s_ - now_s); }

 private:
  double since_s_ = 0, each_s_ = 0;
};

}  // namespace tiered
