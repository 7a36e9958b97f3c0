/// The kernels of one device as function pointers, by op and weight type. [device-visible]
#pragma once

#include <cstdint>

#include "tiered/core/dtype.hpp"
#include "tiered/kernels/args.hpp"
#include "tiered/kernels/convert_args.hpp"

namespace tiered {

/// An ordered queue of a backend, opaque: a CUDA stream, or a lane of the CPU.
struct Queue {
  void* native = nullptr;
  char const* (*status_text)(int status) = nullptr;  ///< of what its kernels return; null: there is but the number
};

/// Enqueues one op; returns before it is complete. 0, or a status of the backend that its launch() turns into an Error.
template <class Args>
using Kernel = int (*)(Args const&, Queue);

/// How rows meet weights.
struct RowProduct {
  Kernel<MatmulArgs> matmul = nullptr;
  Kernel<MatmulArgs> matmul_add = nullptr;  ///< null: matmul, then add
  DType activation{};                       ///< what MatmulArgs::x is in
  bool fine = false;                        ///< not what ops take that make several products in one go
};

/// A null entry: this device cannot do that; asked when a plan is made, never during a step.
struct KernelTable {
  char const* name = "";                        ///< "avx2", "sm_90": for messages and profiles
  Kernel<EmbedArgs> embed[n_file_dtypes] = {};  ///< by type of the table
  Kernel<MatmulArgs> matmul[n_file_dtypes] = {};
  /// What MatmulArgs::x is in: f32, or a form of activations.
  DType activation[n_file_dtypes] = {};
  Kernel<QuantizeArgs> convert[n_activation_forms] = {};              ///< by activation_form(): what makes it of f32
  Kernel<ConvertNormedArgs> convert_normed[n_activation_forms] = {};  ///< likewise; null: rms_norm, then convert. Same bits either way
  Kernel<ConvertGatedArgs> convert_gated[n_activation_forms] = {};    ///< likewise; null: gated, then convert. Same bits either way
  Kernel<MatmulArgs> matmul_add[n_file_dtypes] = {};                  ///< y += instead of y =; null: matmul, then add
  /// For rows that must keep more bits than `activation` has: the same in a finer form. Null: there is none for the type.
  Kernel<MatmulArgs> fine_matmul[n_file_dtypes] = {};
  Kernel<MatmulArgs> fine_matmul_add[n_file_dtypes] = {};  ///< likewise; null: fine_matmul, then add
  DType fine_activation[n_file_dtypes] = {};
  std::int32_t fine_work = 1;                      ///< of many rows takes about as long as so many `matmul`
  Kernel<MatmulSetArgs> matmul_set = nullptr;      ///< null: one by one. Same bits either way
  Kernel<GatedMatmulArgs> gated_matmul = nullptr;  ///< likewise
  std::int32_t fused_rows = 0;                     ///< up to so many rows fused ops take; 0: there are none
  Kernel<FusedMatmulArgs> fused_matmul = nullptr;  ///< for every type whose matmul is not null. Rows keep 20 bits
                                                   ///< where weights are floats
  std::int32_t fused_dim[n_file_dtypes] = {};      ///< by type of weights: longer rows it does not take; 0: any length
  Kernel<RmsNormArgs> rms_norm = nullptr;
  Kernel<LayerNormArgs> layer_norm = nullptr;
  Kernel<RopeArgs> rope = nullptr;
  Kernel<KvWriteArgs> kv_write[n_file_dtypes] = {};                  ///< by type of keys and values: f16, f32, q8_0
  Kernel<AttentionArgs> attention[n_file_dtypes] = {};               ///< likewise
  Kernel<AttentionInputArgs> attention_input[n_file_dtypes] = {};    ///< likewise; null: norm, rope and kv_write one by one
  Kernel<DecodeAttentionArgs> decode_attention[n_file_dtypes] = {};  ///< likewise; null: attention_input, then attention
  std::int32_t largest_head = 0;                                     ///< elements of a head in all of these; 0: any
  Kernel<MergeAttentionArgs> merge_attention = nullptr;
  Kernel<GatedArgs> gated = nullptr;
  Kernel<ActivateArgs> activate = nullptr;
  Kernel<AddArgs> add = nullptr;
  Kernel<AddTapsArgs> add_taps = nullptr;
  Kernel<GatherArgs> gather = nullptr;
  Kernel<RouteArgs> route = nullptr;
  Kernel<ExpertsArgs> experts = nullptr;  ///< for every mix of types whose matmul is not null
  Kernel<RoutedExpertsArgs> routed_experts =
      nullptr;  ///< null: grouped by who launches `experts`. Without fused_rows, same bits either way
  Kernel<CombineArgs> combine = nullptr;
  Kernel<ExpertWindowArgs> group_slots = nullptr;
  Kernel<ExpertWindowArgs> expert_window = nullptr;  ///< null: experts do not come in windows. Else there is group_slots, too
  Kernel<ArgmaxArgs> argmax = nullptr;
  Kernel<TransferArgs> transfer = nullptr;                                        ///< null: by the copy engine
  Kernel<ReadAheadArgs> read_ahead = nullptr;                                     ///< null: nothing to gain
  Kernel<ReadAheadArgs> read_when_idle = nullptr;                                 ///< likewise
  Kernel<HelpArgs> help = nullptr;                                                ///< null: nothing waits for the host within a launch
  Kernel<RouterAheadArgs> router_ahead = nullptr;                                 ///< with `help`; null: nothing is guessed
  Kernel<HelpAttentionArgs> attention_ask = nullptr, attention_answer = nullptr;  ///< likewise, both or none

  constexpr bool supports(DType weights) const {
    return std::uint32_t(weights) < n_file_dtypes && matmul[std::uint32_t(weights)] != nullptr;
  }
  /// Where supports(weights): the product whose rows keep at least row_bits bits, as far as there is one.
  constexpr RowProduct product(DType weights, std::int32_t row_bits) const {
    std::uint32_t const type = std::uint32_t(weights);
    if (fine_matmul[type] == nullptr || act_bits(activation[type]) >= row_bits) return {matmul[type], matmul_add[type], activation[type]};
    return {fine_matmul[type], fine_matmul_add[type], fine_activation[type], true};
  }
  /// Whether fused_matmul takes n_rows rows of `dim` elements for such weights.
  constexpr bool fuses(DType weights, std::int32_t n_rows, std::int32_t dim) const {
    std::int32_t const longest = fused_dim[std::uint32_t(weights)];
    return n_rows <= fused_rows && (longest == 0 || dim <= longest);
  }
};

}  // namespace tiered
