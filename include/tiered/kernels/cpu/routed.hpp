/// Routed experts whose grouping is part of the op: nobody waits for the router's choice.
#pragma once

#include <cstdint>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/experts.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

/// Lists the slots of every expert that was chosen, by counting: experts ascending, slots of one ascending. How many groups; `n_taken`:
/// how many slots they have.
/// Errors  Errc::device for an id that is no expert.
inline std::int32_t group_by_expert(RoutedExpertsArgs const& a, std::int32_t& n_taken) {
  std::int32_t const n_slots = a.experts.n_slots;
  for (std::int32_t e = 0; e <= a.n_experts; ++e) a.counts[e] = 0;
  for (std::int32_t i = 0; i < n_slots; ++i) {
    if (a.ids[i] < 0 || a.ids[i] >= a.n_experts)
      throw Error(Errc::device, concat("layer ", a.layer, ": the router chose expert ", a.ids[i], " of ", a.n_experts));
    ++a.counts[a.ids[i] + 1];
  }
  std::int32_t n_groups = 0;
  n_taken = 0;
  for (std::int32_t e = 0; e < a.n_experts; ++e) {
    std::int32_t const n = a.counts[e + 1], first = a.counts[e];
    a.counts[e + 1] += first;
    if (n == 0 || e < a.first_expert || e >= a.end_expert) continue;
    n_taken += n;
    ExpertGroup group = a.weights[e];
    group.first = first;
    group.n = n;
    a.groups[n_groups++] = group;
  }
  for (std::int32_t i = 0; i < n_slots; ++i) a.slots[a.counts[a.ids[i]]++] = i;
  return n_groups;
}

template <ProductTable const* products, class Kernels>
void routed_experts(RoutedExpertsArgs const& a, Team& team) {
  ExpertsArgs experts_args = a.experts;
  experts_args.n_groups = group_by_expert(a, experts_args.n_slots);
  experts_args.groups = a.groups;
  experts_args.slots = a.slots;
  experts<products, Kernels>(experts_args, team);
}

}  // namespace tiered::cpu
