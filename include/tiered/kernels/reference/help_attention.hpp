/// HelpAttentionArgs, slowly and obviously. Not in a table of its own accord: it waits for another thread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "tiered/core/clock.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/reference/help.hpp"

namespace tiered::reference {

/// Times of the log are 0, or where there was a request 1 for all.
inline void attention_ask(HelpAttentionArgs const& a) {
  *a.log = {};
  if (!a.asks(a.row->position)) return;
  *a.log = {1, 1, 1, 1, 1};
  std::copy_n(a.q, a.n_heads * a.head_dim, a.host_q);
  a.mail->layer = a.layer;
  std::atomic_ref(a.mail->request).store(*a.step * 1024 + std::uint64_t(a.layer) + 1, std::memory_order_release);
}

inline void attention_answer(HelpAttentionArgs const& a) {
  if (!a.asks(a.row->position)) return;
  std::uint64_t const number = *a.step * 1024 + std::uint64_t(a.layer) + 1;
  if (!detail::wait_for_host(*a.mail, a.mail->answered, number, a.patience_ns)) return;
  for (std::int32_t head = 0; head < a.n_heads; ++head) {
    double const logs[] = {double(a.log_sum_exp[head]), double(a.host_log_sum_exp[head])}, largest = (std::max)(logs[0], logs[1]);
    auto const weight = [&](double log) { return std::isinf(log) && log < 0 ? 0 : std::exp(log - largest); };
    double const own = weight(logs[0]), host = weight(logs[1]);
    for (std::int32_t i = head * a.head_dim; i < (head + 1) * a.head_dim; ++i) {
      double const sum = (own == 0 ? 0 : own * double(a.out[i])) + (host == 0 ? 0 : host * double(a.host_part[i]));
      a.out[i] = own + host == 0 ? 0.0f : float(sum / (own + host));
    }
  }
}

}  // namespace tiered::reference
