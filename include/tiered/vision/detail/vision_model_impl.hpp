/// Defines VisionModel: for one source file of a program.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tiered/vision/media_hash.hpp"
#include "tiered/vision/vision_model.hpp"

namespace tiered {

namespace detail {

constexpr Activation activation_of(VisionActivation a) {
  switch (a) {
    case VisionActivation::quick_gelu: return Activation::quick_gelu;
    case VisionActivation::gelu_tanh: return Activation::gelu_tanh;
    case VisionActivation::silu: return Activation::silu;
  }
  return Activation::silu;
}

inline ModelConfig model_config(VisionConfig const& v) {
  ModelConfig c;
  c.architecture = v.projector;
  c.name = v.name;
  c.dim = v.dim;
  c.n_layers = v.n_layers;
  c.norm_eps = v.norm_eps;
  c.activation = activation_of(v.activation);
  c.rope_tables.push_back(vision_rope(v));
  LayerConfig layer;
  layer.attention.n_heads = layer.attention.n_kv_heads = v.n_heads;
  layer.attention.head_dim = v.head_dim;
  layer.attention.scale = float(1 / std::sqrt(double(v.head_dim)));
  layer.hidden_dim = v.hidden_dim;
  c.layers.assign(std::size_t(v.n_layers), layer);
  c.block.n_ranges = 2;
  c.block.input_bytes = {std::size_t(v.patch_elems()) * sizeof(float)};
  if (v.position_side > 0) {
    constexpr std::size_t n_taps = AddTapsArgs::n_taps;
    c.block.input_bytes.insert(c.block.input_bytes.end(), {n_taps * sizeof(std::int32_t), n_taps * sizeof(float)});
  }
  c.block.output_bytes = std::size_t(v.output_dim) * sizeof(float);
  c.block.rows_per_output = v.merge_size * v.merge_size;
  return c;
}

/// Of each tensor its name, its type and up to 64 bytes from its middle: enough to tell a fine-tuned encoder from what it was made of.
inline MediaHash sample_of_weights(GgufFile const& file) {
  MediaHasher hasher;
  for (GgufTensor const& t : file.tensors()) {
    std::size_t const n = std::min<std::size_t>(t.data.size(), 64);
    hasher.add(t.name);
    hasher.add(std::int64_t(t.dtype));
    hasher.add(t.data.subspan((t.data.size() - n) / 2, n));
  }
  return hasher.value();
}

}  // namespace detail

VisionModel::VisionModel(GgufFile file)
    : file_(std::move(file)),
      vision_(read_vision_config(file_)),
      weights_(read_vision_weights(file_, vision_)),
      config_(detail::model_config(vision_)),
      plane_of_(weights_.shards.size(), -1) {
  vision_.weights = detail::sample_of_weights(file_);
  plane_of_[std::size_t(weights_.merger.shard)] = 0;
  for (std::size_t i = 0; i < weights_.deepstack.size(); ++i) plane_of_[std::size_t(weights_.deepstack[i].shard)] = 1 + std::int32_t(i);
}

LayerState VisionModel::attention(std::int32_t layer) const {
  LayerState state;
  state.elems_per_token = 2 * std::size_t(vision_.dim);
  state.bytes_per_token = state.elems_per_token * sizeof(std::uint16_t);
  state.macs_per_position = 2.0 * vision_.dim;
  std::int32_t const side = vision_.window_tokens() * vision_.merge_size;
  state.window = vision_.layers[std::size_t(layer)].full_attention ? 0 : side * side;
  return state;
}

void VisionModel::run(Step step, ExecContext& ctx) const {
  std::int32_t const plane = plane_of_[std::size_t(step.shard)];
  if (plane >= 0) return merge(plane == 0 ? weights_.merger : weights_.deepstack[std::size_t(plane) - 1], plane, ctx);
  if (step.shard == weights_.patches) return embed(ctx);
  weights_.shards[std::size_t(step.shard)].kind == ShardKind::attention ? attend(step.layer, ctx) : feed_forward(step.layer, ctx);
}

void VisionModel::embed(ExecContext& ctx) const {
  auto const input = [&](VisionInput plane) { return ctx.inputs(std::int32_t(plane)); };
  Activations pixels{reinterpret_cast<float const*>(input(VisionInput::pixels)), ctx.n_rows(), vision_.patch_elems()};
  ctx.matmul(weights_.patch, pixels, ctx.hidden(), has(weights_.patch_bias) ? ctx.vector(weights_.patch_bias) : nullptr);
  if (!has(weights_.positions)) return;
  AddTapsArgs taps;
  taps.table = ctx.vector(weights_.positions);
  taps.index = reinterpret_cast<std::int32_t const*>(input(VisionInput::position_index));
  taps.share = reinterpret_cast<float const*>(input(VisionInput::position_share));
  taps.y = ctx.hidden();
  taps.n_rows = ctx.n_rows();
  taps.dim = vision_.dim;
  ctx.launch(&KernelTable::add_taps, taps);
}

Activations VisionModel::normed(NormRequest const& r, ExecContext& ctx) const {
  std::int32_t const dim = r.dim, n_rows = r.n_rows;
  float const* const x = ctx.hidden();
  if (vision_.norm == VisionNorm::rms)
    return {r.y, n_rows, dim, {}, RmsNormArgs{x, ctx.vector(r.weight), r.y, n_rows, dim, vision_.norm_eps}, {}};
  ctx.launch(&KernelTable::layer_norm, LayerNormArgs{x, ctx.vector(r.weight), ctx.vector(r.bias), r.y, n_rows, dim, vision_.norm_eps});
  return {r.y, n_rows, dim};
}

void VisionModel::attend(std::int32_t l, ExecContext& ctx) const {
  VisionLayerWeights const& w = weights_.layers[std::size_t(l)];
  std::size_t const n_floats = std::size_t(ctx.n_rows()) * std::size_t(vision_.dim);
  AttendRequest r;
  r.layer = l;
  r.config = &config_.layers[std::size_t(l)].attention;
  r.n_rot = vision_.head_dim;
  r.inv_freq = ctx.vector(w.rope);
  r.position_row = reinterpret_cast<std::uint8_t const*>(r.inv_freq + vision_.head_dim / 2);
  Activations x = normed({w.norm1, w.norm1_bias, ctx.scratch<float>(n_floats), ctx.n_rows(), vision_.dim}, ctx);
  if (ctx.pass() == 0) {
    r.k = ctx.scratch<float>(n_floats);
    float* const v = ctx.scratch<float>(n_floats);
    r.v = v;
    ProductRequest const products[] = {{w.k, r.k, ctx.vector(w.k_bias)}, {w.v, v, ctx.vector(w.v_bias)}};
    ctx.matmul_set(products, x);
    return ctx.keep(r);
  }
  r.seen = std::int32_t(vision_.layers[std::size_t(l)].full_attention ? VisionRange::frame : VisionRange::window);
  r.q = ctx.scratch<float>(n_floats);
  r.out = ctx.scratch<float>(n_floats);
  ctx.matmul(w.q, x, r.q, ctx.vector(w.q_bias));
  ctx.attend(r);
  Activations heads{r.out, ctx.n_rows(), vision_.dim};
  ctx.matmul_add(w.out, heads, r.q, ctx.vector(w.out_bias));
}

void VisionModel::feed_forward(std::int32_t l, ExecContext& ctx) const {
  VisionLayerWeights const& w = weights_.layers[std::size_t(l)];
  std::size_t const n_hidden = std::size_t(ctx.n_rows()) * std::size_t(vision_.hidden_dim);
  float* const rows = ctx.scratch<float>(std::size_t(ctx.n_rows()) * std::size_t(vision_.dim));
  Activations x = normed({w.norm2, w.norm2_bias, rows, ctx.n_rows(), vision_.dim}, ctx);
  float* const up = ctx.scratch<float>(n_hidden);
  Activations h{up, ctx.n_rows(), vision_.hidden_dim};
  if (vision_.gated) {
    float* const gate = ctx.scratch<float>(n_hidden);
    ProductRequest const products[] = {{w.gate, gate, ctx.vector(w.gate_bias)}, {w.up, up, ctx.vector(w.up_bias)}};
    ctx.matmul_set(products, x);
    h.gate = GatedArgs{gate, up, up, std::int64_t(n_hidden), config_.activation};
  } else {
    ctx.matmul(w.up, x, up, ctx.vector(w.up_bias));
    ctx.launch(&KernelTable::activate, ActivateArgs{up, std::int64_t(n_hidden), config_.activation});
  }
  ctx.matmul_add(w.down, h, rows, ctx.vector(w.down_bias));
}

void VisionModel::merge(VisionMergerWeights const& w, std::int32_t plane, ExecContext& ctx) const {
  std::int32_t const n = ctx.n_rows() / config_.block.rows_per_output, dim = vision_.merged_dim();
  std::size_t const n_floats = std::size_t(n) * std::size_t(dim);
  float* const rows = ctx.scratch<float>(n_floats);
  Activations x = w.merge_first ? normed({w.norm, w.norm_bias, rows, n, dim}, ctx)
                                : normed({w.norm, w.norm_bias, rows, ctx.n_rows(), vision_.dim}, ctx);
  if (!w.merge_first) x = {ctx.values_of(x), n, dim};  // products read other rows than the norm's
  float* const up = ctx.scratch<float>(n_floats);
  ctx.matmul(w.up, x, up, ctx.vector(w.up_bias));
  ctx.launch(&KernelTable::activate, ActivateArgs{up, std::int64_t(n_floats), Activation::gelu_erf});
  Activations h{up, n, dim};
  ctx.matmul(w.down, h, ctx.outputs_to(plane, vision_.output_dim), ctx.vector(w.down_bias));
}

std::shared_ptr<VisionModel const> make_vision_model(GgufFile file) { return std::make_shared<VisionModel const>(std::move(file)); }

}  // namespace tiered
