/// Defines Transformer: for one source file of a program.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/model/detail/weights_builder.hpp"
#include "tiered/model/registry.hpp"
#include "tiered/model/transformer.hpp"

namespace tiered {

Transformer::Transformer(GgufFile file) : file_(std::move(file)) {
  Architecture const& arch = find_architecture(file_);
  config_ = arch.read(file_);
  weights_ = detail::WeightsBuilder(file_, config_, arch).build();
}

void Transformer::run(Step step, ExecContext& ctx) const {
  switch (weights_.shards[std::size_t(step.shard)].kind) {
    case ShardKind::embedding: ctx.embed(weights_.embedding, config_.embedding_scale); break;
    case ShardKind::attention: attention(step.layer, ctx); break;
    case ShardKind::ffn: feed_forward(step.layer, ctx); break;
    case ShardKind::router: experts(step.layer, ctx); break;
    case ShardKind::output: output(ctx); break;
    case ShardKind::expert: throw Error(Errc::precondition, "an expert is no step of its own");
  }
}

void Transformer::attention(std::int32_t l, ExecContext& ctx) const {
  LayerWeights const& w = weights_.layers[std::size_t(l)];
  AttentionConfig const& a = config_.layers[std::size_t(l)].attention;
  std::int32_t const n = ctx.n_rows(), q_dim = a.n_heads * a.head_dim, kv_dim = a.n_kv_heads * a.head_dim;
  Activations x = normed(w.attn_norm, ctx);
  float* const q = ctx.scratch<float>(std::size_t(n) * std::size_t(q_dim));   // [n, n_heads, head_dim]
  float* const k = ctx.scratch<float>(std::size_t(n) * std::size_t(kv_dim));  // [n, n_kv_heads, head_dim]
  float* const v = ctx.scratch<float>(std::size_t(n) * std::size_t(kv_dim));
  ProductRequest const products[] = {
      {w.q, q, vector_or_null(w.q_bias, ctx)}, {w.k, k, vector_or_null(w.k_bias, ctx)}, {w.v, v, vector_or_null(w.v_bias, ctx)}};
  ctx.matmul_set(products, x);
  AttendRequest r{l, &a, q, k, v, nullptr, vector_or_null(w.q_norm, ctx), vector_or_null(w.k_norm, ctx), ctx.vector(w.rope)};
  RopeTable const& rope = config_.rope_tables[std::size_t(a.rope_table)];
  r.n_rot = std::int32_t(rope.inv_freq.size()) * 2;
  r.rope = config_.rope;
  r.magnitude = rope.magnitude;
  r.norm_eps = config_.norm_eps;
  if (!rope.position_row.empty()) r.position_row = reinterpret_cast<std::uint8_t const*>(r.inv_freq + rope.inv_freq.size());
  r.out = ctx.scratch<float>(std::size_t(n) * std::size_t(q_dim));  // [n, n_heads, head_dim]
  ctx.attend(r);
  Activations heads{r.out, n, q_dim};
  add_product(w.attn_out, heads, vector_or_null(w.attn_out_bias, ctx), w.attn_post_norm, ctx);
}

void Transformer::feed_forward(std::int32_t l, ExecContext& ctx) const {
  LayerWeights const& w = weights_.layers[std::size_t(l)];
  std::int32_t const n = ctx.n_rows(), hidden_dim = config_.layers[std::size_t(l)].hidden_dim;
  Activations x = normed(w.ffn_norm, ctx);
  float* const gate = ctx.scratch<float>(std::size_t(n) * std::size_t(hidden_dim));
  float* const up = ctx.scratch<float>(std::size_t(n) * std::size_t(hidden_dim));
  Activations h = ctx.gated_matmul(w.gate, w.up, x, gate, up, config_.activation);
  add_product(w.down, h, nullptr, w.ffn_post_norm, ctx);
}

void Transformer::experts(std::int32_t l, ExecContext& ctx) const {
  LayerWeights const& w = weights_.layers[std::size_t(l)];
  LayerConfig const& layer = config_.layers[std::size_t(l)];
  ExpertsConfig const& e = layer.experts;
  std::size_t const n = std::size_t(ctx.n_rows());
  Activations x = normed(w.ffn_norm, ctx);
  float* const scores = ctx.scratch<float>(n * std::size_t(e.n_experts));
  std::array<RouterAhead, GuessArgs::max_layers> ahead;
  std::size_t n_ahead = 0;
  for (std::size_t next = std::size_t(l) + 1; next < config_.layers.size() && n_ahead < ahead.size(); ++next) {
    LayerConfig const& c = config_.layers[next];
    if (c.feed_forward != FeedForwardKind::experts || c.experts.n_experts != e.n_experts) break;
    ahead[n_ahead++] = {std::int32_t(next), weights_.layers[next].router, weights_.layers[next].ffn_norm};
  }
  ctx.router({l, w.router, scores, std::span(ahead.data(), n_ahead)}, x);
  std::int32_t* const ids = ctx.scratch<std::int32_t>(n * std::size_t(e.n_experts_used));
  float* const weights = ctx.scratch<float>(n * std::size_t(e.n_experts_used));
  RouteArgs const route{scores, nullptr, ids, weights, ctx.n_rows(), e.n_experts, e.n_experts_used, e.gating, e.normalise, e.scale};
  ctx.experts({l, &layer, config_.activation, x, route});
}

void Transformer::output(ExecContext& ctx) const {
  std::int32_t const n = ctx.n_outputs();
  if (n == 0) return;
  float* const x = ctx.scratch<float>(std::size_t(n) * std::size_t(config_.dim));
  ctx.launch(&KernelTable::gather, GatherArgs{ctx.hidden(), ctx.outputs(), x, n, config_.dim});
  Activations rows{x, n, config_.dim, {}, RmsNormArgs{x, ctx.vector(weights_.output_norm), x, n, config_.dim, config_.norm_eps}, {}};
  ctx.matmul(weights_.output, rows, ctx.logits());
}

Activations Transformer::normed(WeightId weight, ExecContext& ctx) const {
  float* const x = ctx.scratch<float>(std::size_t(ctx.n_rows()) * std::size_t(config_.dim));
  RmsNormArgs const norm{ctx.hidden(), ctx.vector(weight), x, ctx.n_rows(), config_.dim, config_.norm_eps};
  return {x, ctx.n_rows(), config_.dim, {}, norm, {}};
}

void Transformer::add_product(WeightId weight, Activations& x, float const* bias, WeightId post_norm, ExecContext& ctx) const {
  float* const y = ctx.scratch<float>(std::size_t(ctx.n_rows()) * std::size_t(config_.dim));
  if (!has(post_norm)) return ctx.matmul_add(weight, x, y, bias);
  ctx.matmul(weight, x, y, bias);
  ctx.launch(&KernelTable::rms_norm, RmsNormArgs{y, ctx.vector(post_norm), y, ctx.n_rows(), config_.dim, config_.norm_eps});
  ctx.launch(&KernelTable::add, AddArgs{y, ctx.hidden(), std::int64_t(ctx.n_rows()) * config_.dim});
}

std::shared_ptr<Transformer const> make_model(GgufFile file) { return std::make_shared<Transformer const>(std::move(file)); }

}  // namespace tiered
