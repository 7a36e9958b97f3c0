/// Reads a decoder's weights by role from a file and forms its shards.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/kernels/format/decode.hpp"
#include "tiered/model/config.hpp"
#include "tiered/model/registry.hpp"
#include "tiered/model/weights.hpp"

namespace tiered::detail {

/// Walks the layers once, looks up every tensor by name, checks its shape, and forms shards in order of use.
class WeightsBuilder {
 public:
  WeightsBuilder(GgufFile const& file, ModelConfig& config, Architecture const& arch) : file_(&file), config_(&config), arch_(&arch) {}

  ModelWeights build() {
    add_embedding();
    for (std::int32_t l = 0; l < config_->n_layers; ++l) add_layer(l);
    add_output();
    refuse_unused();
    return std::move(out_);
  }

 private:
  void begin_shard(ShardKind kind, std::int32_t layer, std::int32_t expert = -1) {
    Shard s;
    s.id = ShardId(out_.shards.size());
    s.kind = kind;
    s.layer = layer;
    s.expert = expert;
    s.weights = {std::int32_t(out_.weights.size()), std::int32_t(out_.weights.size())};
    out_.shards.push_back(s);
  }

  WeightId push(std::byte const* data, DType dtype, std::int64_t rows, std::int64_t cols) {
    Shard& s = out_.shards.back();
    Weight w;
    w.data = data;
    w.dtype = dtype;
    w.rows = std::int32_t(rows);
    w.cols = std::int32_t(cols);
    w.shard = s.id;
    w.first_row = s.n_rows;
    w.offset = s.bytes;
    s.n_rows += w.rows;
    s.bytes = (s.bytes + w.bytes() + weight_alignment - 1) / weight_alignment * weight_alignment;
    s.weights.end += 1;
    if (rows > 1) {
      s.macs_per_token += double(rows) * double(cols);
      s.dtypes |= dtype_bit(dtype);
    }
    out_.weights.push_back(w);
    return WeightId(out_.weights.size() - 1);
  }

  GgufTensor const* find(std::string const& name, Shape const& shape, bool required) {
    GgufTensor const* const t = required ? &file_->require_tensor(name) : file_->find_tensor(name);
    if (t == nullptr) return nullptr;
    if (t->shape != shape)
      throw Error(Errc::bad_file, concat(file_->path(), ": tensor ", name, " has shape ", text(t->shape), ", expected ", text(shape)));
    if (!is_weight_format(t->dtype)) {
      throw Error(Errc::unsupported,
                  concat(file_->path(), ": tensor ", name, " has type ", tiered::name(t->dtype), ", which nothing here decodes yet"));
    }
    used_.push_back(t->name);
    return t;
  }
  static std::string text(Shape const& s) {
    std::string out = "[";
    for (int i = 0; i < s.rank; ++i) out += concat(i > 0 ? ", " : "", s[i]);
    return out + "]";
  }

  WeightId matrix(std::string const& name, std::int64_t rows, std::int64_t cols) {
    GgufTensor const* const t = find(name, Shape(rows, cols), true);
    return push(t->data.data(), t->dtype, rows, cols);
  }
  /// In f32, whatever the file holds.
  WeightId vector(std::string const& name, std::int64_t n, bool required) {
    GgufTensor const* const t = find(name, Shape(n), required);
    if (t == nullptr) return no_weight;
    if (t->dtype == DType::f32) return push(t->data.data(), DType::f32, 1, n);
    auto values = std::make_unique<float[]>(std::size_t(n));
    decode_row(t->dtype, t->data.data(), std::size_t(n), values.get());
    return push_owned(std::move(values), n);
  }
  WeightId push_owned(std::unique_ptr<float[]> values, std::int64_t n) {
    auto const* const data = reinterpret_cast<std::byte const*>(values.get());
    out_.owned.push_back(std::move(values));
    return push(data, DType::f32, 1, n);
  }

  void add_embedding() {
    std::string const name = "token_embd.weight";
    Shape const shape = file_->require_tensor(name).shape;
    if (shape.rank != 2 || shape.rows() < 1 || shape.rows() > (1 << 28))
      throw Error(Errc::bad_file, concat("tensor ", name, " has shape ", text(shape)));
    config_->vocab_size = std::int32_t(shape.rows());
    begin_shard(ShardKind::embedding, -1);
    out_.embedding = matrix(name, config_->vocab_size, config_->dim);
    out_.shards.back().macs_per_token = 0;
    end_step(-1);
  }

  void add_output() {
    begin_shard(ShardKind::output, config_->n_layers);
    out_.output_norm = vector("output_norm.weight", config_->dim, true);
    bool const tied = file_->find_tensor("output.weight") == nullptr;
    out_.output = matrix(tied ? "token_embd.weight" : "output.weight", config_->vocab_size, config_->dim);
    end_step(config_->n_layers);
  }

  void end_step(std::int32_t layer) { out_.steps.push_back({layer, out_.shards.back().id}); }

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
    w.attention = out_.shards.back().id;
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

  WeightId rope(RopeTable const& table) {
    std::size_t const n_angles = table.inv_freq.size(), n_rows = table.position_row.size();
    std::size_t const n = n_angles + (n_rows + sizeof(float) - 1) / sizeof(float);
    auto copy = std::make_unique<float[]>(n);
    std::memcpy(copy.get(), table.inv_freq.data(), n_angles * sizeof(float));
    if (n_rows > 0) std::memcpy(copy.get() + n_angles, table.position_row.data(), n_rows);
    return push_owned(std::move(copy), std::int64_t(n));
  }

  void add_dense(std::int32_t l) {
    std::int64_t const dim = config_->dim, hidden = config_->layers[std::size_t(l)].hidden_dim;
    if (hidden < 1) throw Error(Errc::bad_file, concat("layer ", l, " has a feed-forward of width ", hidden));
    LayerWeights& w = out_.layers.back();
    auto const blk = [&](std::string_view rest) { return concat("blk.", l, '.', rest); };
    begin_shard(ShardKind::ffn, l);
    w.feed_forward = out_.shards.back().id;
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
    w.feed_forward = out_.shards.back().id;
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
      out_.shards.back().use_probability = double(layer.experts.n_experts_used) / double(n);
    }
  }
  void push_slice(GgufTensor const& t, std::int32_t i, std::int64_t rows, std::int64_t cols) {
    push(t.data.data() + std::size_t(i) * std::size_t(rows) * row_bytes(t.dtype, std::uint64_t(cols)), t.dtype, rows, cols);
  }

  /// A tensor that nothing reads would mean another computation than the file's author had in mind.
  void refuse_unused() {
    std::ranges::sort(used_);
    for (GgufTensor const& t : file_->tensors()) {
      if (!std::ranges::binary_search(used_, t.name) && !(arch_->rope_factors && t.name == "rope_freqs.weight")) {
        throw Error(Errc::unsupported,
                    concat(file_->path(), ": architecture ", config_->architecture, " has no use here for tensor ", printable(t.name)));
      }
    }
  }

  GgufFile const* file_;
  ModelConfig* config_;
  Architecture const* arch_;
  ModelWeights out_;
  std::vector<std::string_view> used_;
};

}  // namespace tiered::detail
