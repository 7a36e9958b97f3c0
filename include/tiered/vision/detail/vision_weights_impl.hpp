/// Defines read_vision_weights: for one source file of a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/model/detail/shard_builder.hpp"
#include "tiered/vision/detail/vision_families.hpp"
#include "tiered/vision/vision_weights.hpp"

namespace tiered {

namespace detail {

/// Walks the layers once; shards and their weights come in order of use.
class VisionBuilder : ShardBuilder {
 public:
  VisionBuilder(GgufFile const& file, VisionConfig const& config)
      : ShardBuilder(file), config_(&config), family_(&find_vision_family(file)) {}

  VisionWeights build() {
    add_patches();
    for (std::int32_t l = 0; l < config_->n_layers; ++l) {
      out_.layers.emplace_back();
      add_attention(l);
      add_feed_forward(l);
      if (config_->layers[std::size_t(l)].deepstack) {
        auto const name = [&](std::string_view rest) { return concat("v.deepstack.", l, '.', rest); };
        out_.deepstack.push_back(merger(l, name("norm"), name("fc1"), name("fc2"), true));
      }
    }
    out_.merger = merger(config_->n_layers, "v.post_ln", "mm.0", "mm.2", false);
    refuse_unused(config_->projector);
    hand_over(out_);
    return std::move(out_);
  }

 private:
  using WithBias = std::pair<WeightId, WeightId>;
  WithBias linear(std::string const& name, std::int64_t rows, std::int64_t cols) {
    WeightId const weight = matrix(name + ".weight", rows, cols);
    return {weight, vector(name + ".bias", rows, true)};
  }
  WithBias norm(std::string const& name, std::int64_t n) {
    WeightId const weight = vector(name + ".weight", n, true);
    return {weight, config_->norm == VisionNorm::rms ? no_weight : vector(name + ".bias", n, true)};
  }

  void add_patches() {
    begin_shard(ShardKind::ffn, -1);
    out_.patches = shard().id;
    out_.patch = joined_frames(patch_tensor("v.patch_embd.weight"), patch_tensor("v.patch_embd.weight.1"));
    keep_bits(out_.patch, bits_of_ends);
    if (family_->positions) {
      out_.patch_bias = vector("v.patch_embd.bias", config_->dim, true);
      std::int64_t const n = std::int64_t(config_->position_side) * config_->position_side;
      double const macs = shard().macs_per_token;
      out_.positions = push_f32(*find("v.position_embd.weight", Shape(n, config_->dim), true), n, config_->dim);
      shard().macs_per_token = macs + 4.0 * config_->dim;  // four rows of it a patch
    }
    end_step(-1);
  }

  GgufTensor const& patch_tensor(char const* name) {
    std::int64_t const p = config_->patch_size;
    GgufTensor const& t = *find(name, Shape(config_->dim, config_->n_channels, p, p), true);
    if (dtype_info(t.dtype).block_elems != 1) {
      throw Error(Errc::unsupported, concat(file().path(), ": tensor ", name, " has type ", tiered::name(t.dtype),
                                            ", whose blocks are not those of the matrix that it is taken for"));
    }
    return t;
  }
  /// One matrix of two: a patch's values are [channel, frame, row, column], and a frame's matrix has columns [channel, row, column].
  WeightId joined_frames(GgufTensor const& first, GgufTensor const& second) {
    if (first.dtype != second.dtype) {
      throw Error(Errc::unsupported, concat(file().path(), ": tensors ", first.name, " and ", second.name, " have types ",
                                            tiered::name(first.dtype), " and ", tiered::name(second.dtype)));
    }
    std::size_t const rows = std::size_t(config_->dim) * std::size_t(config_->n_channels),
                      bytes = std::size_t(config_->patch_size) * std::size_t(config_->patch_size) * dtype_info(first.dtype).block_bytes;
    auto joined = std::make_unique<float[]>((2 * rows * bytes + sizeof(float) - 1) / sizeof(float));
    auto* to = reinterpret_cast<std::byte*>(joined.get());
    for (std::size_t row = 0; row < rows; ++row) {
      for (GgufTensor const* t : {&first, &second}) {
        std::memcpy(to, t->data.data() + row * bytes, bytes);
        to += bytes;
      }
    }
    return push_owned(std::move(joined), first.dtype, config_->dim, config_->patch_elems());
  }

  void add_attention(std::int32_t l) {
    VisionLayerWeights& w = out_.layers.back();
    std::int64_t const dim = config_->dim;
    auto const blk = [&](std::string_view rest) { return concat("v.blk.", l, '.', rest); };
    begin_shard(ShardKind::attention, l);
    w.attention = shard().id;
    shard().n_passes = 2;
    w.rope = rope(vision_rope(*config_));
    std::tie(w.norm1, w.norm1_bias) = norm(blk("ln1"), dim);
    if (family_->fused_qkv) {
      GgufTensor const& weight = *find(blk("attn_qkv.weight"), Shape(3 * dim, dim), true);
      GgufTensor const& bias = *find(blk("attn_qkv.bias"), Shape(3 * dim), true);
      WeightId* const ids[] = {&w.k, &w.v, &w.q};
      WeightId* const biases[] = {&w.k_bias, &w.v_bias, &w.q_bias};
      for (int i = 0; i < 3; ++i) {
        std::int64_t const part = (i + 1) % 3 * dim;
        *ids[i] = push_rows(weight, part, dim, dim);
        *biases[i] = bias_part(bias, part, dim);
      }
    } else {
      std::tie(w.k, w.k_bias) = linear(blk("attn_k"), dim, dim);
      std::tie(w.v, w.v_bias) = linear(blk("attn_v"), dim, dim);
      std::tie(w.q, w.q_bias) = linear(blk("attn_q"), dim, dim);
    }
    std::tie(w.out, w.out_bias) = linear(blk("attn_out"), dim, dim);
    end_step(l);
  }
  /// Elements [first, first + n) of a vector, in f32.
  WeightId bias_part(GgufTensor const& t, std::int64_t first, std::int64_t n) {
    if (dtype_info(t.dtype).block_elems != 1) {
      throw Error(Errc::unsupported, concat(file().path(), ": tensor ", t.name, " has type ", tiered::name(t.dtype)));
    }
    GgufTensor part = t;
    part.data = t.data.subspan(std::size_t(first) * dtype_info(t.dtype).block_bytes);
    return push_f32(part, 1, n);
  }

  void add_feed_forward(std::int32_t l) {
    VisionLayerWeights& w = out_.layers.back();
    std::int64_t const dim = config_->dim, hidden = config_->hidden_dim;
    std::string const blk = concat("v.blk.", l, '.');
    begin_shard(ShardKind::ffn, l);
    w.feed_forward = shard().id;
    std::tie(w.norm2, w.norm2_bias) = norm(blk + "ln2", dim);
    if (config_->gated) std::tie(w.gate, w.gate_bias) = linear(blk + "ffn_gate", hidden, dim);
    // Files from before the converter's vision support call `up` what goes down.
    bool const swapped = hidden != dim && file().require_tensor(blk + "ffn_up.weight").shape == Shape(dim, hidden);
    std::tie(w.up, w.up_bias) = linear(blk + (swapped ? "ffn_down" : "ffn_up"), hidden, dim);
    std::tie(w.down, w.down_bias) = linear(blk + (swapped ? "ffn_up" : "ffn_down"), dim, hidden);
    end_step(l);
  }

  VisionMergerWeights merger(std::int32_t layer, std::string const& normed, std::string const& up, std::string const& down,
                             bool merge_first) {
    VisionMergerWeights w;
    std::int64_t const merged = config_->merged_dim();
    begin_shard(ShardKind::ffn, layer);
    w.shard = shard().id;
    w.merge_first = merge_first;
    std::tie(w.norm, w.norm_bias) = norm(normed, merge_first ? merged : config_->dim);
    std::tie(w.up, w.up_bias) = linear(up, merged, merged);
    std::tie(w.down, w.down_bias) = linear(down, config_->output_dim, merged);
    for (WeightId const matrix : {w.up, w.down}) keep_bits(matrix, bits_of_ends);
    end_step(layer);
    return w;
  }

  /// Significant bits of rows that become hidden rows or tokens: what is lost there is not a part of what a layer adds, but of all. These
  /// products are 2 % of an encoder's multiplications.
  static constexpr std::int32_t bits_of_ends = 16;

  VisionConfig const* config_;
  VisionFamily const* family_;
  VisionWeights out_;
};

}  // namespace detail

VisionWeights read_vision_weights(GgufFile const& file, VisionConfig const& config) { return detail::VisionBuilder(file, config).build(); }

}  // namespace tiered
