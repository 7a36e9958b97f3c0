// The share of keys and values in host memory that a device reads: follows what both sides take, slowly, and never out of its bounds.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "catch.hpp"
#include "tiered/pipeline/read_balance.hpp"
#include "tiered/sim/split_mix.hpp"

using namespace tiered;

namespace {

/// A machine on which either side takes so long for a position; `over_s`: what a request takes besides. The device takes a while to see
/// an answer, which it looks for when it is done itself.
struct Machine {
  double device_each_s, host_each_s, over_s = 0;
  static constexpr double look_s = 4e-6;

  ReadBalance::Layer layer(std::int32_t n, PositionShare const& share, double host_factor = 1) const {
    std::int32_t const begin = share.host_begin(0, n - 1);
    ReadBalance::Layer l{begin, n - begin};
    l.device_s = begin * device_each_s;
    l.host_s = (n - begin) * host_each_s * host_factor;
    l.answered_s = std::max(l.device_s, l.host_s + over_s) + look_s;
    return l;
  }
  /// Seconds of a layer after so many steps of 48 layers.
  double after(int n_steps, ReadBalance& balance, std::int32_t n, std::int32_t ahead) const {
    PositionShare share{0, 0, ahead};
    for (int step = 0; step <= n_steps; ++step) {
      share.read = balance.read();
      for (int l = 0; l < 48 && step < n_steps; ++l) balance.add(layer(n, share));
      if (step < n_steps) balance.end_step();
    }
    ReadBalance::Layer const l = layer(n, share);
    return l.answered_s - look_s;
  }
};

}  // namespace

TEST_CASE("read balance: both sides come to end together, whatever was planned") {
  std::int32_t const n = 13000;
  for (Machine const& m : {Machine{45e-9, 23e-9}, {23e-9, 23e-9, 20e-6}, {20e-9, 60e-9, 5e-6}, {90e-9, 20e-9}}) {
    double const least_s = (n * m.host_each_s + m.over_s) * m.device_each_s / (m.device_each_s + m.host_each_s);
    for (std::int32_t const planned : {100, 350, 900}) {
      for (std::int32_t const ahead : {0, 700}) {
        INFO(m.device_each_s << " and " << m.host_each_s << " s, planned " << planned << ", ahead " << ahead);
        ReadBalance balance;
        balance.begin(planned, ahead);
        CHECK(balance.read() == planned);
        double const begins_s = m.after(0, balance, n, ahead), ends_s = m.after(60, balance, n, ahead),
                     later_s = m.after(500, balance, n, ahead);
        double const step_s = (PositionShare::tile + 8e-6 / m.device_each_s) * std::max(m.device_each_s, m.host_each_s);
        CHECK(ends_s <= least_s + step_s);
        CHECK(ends_s <= begins_s + step_s);
        CHECK(later_s <= least_s + step_s);
      }
    }
  }
}

TEST_CASE("read balance: one step that took long moves it by a thirty-second, and noise does not drive it away") {
  std::int32_t const n = 13000;
  Machine const m{40e-9, 20e-9};
  ReadBalance balance;
  balance.begin(341, 0);
  m.after(20, balance, n, 0);
  std::int32_t const before = balance.read();
  balance.add({5000, 8000, 200e-6, 1e-2, 1e-2});
  balance.end_step();
  CHECK(std::abs(balance.read() - before) <= 32);
  SplitMix64 random(3);
  for (int step = 0; step < 300; ++step) {
    PositionShare const share{0, balance.read(), 0};
    for (int l = 0; l < 48; ++l) balance.add(m.layer(n, share, 0.5 + double(random.below(1000)) / 1000));
    balance.end_step();
    if (step > 20) CHECK((balance.read() > 280 && balance.read() < 420));
  }
}

TEST_CASE("read balance: stays within bounds, and where one side has all or nothing was measured it stays what it is") {
  for (std::int32_t const planned : {0, PositionShare::whole}) {
    ReadBalance balance;
    balance.begin(planned, 0);
    balance.add({1000, 1000, 1, 1, 1e-3});
    balance.end_step();
    CHECK(balance.read() == planned);
  }
  ReadBalance balance;
  balance.begin(500, 0);
  balance.end_step();
  for (ReadBalance::Layer const& nothing :
       {ReadBalance::Layer{0, 1000, 0, 1, 1}, {1000, 0, 1, 1, 0}, {1000, 1000, 0, 0, 1}, {1000, 1000, 1, 1, 0}}) {
    balance.add(nothing);
    balance.end_step();
    CHECK(balance.read() == 500);
  }
  for (int step = 0; step < 100; ++step) balance.add({1000, 1000, 1, 1, 1e-9}), balance.end_step();
  CHECK(balance.read() == PositionShare::whole / 16);
  for (int step = 0; step < 100; ++step) balance.add({1000, 1000, 1e-9, 1, 1}), balance.end_step();
  CHECK(balance.read() == PositionShare::whole - PositionShare::whole / 16);
  balance.begin(500, 0);  // the same plan
  CHECK(balance.read() == PositionShare::whole - PositionShare::whole / 16);
  balance.begin(500, 64);
  CHECK(balance.read() == 500);
}

TEST_CASE("read balance: a share that moves is read where it lies") {
  std::int32_t now = 256;
  PositionShare const share{100, 512, 0, &now};
  CHECK(share.host_begin(0, 4999) == PositionShare{100, 256, 0}.host_begin(0, 4999));
  now = 700;
  CHECK(share.host_begin(0, 4999) == PositionShare{100, 700, 0}.host_begin(0, 4999));
  now = 0;
  CHECK(share.host_begin(0, 4999) == 100);
}
