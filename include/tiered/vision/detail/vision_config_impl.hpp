/// Defines read_vision_config: for one source file of a program.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/model/arch/common.hpp"
#include "tiered/vision/detail/vision_families.hpp"
#include "tiered/vision/vision_config.hpp"

namespace tiered {

namespace detail {

inline VisionActivation read_activation(GgufFile const& file) {
  bool const gelu = file.get_or<bool>("clip.use_gelu", false), silu = file.get_or<bool>("clip.use_silu", false);
  if (gelu && silu) throw Error(Errc::bad_file, concat(file.path(), ": clip.use_gelu and clip.use_silu are both true"));
  return silu ? VisionActivation::silu : gelu ? VisionActivation::gelu_tanh : VisionActivation::quick_gelu;
}

inline std::array<float, 3> read_channels(GgufFile const& file, char const* key, bool positive) {
  auto const values = file.require<std::vector<float>>(key);
  if (values.size() != 3) throw Error(Errc::bad_file, concat(file.path(), ": ", key, " holds ", values.size(), " values for 3 channels"));
  std::array<float, 3> out{};
  for (std::size_t c = 0; c < 3; ++c) {
    out[c] = values[c];
    if (!std::isfinite(out[c]) || (positive && !(out[c] > 0)))
      throw Error(Errc::bad_file, concat(file.path(), ": ", key, " holds ", out[c]));
  }
  return out;
}

inline void read_pixels(arch::Keys const& keys, VisionFamily const& family, VisionConfig& c) {
  constexpr std::int64_t most = std::int64_t{1} << 40;
  c.min_pixels = keys.get_or<std::int64_t>("image_min_pixels", family.min_pixels);
  c.max_pixels = keys.get_or<std::int64_t>("image_max_pixels", family.max_pixels);
  if (c.min_pixels < 1 || c.max_pixels < c.min_pixels || c.max_pixels > most) {
    throw Error(Errc::bad_file, concat(keys.file().path(), ": images of ", c.min_pixels, " to ", c.max_pixels, " pixels"));
  }
}

inline void read_windows(arch::Keys const& keys, VisionFamily const& family, VisionConfig& c) {
  c.layers.resize(std::size_t(c.n_layers));
  if (!family.windows) {
    if (keys.count_or("n_wa_pattern", 0, 0, arch::max_layers) > 0)
      throw Error(Errc::unsupported, concat(keys.file().path(), ": attention in windows in a ", family.projector));
    return;
  }
  std::int32_t const pattern = keys.count("n_wa_pattern", 0, arch::max_layers);
  if (pattern == 0) return;
  c.window_size = keys.count_or("window_size", 112, 1, 1 << 20);
  if (c.window_tokens() < 1) {
    throw Error(Errc::bad_file, concat(keys.file().path(), ": windows of ", c.window_size, " pixels hold no ", c.merge_size, " x ",
                                       c.merge_size, " patches of ", c.patch_size));
  }
  for (std::int32_t l = 0; l < c.n_layers; ++l) c.layers[std::size_t(l)].full_attention = (l + 1) % pattern == 0;
}

/// The tensors decide, as they do for llama.cpp; the key may not contradict them.
inline void read_deepstack(arch::Keys const& keys, VisionFamily const& family, VisionConfig& c) {
  if (!family.positions) return;
  for (std::int32_t l = 0; l < c.n_layers; ++l) {
    c.layers[std::size_t(l)].deepstack = keys.file().find_tensor(concat("v.deepstack.", l, ".fc1.weight")) != nullptr;
  }
  if (!keys.has("is_deepstack_layers")) return;
  auto const said = keys.require<std::vector<bool>>("is_deepstack_layers");
  if (said.size() != c.layers.size()) {
    throw Error(Errc::bad_file, concat(keys.file().path(), ": ", keys.full("is_deepstack_layers"), " holds ", said.size(), " values for ",
                                       c.n_layers, " layers"));
  }
  for (std::size_t l = 0; l < said.size(); ++l) {
    if (said[l] != c.layers[l].deepstack) {
      throw Error(Errc::bad_file, concat(keys.file().path(), ": ", keys.full("is_deepstack_layers"), " and the tensor v.deepstack.", l,
                                         ".fc1.weight do not agree"));
    }
  }
}

/// From the tensors: what Qwen2-VL files say of it is another number.
inline void read_hidden_dim(arch::Keys const& keys, VisionFamily const& family, VisionConfig& c) {
  Shape const up = keys.file().require_tensor("v.blk.0.ffn_up.weight").shape;
  std::int64_t const hidden = up.rank != 2 ? 0 : up.cols() == c.dim ? up.rows() : up.cols();  // the latter under the other's name
  std::int32_t const said = keys.count("feed_forward_length", 0, arch::max_dim);
  if (hidden < 1 || hidden > arch::max_dim || (family.projector != "qwen2vl_merger" && said != 0 && said != hidden)) {
    throw Error(Errc::bad_file, concat(keys.file().path(), ": v.blk.0.ffn_up.weight is ", up.rows(), " x ", up.cols(), " where ",
                                       keys.full("feed_forward_length"), " is ", said));
  }
  c.hidden_dim = std::int32_t(hidden);
}

inline void read_position_side(GgufFile const& file, VisionFamily const& family, VisionConfig& c) {
  if (!family.positions) return;
  Shape const shape = file.require_tensor("v.position_embd.weight").shape;
  std::int64_t const n = shape.rank == 2 ? shape.rows() : 0;
  auto const side = std::int64_t(std::lround(std::sqrt(double(n))));
  if (n < 1 || n > (1 << 24) || side * side != n) {
    throw Error(Errc::bad_file, concat(file.path(), ": v.position_embd.weight has ", n, " rows, which is no square"));
  }
  c.position_side = std::int32_t(side);
}

}  // namespace detail

RopeTable vision_rope(VisionConfig const& config) {
  std::int32_t const half = config.head_dim / 2, quarter = half / 2;
  RopeTable table;
  for (std::int32_t pair = 0; pair < half; ++pair) {
    table.inv_freq.push_back(float(std::pow(double(config.rope_base), -double(pair % quarter) / quarter)));
    table.position_row.push_back(pair < quarter ? 1 : 2);
  }
  return table;
}

VisionConfig read_vision_config(GgufFile const& file) {
  detail::VisionFamily const& family = detail::find_vision_family(file);
  if (family.norm == VisionNorm::layer && file.get_or<bool>("clip.use_rms_norm", false)) {
    throw Error(Errc::unsupported, concat(file.path(), ": clip.use_rms_norm in a ", family.projector,
                                          ": an early converter's file of Qwen2.5-VL, which today's writes otherwise"));
  }
  arch::Keys const keys(file, "clip.vision");
  VisionConfig c;
  c.projector = family.projector;
  c.name = file.get_or<std::string>("general.name", c.projector);
  c.patch_size = keys.count("patch_size", 1, 256);
  c.merge_size = keys.count_or("spatial_merge_size", 2, 1, 16);
  c.dim = keys.count("embedding_length", 1, arch::max_dim);
  c.n_layers = keys.count("block_count", 1, arch::max_layers);
  c.n_heads = keys.count("attention.head_count", 1, arch::max_heads);
  c.head_dim = c.dim / c.n_heads;
  if (c.dim % c.n_heads != 0 || c.head_dim % 4 != 0) {
    throw Error(Errc::bad_file, concat(file.path(), ": ", c.n_heads, " heads of ", c.dim,
                                       " elements: a head needs a multiple of 4, pairs for rows and for columns"));
  }
  c.output_dim = keys.count("projection_dim", 1, arch::max_dim);
  c.norm = family.norm;
  c.norm_eps = arch::require_positive(keys, "attention.layer_norm_epsilon", keys.require<float>("attention.layer_norm_epsilon"));
  c.activation = detail::read_activation(file);
  c.gated = family.gated;
  c.image_mean = detail::read_channels(file, "clip.vision.image_mean", false);
  c.image_std = detail::read_channels(file, "clip.vision.image_std", true);
  detail::read_pixels(keys, family, c);
  detail::read_windows(keys, family, c);
  detail::read_deepstack(keys, family, c);
  detail::read_hidden_dim(keys, family, c);
  detail::read_position_side(file, family, c);
  return c;
}

}  // namespace tiered
