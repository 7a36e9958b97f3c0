/// Reads a decoder's weights by role from a file and forms its shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/model/config.hpp"
#include "tiered/model/detail/shard_builder.hpp"
#include "tiered/model/registry.hpp"
#include "tiered/model/weights.hpp"

namespace tiered::detail {

/// Walks the layers once, looks up every tensor by name, checks its shape, and forms shards in order of use.
class WeightsBuilder : ShardBuilder {
 public:
  WeightsBuilder(GgufFile const& file, ModelConfig& config, Architecture const& arch)
      : ShardBuilder(file), config_(&config), arch_(&arch) {}

  ModelWeights build() {
    add_embedding();
    for (std::int32_t l = 0; l < config_->n_layers; ++l) add_layer(l);
    add_output();
    refuse_unused(concat("architecture ", config_->architecture), arch_->rope_factors ? "rope_freqs.weight" : "");
    hand_over(out_);
    return std::move(out_);
  }

 private:
  void add_embedding() {
    std::string const name = "token_embd.weight";
    Shape const shape = file().require_tensor(name).shape;
    if (shape.rank != 2 || shape.rows() < 1 || shape.rows() > (1 << 28))
      throw Error(Errc::bad_file, concat("tensor ", name, " has shape ", text(shape)));
    config_->vocab_size = std::int32_t(shape.rows());
    begin_shard(ShardKind::embedding, -1);
    out_.embedding = matrix(name, config_->vocab_size, config_->dim);
    shard().macs_per_token = 0;
    end_step(-1);
  }

  void add_output() {
    begin_shard(ShardKind::output, config_->n_layers);
    out_.output_norm = vector("output_norm.weight", config_->dim, true);
    bool const tied = file().find_tensor("output.weight") == nullptr;
    out_.output = matrix(tied ? "token_embd.weight" : "output.weight", config_->vocab_size, config_->dim);
    end_step(config_->n_layers);
  }

  void add_layer(std::int32_t l) {
    out_.layers.emplace_back();
    add_attention(l);
    if (config_->layers[std::size_t(l)].feed_forward == FeedForwardKind::experts) {
      add_experts(l);
    } else {
      add_dense(l);
    }
  }

  void add_attention(std::int32_t l) {
    AttentionConfig const& a = config_->layers[std::size_t(l)].attention;
    LayerWeights& w = out_.layers.back();
    std::int64_t const dim = config_->dim, q_dim = std::int64_t(a.n_heads) * a.head_dim, kv_dim = std::int64_t(a.n_kv_heads) * a.head_dim;
    auto const blk = [&](std::string_view rest) { return concat("blk.", l, '.', rest); };
    begin_shard(ShardKind::attention, l);
    w.attention = shard().id;
    w.attn_norm = vector(blk("attn_norm.weight"), dim, true);
    w.q = matrix(blk("attn_q.weight"), q_dim, dim);
    w.q_bias = vector(blk("attn_q.bias"), q_dim, false);
    w.k = matrix(blk("attn_k.weight"), kv_dim, dim);
    w.k_bias = vector(blk("attn_k.bias"), kv_dim, false);
    w.v = matrix(blk("attn_v.weight"), kv_dim, dim);
    w.v_bias = vector(blk("attn_v.bias"), kv_dim, false);
    if (arch_->head_norms) {
      w.q_norm = vector(blk("attn_q_norm.weight"), a.head_dim, true);
      w.k_norm = vector(blk("attn_k_norm.weight"), a.head_dim, true);
    }
    w.rope = rope(config_->rope_tables.at(std::size_t(a.rope_table)));
    w.attn_out = matrix(blk("attn_output.weight"), dim, q_dim);
    w.attn_out_bias = vector(blk("attn_output.bias"), dim, false);
    if (arch_->post_norms) w.attn_post_norm = vector(blk("post_attention_norm.weight"), dim, true);
    end_step(l);
    LayerState state;
    state.elems_per_token = std::size_t(kv_dim) * 2;
    state.bytes_per_token = state.elems_per_token * sizeof(std::uint16_t);
    state.macs_per_position = double(q_dim) * 2;
    state.window = a.window;
    out_.states.push_back(state);
  }

  void add_dense(std::int32_t l) {
    std::int64_t const dim = config_->dim, hidden = config_->layers[std::size_t(l)].hidden_dim;
    if (hidden < 1) throw Error(Errc::bad_file, concat("layer ", l, " has a feed-forward of width ", hidden));
    LayerWeights& w = out_.layers.back();
    auto const blk = [&](std::string_view rest) { return concat("blk.", l, '.', rest); };
    begin_shard(ShardKind::ffn, l);
    w.feed_forward = shard().id;
    w.ffn_norm = vector(blk("ffn_norm.weight"), dim, true);
    w.gate = matrix(blk("ffn_gate.weight"), hidden, dim);
    w.up = matrix(blk("ffn_up.weight"), hidden, dim);
    w.down = matrix(blk("ffn_down.weight"), dim, hidden);
    if (arch_->post_norms) w.ffn_post_norm = vector(blk("post_ffw_norm.weight"), dim, true);
    end_step(l);
  }

  void add_experts(std::int32_t l) {
    LayerConfig const& layer = config_->layers[std::size_t(l)];
    std::int64_t const dim = config_->dim, hidden = layer.hidden_dim, n = layer.experts.n_experts;
    LayerWeights& w = out_.layers.back();
    auto const blk = [&](std::string_view rest) { return concat("blk.", l, '.', rest); };
    begin_shard(ShardKind::router, l);
    w.feed_forward = shard().id;
    w.ffn_norm = vector(blk("ffn_norm.weight"), dim, true);
    w.router = matrix(blk("ffn_gate_inp.weight"), n, dim);
    end_step(l);
    GgufTensor const& gate = *find(blk("ffn_gate_exps.weight"), Shape(n, hidden, dim), true);
    GgufTensor const& up = *find(blk("ffn_up_exps.weight"), Shape(n, hidden, dim), true);
    GgufTensor const& down = *find(blk("ffn_down_exps.weight"), Shape(n, dim, hidden), true);
    for (std::int32_t e = 0; e < std::int32_t(n); ++e) {
      begin_shard(ShardKind::expert, l, e);
      push_slice(gate, e, hidden, dim);
      push_slice(up, e, hidden, dim);
      push_slice(down, e, dim, hidden);
      shard().use_probability = double(layer.experts.n_experts_used) / double(n);
    }
  }
  void push_slice(GgufTensor const& t, std::int32_t i, std::int64_t rows, std::int64_t cols) { push_rows(t, i * rows, rows, cols); }

  ModelConfig* config_;
  Architecture const* arch_;
  ModelWeights out_;
};

}  // namespace tiered::detail
