/// HelpArgs, slowly and obviously. Not in a table of its own accord: it waits for another thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>

#include "tiered/core/clock.hpp"
#include "tiered/kernels/args.hpp"

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
inline bool ask(HelpArgs const& a) {
  HelpMail& mail = *a.mail;
  std::uint64_t const number = a.state->step * 1024 + std::uint64_t(a.layer) + 1;
  help_row(a);
  std::copy_n(a.ids, a.n_used, a.host_ids);
  std::copy_n(a.weights, a.n_used, a.host_weights);
  mail.layer = a.layer;
  std::atomic_ref(mail.request).store(number, std::memory_order_release);
  if (!wait_for_host(mail, mail.decided, number, a.patience_ns)) return false;
  a.state->decided = number;
  for (std::int32_t p = 0; p < mail.n_parts; ++p) std::memcpy(mail.parts[p].to, mail.parts[p].from, std::size_t(mail.parts[p].bytes));
  return wait_for_host(mail, mail.answered, number, a.patience_ns) && mail.has_sum != 0;
}

}  // namespace detail

/// Times of the log are 0, or 1 where there was a request.
inline void help(HelpArgs const& a) {
  if (a.n_used == 0) return;
  bool const missing =
      std::any_of(a.ids, a.ids + a.n_used, [&](std::int32_t id) { return id >= 0 && id < a.n_experts && a.experts[id].gate == nullptr; });
  std::copy_n(a.ids, a.n_used, a.log->ids);
  std::fill_n(a.fetched_ids, a.n_used, -1);
  a.log->asked_ns = missing ? 1 : 0;
  bool const adds = missing && detail::ask(a);
  for (std::int32_t i = 0; i < a.dim; ++i) {
    float const here = a.hidden[i] + a.sum[i];
    a.hidden[i] = adds ? here + a.host_sum[i] : here;
    a.sum[i] = 0;
  }
}

}  // namespace tiered::reference
