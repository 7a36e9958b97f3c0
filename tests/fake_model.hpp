/// Models that consist of sizes only: shard tables for tests and benches of plan/, nothing behind the weights.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tiered/model/shard.hpp"
#include "tiered/plan/account.hpp"
#include "tiered/sim/split_mix.hpp"

namespace fake {

struct Spec {
  std::int32_t n_layers = 4, dim = 256, hidden_dim = 512, head_dim = 64, n_heads = 4, n_kv_heads = 2, vocab_size = 1024;
  std::int32_t n_experts = 0, n_experts_used = 0;  ///< 0: dense
  std::int32_t n_dense_layers = 0;                 ///< of a mixture of experts: so many first layers are dense
  tiered::DType dtype = tiered::DType::q4_0;
};

class Model {
 public:
  explicit Model(Spec const& spec) : spec_(spec) {
    begin(-1, tiered::ShardKind::embedding);
    matrix(spec.vocab_size, spec.dim, tiered::DType::f16);
    end_step(0);
    std::int32_t const kv = spec.n_kv_heads * spec.head_dim, q = spec.n_heads * spec.head_dim;
    for (std::int32_t layer = 0; layer < spec.n_layers; ++layer) {
      begin(layer, tiered::ShardKind::attention);
      vector(spec.dim);
      matrix(q, spec.dim);
      matrix(kv, spec.dim);
      matrix(kv, spec.dim, layer % 2 == 0 ? tiered::DType::q6_k : spec.dtype);
      vector(spec.head_dim);
      matrix(spec.dim, q);
      end_step(double(q + kv + kv) * spec.dim + double(spec.dim) * q);
      if (spec.n_experts > 0 && layer >= spec.n_dense_layers) {
        add_experts(layer);
      } else {
        begin(layer, tiered::ShardKind::ffn);
        vector(spec.dim);
        matrix(spec.hidden_dim, spec.dim);
        matrix(spec.hidden_dim, spec.dim);
        matrix(spec.dim, spec.hidden_dim);
        end_step(3.0 * spec.hidden_dim * spec.dim);
      }
      states_.push_back({.bytes_per_token = std::size_t(4 * kv), .macs_per_position = 2.0 * q});
    }
    begin(spec.n_layers, tiered::ShardKind::output);
    vector(spec.dim);
    matrix(spec.vocab_size, spec.dim, tiered::DType::q8_0);
    end_step(double(spec.vocab_size) * spec.dim);
  }

  tiered::ShardTable table() const { return {shards_, steps_, states_, weights_}; }
  std::size_t bytes() const {
    std::size_t n = 0;
    for (tiered::Shard const& s : shards_) n += tiered::VramAccount::round_up(s.bytes);
    return n;
  }
  /// Hidden rows of the block, and what a chunk needs beside them.
  std::size_t operator()(std::int32_t chunk, std::int32_t block) const {
    return scratch_bytes(chunk, block);
  }  ///< as PlannerInput::scratch_bytes
  std::size_t scratch_bytes(std::int32_t chunk, std::int32_t block) const {
    return 4 * std::size_t(spec_.dim) * std::size_t(block) + 4 * std::size_t(3 * spec_.hidden_dim + 4 * spec_.dim) * std::size_t(chunk);
  }

 private:
  void begin(std::int32_t layer, tiered::ShardKind kind) {
    shard_ = {};
    shard_.id = tiered::ShardId(shards_.size());
    shard_.layer = layer;
    shard_.kind = kind;
    shard_.weights = {std::int32_t(weights_.size()), std::int32_t(weights_.size())};
  }
  void vector(std::int32_t cols) { add(1, cols, tiered::DType::f32); }
  void matrix(std::int32_t rows, std::int32_t cols) { matrix(rows, cols, spec_.dtype); }
  void matrix(std::int32_t rows, std::int32_t cols, tiered::DType type) {
    if (cols % std::int32_t(tiered::block_elems(type)) != 0) type = tiered::DType::f16;
    add(rows, cols, type);
    shard_.dtypes |= tiered::dtype_bit(type);
  }
  void add(std::int32_t rows, std::int32_t cols, tiered::DType type) {
    std::size_t const offset = tiered::VramAccount::round_up(shard_.bytes);
    weights_.push_back({nullptr, type, rows, cols, shard_.id, shard_.n_rows, offset});
    shard_.n_rows += rows;
    shard_.bytes = offset + weights_.back().bytes();
    shard_.weights.end = std::int32_t(weights_.size());
  }
  void end(double macs) {
    shard_.macs_per_token = macs;
    shards_.push_back(shard_);
  }
  void end_step(double macs) {
    end(macs);
    steps_.push_back({shard_.layer, shard_.id});
  }
  void add_experts(std::int32_t layer) {
    begin(layer, tiered::ShardKind::router);
    vector(spec_.dim);
    matrix(spec_.n_experts, spec_.dim, tiered::DType::f32);
    end_step(double(spec_.n_experts) * spec_.dim);
    for (std::int32_t expert = 0; expert < spec_.n_experts; ++expert) {
      begin(layer, tiered::ShardKind::expert);
      matrix(spec_.hidden_dim, spec_.dim);
      matrix(spec_.hidden_dim, spec_.dim);
      matrix(spec_.dim, spec_.hidden_dim);
      shard_.expert = expert;
      shard_.use_probability = double(spec_.n_experts_used) / double(spec_.n_experts);
      end(3.0 * spec_.hidden_dim * spec_.dim);
    }
  }

  Spec spec_;
  tiered::Shard shard_;
  std::vector<tiered::Shard> shards_;
  std::vector<tiered::Step> steps_;
  std::vector<tiered::LayerState> states_;
  std::vector<tiered::Weight> weights_;
};

inline Spec small_dense() { return {}; }
inline Spec small_moe() {
  Spec s;
  s.n_experts = 16;
  s.n_experts_used = 4;
  s.hidden_dim = 128;
  return s;
}
inline Spec dense_8b() { return {40, 4096, 11520, 128, 32, 8, 128000, 0, 0, 0, tiered::DType::f16}; }
inline Spec moe_30b() { return {48, 2048, 768, 128, 32, 4, 151936, 128, 8, 0, tiered::DType::q4_0}; }
inline Spec moe_235b() { return {94, 4096, 1536, 128, 64, 4, 151936, 128, 8, 0, tiered::DType::q2_k}; }

/// Any model: a few layers, odd sizes, sometimes with experts, sometimes with dense layers before them.
inline Spec random_spec(tiered::SplitMix64& random) {
  Spec s;
  s.n_layers = 1 + std::int32_t(random.below(6));
  s.dim = 32 * (1 + std::int32_t(random.below(16)));
  s.hidden_dim = 32 * (1 + std::int32_t(random.below(24)));
  s.head_dim = 16 << random.below(3);
  s.n_kv_heads = 1 + std::int32_t(random.below(3));
  s.n_heads = s.n_kv_heads * (1 + std::int32_t(random.below(4)));
  s.vocab_size = 64 + std::int32_t(random.below(4000));
  constexpr tiered::DType types[] = {tiered::DType::f32, tiered::DType::f16, tiered::DType::q8_0, tiered::DType::q4_1, tiered::DType::q6_k};
  s.dtype = types[random.below(5)];
  if (random.below(2) == 0) {
    s.n_experts = 2 + std::int32_t(random.below(24));
    s.n_experts_used = 1 + std::int32_t(random.below(std::uint64_t(s.n_experts)));
    s.n_dense_layers = std::int32_t(random.below(2));
  }
  return s;
}

}  // namespace fake
