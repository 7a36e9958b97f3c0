/// Mixture of experts, slow and obvious: the router's choice, the experts one slot at a time, the weighted sum.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/reference/elementwise.hpp"
#include "tiered/kernels/reference/matmul.hpp"

namespace tiered::reference {
namespace detail {

inline std::vector<double> router_scores(float const* logits, std::size_t n, Gating gating) {
  std::vector<double> scores(logits, logits + n);
  if (gating == Gating::sigmoid) {
    for (double& s : scores) s = 1 / (1 + std::exp(-s));
    return scores;
  }
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (double s : scores) largest = s > largest ? s : largest;
  for (double& s : scores) sum += s = std::exp(s - largest);
  for (double& s : scores) s /= sum;
  return scores;
}

/// w [rows, dim] of `weights` times one row.
inline std::vector<float> product(void const* w, DType weights, std::int32_t rows, float const* x, std::int32_t dim, ActivationRule rule) {
  std::vector<std::byte> const row = to_activation(x, dim, rule(weights));
  std::vector<float> y(static_cast<std::size_t>(rows));
  matmul(MatmulArgs{w, row.data(), nullptr, y.data(), 1, rows, dim, rows}, weights, rule(weights));
  return y;
}

}  // namespace detail

inline void route(RouteArgs const& a) {
  expects(0 < a.n_used && a.n_used <= a.n_experts, "the router uses at least one expert and at most all");
  std::size_t const n_experts = static_cast<std::size_t>(a.n_experts);
  for (std::int64_t t = 0; t < a.n_tokens; ++t) {
    std::vector<double> const scores = detail::router_scores(a.logits + t * a.n_experts, n_experts, a.gating);
    std::vector<double> keys = scores;
    for (std::size_t e = 0; e < n_experts; ++e) {
      if (a.bias != nullptr) keys[e] += double(a.bias[e]);
      if (std::isnan(keys[e])) keys[e] = -std::numeric_limits<double>::infinity();
    }
    std::vector<std::int32_t> order(n_experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t x, std::int32_t y) { return keys[std::size_t(x)] > keys[std::size_t(y)]; });
    std::sort(order.begin(), order.begin() + a.n_used);
    double sum = 0;
    for (std::int32_t j = 0; j < a.n_used; ++j) sum += scores[std::size_t(order[std::size_t(j)])];
    for (std::int32_t j = 0; j < a.n_used; ++j) {
      std::int32_t const expert = order[std::size_t(j)];
      a.ids[t * a.n_used + j] = expert;
      a.weights[t * a.n_used + j] = float(scores[std::size_t(expert)] / (a.normalise ? sum : 1) * double(a.scale));
    }
  }
}

/// ExpertsArgs; activations are rounded as `rule` says before each product. The workspace is not used.
inline void experts(ExpertsArgs const& a, ActivationRule rule = f32_activation) {
  for (std::int32_t g = 0; g < a.n_groups; ++g) {
    ExpertGroup const& group = a.groups[g];
    for (std::int32_t i = group.first; i < group.first + group.n; ++i) {
      std::int64_t const slot = a.slots[i];
      float const* const x = a.x + slot / a.n_used * a.dim;
      std::vector<float> gate = detail::product(group.gate, a.gate_type, a.hidden_dim, x, a.dim, rule);
      std::vector<float> const up = detail::product(group.up, a.up_type, a.hidden_dim, x, a.dim, rule);
      gated(GatedArgs{gate.data(), up.data(), gate.data(), a.hidden_dim, a.activation});
      std::vector<float> const y = detail::product(group.down, a.down_type, a.dim, gate.data(), a.hidden_dim, rule);
      std::copy(y.begin(), y.end(), a.y + slot * a.dim);
    }
  }
}

inline void combine(CombineArgs const& a) {
  for (std::int64_t t = 0; t < a.n_tokens; ++t) {
    for (std::int64_t k = 0; k < a.dim; ++k) {
      double sum = 0;
      for (std::int64_t j = 0; j < a.n_used; ++j) sum += double(a.weights[t * a.n_used + j]) * double(a.y[(t * a.n_used + j) * a.dim + k]);
      a.out[t * a.dim + k] = float(sum);
    }
  }
}

/// RoutedExpertsArgs, slot by slot; groups, slots, counts and the workspace are not used.
/// Errors  Errc::device for an id that is no expert.
inline void routed_experts(RoutedExpertsArgs const& a, ActivationRule rule = f32_activation) {
  ExpertsArgs const& e = a.experts;
  expects(e.n_slots == e.n_tokens * e.n_used, "routed experts take all slots of their rows");
  if (a.route.logits != nullptr) route(a.route);
  std::vector<float> const x = detail::normed_rows(e.x, a.norm_weight, e.n_tokens, e.dim, a.eps, a.norm);
  auto const is_absent = [&](std::int64_t slot) { return a.absent_slots && (a.ids[slot] == -1 || a.weights[a.ids[slot]].gate == nullptr); };
  for (std::int32_t slot = 0; slot < e.n_slots; ++slot) {
    if (is_absent(slot)) continue;
    if (a.ids[slot] < 0 || a.ids[slot] >= a.n_experts)
      throw Error(Errc::device, concat("layer ", a.layer, ": the router chose expert ", a.ids[slot], " of ", a.n_experts));
    ExpertGroup group = a.weights[a.ids[slot]];
    group.first = 0;
    group.n = 1;
    ExpertsArgs one = e;
    one.x = x.data();
    one.groups = &group;
    one.slots = &slot;
    one.n_groups = one.n_slots = 1;
    experts(one, rule);
  }
  if (a.slot_weights == nullptr) return;
  for (std::int64_t t = 0; t < e.n_tokens; ++t) {
    for (std::int64_t k = 0; k < e.dim; ++k) {
      double sum = double(a.sum[t * e.dim + k]);
      for (std::int64_t slot = t * e.n_used; slot < (t + 1) * e.n_used; ++slot) {
        if (is_absent(slot)) continue;  // whatever its weight: it may be left from another row
        sum += double(a.slot_weights[slot]) * double(e.y[slot * e.dim + k]);
      }
      a.sum[t * e.dim + k] = float(sum);
    }
  }
}

/// ExpertWindowArgs, where the slots are listed; x stays as it is.
/// Errors  Errc::device for an id that is no expert.
inline void group_slots(ExpertWindowArgs const& a) {
  std::int32_t const n_slots = a.experts.n_tokens * a.experts.n_used;
  std::vector<std::int32_t> experts(static_cast<std::size_t>(a.n_experts));  // by rank
  for (std::int32_t e = 0; e < a.n_experts; ++e) experts[std::size_t(a.ranks == nullptr ? e : a.ranks[e])] = e;
  std::int32_t place = 0;
  for (std::int32_t rank = 0; rank < a.n_experts; ++rank) {
    a.begins[rank] = place;
    for (std::int32_t slot = 0; slot < n_slots; ++slot) {
      if (a.ids[slot] != experts[std::size_t(rank)]) continue;
      a.places[slot] = place;
      a.slots[place++] = slot;
    }
  }
  a.begins[a.n_experts] = place;
  if (a.sum != nullptr && a.from_zero) std::fill_n(a.sum, std::int64_t(a.experts.n_tokens) * a.experts.dim, 0.0f);
  for (std::int32_t slot = 0; slot < n_slots; ++slot) {
    if (a.ids[slot] < 0 || a.ids[slot] >= a.n_experts)
      throw Error(Errc::device, concat("layer ", a.layer, ": the router chose expert ", a.ids[slot], " of ", a.n_experts));
  }
}

/// ExpertWindowArgs, slot by slot in order of experts; the workspace is not used.
inline void expert_window(ExpertWindowArgs const& a, ActivationRule rule = f32_activation) {
  std::int32_t const dim = a.experts.dim, n_used = a.experts.n_used;
  std::vector<float> y(static_cast<std::size_t>(dim));
  for (std::int32_t e = a.first_expert; e < a.end_expert; ++e) {
    for (std::int32_t place = a.begins[e]; place < a.begins[e + 1]; ++place) {
      std::int32_t const slot = a.slots[place], token = slot / n_used, at = a.sum == nullptr ? slot : 0;
      ExpertGroup group = a.weights[e];
      group.first = 0;
      group.n = 1;
      ExpertsArgs one = a.experts;
      if (a.sum != nullptr) {
        one.x += std::int64_t(token) * dim;
        one.y = y.data();
      }
      one.groups = &group;
      one.slots = &at;
      one.n_groups = one.n_slots = 1;
      experts(one, rule);
      if (a.sum == nullptr) continue;
      for (std::int64_t k = 0; k < dim; ++k) {
        float& sum = a.sum[std::int64_t(token) * dim + k];
        sum = float(double(sum) + double(a.slot_weights[slot]) * double(y[std::size_t(k)]));
      }
    }
  }
}

}  // namespace tiered::reference
