#include "tiered/plan/helped_layer.hpp"

#include <cmath>

#include "catch.hpp"
#include "tiered/plan/expert_decode.hpp"

using namespace tiered;

namespace {

constexpr double us = 1e-6;

/// The reference machine, as its figures were when helped steps were measured there.
HelpedMachine machine() { return {{0.85, 0.85}, 120e9, 16 * hot_macs_per_thread_s}; }

/// An expert of that many bytes and products, for a host that reads 92 GB/s of them and a link of 55 GB/s.
HelpedExpert expert(double bytes, double macs) {
  Shard shard;
  shard.bytes = std::size_t(bytes);
  shard.macs_per_token = macs;
  return helped_expert(machine(), shard, {bytes / 92e9, 0, 4 * us + bytes / 55e9});
}
HelpedExpert expert_30b() { return expert(2'654'208, 3.0 * 2048 * 768); }
HelpedExpert expert_235b() { return expert(6.83e6, 3.0 * 4096 * 1536); }

HelpedLayer layer(double missing) {
  HelpedLayer l;
  l.expert = expert_30b();
  l.used = 8;
  l.missing = missing;
  l.device_s = 47 * us;
  l.link_share = 0.33;
  return l;
}

}  // namespace

TEST_CASE("steps take what they were measured to take before weights were read ahead", "[plan][helped_layer]") {
  struct Case {
    char const* name;
    HelpedLayer layer;
    double n_layers, rest_s, measured_s, requests, ahead;  ///< rest_s: of the step, outside its layers; ahead: right ones, a token
  };
  HelpedLayer large = layer(7.52), beside_states = layer(6.8);
  large.expert = expert_235b();
  large.device_s = 127 * us;
  large.link_share = 0.37;
  beside_states.device_s = (35 + 253) * us;
  beside_states.states_s = 253 * us;
  Case const cases[] = {{"30B, 2 GiB, 1K", layer(5.88), 48, 0.31e-3, 9.34e-3, 48, 90.8},
                        {"30B, 4 GiB, 1K", layer(2.69), 48, 0.31e-3, 5.77e-3, 38, 61.4},
                        {"30B, 8 GiB, 1K", layer(0.80), 48, 0.31e-3, 3.39e-3, 11.7, 22.8},
                        {"30B, 2 GiB, 16K", beside_states, 48, 0.31e-3, 23.4e-3, 48, 0},
                        {"235B, 4 GiB", large, 94, 0.5e-3, 47.8e-3, 94, 160}};
  for (Case c : cases) {
    INFO(c.name);
    c.layer.reads_ahead = false;
    HelpedTime const t = helped_time(c.layer);
    CHECK(c.n_layers * t.seconds + c.rest_s == Approx(c.measured_s).epsilon(0.08));
    CHECK(c.n_layers * t.waits == Approx(c.requests).epsilon(0.1));
    if (c.ahead > 0) CHECK(c.n_layers * t.ahead == Approx(c.ahead).epsilon(0.15));
    c.layer.reads_ahead = true;
    CHECK(helped_time(c.layer).seconds < t.seconds);
  }
}

TEST_CASE("a layer that misses nothing is the device's alone", "[plan][helped_layer]") {
  HelpedLayer l = layer(0);
  l.expert.gpu_s = 2 * us;
  HelpedTime const t = helped_time(l);
  CHECK(t.seconds == Approx(47 * us + 8 * 2 * us));
  CHECK(t.waits == 0);
  CHECK(t.ahead + t.fetched + t.on_host == 0);
}

TEST_CASE("every missing expert comes one way, the link has time for its part, and more of them take longer", "[plan][helped_layer]") {
  for (bool const reads : {false, true}) {
    for (double const states_s : {0.0, 100 * us}) {
      double before = 0;
      for (double missing = 0.05; missing <= 8; missing += 0.05) {
        INFO("reads " << reads << ", states " << states_s << ", missing " << missing);
        HelpedLayer l = layer(missing);
        l.reads_ahead = reads;
        l.device_s += l.states_s = states_s;
        HelpedTime const t = helped_time(l);
        CHECK(t.ahead + t.fetched + t.on_host == Approx(missing));
        CHECK(t.ahead <= guessed_share * missing);
        CHECK(t.read <= t.on_host);
        CHECK(t.ahead * l.expert.copy_s + states_s <= t.seconds);
        CHECK((t.waits > 0 && t.waits <= 1));
        CHECK(t.seconds > before);
        before = t.seconds;
      }
    }
  }
}

TEST_CASE("while the link reads states it brings fewer experts", "[plan][helped_layer]") {
  HelpedLayer l = layer(6);
  l.reads_ahead = true;
  l.device_s = 150 * us;
  HelpedTime const idle = helped_time(l);
  l.states_s = 140 * us;
  HelpedTime const busy = helped_time(l);
  CHECK(busy.ahead < idle.ahead);
  CHECK(busy.read < idle.read);
  CHECK(busy.seconds > idle.seconds);
}

TEST_CASE("the link brings all where the host has no part, and nothing where it has no part itself", "[plan][helped_layer]") {
  HelpedLayer l = layer(4);
  l.link_share = 1;
  l.expert.host_s = l.expert.read_s = HUGE_VAL;  // no kernel
  HelpedTime const fetched = helped_time(l);
  CHECK(fetched.on_host == 0);
  CHECK(fetched.ahead + fetched.fetched == Approx(4));
  CHECK(std::isfinite(fetched.seconds));
  l = layer(4);
  l.link_share = 0;
  HelpedTime const computed = helped_time(l);
  CHECK(computed.ahead + computed.fetched == 0);
  CHECK(computed.read == 0);  // nobody guesses
  CHECK(computed.on_host == Approx(4));
  CHECK(computed.seconds == Approx(l.device_s + ask_s + answer_s + host_request_s + 4 * l.expert.host_s));
}

TEST_CASE("an expert takes the host longer beside the link where memory held it, less where its weights were read",
          "[plan][helped_layer]") {
  Shard shard;
  shard.bytes = 1'200'000;
  shard.macs_per_token = 1e6;
  HelpedMachine const m{{0.8, 0.5}, 120e9, 1e12};
  auto const by_rate = [&](double bytes_per_s) { return helped_expert(m, shard, {1.2e6 / bytes_per_s, 3 * us, 20 * us}); };
  CHECK(by_rate(120e9).host_s == Approx(10 * us / 0.8));
  CHECK(by_rate(108e9).host_s == Approx(12.5 * us));  // what memory gives it then
  CHECK(by_rate(60e9).host_s == Approx(20 * us));     // arithmetic's
  CHECK(by_rate(60e9).read_s == Approx(1 * us));
  CHECK(by_rate(60e9).load_s == Approx(12.5 * us));
  CHECK(by_rate(120e9).gpu_s == Approx(3 * us));
  CHECK(by_rate(120e9).fetch_s == Approx(40 * us));
  CHECK(by_rate(120e9).copy_s == Approx(40 * us + ahead_copy_s));
  shard.macs_per_token = 1e9;
  CHECK(by_rate(60e9).read_s == Approx(20 * us));  // never longer than cold
  CHECK(helped_expert({}, shard, {20 * us, 0, 0}).read_s == Approx(20 * us * read_expert_share));
}
