/// Defines helped_time and what it is asked with: for one source file of a program.
#pragma once

#include <algorithm>

#include "tiered/plan/expert_decode.hpp"
#include "tiered/plan/helped_layer.hpp"

namespace tiered {

HelpedMachine helped_machine(HardwareProfile const& h) {
  return {h.mutual, fastest_products_bytes_per_s(h.host), hot_macs_per_thread_s * double(h.n_threads)};
}

HelpedExpert helped_expert(HelpedMachine const& machine, Shard const& shard, PassCost const& one) {
  double const bytes = double(shard.bytes), hot_s = machine.hot_macs_per_s > 0 ? shard.macs_per_token / machine.hot_macs_per_s : 0;
  HelpedExpert e;
  if (one.host_s > 0) e.host_s = one.host_s / share_beside_link(machine.mutual, machine.memory_bytes_per_s, bytes / one.host_s);
  e.gpu_s = one.gpu_s;
  e.read_s = hot_s > 0 ? (std::min)(hot_s, e.host_s) : read_expert_share * e.host_s;
  double const memory_s = machine.memory_bytes_per_s > 0 ? bytes / (machine.mutual.host_share * machine.memory_bytes_per_s) : e.host_s;
  e.load_s = (std::min)(memory_s, e.host_s);
  e.fetch_s = one.copy_s / machine.mutual.h2d_share;
  e.copy_s = e.fetch_s + ahead_copy_s;
  e.bytes = bytes;
  return e;
}

namespace detail {

inline bool guesses(HelpedLayer const& l) { return l.link_share > 0 && pays_to_look_ahead(l.missing, l.expert.bytes); }

/// Were `ahead` brought.
inline HelpedTime helped_time(HelpedLayer const& l, double ahead) {
  HelpedTime t;
  HelpedExpert const& e = l.expert;
  double const asked = l.missing - ahead_in_time * ahead;  // not there when the layer looks
  t.ahead = ahead;
  t.waits = layers_with_misses(asked, l.used);
  t.seconds = l.device_s + (guesses(l) ? guess_layer_s : 0) + (l.used - asked) * e.gpu_s;
  if (t.waits <= 0) return t;
  // Of one request; what is fetched is FewRouted's choice, for whom all are read that guesses name.
  double const n = (l.missing - ahead) / t.waits, on_way = (std::min)(ahead, 1.0);
  double const known = l.reads_ahead && guesses(l) ? (std::clamp)(known_share * l.missing - ahead, 0.0, n * t.waits) / t.waits : 0;
  double const wanted = l.link_share * (n - (1 - read_expert_share) * known) - (1 - l.link_share) * on_way;
  double const fetched = l.link_share >= 1 ? n : (std::clamp)(wanted, 0.0, n), on_host = n - fetched;
  double host_s = 0;
  if (on_host > 0) {
    double const idle_s = (std::max)(t.seconds - l.states_s - ahead * submit_s, 0.0) / t.waits + answer_s;  // since the request before
    double const read = e.load_s > 0 ? (std::min)({on_host, known, idle_s / e.load_s}) : 0;
    host_s = host_request_s + (on_host - read) * e.host_s + read * e.read_s;
    t.read = t.waits * read;
  }
  double const link_s = fetched > 0 ? (fetched + 0.5 * on_way) * e.fetch_s : 0;  // half a copy is left of one on its way
  t.fetched = t.waits * fetched;
  t.on_host = t.waits * on_host;
  t.seconds += t.waits * (ask_s + (std::max)(host_s, link_s) + answer_s) + (asked - t.on_host) * e.gpu_s;
  return t;
}

}  // namespace detail

HelpedTime helped_time(HelpedLayer const& l) {
  double const most = detail::guesses(l) ? guessed_share * l.missing : 0;
  auto const fills_link = [&](HelpedTime const& t) {
    return t.ahead * l.expert.copy_s + t.fetched * l.expert.fetch_s + l.states_s > t.seconds;
  };
  HelpedTime all = detail::helped_time(l, most);
  if (most <= 0 || !fills_link(all)) return all;
  HelpedTime best = detail::helped_time(l, 0);
  double less = 0, more = most;
  for (int i = 0; i < 10; ++i) {  // to a thousandth
    double const ahead = 0.5 * (less + more);
    HelpedTime const t = detail::helped_time(l, ahead);
    if (fills_link(t)) {
      more = ahead;
    } else {
      less = ahead, best = t;
    }
  }
  return best;
}

}  // namespace tiered
