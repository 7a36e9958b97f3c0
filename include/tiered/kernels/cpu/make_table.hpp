/// Puts the kernels of one instruction set together to a table.
#pragma once

#include <cstdint>

#include "tiered/kernels/cpu/attention.hpp"
#include "tiered/kernels/cpu/elementwise.hpp"
#include "tiered/kernels/cpu/embed.hpp"
#include "tiered/kernels/cpu/experts.hpp"
#include "tiered/kernels/cpu/matmul.hpp"
#include "tiered/kernels/cpu/matmul_f32.hpp"
#include "tiered/kernels/cpu/norm.hpp"
#include "tiered/kernels/cpu/queue.hpp"
#include "tiered/kernels/cpu/rope.hpp"
#include "tiered/kernels/cpu/route.hpp"
#include "tiered/kernels/format/format.hpp"
#include "tiered/kernels/table.hpp"

namespace tiered::cpu {

/// What reads 8-bit activations for quantised weights and f32 for weights that are floats; with `f32_activations`, f32 always.
/// `Kernels` names the instruction set, its Leaf, and `Kernels::quantized_tile<F>`.
template <class Kernels, bool f32_activations, WeightFormat F>
constexpr MatmulTile tile_of() {
  if constexpr (f32_activations || F::block_elems == 1) {
    return &f32_tile<F, typename Kernels::Leaf>;
  } else {
    return &Kernels::template quantized_tile<F>;
  }
}

template <class Kernels, bool f32_activations>
constexpr ProductTable make_products() {
  ProductTable products;
  for_each_format([&](auto format) {
    using F = decltype(format);
    products.tile[std::uint32_t(F::dtype)] = tile_of<Kernels, f32_activations, F>();
    products.activation[std::uint32_t(F::dtype)] = f32_activations ? DType::f32 : quantized_activation(F::dtype);
  });
  return products;
}

template <class Kernels, bool f32_activations>
inline constexpr ProductTable products_of = make_products<Kernels, f32_activations>();

template <class Kernels, bool f32_activations>
constexpr KernelTable make_kernel_table() {
  using Leaf = typename Kernels::Leaf;
  KernelTable table;
  table.name = Kernels::name;
  for_each_format([&](auto format) {
    using F = decltype(format);
    constexpr std::uint32_t type = std::uint32_t(F::dtype);
    table.embed[type] = &enqueue<EmbedArgs, &embed<F, Leaf>>;
    table.matmul[type] = &enqueue<MatmulArgs, &matmul<F::dtype, tile_of<Kernels, f32_activations, F>()>>;
    table.activation[type] = f32_activations ? DType::f32 : quantized_activation(F::dtype);
  });
  table.quantize = &enqueue<QuantizeArgs, &quantize<Leaf>>;
  table.rms_norm = &enqueue<RmsNormArgs, &rms_norm<Leaf>>;
  table.rope = &enqueue<RopeArgs, &rope>;
  constexpr std::uint32_t half = std::uint32_t(DType::f16), single = std::uint32_t(DType::f32);
  table.kv_write[half] = &enqueue<KvWriteArgs, &kv_write<Leaf, HalfKv<Leaf>>>;
  table.kv_write[single] = &enqueue<KvWriteArgs, &kv_write<Leaf, FloatKv>>;
  table.attention[half] = &enqueue<AttentionArgs, &attention<Leaf, HalfKv<Leaf>>>;
  table.attention[single] = &enqueue<AttentionArgs, &attention<Leaf, FloatKv>>;
  table.gated = &enqueue<GatedArgs, &gated<Leaf>>;
  table.add = &enqueue<AddArgs, &add<Leaf>>;
  table.gather = &enqueue<GatherArgs, &gather>;
  table.route = &enqueue<RouteArgs, &route>;
  table.experts = &enqueue<ExpertsArgs, &experts<&products_of<Kernels, f32_activations>, Leaf>>;
  table.combine = &enqueue<CombineArgs, &combine>;
  return table;
}

template <class Kernels>
KernelTable const& kernel_table(bool f32_activations) {
  static constexpr KernelTable quantized = make_kernel_table<Kernels, false>(), precise = make_kernel_table<Kernels, true>();
  return f32_activations ? precise : quantized;
}

}  // namespace tiered::cpu
