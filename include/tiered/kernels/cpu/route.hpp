/// The router's choice of experts.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {
namespace detail {

inline constexpr std::int32_t most_experts = 1024;

/// In double, so that experts whose logits differ do not tie.
inline void router_scores(float const* logits, std::int32_t n, Gating gating, double* scores) {
  if (gating == Gating::sigmoid) {
    for (std::int32_t e = 0; e < n; ++e) scores[e] = 1 / (1 + std::exp(-double(logits[e])));
    return;
  }
  double max = -std::numeric_limits<double>::infinity();
  for (std::int32_t e = 0; e < n; ++e) max = std::max(max, std::isnan(logits[e]) ? max : double(logits[e]));
  double sum = 0;
  for (std::int32_t e = 0; e < n; ++e) sum += scores[e] = std::exp(double(logits[e]) - max);
  for (std::int32_t e = 0; e < n; ++e) scores[e] /= sum;
}

inline void route_token(RouteArgs const& a, std::int64_t token) {
  double scores[most_experts];
  router_scores(a.logits + token * a.n_experts, a.n_experts, a.gating, scores);
  auto const key = [&](std::int32_t e) {
    double const sum = a.bias != nullptr ? scores[e] + double(a.bias[e]) : scores[e];
    return std::isnan(sum) ? -std::numeric_limits<double>::infinity() : sum;
  };
  std::int32_t* const ids = a.ids + token * a.n_used;
  for (std::int32_t e = 0, n = 0; e < a.n_experts; ++e) {  // insertion into the best so far, best first
    std::int32_t place = n;
    while (place > 0 && key(e) > key(ids[place - 1])) --place;  // ids come in ascending order, so the lower of equals stays first
    if (place == a.n_used) continue;
    if (n < a.n_used) ++n;
    for (std::int32_t i = n - 1; i > place; --i) ids[i] = ids[i - 1];
    ids[place] = e;
  }
  std::sort(ids, ids + a.n_used);
  double sum = 0;
  for (std::int32_t j = 0; j < a.n_used; ++j) sum += scores[ids[j]];
  for (std::int32_t j = 0; j < a.n_used; ++j) {
    a.weights[token * a.n_used + j] = float(scores[ids[j]] / (a.normalise ? sum : 1) * double(a.scale));
  }
}

}  // namespace detail

inline void route(RouteArgs const& a, Team& team) {
  if (a.n_used < 1 || a.n_used > a.n_experts || a.n_experts > detail::most_experts)
    throw Error(Errc::unsupported, concat("a router that chooses ", a.n_used, " of ", a.n_experts, " experts; 1024 are possible"));
  team.parallel_for(a.n_tokens, row_grain(team, a.n_tokens, std::int64_t(a.n_experts) * 8), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) detail::route_token(a, t);
  });
}

}  // namespace tiered::cpu
