/// Routed experts whose slots the device groups itself: nobody waits for the router's choice. All at once, or in windows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cpu/experts.hpp"
#include "tiered/kernels/cpu/team.hpp"

namespace tiered::cpu {

/// Where each expert's slots begin, and the slots, by counting: experts ascending, slots of one ascending. begins: n_experts + 1.
/// `ranks`: as in ExpertWindowArgs.
/// Errors  Errc::device for an id that is no expert.
inline void list_slots(std::int32_t const* ids, std::int32_t n_slots, std::int32_t n_experts, std::int32_t layer, std::int32_t* begins,
                       std::int32_t* slots, std::int32_t const* ranks = nullptr) {
  auto const rank = [ranks](std::int32_t id) { return ranks == nullptr ? id : ranks[id]; };
  std::fill_n(begins, n_experts + 1, 0);
  for (std::int32_t i = 0; i < n_slots; ++i) {
    if (ids[i] < 0 || ids[i] >= n_experts)
      throw Error(Errc::device, concat("layer ", layer, ": the router chose expert ", ids[i], " of ", n_experts));
    ++begins[rank(ids[i]) + 1];
  }
  for (std::int32_t e = 0; e < n_experts; ++e) begins[e + 1] += begins[e];
  for (std::int32_t i = 0; i < n_slots; ++i) slots[begins[rank(ids[i])]++] = i;
  std::copy_backward(begins, begins + n_experts, begins + n_experts + 1);  // each had come to where the next one began
  begins[0] = 0;
}

/// Groups of experts that have slots in [places), beginning there; how many.
inline std::int32_t groups_between(ExpertGroup const* weights, std::int32_t const* begins, Range experts, Range places,
                                   ExpertGroup* groups) {
  std::int32_t n_groups = 0;
  for (std::int32_t e = experts.begin; e < experts.end; ++e) {
    std::int32_t const first = std::max(begins[e], places.begin), end = std::min(begins[e + 1], places.end);
    if (first >= end) continue;
    ExpertGroup group = weights[e];
    group.first = first;
    group.n = end - first;
    groups[n_groups++] = group;
  }
  return n_groups;
}

template <ProductTable const* products, class Kernels>
void routed_experts(RoutedExpertsArgs const& a, Team& team) {
  ExpertsArgs experts_args = a.experts;
  list_slots(a.ids, experts_args.n_slots, a.n_experts, a.layer, a.counts, a.slots);
  experts_args.n_groups = groups_between(a.weights, a.counts, {0, a.n_experts}, {0, experts_args.n_slots}, a.groups);
  experts_args.groups = a.groups;
  experts_args.slots = a.slots;
  experts<products, Kernels>(experts_args, team);
}

template <ProductTable const* products>
bool reads_q8(ExpertsArgs const& a) {
  return products->of(a.gate_type).activation == DType::act_q8 || products->of(a.up_type).activation == DType::act_q8;
}

template <ProductTable const* products, class Kernels>
void group_slots(ExpertWindowArgs const& a, Team& team) {
  ExpertsArgs const& e = a.experts;
  std::int32_t const n_slots = e.n_tokens * e.n_used;
  if (n_slots == 0) return;
  list_slots(a.ids, n_slots, a.n_experts, a.layer, a.begins, a.slots, a.ranks);
  if (a.sum != nullptr && a.from_zero) {
    team.parallel_for(e.n_tokens, row_grain(team, e.n_tokens, e.dim),
                      [&](std::int64_t begin, std::int64_t end) { std::fill(a.sum + begin * e.dim, a.sum + end * e.dim, 0.0f); });
  }
  for (std::int32_t place = 0; place < n_slots; ++place) a.places[a.slots[place]] = place;
  if (reads_q8<products>(e)) quantize<typename Kernels::Leaf>({e.x, a.x_rows, e.n_tokens, e.dim}, team);
}

/// y [places, dim]: of those places.
inline void add_places(ExpertWindowArgs const& a, Range places, float const* y, Team& team) {
  std::int32_t const n_used = a.experts.n_used, dim = a.experts.dim;
  team.parallel_for(places.size(), row_grain(team, places.size(), dim), [&](std::int64_t begin, std::int64_t end) {
    for (std::int32_t first = places.begin + std::int32_t(begin); first < places.begin + std::int32_t(end); ++first) {
      std::int32_t const token = a.slots[first] / n_used;
      std::int32_t const* const of_token = a.places + std::int64_t(token) * n_used;
      if (next_place(of_token, n_used, places.begin, first) >= 0) continue;  // added with an earlier one
      float* const sum = a.sum + std::int64_t(token) * dim;
      for (std::int32_t place = first; place >= 0; place = next_place(of_token, n_used, place + 1, places.end)) {
        float const weight = a.slot_weights[a.slots[place]];
        float const* const row = y + std::int64_t(place - places.begin) * dim;
        for (std::int32_t i = 0; i < dim; ++i) sum[i] += weight * row[i];
      }
    }
  });
}

template <ProductTable const* products, class Kernels>
void expert_window(ExpertWindowArgs const& a, Team& team) {
  Range const experts{a.first_expert, a.end_expert};
  if (experts.size() <= 0 || a.experts.n_tokens == 0) return;
  expects(a.experts.n_slots > 0, "a window's piece has slots");
  std::int32_t const end = a.begins[experts.end];
  WindowPiece const piece{reads_q8<products>(a.experts) ? a.x_rows : nullptr, a.sum != nullptr};
  for (std::int32_t first = a.begins[experts.begin]; first < end; first += a.experts.n_slots) {
    Range const places{first, std::min(end, first + a.experts.n_slots)};
    ExpertsArgs one = a.experts;
    auto* const groups = reinterpret_cast<ExpertGroup*>(a.experts.workspace);
    one.n_groups = groups_between(a.weights, a.begins, experts, places, groups);
    one.groups = groups;
    one.slots = a.slots;
    one.n_slots = places.size();
    one.workspace += std::size_t(one.n_groups) * sizeof(ExpertGroup);
    Experts<Kernels> products_of_piece(one, *products, team, &piece);
    products_of_piece.run();
    if (a.sum != nullptr) add_places(a, places, products_of_piece.y(), team);
  }
}

}  // namespace tiered::cpu
