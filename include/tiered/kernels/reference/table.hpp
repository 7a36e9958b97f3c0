/// The reference kernels as a table, so that a whole model can run on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "tiered/kernels/format/format.hpp"
#include "tiered/kernels/reference/argmax.hpp"
#include "tiered/kernels/reference/attention.hpp"
#include "tiered/kernels/reference/elementwise.hpp"
#include "tiered/kernels/reference/embed.hpp"
#include "tiered/kernels/reference/matmul.hpp"
#include "tiered/kernels/reference/moe.hpp"
#include "tiered/kernels/reference/norm.hpp"
#include "tiered/kernels/reference/quantize.hpp"
#include "tiered/kernels/reference/rope.hpp"
#include "tiered/kernels/table.hpp"

namespace tiered::reference {
namespace detail {

template <class Args, void (*op)(Args const&)>
int entry(Args const& args, Queue) {
  op(args);
  return 0;
}

template <ActivationRule rule>
void add_fused(KernelTable& table, std::int32_t fused_rows) {
  table.fused_rows = fused_rows;
  table.fused_matmul = [](FusedMatmulArgs const& a, Queue) { return fused_matmul(a, rule), 0; };
  table.attention_input[std::size_t(DType::f16)] = [](AttentionInputArgs const& a, Queue) { return attention_input(a, DType::f16), 0; };
  table.attention_input[std::size_t(DType::f32)] = [](AttentionInputArgs const& a, Queue) { return attention_input(a, DType::f32), 0; };
  table.attention_input[std::size_t(DType::q8_0)] = [](AttentionInputArgs const& a, Queue) { return attention_input(a, DType::q8_0), 0; };
  table.decode_attention[std::size_t(DType::f16)] = [](DecodeAttentionArgs const& a, Queue) { return decode_attention(a, DType::f16), 0; };
  table.decode_attention[std::size_t(DType::f32)] = [](DecodeAttentionArgs const& a, Queue) { return decode_attention(a, DType::f32), 0; };
  table.decode_attention[std::size_t(DType::q8_0)] = [](DecodeAttentionArgs const& a, Queue) {
    return decode_attention(a, DType::q8_0), 0;
  };
  table.routed_experts = [](RoutedExpertsArgs const& a, Queue) { return routed_experts(a, rule), 0; };
  table.transfer = entry<TransferArgs, transfer>;
}

/// The form in two parts that one in a part of 16 bits has; else f32, which needs none.
constexpr DType two_parts_of(DType form) {
  return form == DType::act_f16_rows ? DType::act_f16_two : form == DType::act_bf16 ? DType::act_bf16_two : DType::f32;
}

/// Binary16 times rows in two parts, where those in one part are what `rule` says.
template <ActivationRule rule>
void add_fine(KernelTable& table) {
  constexpr DType two = two_parts_of(rule(DType::f16));
  if constexpr (two != DType::f32) {
    auto const i = std::size_t(DType::f16);
    table.fine_matmul[i] = [](MatmulArgs const& a, Queue) { return matmul(a, DType::f16, two), 0; };
    table.fine_activation[i] = two;
    table.fine_work = 2;
  }
}

template <DType... forms>
void add_convert(KernelTable& table) {
  ((table.convert[activation_form(forms)] = [](QuantizeArgs const& a, Queue) { return quantize(a, forms), 0; }), ...);
}

/// Conversions that begin one op earlier, and products that add.
template <ActivationRule rule>
void add_conversions(KernelTable& table) {
  for_each_format([&](auto format) {
    constexpr DType weights = decltype(format)::dtype;
    table.matmul_add[std::size_t(weights)] = [](MatmulArgs const& a, Queue) { return matmul_add(a, weights, rule(weights)), 0; };
  });
  constexpr DType two = two_parts_of(rule(DType::f16));
  if constexpr (two != DType::f32) {
    table.fine_matmul_add[std::size_t(DType::f16)] = [](MatmulArgs const& a, Queue) { return matmul_add(a, DType::f16, two), 0; };
  }
  auto const add_form = [&](auto form) {
    constexpr DType type = decltype(form)::value;
    table.convert_normed[activation_form(type)] = [](ConvertNormedArgs const& a, Queue) { return convert_normed(a, type), 0; };
    table.convert_gated[activation_form(type)] = [](ConvertGatedArgs const& a, Queue) { return convert_gated(a, type), 0; };
  };
  add_form(std::integral_constant<DType, DType::act_q8>{});
  add_form(std::integral_constant<DType, DType::act_bf16>{});
  add_form(std::integral_constant<DType, DType::act_f16_rows>{});
}

/// `fused_rows`: of the fused ops; 0: without them.
template <ActivationRule rule>
KernelTable make_table(char const* name, std::int32_t fused_rows = 0) {
  KernelTable table;
  table.name = name;
  for_each_format([&](auto format) {
    constexpr DType weights = decltype(format)::dtype;
    auto const i = std::size_t(weights);
    table.embed[i] = [](EmbedArgs const& a, Queue) { return embed(a, weights), 0; };
    table.matmul[i] = [](MatmulArgs const& a, Queue) { return matmul(a, weights, rule(weights)), 0; };
    table.activation[i] = rule(weights);
  });
  add_convert<DType::act_q8, DType::act_bf16, DType::act_f16_rows, DType::act_bf16_rows, DType::act_f16_two, DType::act_bf16_two>(table);
  add_fine<rule>(table);
  table.rms_norm = entry<RmsNormArgs, rms_norm>;
  table.layer_norm = entry<LayerNormArgs, layer_norm>;
  table.rope = entry<RopeArgs, rope>;
  auto const add_kv_type = [&](auto format) {
    constexpr DType kv = decltype(format)::dtype;
    table.kv_write[std::size_t(kv)] = [](KvWriteArgs const& a, Queue) { return kv_write(a, kv), 0; };
    table.attention[std::size_t(kv)] = [](AttentionArgs const& a, Queue) { return attention(a, kv), 0; };
  };
  add_kv_type(F16{});
  add_kv_type(F32{});
  add_kv_type(Q8_0{});
  table.merge_attention = entry<MergeAttentionArgs, merge_attention>;
  table.gated = entry<GatedArgs, gated>;
  table.activate = entry<ActivateArgs, activate>;
  table.add = entry<AddArgs, add>;
  table.add_taps = entry<AddTapsArgs, add_taps>;
  table.gather = entry<GatherArgs, gather>;
  table.route = entry<RouteArgs, route>;
  table.experts = [](ExpertsArgs const& a, Queue) { return experts(a, rule), 0; };
  table.combine = entry<CombineArgs, combine>;
  table.group_slots = entry<ExpertWindowArgs, group_slots>;
  table.expert_window = [](ExpertWindowArgs const& a, Queue) { return expert_window(a, rule), 0; };
  table.argmax = entry<ArgmaxArgs, argmax>;
  if (fused_rows > 0) add_fused<rule>(table, fused_rows);
  return table;
}

}  // namespace detail

/// Entries work at once on the calling thread, whatever the queue: for a backend without lanes, or called directly.
/// Activations stay f32.
inline KernelTable const& kernels() {
  static KernelTable const table = detail::make_table<f32_activation>("reference");
  return table;
}

/// The same with 8-bit activations for quantised weights, as fast backends take them.
inline KernelTable const& kernels_q8() {
  static KernelTable const table = detail::make_table<quantized_activation>("reference_q8");
  return table;
}

/// The same with bfloat16 activations, and weights rounded to bfloat16, as matrix units take them.
inline KernelTable const& kernels_bf16() {
  static KernelTable const table = detail::make_table<panel_activation>("reference_bf16");
  return table;
}

/// The same with rows in halves, as other matrix units take them; weights in blocks are not rounded to halves here.
inline KernelTable const& kernels_half() {
  static KernelTable const table = [] {
    KernelTable half = detail::make_table<half_activation>("reference_half");
    detail::add_conversions<half_activation>(half);
    return half;
  }();
  return table;
}

/// kernels_bf16() with conversions that begin one op earlier and products that add, as devices have them that are bound by memory between
/// products. The same bits.
inline KernelTable const& kernels_converting() {
  static KernelTable const table = [] {
    KernelTable converting = detail::make_table<panel_activation>("reference_converting");
    detail::add_conversions<panel_activation>(converting);
    return converting;
  }();
  return table;
}

/// kernels() and the fused ops, as devices have them whose launches cost more than the bytes between them.
inline KernelTable const& kernels_fused() {
  static KernelTable const table = detail::make_table<f32_activation>("reference_fused", 16);
  return table;
}

}  // namespace tiered::reference
