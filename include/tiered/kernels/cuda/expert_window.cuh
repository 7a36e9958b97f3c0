/// Experts of many rows window by window: slots are grouped once, each window's products look at its own alone. [device-visible]
///
/// How many slots a window has is known to the device. So launches are for pieces of as many as the workspace holds, up to the most that
/// there may be; blocks that find nothing to do end at once: of a piece of 8192 slots in 128-token tiles, 70 tiles times rows of weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/experts.cuh"
#include "tiered/kernels/cuda/format_kernels.hpp"
#include "tiered/kernels/cuda/gated_rows.cuh"
#include "tiered/kernels/cuda/grouping.cuh"
#include "tiered/kernels/cuda/launch.cuh"

namespace tiered::cuda {
namespace detail {

/// Whether gate and up read the same rows: then they are made once for all windows.
inline bool one_form(ExpertKernels const& k) { return k.gate->activation == k.up->activation; }

/// How ExpertsArgs::workspace is divided for a piece of n slots.
struct PieceRoom {
  float* gate;        ///< [n, hidden_dim]
  std::byte* h;       ///< [n, hidden_dim] as `down` reads it, but where that is f32: then it is `gate`
  float *up, *y;      ///< [n, hidden_dim]; [n, dim] in the same place: up is not needed any more
  std::size_t bytes;  ///< of all
};

inline PieceRoom piece_room(ExpertsArgs const& a, ExpertKernels const& k, std::int32_t n) {
  PieceRoom room{};
  auto const take = [&](std::size_t bytes) {
    std::byte* const at = a.workspace + room.bytes;
    room.bytes += round_up(bytes, std::size_t(256));
    return at;
  };
  std::size_t const hidden = std::size_t(n) * std::size_t(a.hidden_dim) * sizeof(float),
                    row = std::size_t(n) * std::size_t(a.dim) * sizeof(float);
  room.gate = reinterpret_cast<float*>(take(hidden));
  room.h = take(form_bytes(k.down->activation, n, a.hidden_dim));
  room.up = room.y = reinterpret_cast<float*>(take(max_of(hidden, row)));
  return room;
}

/// Adds the outputs of a piece to the rows of its slots.
struct AddPlacesArgs {
  PlacePiece piece;
  std::int32_t const *slots = nullptr, *places = nullptr;
  float const *y = nullptr, *slot_weights = nullptr;  ///< y [places of the piece, dim]
  float* sum = nullptr;
  std::int32_t n_used = 0, dim = 0;
};

/// A block takes the first of a row's places in the piece, and with it all others, in ascending order: nobody else writes the row.
template <class V>
__global__ void __launch_bounds__(element_threads) add_places_kernel(AddPlacesArgs const a) {
  wait_for_previous();
  let_next_start();
  int const begin = a.piece.begin(), end = a.piece.end(), dim = a.dim / int(sizeof(V) / sizeof(float));
  for (int first = begin + int(blockIdx.x); first < end; first += int(gridDim.x)) {
    int const token = a.slots[first] / a.n_used;
    std::int32_t const* const of_token = a.places + std::int64_t(token) * a.n_used;
    if (next_place(of_token, a.n_used, begin, first) >= 0) continue;
    V* const sum = reinterpret_cast<V*>(a.sum) + std::int64_t(token) * dim;
    for (int k = int(threadIdx.x); k < dim; k += element_threads) {
      V total = sum[k];
      for (int place = first; place >= 0; place = next_place(of_token, a.n_used, place + 1, end))
        total = multiply_add(a.slot_weights[a.slots[place]], reinterpret_cast<V const*>(a.y)[std::int64_t(place - begin) * dim + k], total);
      sum[k] = total;
    }
  }
}

inline int add_places(AddPlacesArgs const& a, Queue queue) {
  constexpr int blocks_per_multiprocessor = 8;
  CudaQueue const& q = native(queue);
  int const blocks = min_of(a.piece.most, (q.n_multiprocessors > 0 ? q.n_multiprocessors : 64) * blocks_per_multiprocessor);
  return launch_kernel(all_in_fours(a.dim, a.y, a.sum) ? &add_places_kernel<float4> : &add_places_kernel<float>, unsigned(blocks),
                       element_threads, 0, q, a);
}

/// x as products with `weights` of that form read it: what group_slots made, or made anew where gate and up read different forms.
inline int window_rows(ExpertWindowArgs const& a, DType form, bool anew, Queue queue, void const*& rows) {
  rows = form == DType::f32 ? static_cast<void const*>(a.experts.x) : a.x_rows;
  return anew ? to_form(form, QuantizeArgs{a.experts.x, a.x_rows, a.experts.n_tokens, a.experts.dim}, queue, rows) : 0;
}

inline int gate_and_up(ExpertWindowArgs const& a, ExpertKernels const& k, PieceRoom const& room, GroupedMatmulArgs product, Queue queue) {
  product.rows = a.experts.hidden_dim;
  product.dim = a.experts.dim;
  product.y_stride = a.experts.hidden_dim;
  product.matrix = ExpertMatrix::gate;
  product.y = room.gate;
  bool const at_once = a.experts.gate_type == a.experts.up_type;
  if (at_once) product.y_up = room.up;
  if (int const status = window_rows(a, k.gate->activation, !one_form(k), queue, product.x); status != 0) return status;
  if (int const status = k.gate->grouped_matmul(product, queue); status != 0 || at_once) return status;
  product.matrix = ExpertMatrix::up;
  product.y = room.up;
  if (int const status = window_rows(a, k.up->activation, !one_form(k), queue, product.x); status != 0) return status;
  return k.up->grouped_matmul(product, queue);
}

/// Places [first, first + most) of the window, counted from its first.
inline int window_piece(ExpertWindowArgs const& a, ExpertKernels const& k, std::int32_t first, std::int32_t most, Queue queue) {
  ExpertsArgs const& e = a.experts;
  PieceRoom const room = piece_room(e, k, most);
  GroupedMatmulArgs product;
  product.groups = a.weights + a.first_expert;
  product.slots = a.slots;
  product.n_groups = a.end_expert - a.first_expert;
  product.n_slots = most;
  product.n_tokens = e.n_tokens;
  product.n_used = e.n_used;
  product.piece = {a.begins + a.first_expert, product.n_groups, first, most};
  product.mean_slots = double(e.n_tokens) * e.n_used / a.n_experts;
  if (int const status = gate_and_up(a, k, room, product, queue); status != 0) return status;

  GatedRowsArgs const rows{room.gate, room.up, room.h, most, e.hidden_dim, e.activation, product.piece};
  bool const in_place = k.down->activation == DType::f32;
  GatedArgs const floats{room.gate, room.up, room.gate, std::int64_t(most) * e.hidden_dim, e.activation};  // of no place: of no use
  if (int const status = in_place ? gated(floats, queue) : gated_rows(rows, k.down->activation, queue); status != 0) return status;

  product.x = in_place ? static_cast<void const*>(room.gate) : room.h;
  product.matrix = ExpertMatrix::down;
  product.x_by_place = true;
  product.y_by_slot = a.sum == nullptr;
  product.y = product.y_by_slot ? e.y : room.y;
  product.rows = e.dim;
  product.dim = e.hidden_dim;
  product.y_stride = e.dim;
  if (int const status = k.down->grouped_matmul(product, queue); status != 0 || product.y_by_slot) return status;
  return add_places({product.piece, a.slots, a.places, room.y, a.slot_weights, a.sum, e.n_used, e.dim}, queue);
}

}  // namespace detail

inline int group_slots(ExpertWindowArgs const& a, Queue queue) {
  if (a.experts.n_tokens == 0 || a.n_experts < 1) return 0;
  detail::ExpertKernels const kernels = detail::expert_kernels(a.experts);
  if (!detail::complete(kernels)) return int(cudaErrorInvalidValue);
  detail::GroupSlotsArgs lists;
  lists.ids = a.ids, lists.ranks = a.ranks, lists.begins = a.begins, lists.slots = a.slots, lists.places = a.places;
  lists.n_slots = a.experts.n_tokens * a.experts.n_used, lists.n_experts = a.n_experts;
  if (int const status = group_by_expert(lists, queue); status != 0) return status;
  if (a.sum != nullptr && a.from_zero) {
    std::size_t const bytes = std::size_t(a.experts.n_tokens) * std::size_t(a.experts.dim) * sizeof(float);
    if (cudaError_t const status = cudaMemsetAsync(a.sum, 0, bytes, native(queue).stream); status != cudaSuccess) return int(status);
  }
  void const* rows = nullptr;
  return detail::window_rows(a, kernels.gate->activation, detail::one_form(kernels), queue, rows);
}

inline int expert_window(ExpertWindowArgs const& a, Queue queue) {
  std::int64_t const n_tokens = a.experts.n_tokens, n_groups = a.end_expert - a.first_expert;
  if (n_tokens == 0 || n_groups <= 0) return 0;
  detail::ExpertKernels const kernels = detail::expert_kernels(a.experts);
  if (!detail::complete(kernels) || a.experts.n_slots < 1) return int(cudaErrorInvalidValue);
  std::int64_t const most = n_tokens * min_of(n_groups, std::int64_t(a.experts.n_used));  // an expert has a token's slot once
  for (std::int64_t first = 0; first < most; first += a.experts.n_slots) {
    std::int32_t const n = std::int32_t(min_of(most - first, std::int64_t(a.experts.n_slots)));
    if (int const status = detail::window_piece(a, kernels, std::int32_t(first), n, queue); status != 0) return status;
  }
  return 0;
}

}  // namespace tiered::cuda
