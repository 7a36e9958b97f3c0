/// Puts the kernels of one instruction set together to a table.
#pragma once

#include <cstdint>

#include "tiered/kernels/cpu/argmax.hpp"
#include "tiered/kernels/cpu/attention.hpp"
#include "tiered/kernels/cpu/elementwise.hpp"
#include "tiered/kernels/cpu/embed.hpp"
#include "tiered/kernels/cpu/experts.hpp"
#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/matmul_f32.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/queue.hpp"
#include "tiered/kernels/cpu/read_ahead.hpp"
#include "tiered/kernels/cpu/rope.hpp"
#include "tiered/kernels/cpu/route.hpp"
#include "tiered/kernels/cpu/routed.hpp"
#include "tiered/kernels/format/format.hpp"
#include "tiered/kernels/table.hpp"

namespace tiered::cpu {

/// What an instruction set is: a struct `Kernels` with
///   name                     as in KernelTable
///   Leaf                     the innermost loops, see leaf_baseline.hpp
///   AttentionLeaf            those of attention, see attention_baseline.hpp
///   product<F>()             the ProductKernel for weights of format F
///   f32_product<F>()         the same on f32 activations, for comparisons
///   make_panels, pack        where a product reads act_bf16: the op that makes it, and its part for rows that lie anywhere
///   make_two_panels          where one reads act_bf16_two: the op that makes it
///   fine_product<F>(), has_fine_product<F>, fine_work  where some round rows more than they must: KernelTable::fine_matmul
template <class Kernels, bool f32_activations>
constexpr ProductTable make_products() {
  ProductTable products;
  for_each_format([&](auto format) {
    using F = decltype(format);
    ProductKernel& kernel = products.kernels[std::uint32_t(F::dtype)];
    if constexpr (f32_activations) {
      kernel = Kernels::template f32_product<F>();
    } else {
      kernel = Kernels::template product<F>();
    }
  });
  return products;
}

template <class Kernels>
concept has_fine_products = requires {
  Kernels::fine_work;
};

template <class Kernels>
constexpr ProductTable make_fine_products() {
  ProductTable products;
  for_each_format([&](auto format) {
    using F = decltype(format);
    if constexpr (Kernels::template has_fine_product<F>) products.kernels[std::uint32_t(F::dtype)] = Kernels::template fine_product<F>();
  });
  return products;
}
template <class Kernels>
inline constexpr ProductTable fine_products_of = make_fine_products<Kernels>();

template <class Kernels>
constexpr void add_fine_products(KernelTable& table) {
  constexpr ProductTable const* products = &fine_products_of<Kernels>;
  for_each_format([&](auto format) {
    using F = decltype(format);
    if constexpr (Kernels::template has_fine_product<F>) {
      table.fine_matmul[std::uint32_t(F::dtype)] = &enqueue<MatmulArgs, &matmul<products, F::dtype>>;
      table.fine_activation[std::uint32_t(F::dtype)] = products->kernels[std::uint32_t(F::dtype)].activation;
    }
  });
  table.fine_work = Kernels::fine_work;
  if constexpr (requires(QuantizeArgs const& args, Team& team) { Kernels::make_two_panels(args, team); })
    table.convert[activation_form(DType::act_bf16_two)] = &enqueue<QuantizeArgs, &Kernels::make_two_panels>;
}

template <class Kernels, bool f32_activations>
inline constexpr ProductTable products_of = make_products<Kernels, f32_activations>();

template <class Kernels, bool f32_activations>
constexpr KernelTable make_kernel_table() {
  using Leaf = typename Kernels::Leaf;
  constexpr ProductTable const* products = &products_of<Kernels, f32_activations>;
  KernelTable table;
  table.name = Kernels::name;
  for_each_format([&](auto format) {
    using F = decltype(format);
    constexpr std::uint32_t type = std::uint32_t(F::dtype);
    table.embed[type] = &enqueue<EmbedArgs, &embed<F, Leaf>>;
    table.matmul[type] = &enqueue<MatmulArgs, &matmul<products, F::dtype>>;
    table.activation[type] = products->kernels[type].activation;
  });
  table.convert[activation_form(DType::act_q8)] = &enqueue<QuantizeArgs, &quantize<Leaf>>;
  if constexpr (has_panels<Kernels>) table.convert[activation_form(DType::act_bf16)] = &enqueue<QuantizeArgs, &Kernels::make_panels>;
  if constexpr (!f32_activations && has_fine_products<Kernels>) add_fine_products<Kernels>(table);
  table.matmul_set = &enqueue<MatmulSetArgs, &matmul_set<products>>;
  table.gated_matmul = &enqueue<GatedMatmulArgs, &gated_matmul<products, Leaf>>;
  table.rms_norm = &enqueue<RmsNormArgs, &rms_norm<Leaf>>;
  table.layer_norm = &enqueue<LayerNormArgs, &layer_norm<Leaf>>;
  table.rope = &enqueue<RopeArgs, &rope>;
  for_each_kv_type([&](auto format) {
    using F = decltype(format);
    table.kv_write[std::uint32_t(F::dtype)] = &enqueue<KvWriteArgs, &kv_write<typename Kernels::AttentionLeaf, F>>;
    table.attention[std::uint32_t(F::dtype)] = &enqueue<AttentionArgs, &attention<typename Kernels::AttentionLeaf, F>>;
  });
  table.merge_attention = &enqueue<MergeAttentionArgs, &merge_attention>;
  table.gated = &enqueue<GatedArgs, &gated<Leaf>>;
  table.activate = &enqueue<ActivateArgs, &activate<Leaf>>;
  table.add = &enqueue<AddArgs, &add<Leaf>>;
  table.add_taps = &enqueue<AddTapsArgs, &add_taps<Leaf>>;
  table.gather = &enqueue<GatherArgs, &gather>;
  table.route = &enqueue<RouteArgs, &route>;
  table.experts = &enqueue<ExpertsArgs, &experts<products, Kernels>>;
  table.routed_experts = &enqueue<RoutedExpertsArgs, &routed_experts<products, Kernels>>;
  table.combine = &enqueue<CombineArgs, &combine>;
  table.group_slots = &enqueue<ExpertWindowArgs, &group_slots<products, Kernels>>;
  table.expert_window = &enqueue<ExpertWindowArgs, &expert_window<products, Kernels>>;
  table.read_ahead = &enqueue<ReadAheadArgs, &read_ahead>;
  table.read_when_idle = &enqueue<ReadAheadArgs, &read_when_idle>;
  table.argmax = &enqueue<ArgmaxArgs, &argmax>;
  return table;
}

template <class Kernels, bool f32_activations>
inline constexpr KernelTable kernel_table_of = make_kernel_table<Kernels, f32_activations>();

/// Specialised where the machine has a say.
template <class Kernels>
KernelTable const& kernel_table(bool f32_activations) {
  return f32_activations ? kernel_table_of<Kernels, true> : kernel_table_of<Kernels, false>;
}

}  // namespace tiered::cpu
