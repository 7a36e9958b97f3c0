/// Makes projector files ("mmproj") with the shapes of real vision encoders and random weights, as synthetic.hpp makes decoders.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "synthetic.hpp"

namespace bench {

/// As tiered/vision/detail/vision_families.hpp describes the files.
struct SyntheticProjector {
  std::string_view name, projector;
  std::int32_t n_layers = 0, dim = 0, hidden_dim = 0, n_heads = 0, output_dim = 0, patch_size = 0;
  std::int32_t window_pattern = 0;  ///< n_wa_pattern; 0: the projector has no windows
  std::int32_t position_side = 0;   ///< of the table of positions; 0: none
  std::vector<std::int32_t> deepstack_layers = {};
  bool is_gated() const { return window_pattern > 0; }
};

inline std::vector<SyntheticProjector> const& synthetic_projectors() {
  static std::vector<SyntheticProjector> const projectors = {
      {"cosmos-reason1-7b-mmproj-f16", "qwen2.5vl_merger", 32, 1280, 3420, 16, 3584, 14, 8},
      {"qwen2-vl-7b-mmproj-f16", "qwen2vl_merger", 32, 1280, 5120, 16, 3584, 14},
      {"qwen3-vl-8b-mmproj-f16", "qwen3vl_merger", 27, 1152, 4304, 16, 4096, 16, 0, 48, {8, 16, 24}},
      {"tiny-mmproj", "qwen2.5vl_merger", 2, 64, 96, 4, 256, 14, 2},
      {"tiny-qwen2-mmproj", "qwen2vl_merger", 2, 64, 96, 4, 256, 14},
      {"tiny-qwen3-mmproj", "qwen3vl_merger", 2, 64, 96, 4, 256, 16, 0, 8, {0}},
  };
  return projectors;
}

/// Null where no projector is called so.
inline SyntheticProjector const* find_synthetic_projector(std::string_view name) {
  for (SyntheticProjector const& p : synthetic_projectors()) {
    if (p.name == name) return &p;
  }
  return nullptr;
}

/// For synthetic_model()'s error.
inline std::string synthetic_projector_names() {
  std::string names;
  for (SyntheticProjector const& p : synthetic_projectors()) names += tiered::concat(' ', p.name);
  return names;
}

namespace detail {

inline Metadata metadata_of(SyntheticProjector const& p) {
  Metadata out;
  auto const number = [&](char const* key, std::int32_t value) { out.set(std::string("clip.vision.") + key, std::uint32_t(value)); };
  out.set("general.architecture", std::string("clip"));
  out.set("general.name", "synthetic " + std::string(p.name));
  out.set("clip.has_vision_encoder", true);
  out.set("clip.projector_type", std::string(p.projector));
  number("patch_size", p.patch_size);
  number("embedding_length", p.dim);
  number("feed_forward_length", p.hidden_dim);
  number("block_count", p.n_layers);
  number("attention.head_count", p.n_heads);
  number("projection_dim", p.output_dim);
  number("spatial_merge_size", 2);
  out.set("clip.vision.attention.layer_norm_epsilon", 1e-6f);
  out.set("clip.vision.image_mean", std::vector<float>(3, 0.5f));
  out.set("clip.vision.image_std", std::vector<float>(3, 0.5f));
  if (p.window_pattern > 0) number("n_wa_pattern", p.window_pattern);
  if (p.is_gated()) out.set("clip.use_silu", true);
  if (p.position_side > 0) out.set("clip.use_gelu", true);
  return out;
}

}  // namespace detail

inline std::vector<SyntheticTensor> tensors_of(SyntheticProjector const& p) {
  using tiered::DType, tiered::Shape;
  std::vector<SyntheticTensor> out;
  auto const norm = [&](std::string const& name, std::int32_t n) {
    out.push_back({name + ".weight", Shape(n), DType::f32, Fill::ones});
    if (!p.is_gated()) out.push_back({name + ".bias", Shape(n), DType::f32, Fill::weights});  // gated ones have RMS norms
  };
  auto const linear = [&](std::string const& name, std::int32_t rows, std::int32_t cols, Fill fill = Fill::weights) {
    out.push_back({name + ".weight", Shape(rows, cols), DType::f16, fill});
    out.push_back({name + ".bias", Shape(rows), DType::f32, fill});
  };
  std::int32_t const size = p.patch_size, merged = 4 * p.dim;
  for (char const* name : {"v.patch_embd.weight", "v.patch_embd.weight.1"})
    out.push_back({name, Shape(p.dim, 3, size, size), DType::f16, Fill::weights, 6 * size * size});
  if (p.position_side > 0) {
    out.push_back({"v.patch_embd.bias", Shape(p.dim), DType::f32, Fill::weights});
    out.push_back({"v.position_embd.weight", Shape(std::int64_t{p.position_side} * p.position_side, p.dim), DType::f32, Fill::weights});
  }
  for (std::int32_t l = 0; l < p.n_layers; ++l) {
    std::string const b = tiered::concat("v.blk.", l, '.');
    norm(b + "ln1", p.dim);
    if (p.position_side > 0) {
      linear(b + "attn_qkv", 3 * p.dim, p.dim);
    } else {
      for (char const* part : {"attn_q", "attn_k", "attn_v"}) linear(b + part, p.dim, p.dim);
    }
    linear(b + "attn_out", p.dim, p.dim, Fill::residual_weights);
    norm(b + "ln2", p.dim);
    if (p.is_gated()) linear(b + "ffn_gate", p.hidden_dim, p.dim);
    linear(b + "ffn_up", p.hidden_dim, p.dim);
    linear(b + "ffn_down", p.dim, p.hidden_dim, Fill::residual_weights);
    if (std::count(p.deepstack_layers.begin(), p.deepstack_layers.end(), l) > 0) {
      std::string const d = tiered::concat("v.deepstack.", l, '.');
      norm(d + "norm", merged);
      linear(d + "fc1", merged, merged);
      linear(d + "fc2", p.output_dim, merged);
    }
  }
  norm("v.post_ln", p.dim);
  linear("mm.0", merged, merged);
  linear("mm.2", p.output_dim, merged);
  return out;
}

/// As make_synthetic of a decoder.
inline std::uint64_t make_synthetic(SyntheticProjector const& projector, std::string const& path, int n_threads, std::uint64_t seed = 7) {
  detail::Pools pools(projector.n_layers, Routing::uniform, seed, n_threads);
  return detail::make_file(path, detail::metadata_of(projector), tensors_of(projector), pools, n_threads, seed);
}

}  // namespace bench
