/// Defines what plan/expert_share.hpp declares: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tiered/plan/expert_decode.hpp"
#include "tiered/plan/expert_share.hpp"

namespace tiered {

LayerShare share_experts(ExpertShare const& share, std::span<std::int32_t const> rows, std::int32_t n_rows, double under_way_s) {
  LayerShare next;
  while (next.n_host < rows.size() && rows[next.n_host] == 0) ++next.n_host;
  next.link_s = under_way_s + double(rows.size() - next.n_host) * share.copy_s;
  LayerShare best = next;
  double const there_s = double(n_rows) * share.there_row_s, back_s = double(n_rows) * share.back_row_s,
               device_s = n_rows * share.device_row_s;
  auto const end = [&](LayerShare const& s) { return (std::max)({s.link_s, s.host_s, device_s}); };
  next.link_s += back_s;
  while (next.n_host < rows.size()) {
    std::int32_t const n = rows[next.n_host++];
    next.host_rows += n;
    next.products_s += share.products(n);
    next.link_s -= share.copy_s;
    next.host_s = there_s + next.products_s + back_s;
    if (end(next) < end(best)) best = next;
    if (next.host_s > next.link_s) break;
  }
  return best;
}

std::vector<std::int32_t> expected_rows(std::int32_t n_rows, std::int32_t n_used, std::int32_t n_experts) {
  // Of all uses, those of the first so many experts, the least used.
  auto const uses = [&](std::int32_t n) {
    double const part = double(n) / double(n_experts);
    return 0.5 * (part + 1 - cache_hits(1 - part));
  };
  std::vector<double> part(std::size_t(n_experts), 0.0);
  for (std::int32_t e = 0; e < n_experts; ++e) part[std::size_t(e)] = uses(e + 1) - uses(e);
  std::sort(part.begin(), part.end());
  // From the most used one on: a row uses an expert once, so what is too much for one goes to those behind.
  std::vector<std::int32_t> rows(part.size());
  std::int64_t left = std::int64_t(n_rows) * n_used;
  double parts_left = 1;
  for (std::size_t e = rows.size(); e-- > 0; parts_left -= part[e]) {
    std::int64_t const wanted = e == 0 ? left : std::llround(double(left) * part[e] / parts_left);
    left -= rows[e] = std::int32_t((std::min)(std::int64_t(n_rows), wanted));
  }
  std::sort(rows.begin(), rows.end());
  return rows;
}

LayerShare expected_share(ExpertShare const& share, std::span<std::int32_t const> rows, std::int32_t n_rows, std::int32_t n_missing) {
  n_missing = (std::min)(n_missing, std::int32_t(rows.size()));
  if (!share || n_missing <= 0) return {};
  double const lead_s = share.lead(n_rows), device_s = lead_s + double(n_rows) * share.device_row_s;
  std::int32_t const n_ahead = std::int32_t((std::min)(double(n_missing), lead_s / share.copy_s));
  LayerShare const s = share_experts(share, rows.first(std::size_t(n_missing - n_ahead)), n_rows);
  double const with_s = (std::max)(lead_s + (std::max)(s.link_s, s.host_s), device_s),
               without_s = (std::max)(double(n_missing) * share.copy_s, device_s);
  return with_s <= (1 - least_share_gain) * without_s ? s : LayerShare{};
}

ExpertShare make_expert_share(HardwareProfile const& hardware, ExpertShareCosts const& costs) {
  constexpr double decision_s = 30e-6;  // ids are counted and sorted, windows submitted: assumed, not measured
  ExpertShare s;
  s.copy_s = hardware.h2d.seconds(costs.bytes) / hardware.mutual.h2d_share;
  s.read_s = costs.few_s / hardware.mutual.host_share;
  // Arithmetic, which the link does not slow down; and the output is written, read and added to.
  double const memory_row_s = costs.row_bytes / (hardware.dram_bytes_per_s * hardware.mutual.host_share);
  using C = ExpertShareCosts;
  double const row_s = (std::min)((costs.many_s - costs.some_s) / (C::many_rows - C::some_rows), costs.many_s / C::many_rows);
  s.product_s = costs.many_s - row_s * C::many_rows;
  s.product_row_s = row_s + 3 * memory_row_s;
  s.there_row_s = costs.row_bytes / hardware.d2h.peak_per_s() + memory_row_s;  // the sum is set to 0
  s.back_row_s = costs.row_bytes / (hardware.h2d.peak_per_s() * hardware.mutual.h2d_share);
  s.lead_s = 2 * hardware.hop_latency_s + decision_s;
  s.lead_row_s = costs.attention_row_s + 2 * s.back_row_s;  // sums come while experts do
  s.device_row_s = costs.experts_row_s;
  for (double const seconds :
       {s.copy_s, s.read_s, s.product_s, s.product_row_s, s.there_row_s, s.back_row_s, s.lead_s, s.lead_row_s, s.device_row_s}) {
    if (!std::isfinite(seconds)) return {};
  }
  return s;
}

}  // namespace tiered
