/// Models that synthetic.hpp makes: the numbers, shapes and types of well-known files, as lists of metadata and tensors.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/core/dtype.hpp"
#include "tiered/core/error.hpp"
#include "tiered/core/shape.hpp"
#include "tiered/core/text.hpp"

namespace bench {

struct SyntheticModel {
  std::string_view name, architecture;
  std::int32_t n_layers = 0, dim = 0, n_heads = 0, n_kv_heads = 0, head_dim = 128, hidden_dim = 0, vocab_size = 0, max_seq_len = 0;
  float rope_theta = 1e6f, norm_eps = 1e-6f;
  tiered::DType weights = tiered::DType::f16, v = weights, down = weights, output = weights;
  std::int32_t n_experts = 0, n_experts_used = 0, expert_dim = 0;
  bool qk_norm = false, qkv_bias = false;
  std::array<std::int32_t, 4> rope_sections{};  ///< of multi-section rope: pairs that turn by time, height, width, and none
};

namespace synthetic {

using enum tiered::DType;

constexpr SyntheticModel qwen3_30b(std::string_view name, std::int32_t n_layers) {
  return {.name = name,
          .architecture = "qwen3moe",
          .n_layers = n_layers,
          .dim = 2048,
          .n_heads = 32,
          .n_kv_heads = 4,
          .hidden_dim = 6144,
          .vocab_size = 151936,
          .max_seq_len = 262144,
          .rope_theta = 1e7f,
          .weights = q4_0,
          .output = q6_k,
          .n_experts = 128,
          .n_experts_used = 8,
          .expert_dim = 768,
          .qk_norm = true};
}

inline constexpr SyntheticModel models[] = {
    qwen3_30b("qwen3-30b-a3b-q4_0", 48),
    {.name = "qwen3-235b-a22b-q2_k",
     .architecture = "qwen3moe",
     .n_layers = 94,
     .dim = 4096,
     .n_heads = 64,
     .n_kv_heads = 4,
     .hidden_dim = 12288,
     .vocab_size = 151936,
     .max_seq_len = 262144,
     .rope_theta = 5e6f,
     .weights = q2_k,
     .v = q4_k,
     .down = q3_k,
     .output = q6_k,
     .n_experts = 128,
     .n_experts_used = 8,
     .expert_dim = 1536,
     .qk_norm = true},
    {.name = "minitron-8b-f16",
     .architecture = "llama",
     .n_layers = 40,
     .dim = 4096,
     .n_heads = 32,
     .n_kv_heads = 8,
     .hidden_dim = 11520,
     .vocab_size = 131072,
     .max_seq_len = 131072,
     .norm_eps = 1e-5f},
    {.name = "minitron-4b-f16",
     .architecture = "llama",
     .n_layers = 32,
     .dim = 3072,
     .n_heads = 24,
     .n_kv_heads = 8,
     .hidden_dim = 9216,
     .vocab_size = 131072,
     .max_seq_len = 131072,
     .norm_eps = 1e-5f},
    {.name = "qwen3-32b-q4_0",
     .architecture = "qwen3",
     .n_layers = 64,
     .dim = 5120,
     .n_heads = 64,
     .n_kv_heads = 8,
     .hidden_dim = 25600,
     .vocab_size = 151936,
     .max_seq_len = 40960,
     .weights = q4_0,
     .output = q6_k,
     .qk_norm = true},
    qwen3_30b("qwen3-30b-a3b-q4_0-6-layers", 6),
    {.name = "cosmos-reason1-7b-q8_0",  // Qwen2.5-VL 7B; its encoder: synthetic_projector.hpp
     .architecture = "qwen2vl",
     .n_layers = 28,
     .dim = 3584,
     .n_heads = 28,
     .n_kv_heads = 4,
     .hidden_dim = 18944,
     .vocab_size = 152064,
     .max_seq_len = 128000,
     .weights = q8_0,
     .qkv_bias = true,
     .rope_sections = {16, 24, 24, 0}},
    {.name = "tiny-moe",
     .architecture = "qwen3moe",
     .n_layers = 4,
     .dim = 256,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 64,
     .hidden_dim = 512,
     .vocab_size = 1024,
     .max_seq_len = 4096,
     .weights = q4_0,
     .output = q6_k,
     .n_experts = 8,
     .n_experts_used = 2,
     .expert_dim = 256,
     .qk_norm = true},
    {.name = "tiny-dense",
     .architecture = "llama",
     .n_layers = 3,
     .dim = 256,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 64,
     .hidden_dim = 512,
     .vocab_size = 1024,
     .max_seq_len = 4096,
     .norm_eps = 1e-5f},
    {.name = "tiny-vlm",  // its encoder: tiny-mmproj
     .architecture = "qwen2vl",
     .n_layers = 2,
     .dim = 256,
     .n_heads = 4,
     .n_kv_heads = 2,
     .head_dim = 64,
     .hidden_dim = 512,
     .vocab_size = 1024,
     .max_seq_len = 32768,
     .weights = q8_0,
     .qkv_bias = true,
     .rope_sections = {8, 12, 12, 0}},
};

}  // namespace synthetic

inline std::span<SyntheticModel const> synthetic_models() { return synthetic::models; }

/// Errors  not_found, with the names that there are, behind those in `names`.
inline SyntheticModel const& synthetic_model(std::string_view name, std::string names = {}) {
  for (SyntheticModel const& m : synthetic_models()) {
    if (m.name == name) return m;
    names += tiered::concat(' ', m.name);
  }
  throw tiered::Error(tiered::Errc::not_found, tiered::concat("no synthetic model is called ", name, "; there are:", names));
}

/// What a tensor is filled with.
enum class Fill { ones, embedding, weights, residual_weights };

struct SyntheticTensor {
  std::string name;
  tiered::Shape shape;  ///< outermost first
  tiered::DType dtype{};
  Fill fill{};
  std::int32_t inputs = 0;  ///< of one output, where that is not the last size
};

inline std::vector<SyntheticTensor> tensors_of(SyntheticModel const& m) {
  using tiered::DType, tiered::Shape;
  std::vector<SyntheticTensor> out;
  auto const add = [&](std::string name, Shape const& shape, DType type, Fill fill = Fill::weights) {
    out.push_back({std::move(name), shape, type, fill});
  };
  auto const add_norm = [&](std::string name, std::int32_t n) { add(std::move(name), Shape(n), DType::f32, Fill::ones); };
  std::int32_t const q_dim = m.n_heads * m.head_dim, kv_dim = m.n_kv_heads * m.head_dim;
  add("token_embd.weight", Shape(m.vocab_size, m.dim), m.weights, Fill::embedding);
  add_norm("output_norm.weight", m.dim);
  add("output.weight", Shape(m.vocab_size, m.dim), m.output);
  for (std::int32_t l = 0; l < m.n_layers; ++l) {
    std::string const b = tiered::concat("blk.", l, '.');
    add_norm(b + "attn_norm.weight", m.dim);
    add(b + "attn_q.weight", Shape(q_dim, m.dim), m.weights);
    add(b + "attn_k.weight", Shape(kv_dim, m.dim), m.weights);
    add(b + "attn_v.weight", Shape(kv_dim, m.dim), m.v);
    if (m.qkv_bias) {
      add(b + "attn_q.bias", Shape(q_dim), DType::f32);
      add(b + "attn_k.bias", Shape(kv_dim), DType::f32);
      add(b + "attn_v.bias", Shape(kv_dim), DType::f32);
    }
    add(b + "attn_output.weight", Shape(m.dim, q_dim), m.weights, Fill::residual_weights);
    if (m.qk_norm) {
      add_norm(b + "attn_q_norm.weight", m.head_dim);
      add_norm(b + "attn_k_norm.weight", m.head_dim);
    }
    add_norm(b + "ffn_norm.weight", m.dim);
    if (m.n_experts > 0) {
      add(b + "ffn_gate_inp.weight", Shape(m.n_experts, m.dim), DType::f32);
      add(b + "ffn_gate_exps.weight", Shape(m.n_experts, m.expert_dim, m.dim), m.weights);
      add(b + "ffn_up_exps.weight", Shape(m.n_experts, m.expert_dim, m.dim), m.weights);
      add(b + "ffn_down_exps.weight", Shape(m.n_experts, m.dim, m.expert_dim), m.down, Fill::residual_weights);
    } else {
      add(b + "ffn_gate.weight", Shape(m.hidden_dim, m.dim), m.weights);
      add(b + "ffn_up.weight", Shape(m.hidden_dim, m.dim), m.weights);
      add(b + "ffn_down.weight", Shape(m.dim, m.hidden_dim), m.down, Fill::residual_weights);
    }
  }
  return out;
}

}  // namespace bench
