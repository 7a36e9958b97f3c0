/// What one translation unit of the CUDA kernels defines: everything that depends on one weight format. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/kernels/args.hpp"
#include "tiered/kernels/table.hpp"

namespace tiered::cuda {

/// Slots of routed experts: slot = token * n_used + place. Either by the router's ids, slot by slot, or by groups of a list.
struct SlotList {
  std::int32_t const* ids = nullptr;     ///< [n_slots], with `weights`
  ExpertGroup const* weights = nullptr;  ///< [n_experts]; a slot whose id is none of them is left out
  ExpertGroup const* groups = nullptr;   ///< [n_groups], with `slots`; null: by ids
  std::int32_t const* slots = nullptr;
  std::int32_t n_groups = 0;
  std::int32_t n_slots = 0, n_experts = 0;
};

/// Which matrix of an expert.
enum class ExpertMatrix : std::uint8_t { gate, up, down };

/// First half of experts for few slots: h[slot, r] = act(gate x') * (up x'), x' as in FusedMatmulArgs, row slot / n_used of x.
struct FewGateUpArgs {
  SlotList list;
  float const* x = nullptr;  ///< [n_tokens, dim]
  float const* norm_weight = nullptr;
  float* h = nullptr;  ///< [n_tokens * n_used, hidden_dim]
  std::int32_t n_tokens = 0, n_used = 0, dim = 0, hidden_dim = 0;
  float eps = 0;
  bool norm = false;
  Activation activation = Activation::silu;
  std::int64_t down_bytes = 0;  ///< of an expert's `down`, a multiple of 16, where it is to be in L2 afterwards; else 0
  RouteArgs route;              ///< with logits: ids are chosen here, and written where `route` says: list.ids. routes_inside() only
};

/// Second half: y[slot, :] = down h[slot]; or, by ids only, sum[t, :] += sum over j of slot_weights[t, j] * down h[t * n_used + j].
struct FewDownArgs {
  SlotList list;
  float const* h = nullptr;             ///< [n_tokens * n_used, hidden_dim]
  float const* slot_weights = nullptr;  ///< [n_tokens, n_used] or null: y
  float* y = nullptr;                   ///< [n_tokens * n_used, dim]
  float* sum = nullptr;                 ///< [n_tokens, dim]
  std::int32_t n_tokens = 0, n_used = 0, dim = 0, hidden_dim = 0;
  RouteArgs route;  ///< with logits: those of the FewGateUpArgs right before, which list.ids are from, where down_may_choose(). What does
                    ///< not wait for the latter is begun beside it: its logits, `weights` and matrices are complete before it
};

/// Some of a window's places, which follow each other in the list of all slots; how many there are is known to the device alone.
struct PlacePiece {
  std::int32_t const* begins = nullptr;  ///< [n_groups + 1] in VRAM: where the slots of the window's experts begin; null: no piece
  std::int32_t n_groups = 0;
  std::int32_t first = 0, most = 0;  ///< counted from the window's first place; places that the window does not have are left out

  TIERED_HD std::int32_t begin() const { return begins[0] + first; }
  /// Not above begin() where there are none.
  TIERED_HD std::int32_t end() const { return begins[n_groups] - begin() < most ? begins[n_groups] : begin() + most; }
};

/// Products of many rows, grouped by expert: y[i, r] = sum_k x[row(i), k] * w_e[r, k] for every i of the list, e its expert.
struct GroupedMatmulArgs {
  ExpertGroup const* groups = nullptr;  ///< [n_groups] in VRAM, ranges of the list; some may be empty
  std::int32_t const* slots = nullptr;  ///< [n_slots] in VRAM
  void const* x = nullptr;  ///< as KernelTable::activation says for the type: [n_tokens, dim] with row(i) = slots[i] / n_used, or
                            ///< [n_slots, dim] by place in the list (x_by_place): row(i) = i
  float* y = nullptr;       ///< [n_slots, rows] by place in the list, or [n_tokens * n_used, rows] by slot (y_by_slot): row slots[i]
  std::int64_t y_stride = 0;
  std::int32_t n_groups = 0, n_slots = 0, n_tokens = 0, n_used = 0, rows = 0, dim = 0;
  ExpertMatrix matrix = ExpertMatrix::gate;
  bool x_by_place = false, y_by_slot = false;
  float* y_up = nullptr;  ///< of `gate`, and up has the same format: that product's y
  PlacePiece piece;  ///< with begins: groups [piece.n_groups] say where matrices are and nothing else; places count from piece.begin(),
                     ///< and n_slots is piece.most
  double mean_slots = 0;  ///< of a group, to choose tiles by; 0: n_slots / n_groups
};

/// Entries as in KernelTable: enqueue, return 0 or a cudaError_t. Made by instantiate_format.cuh.
struct FormatKernels {
  Kernel<EmbedArgs> embed = nullptr;
  Kernel<MatmulArgs> matmul = nullptr;           ///< any number of tokens; x in `activation`
  Kernel<MatmulArgs> matmul_add = nullptr;       ///< likewise
  Kernel<MatmulArgs> fine_matmul = nullptr;      ///< likewise, x in act_f16_two; null: not for this format
  Kernel<MatmulArgs> fine_matmul_add = nullptr;  ///< likewise
  DType activation{};
  /// parts[begin, end) of the args, all of this format.
  int (*fused_matmul)(FusedMatmulArgs const&, Range parts, Queue) = nullptr;
  Kernel<FewGateUpArgs> few_gate_up = nullptr;  ///< both matrices of this format
  Kernel<FewDownArgs> few_down = nullptr;
  /// Whether the FewDownArgs that follow may have the same route.
  bool (*down_may_choose)(FewGateUpArgs const&, Queue) = nullptr;
  Kernel<GroupedMatmulArgs> grouped_matmul = nullptr;
  /// The longest rows that fused_matmul and few_* take, in elements, where a block can have so many bytes of shared memory; a multiple of
  /// 32. Longer rows are taken where a kernel finds room all the same; else they return cudaErrorInvalidConfiguration.
  std::int32_t (*longest_few_row)(int shared_bytes) = nullptr;
};

/// Up to so many rows go through fused_matmul and few_*.
inline constexpr std::int32_t fused_rows = 16;
/// Of a router.
inline constexpr std::int32_t most_experts = 1024;

/// Declared for every format of WeightFormats, each defined by a translation unit of its own.
template <class F>
FormatKernels const& format_kernels();

}  // namespace tiered::cuda
