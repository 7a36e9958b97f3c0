/// HelpArgs and RouterAheadArgs, slowly and obviously. Not in a table of their own accord: the host's thread is there at the same time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "tiered/core/clock.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/reference/matmul.hpp"

namespace tiered::reference {
namespace detail {

template <class Mail>
bool wait_for_host(Mail& mail, std::uint64_t& number, std::uint64_t wanted, std::uint64_t patience_ns) {
  double const until_s = steady_seconds() + 1e-9 * double(patience_ns);
  while (std::atomic_ref(number).load(std::memory_order_acquire) < wanted) {
    if (std::atomic_ref(mail.given_up).load(std::memory_order_acquire) != 0) return false;
    if (steady_seconds() >= until_s) {
      mail.timed_out = 1;
      std::atomic_ref(mail.given_up).store(1, std::memory_order_release);
      return false;
    }
    std::this_thread::yield();
  }
  return true;
}

/// The row as experts take it.
inline void help_row(HelpArgs const& a) {
  double squares = 0;
  for (std::int32_t i = 0; i < a.dim; ++i) squares += double(a.row.x[i]) * double(a.row.x[i]);
  double const factor = 1 / std::sqrt(squares / double(a.dim) + double(a.row.eps));
  for (std::int32_t i = 0; i < a.dim; ++i) {
    double const weight = a.row.weight != nullptr ? double(a.row.weight[i]) : 1;
    a.row.y[i] = a.row.eps < 0 ? a.row.x[i] : float(double(a.row.x[i]) * factor * weight);
    a.host_row[i] = a.row.y[i];
  }
}

/// Whether the host has something to add.
inline bool ask(HelpArgs const& a, std::uint32_t missing) {
  HelpMail& mail = *a.mail;
  std::uint64_t const number = a.state->step * 1024 + std::uint64_t(a.layer) + 1;
  help_row(a);
  std::copy_n(a.ids, a.n_used, a.host_ids);
  std::copy_n(a.weights, a.n_used, a.host_weights);
  mail.layer = a.layer;
  mail.missing = missing;
  std::atomic_ref(mail.request).store(number, std::memory_order_release);
  if (!wait_for_host(mail, mail.decided, number, a.patience_ns)) return false;
  a.state->decided = number;
  std::int32_t const n_parts = std::atomic_ref(mail.n_parts).load(std::memory_order_acquire);  // once: who gives up sets it to 0
  for (std::int32_t p = 0; p < n_parts; ++p) std::memcpy(mail.parts[p].to, mail.parts[p].from, std::size_t(mail.parts[p].bytes));
  return wait_for_host(mail, mail.answered, number, a.patience_ns) && mail.has_sum != 0;
}

}  // namespace detail

/// By whose number stands beside the row.
inline void guess(HelpArgs const& a) {
  GuessArgs const& g = a.guesses;
  for (std::int32_t l = 0; l < g.n_layers; ++l) {
    std::vector<float> const x = detail::normed_rows(g.row, g.layers[l].norm_weight, 1, a.dim, g.eps, true);
    for (std::int32_t e = 0; e < a.n_experts; ++e) {
      double sum = 0;
      for (std::int32_t i = 0; i < a.dim; ++i) sum += double(g.layers[l].w[std::int64_t(e) * a.dim + i]) * double(x[std::size_t(i)]);
      ExpertGuess const guess{float(sum), std::uint32_t(a.state->row / 1024)};
      std::uint64_t word = 0;
      std::memcpy(&word, &guess, sizeof word);
      std::atomic_ref(reinterpret_cast<std::uint64_t&>(g.layers[l].guesses[e])).store(word, std::memory_order_release);
    }
  }
}

/// Times of the log are 0, or 1 where there was a request.
inline void help(HelpArgs const& a) {
  if (a.n_used == 0) return;
  guess(a);
  std::uint32_t missing = 0;
  for (std::int32_t j = 0; j < a.n_used; ++j) {
    std::int32_t const id = a.ids[j];
    if (id >= 0 && id < a.n_experts && a.experts[id].gate == nullptr) missing |= 1u << j;
  }
  std::copy_n(a.ids, a.n_used, a.log->ids);
  std::fill_n(a.fetched_ids, a.n_used, -1);
  a.log->missing = missing;
  a.log->asked_ns = missing != 0 ? 1 : 0;
  bool const adds = missing != 0 && detail::ask(a, missing);
  for (std::int32_t i = 0; i < a.dim; ++i) {
    float const here = a.hidden[i] + a.sum[i];
    a.hidden[i] = adds ? here + a.host_sum[i] : here;
    a.sum[i] = 0;
  }
}

/// RouterAheadArgs; an expert whose gate is seen is seen whole.
inline void router_ahead(RouterAheadArgs const& a, ActivationRule rule = f32_activation) {
  for (std::int32_t e = 0; e < a.n_experts; ++e) {
    ExpertGroup& entry = const_cast<ExpertGroup&>(a.experts[e]);
    bool const there = std::atomic_ref(entry.gate).load(std::memory_order_acquire) != nullptr;
    a.seen[e] = there ? ExpertGroup{entry.gate, entry.up, entry.down, 0, 0} : ExpertGroup{};
  }
  if (a.own.n_parts > 0) fused_matmul(a.own, rule);
  if (a.row == nullptr) return;
  std::copy_n(a.own.x, a.own.dim, a.row);
  a.state->row = a.state->step * 1024 + std::uint64_t(a.layer) + 1;
}

}  // namespace tiered::reference
