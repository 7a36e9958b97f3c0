/// Experts of a mixture: few rows straight from the ids, many rows grouped by expert. [device-visible]
///
/// Which way is taken depends on the number of tokens, on shapes and types alone. Of few rows listed in groups, long sums are
/// cut into more parts the fewer slots are listed: their roundings depend on that, those of rows by ids do not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/by_format.cuh"
#include "tiered/kernels/cuda/convert.cuh"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/few_route.cuh"
#include "tiered/kernels/cuda/few_tuning.hpp"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/gated_rows.cuh"
#include "tiered/kernels/cuda/grouping.cuh"
#include "tiered/kernels/cuda/launch.cuh"
#include "tiered/kernels/cuda/norm.cuh"
#include "tiered/kernels/cuda/route.cuh"

namespace tiered::cuda {
namespace detail {

struct ExpertKernels {
  FormatKernels const *gate, *up, *down;
};
inline ExpertKernels expert_kernels(ExpertsArgs const& a) {
  return {kernels_of(a.gate_type), kernels_of(a.up_type), kernels_of(a.down_type)};
}
inline bool complete(ExpertKernels const& k) { return k.gate != nullptr && k.up != nullptr && k.down != nullptr; }

/// Hidden rows of all slots of the few tokens, whichever are in the list: so they are not in the op's workspace, whose size follows the
/// list.
inline std::size_t few_hidden_bytes(ExpertsArgs const& a) {
  return std::size_t(a.n_tokens) * std::size_t(a.n_used) * std::size_t(a.hidden_dim) * sizeof(float);
}

/// Few tokens, one type of gate and up, and room: for rows in shared memory, for hidden rows in the queue's workspace.
inline bool takes_few(ExpertsArgs const& a, ExpertKernels const& k, CudaQueue const& queue) {
  int const shared_bytes = shared_bytes_limit(queue.capability);
  return a.n_tokens <= fused_rows && a.gate_type == a.up_type && a.dim <= k.gate->longest_few_row(shared_bytes) &&
         a.hidden_dim <= k.down->longest_few_row(shared_bytes) && few_hidden_bytes(a) <= queue.workspace_bytes;
}

/// How ExpertsArgs::workspace is divided where rows are many.
struct ExpertsRoom {
  ExpertGroup* groups;    ///< [n_slots]
  std::int32_t* slots;    ///< [n_slots]
  std::byte* x;           ///< [n_tokens, dim] as the product at hand reads it
  float *gate, *up;       ///< [n_slots, hidden_dim]
  std::byte* h;           ///< [n_slots, hidden_dim] as `down` reads it
  std::size_t bytes = 0;  ///< of all
};

constexpr std::size_t form_bytes(DType form, std::int64_t n_rows, std::int32_t dim) {
  return form == DType::f32 ? 0 : std::size_t(activation_bytes(form, std::uint64_t(n_rows), std::uint64_t(dim)));
}

inline ExpertsRoom experts_room(ExpertsArgs const& a, ExpertKernels const& k) {
  ExpertsRoom room{};
  auto const take = [&](std::size_t n) {
    std::byte* const at = a.workspace + room.bytes;
    room.bytes += round_up(n, std::size_t(256));
    return at;
  };
  std::size_t const n_slots = std::size_t(a.n_slots), hidden = n_slots * std::size_t(a.hidden_dim) * sizeof(float);
  room.groups = reinterpret_cast<ExpertGroup*>(take(n_slots * sizeof(ExpertGroup)));
  room.slots = reinterpret_cast<std::int32_t*>(take(n_slots * sizeof(std::int32_t)));
  room.x = take(max_of(form_bytes(k.gate->activation, a.n_tokens, a.dim), form_bytes(k.up->activation, a.n_tokens, a.dim)));
  room.gate = reinterpret_cast<float*>(take(hidden));
  room.up = reinterpret_cast<float*>(take(hidden));
  room.h = take(form_bytes(k.down->activation, a.n_slots, a.hidden_dim));
  return room;
}

/// Rows of f32 to `form`, at `room`; where the rows then are.
inline int to_form(DType form, QuantizeArgs const& a, Queue queue, void const*& rows) {
  rows = form == DType::f32 ? static_cast<void const*>(a.x) : a.y;
  if (form == DType::f32) return 0;
  return form == DType::act_bf16_rows ? to_bf16_rows(a, queue) : to_f16_rows(a, queue);
}

/// act(gate) * up in `form`; where the rows then are.
inline int hidden_rows(ExpertsArgs const& a, DType form, ExpertsRoom const& room, Queue queue, void const*& rows) {
  rows = form == DType::f32 ? static_cast<void const*>(room.gate) : room.h;
  if (form == DType::f32)
    return gated(GatedArgs{room.gate, room.up, room.gate, std::int64_t(a.n_slots) * a.hidden_dim, a.activation}, queue);
  return gated_rows(GatedRowsArgs{room.gate, room.up, room.h, a.n_slots, a.hidden_dim, a.activation, {}}, form, queue);
}

/// Groups side by side (grouping.cuh), n_groups of them; `x`: the rows.
inline int grouped_experts(ExpertsArgs const& a, ExpertKernels const& k, ExpertsRoom const& room, float const* x, Queue queue) {
  GroupedMatmulArgs product;
  product.groups = a.groups;
  product.slots = a.slots;
  product.n_groups = a.n_groups;
  product.n_slots = a.n_slots;
  product.n_tokens = a.n_tokens;
  product.n_used = a.n_used;
  product.rows = a.hidden_dim;
  product.dim = a.dim;
  product.y_stride = a.hidden_dim;
  QuantizeArgs const rows{x, room.x, a.n_tokens, a.dim};

  product.matrix = ExpertMatrix::gate;
  product.y = room.gate;
  if (int const status = to_form(k.gate->activation, rows, queue, product.x); status != 0) return status;
  if (int const status = k.gate->grouped_matmul(product, queue); status != 0) return status;

  product.matrix = ExpertMatrix::up;
  product.y = room.up;
  if (k.up->activation != k.gate->activation) {
    if (int const status = to_form(k.up->activation, rows, queue, product.x); status != 0) return status;
  }
  if (int const status = k.up->grouped_matmul(product, queue); status != 0) return status;

  if (int const status = hidden_rows(a, k.down->activation, room, queue, product.x); status != 0) return status;

  product.matrix = ExpertMatrix::down;
  product.x_by_place = product.y_by_slot = true;
  product.rows = a.dim;
  product.dim = a.hidden_dim;
  product.y = a.y;
  product.y_stride = a.dim;
  return k.down->grouped_matmul(product, queue);
}

inline FewGateUpArgs few_gate_up_args(ExpertsArgs const& a, SlotList const& list, float* h) {
  FewGateUpArgs few;
  few.list = list;
  few.x = a.x;
  few.h = h;
  few.n_tokens = a.n_tokens;
  few.n_used = a.n_used;
  few.dim = a.dim;
  few.hidden_dim = a.hidden_dim;
  few.activation = a.activation;
  return few;
}

inline FewDownArgs few_down_args(ExpertsArgs const& a, SlotList const& list, float const* h) {
  FewDownArgs few;
  few.list = list;
  few.h = h;
  few.y = a.y;
  few.n_tokens = a.n_tokens;
  few.n_used = a.n_used;
  few.dim = a.dim;
  few.hidden_dim = a.hidden_dim;
  return few;
}

inline int few_routed(RoutedExpertsArgs const& a, ExpertKernels const& k, Queue queue) {
  SlotList list;
  list.ids = a.ids;
  list.weights = a.weights;
  list.n_slots = a.experts.n_slots;
  list.n_experts = a.n_experts;
  auto* const h = reinterpret_cast<float*>(a.experts.workspace);
  FewGateUpArgs gate_up = few_gate_up_args(a.experts, list, h);
  gate_up.norm = a.norm;
  gate_up.norm_weight = a.norm_weight;
  gate_up.eps = a.eps;
  gate_up.route = a.route;
  if (a.route.logits != nullptr && !routes_inside(a.route)) {
    if (int const status = route(a.route, queue); status != 0) return status;
    gate_up.route.logits = nullptr;
  }
  std::int64_t const down_bytes =
      std::int64_t(row_bytes(a.experts.down_type, std::uint64_t(a.experts.hidden_dim))) * std::int64_t(a.experts.dim);
  if (down_bytes % 16 == 0 && down_bytes * list.n_slots <= few_prefetched_bytes) gate_up.down_bytes = down_bytes;
  if (int const status = k.gate->few_gate_up(gate_up, queue); status != 0) return status;
  FewDownArgs down = few_down_args(a.experts, list, h);
  down.slot_weights = a.slot_weights;
  down.sum = a.sum;
  bool const overlaps = overlapped_launches && native(queue).capability >= 90;  // else it would begin no earlier
  if (overlaps && k.gate->down_may_choose(gate_up, queue)) down.route = gate_up.route;
  return k.down->few_down(down, queue);
}

}  // namespace detail

inline int experts(ExpertsArgs const& a, Queue queue) {
  if (a.n_slots == 0 || a.n_groups == 0 || a.n_tokens == 0) return 0;
  detail::ExpertKernels const kernels = detail::expert_kernels(a);
  if (!detail::complete(kernels)) return int(cudaErrorInvalidValue);
  if (detail::takes_few(a, kernels, native(queue))) {
    auto* const h = reinterpret_cast<float*>(native(queue).workspace);
    SlotList list;
    list.groups = a.groups;
    list.slots = a.slots;
    list.n_groups = a.n_groups;
    list.n_slots = a.n_slots;
    if (int const status = kernels.gate->few_gate_up(detail::few_gate_up_args(a, list, h), queue); status != 0) return status;
    return kernels.down->few_down(detail::few_down_args(a, list, h), queue);
  }
  detail::ExpertsRoom const room = detail::experts_room(a, kernels);
  ExpertsArgs dense = a;
  dense.groups = room.groups;
  dense.slots = room.slots;
  dense.n_groups = min_of(a.n_groups, a.n_slots);
  if (int const status = compact_groups({a.groups, a.slots, room.groups, room.slots, a.n_groups, dense.n_groups}, queue); status != 0)
    return status;
  return detail::grouped_experts(dense, kernels, room, a.x, queue);
}

inline int routed_experts(RoutedExpertsArgs const& a, Queue queue) {
  if (a.experts.n_slots == 0) return 0;
  detail::ExpertKernels const kernels = detail::expert_kernels(a.experts);
  if (!detail::complete(kernels) || a.n_experts < 1) return int(cudaErrorInvalidValue);
  if (detail::takes_few(a.experts, kernels, native(queue))) return detail::few_routed(a, kernels, queue);
  if (a.route.logits != nullptr) {
    if (int const status = route(a.route, queue); status != 0) return status;
  }
  float const* x = a.experts.x;
  if (a.norm) {  // few rows that do not go the few rows' way: y is free until `down` writes all of it
    RmsNormArgs const norm{x, a.norm_weight, a.experts.y, a.experts.n_tokens, a.experts.dim, a.eps};
    if (int const status = rms_norm(norm, queue); status != 0) return status;
    x = a.experts.y;
  }
  detail::GroupSlotsArgs lists;
  lists.ids = a.ids, lists.weights = a.weights, lists.groups = a.groups, lists.slots = a.slots;
  lists.n_slots = a.experts.n_slots, lists.n_experts = a.n_experts;
  if (int const status = group_by_expert(lists, queue); status != 0) return status;
  ExpertsArgs grouped = a.experts;
  grouped.groups = a.groups;
  grouped.slots = a.slots;
  grouped.n_groups = a.n_experts;
  if (int const status = detail::grouped_experts(grouped, kernels, detail::experts_room(grouped, kernels), x, queue); status != 0)
    return status;
  if (a.slot_weights == nullptr) return 0;
  return combine_add(CombineArgs{grouped.y, a.slot_weights, a.sum, grouped.n_tokens, grouped.n_used, grouped.dim}, queue);
}

}  // namespace tiered::cuda
