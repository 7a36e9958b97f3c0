/// Moves the share of keys and values in host memory that a device reads over the link while the host attends to the rest.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tiered/kernels/args.hpp"

namespace tiered {

/// A plan knows rates that were measured one by one; within a step the same link also brings experts, and host and link share memory.
/// So the share (PositionShare::read) follows what steps take: towards where both sides would have ended together, by a little a step,
/// since a step now and then takes one side much longer. Plain data.
class ReadBalance {
 public:
  /// Of one layer. Seconds from the request on: until the device had its own part, until it had the host's, too; of these the host was at
  /// work for host_s.
  struct Layer {
    std::int32_t n_read = 0, n_host = 0;  ///< positions in host memory that the device read, and that the host attended to
    double device_s = 0, answered_s = 0, host_s = 0;
  };

  /// From a plan's share on, of PositionShare::whole, and its PositionShare::ahead; goes on where these are what they were.
  void begin(std::int32_t read, std::int32_t ahead) {
    if (read == planned_ && ahead == ahead_) return;
    *this = {};
    planned_ = read;
    ahead_ = ahead;
    read_ = double(read);
  }
  /// What a step is to use. A plan that gives all to one side is left alone.
  std::int32_t read() const { return std::int32_t(read_ + 0.5); }

  void add(Layer const& layer) {
    n_read_ += layer.n_read;
    n_host_ += layer.n_host;
    device_s_ += layer.device_s;
    host_s_ += layer.host_s;
    ++n_layers_;
    if (layer.answered_s <= layer.device_s + waits_s) return;
    double const over_s = std::clamp(layer.answered_s - layer.host_s, 0.0, most_hand_over_s);
    hand_over_s_ += (over_s - hand_over_s_) / n_remembered;
  }
  /// After the last layer of a step.
  void end_step() {
    bool const is_shared = planned_ > 0 && planned_ < PositionShare::whole;
    if (is_shared && n_read_ > 0 && n_host_ > 0 && device_s_ > 0 && host_s_ > 0) {
      double const device_each = device_s_ / n_read_, host_each = host_s_ / n_host_, n = (n_read_ + n_host_) / n_layers_;
      double const best = (n * host_each + hand_over_s_) / (device_each + host_each);  // positions of a layer that are best read
      double const wanted = PositionShare::whole * best / (n + ahead_);
      read_ = std::clamp(read_ + std::clamp((wanted - read_) / 2, -most_moved, most_moved), least_read, most_read);
    }
    n_read_ = n_host_ = n_layers_ = device_s_ = host_s_ = 0;
  }

 private:
  static constexpr double waits_s = 8e-6;  ///< a look over a busy link at what has long been answered takes some microseconds, too
  static constexpr double most_hand_over_s = 50e-6, n_remembered = 64;
  static constexpr double most_moved = PositionShare::whole / 32, least_read = PositionShare::whole / 16,
                          most_read = PositionShare::whole - least_read;

  std::int32_t planned_ = 0, ahead_ = 0;
  double read_ = 0, hand_over_s_ = 5e-6;  // that a request and its answer take beside host_s
  double n_read_ = 0, n_host_ = 0, n_layers_ = 0, device_s_ = 0, host_s_ = 0;
};

}  // namespace tiered
