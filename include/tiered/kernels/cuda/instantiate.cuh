/// Defines cuda_kernels(): included by one .cu of a program, beside instantiate_format.cuh in one for each weight format. CMake's target
/// tiered::cuda_kernels is a library of those.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "tiered/kernels/cuda/argmax.cuh"
#include "tiered/kernels/cuda/attention.cuh"
#include "tiered/kernels/cuda/by_format.cuh"
#include "tiered/kernels/cuda/convert.cuh"
#include "tiered/kernels/cuda/convert_normed.cuh"
#include "tiered/kernels/cuda/convert_two.cuh"
#include "tiered/kernels/cuda/elementwise.cuh"
#include "tiered/kernels/cuda/expert_window.cuh"
#include "tiered/kernels/cuda/experts.cuh"
#include "tiered/kernels/cuda/gated_rows.cuh"
#include "tiered/kernels/cuda/help.cuh"
#include "tiered/kernels/cuda/help_attention.cuh"
#include "tiered/kernels/cuda/kv.cuh"
#include "tiered/kernels/cuda/norm.cuh"
#include "tiered/kernels/cuda/queue.hpp"
#include "tiered/kernels/cuda/rope.cuh"
#include "tiered/kernels/cuda/route.cuh"
#include "tiered/kernels/cuda/router_ahead.cuh"
#include "tiered/kernels/cuda/table.hpp"
#include "tiered/kernels/cuda/transfer.cuh"
#include "tiered/kernels/format/format.hpp"

namespace tiered {
namespace cuda::detail {

template <class F>
void add_kv_type(KernelTable& table) {
  constexpr std::uint32_t type = std::uint32_t(F::dtype);
  table.kv_write[type] = &kv_write<F>;
  table.attention[type] = &attention<F>;
  table.attention_input[type] = &attention_input<F>;
  table.decode_attention[type] = &decode_attention<F>;
}

template <DType form>
void add_form(KernelTable& table) {
  table.convert_normed[activation_form(form)] = &convert_normed<form>;
  table.convert_gated[activation_form(form)] = &convert_gated<form>;
}

inline KernelTable make_table() {
  KernelTable table;
  table.name = "cuda";
  for_each_format([&](auto format) {
    using F = decltype(format);
    constexpr std::uint32_t type = std::uint32_t(F::dtype);
    FormatKernels const& kernels = format_kernels<F>();
    table.embed[type] = kernels.embed;
    table.matmul[type] = kernels.matmul;
    table.matmul_add[type] = kernels.matmul_add;
    table.fine_matmul[type] = kernels.fine_matmul;
    table.fine_matmul_add[type] = kernels.fine_matmul_add;
    table.fine_activation[type] = DType::act_f16_two;
    table.activation[type] = kernels.activation;
  });
  table.fine_work = 2;
  table.largest_head = largest_head;
  table.convert[activation_form(DType::act_f16_rows)] = &to_f16_rows;
  table.convert[activation_form(DType::act_bf16_rows)] = &to_bf16_rows;
  table.convert[activation_form(DType::act_f16_two)] = &to_f16_two;
  add_form<DType::act_f16_rows>(table);
  add_form<DType::act_bf16_rows>(table);
  table.fused_rows = fused_rows;
  table.fused_matmul = &fused_matmul_of_any_type;
  table.rms_norm = &rms_norm;
  table.layer_norm = &layer_norm;
  table.rope = &rope;
  add_kv_type<F16>(table);
  add_kv_type<F32>(table);
  add_kv_type<Q8_0>(table);
  table.merge_attention = &merge_attention;
  table.gated = &gated;
  table.activate = static_cast<Kernel<ActivateArgs>>(&activate);
  table.add = &add;
  table.add_taps = &add_taps;
  table.gather = &gather;
  table.route = &route;
  table.experts = &experts;
  table.routed_experts = &routed_experts;
  table.combine = &combine;
  table.group_slots = &group_slots;
  table.expert_window = &expert_window;
  table.argmax = &argmax;
  table.transfer = &transfer;
  table.help = &help;
  table.router_ahead = &router_ahead;
  table.attention_ask = &attention_ask;
  table.attention_answer = &attention_answer;
  return table;
}

}  // namespace cuda::detail

KernelTable const& cuda_kernels() {
  static KernelTable const table = cuda::detail::make_table();
  return table;
}

KernelTable cuda_kernels(int capability) {
  KernelTable table = cuda_kernels();
  // A launch that returns when its kernels have ended would wait for an answer that only its caller can give.
  if (char const* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING"); blocking != nullptr && *blocking != '\0' && *blocking != '0') {
    table.help = nullptr;
    table.attention_ask = table.attention_answer = nullptr;
  }
  for_each_format([&](auto format) {
    using F = decltype(format);
    table.fused_dim[std::uint32_t(F::dtype)] = cuda::format_kernels<F>().longest_few_row(shared_bytes_limit(capability));
  });
  return table;
}

}  // namespace tiered
