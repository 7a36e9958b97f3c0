/// Defines Transformer: for one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
  if (has(w.q_norm)) norm(w.q_norm, q, n * a.n_heads, a.head_dim, ctx);
  if (has(w.k_norm)) norm(w.k_norm, k, n * a.n_kv_heads, a.head_dim, ctx);
  rotate(w, a, q, a.n_heads, ctx);
  rotate(w, a, k, a.n_kv_heads, ctx);
  float* const mixed = ctx.scratch<float>(std::size_t(n) * std::size_t(q_dim));  // [n, n_heads, head_dim]
  ctx.attend({l, &a, q, k, v, mixed});
  Activations heads{mixed, n, q_dim};
  float* const y = ctx.scratch<float>(std::size_t(n) * std::size_t(config_.dim));
  ctx.matmul(w.attn_out, heads, y, vector_or_null(w.attn_out_bias, ctx));
  add_to_hidden(y, w.attn_post_norm, ctx);
}

void Transformer::feed_forward(std::int32_t l, ExecContext& ctx) const {
  LayerWeights const& w = weights_.layers[std::size_t(l)];
  std::int32_t const n = ctx.n_rows(), hidden_dim = config_.layers[std::size_t(l)].hidden_dim;
  Activations x = normed(w.ffn_norm, ctx);
  float* const gate = ctx.scratch<float>(std::size_t(n) * std::size_t(hidden_dim));
  float* const up = ctx.scratch<float>(std::size_t(n) * std::size_t(hidden_dim));
  ctx.gated_matmul(w.gate, w.up, x, gate, up, config_.activation);
  Activations h{gate, n, hidden_dim};
  float* const y = ctx.scratch<float>(std::size_t(n) * std::size_t(config_.dim));
  ctx.matmul(w.down, h, y);
  add_to_hidden(y, w.ffn_post_norm, ctx);
}

void Transformer::experts(std::int32_t l, ExecContext& ctx) const {
  LayerWeights const& w = weights_.layers[std::size_t(l)];
  LayerConfig const& layer = config_.layers[std::size_t(l)];
  ExpertsConfig const& e = layer.experts;
  std::size_t const n = std::size_t(ctx.n_rows());
  Activations x = normed(w.ffn_norm, ctx);
  float* const scores = ctx.scratch<float>(n * std::size_t(e.n_experts));
  ctx.matmul(w.router, x, scores);
  std::int32_t* const ids = ctx.scratch<std::int32_t>(n * std::size_t(e.n_experts_used));
  float* const weights = ctx.scratch<float>(n * std::size_t(e.n_experts_used));
  RouteArgs route{scores, nullptr, ids, weights, ctx.n_rows(), e.n_experts, e.n_experts_used, e.gating, e.normalise, e.scale};
  ctx.launch(&KernelTable::route, route);
  ctx.experts({l, &layer, config_.activation, x.values, ids, weights});
}

void Transformer::output(ExecContext& ctx) const {
  std::int32_t const n = ctx.n_outputs();
  if (n == 0) return;
  float* const x = ctx.scratch<float>(std::size_t(n) * std::size_t(config_.dim));
  ctx.launch(&KernelTable::gather, GatherArgs{ctx.hidden(), ctx.outputs(), x, n, config_.dim});
  norm(weights_.output_norm, x, n, config_.dim, ctx);
  Activations rows{x, n, config_.dim};
  ctx.matmul(weights_.output, rows, ctx.logits());
}

Activations Transformer::normed(WeightId weight, ExecContext& ctx) const {
  float* const x = ctx.scratch<float>(std::size_t(ctx.n_rows()) * std::size_t(config_.dim));
  ctx.launch(&KernelTable::rms_norm, RmsNormArgs{ctx.hidden(), ctx.vector(weight), x, ctx.n_rows(), config_.dim, config_.norm_eps});
  return {x, ctx.n_rows(), config_.dim};
}

void Transformer::norm(WeightId weight, float* x, std::int32_t n_rows, std::int32_t dim, ExecContext& ctx) const {
  ctx.launch(&KernelTable::rms_norm, RmsNormArgs{x, ctx.vector(weight), x, n_rows, dim, config_.norm_eps});
}

void Transformer::rotate(LayerWeights const& w, AttentionConfig const& a, float* x, std::int32_t n_heads, ExecContext& ctx) const {
  RopeTable const& table = config_.rope_tables[std::size_t(a.rope_table)];
  ctx.launch(&KernelTable::rope, RopeArgs{x, ctx.positions(), ctx.vector(w.rope), ctx.n_rows(), n_heads, a.head_dim,
                                          std::int32_t(table.inv_freq.size()) * 2, config_.rope, table.magnitude});
}

void Transformer::add_to_hidden(float* y, WeightId post_norm, ExecContext& ctx) const {
  if (has(post_norm)) norm(post_norm, y, ctx.n_rows(), config_.dim, ctx);
  ctx.launch(&KernelTable::add, AddArgs{y, ctx.hidden(), std::int64_t(ctx.n_rows()) * config_.dim});
}

std::shared_ptr<Transformer const> make_model(GgufFile file) { return std::make_shared<Transformer const>(std::move(file)); }

}  // namespace tiered
