/// What all decoder architectures read from a file's metadata alike.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tiered/core/error.hpp"
#include "tiered/core/text.hpp"
#include "tiered/io/gguf.hpp"
#include "tiered/model/config.hpp"

namespace tiered::arch {

/// Keys under an architecture's prefix: keys.require<int>("block_count") reads "llama.block_count".
class Keys {
 public:
  Keys(GgufFile const& file, std::string_view prefix) : file_(&file), prefix_(prefix) {}
  GgufFile const& file() const { return *file_; }
  std::string full(std::string_view key) const { return concat(prefix_, '.', key); }
  template <class T>
  T require(std::string_view key) const {
    return file_->require<T>(full(key));
  }
  template <class T>
  T get_or(std::string_view key, T fallback) const {
    return file_->get_or<T>(full(key), std::move(fallback));
  }
  bool has(std::string_view key) const { return file_->find(full(key)) != nullptr; }

  /// A count within [least, most]; bad_file with the value otherwise.
  std::int32_t count(std::string_view key, std::int64_t least, std::int64_t most) const {
    return checked(key, require<std::int64_t>(key), least, most);
  }
  std::int32_t count_or(std::string_view key, std::int32_t fallback, std::int64_t least, std::int64_t most) const {
    return has(key) ? count(key, least, most) : fallback;
  }
  /// One value for each layer: the key holds a number for all or an array of one each.
  std::vector<std::int32_t> per_layer(std::string_view key, std::int32_t n_layers, std::int64_t least, std::int64_t most) const {
    GgufValue const* const value = file_->find(full(key));
    if (value == nullptr || !value->is_array()) return std::vector<std::int32_t>(std::size_t(n_layers), count(key, least, most));
    auto const values = value->as<std::vector<std::int64_t>>();
    if (values.size() != std::size_t(n_layers)) {
      throw Error(Errc::bad_file, concat(full(key), " holds ", values.size(), " values for ", n_layers, " layers"));
    }
    std::vector<std::int32_t> out;
    for (std::int64_t v : values) out.push_back(checked(key, v, least, most));
    return out;
  }

 private:
  std::int32_t checked(std::string_view key, std::int64_t value, std::int64_t least, std::int64_t most) const {
    if (value < least || value > most) {
      throw Error(Errc::bad_file, concat(full(key), " is ", value, ", outside of what can be: ", least, " to ", most));
    }
    return std::int32_t(value);
  }
  GgufFile const* file_;
  std::string prefix_;
};

inline constexpr std::int64_t max_layers = 4096, max_dim = 1 << 20, max_heads = 1 << 14, max_context = std::int64_t{1} << 30;
inline constexpr std::int32_t max_experts = 1024;  ///< of a layer: what the routers of all devices take

/// A finite number > 0; bad_file with the value otherwise.
inline float require_positive(Keys const& keys, std::string_view key, float value) {
  if (!(value > 0) || !std::isfinite(value)) throw Error(Errc::bad_file, concat(keys.full(key), " is ", value, ", not a positive number"));
  return value;
}

/// Angles of rotary embedding (Su et al., RoFormer, 2021): base^(-2i / n_rot), divided by `factor` (linear scaling) and by
/// factors[i] where given (Llama 3.1's per-frequency factors, the tensor rope_freqs.weight).
inline RopeTable make_rope_table(float base, std::int32_t n_rot, float factor, std::vector<float> const& factors = {}) {
  RopeTable table;
  for (std::int32_t i = 0; i < n_rot / 2; ++i) {
    double const f = std::pow(double(base), -2.0 * i / n_rot) / double(factor) / (factors.empty() ? 1.0 : double(factors[std::size_t(i)]));
    if (!std::isfinite(float(f)))
      throw Error(Errc::bad_file, concat("a rope base of ", base, " scaled by ", factor, " gives an angle that is no number"));
    table.inv_freq.push_back(float(f));
  }
  return table;
}

/// Which of time (0), height (1) and width (2) turns each of n_pairs: rope.dimension_sections counts the pairs of each, as
/// `mrope_section` of Qwen2-VL and Qwen3-VL (Hugging Face transformers); files pad it with zeros. One section stands behind the other, or
/// heights and widths stand at every third pair, from 1 and 2 on, as long as they last, and the rest is time's.
inline std::vector<std::uint8_t> read_position_row(Keys const& keys, std::int32_t n_pairs, bool interleaved) {
  auto const sections = keys.require<std::vector<std::int64_t>>("rope.dimension_sections");
  std::int64_t sum = 0;
  for (std::int64_t n : sections) {
    if (n < 0 || n > n_pairs) throw Error(Errc::bad_file, concat(keys.full("rope.dimension_sections"), " holds ", n));
    sum += n;
  }
  if (sections.size() < std::size_t(rope_position_rows) || sum != n_pairs) {
    throw Error(Errc::bad_file, concat(keys.full("rope.dimension_sections"), " holds ", sections.size(), " sections of ", sum,
                                       " pairs in all; heads have ", n_pairs));
  }
  for (std::size_t i = rope_position_rows; i < sections.size(); ++i) {
    if (sections[i] != 0)
      throw Error(Errc::unsupported, concat(keys.full("rope.dimension_sections"), ": rotary positions of more than time, height, width"));
  }
  std::vector<std::uint8_t> row;
  for (std::int64_t i = 0; i < n_pairs; ++i) {
    if (interleaved) {
      row.push_back(i % 3 != 0 && i < 3 * sections[std::size_t(i % 3)] ? std::uint8_t(i % 3) : std::uint8_t{0});
    } else {
      row.push_back(i < sections[0] ? std::uint8_t{0} : i < sections[0] + sections[1] ? std::uint8_t{1} : std::uint8_t{2});
    }
  }
  return row;
}

/// The linear scaling factor that the file names, 1 without; other kinds of scaling are refused by name.
inline float rope_scaling_factor(Keys const& keys) {
  auto const kind = keys.get_or<std::string>("rope.scaling.type", keys.has("rope.scaling.factor") ? "linear" : "none");
  if (kind == "none") return require_positive(keys, "rope.scale_linear", keys.get_or<float>("rope.scale_linear", 1.f));
  if (kind == "linear") return require_positive(keys, "rope.scaling.factor", keys.get_or<float>("rope.scaling.factor", 1.f));
  throw Error(Errc::unsupported,
              concat(keys.full("rope.scaling.type"), " is \"", kind, "\"; supported: none, linear, and the tensor rope_freqs.weight"));
}

inline std::vector<float> read_rope_factors(GgufFile const& file, std::int32_t n_rot) {
  GgufTensor const* const tensor = file.find_tensor("rope_freqs.weight");
  if (tensor == nullptr) return {};
  if (tensor->dtype != DType::f32 || tensor->data.size() != std::size_t(n_rot / 2) * sizeof(float)) {
    throw Error(Errc::bad_file, concat("rope_freqs.weight should hold ", n_rot / 2, " values of f32"));
  }
  std::vector<float> factors(std::size_t(n_rot / 2));
  std::memcpy(factors.data(), tensor->data.data(), tensor->data.size());
  for (float f : factors) {
    if (!(f > 0) || !std::isfinite(f)) throw Error(Errc::bad_file, "rope_freqs.weight holds a factor that is not a positive number");
  }
  return factors;
}

/// Sizes, heads, norms and one rope table: all that a plain decoder needs.
inline ModelConfig read_common(Keys const& keys) {
  ModelConfig c;
  c.architecture = keys.file().require<std::string>("general.architecture");
  c.name = keys.file().get_or<std::string>("general.name", c.architecture);
  c.n_layers = keys.count("block_count", 1, max_layers);
  c.dim = keys.count("embedding_length", 1, max_dim);
  c.max_seq_len = keys.count("context_length", 1, max_context);
  c.norm_eps = require_positive(keys, "attention.layer_norm_rms_epsilon", keys.require<float>("attention.layer_norm_rms_epsilon"));
  auto const n_heads = keys.per_layer("attention.head_count", c.n_layers, 1, max_heads);
  auto const n_kv_heads =
      keys.has("attention.head_count_kv") ? keys.per_layer("attention.head_count_kv", c.n_layers, 1, max_heads) : n_heads;
  auto const hidden = keys.per_layer("feed_forward_length", c.n_layers, 0, max_dim);
  for (std::size_t l = 0; l < std::size_t(c.n_layers); ++l) {
    LayerConfig layer;
    AttentionConfig& a = layer.attention;
    a.n_heads = n_heads[l];
    a.n_kv_heads = n_kv_heads[l];
    a.head_dim = keys.count_or("attention.key_length", c.dim / a.n_heads, 2, 4096);
    if (a.n_heads % a.n_kv_heads != 0)
      throw Error(Errc::bad_file, concat("layer ", l, " has ", a.n_heads, " query heads for ", a.n_kv_heads, " key heads"));
    if (a.head_dim < 2 || a.head_dim > 4096 || a.head_dim % 2 != 0)
      throw Error(Errc::bad_file, concat("layer ", l, " has a head size of ", a.head_dim));
    if (l > 0 && a.head_dim != c.layers.front().attention.head_dim) {
      throw Error(Errc::unsupported, concat("heads of size ", a.head_dim, " in layer ", l, " and of size ",
                                            c.layers.front().attention.head_dim, " in layer 0"));
    }
    if (keys.count_or("attention.value_length", a.head_dim, 1, 4096) != a.head_dim) {
      throw Error(Errc::unsupported, "heads whose keys and values differ in size");
    }
    a.scale = keys.has("attention.scale") ? require_positive(keys, "attention.scale", keys.require<float>("attention.scale"))
                                          : float(1 / std::sqrt(double(a.head_dim)));
    layer.hidden_dim = hidden[l];
    c.layers.push_back(layer);
  }
  return c;
}

/// The number of rotated elements of a head.
inline std::int32_t read_n_rot(Keys const& keys, ModelConfig const& c) {
  std::int32_t const head_dim = c.layers.front().attention.head_dim;
  std::int32_t const n_rot = keys.count_or("rope.dimension_count", head_dim, 2, head_dim);
  if (n_rot % 2 != 0) throw Error(Errc::bad_file, concat(keys.full("rope.dimension_count"), " is ", n_rot, ", not even"));
  return n_rot;
}

inline float read_rope_base(Keys const& keys) {
  return require_positive(keys, "rope.freq_base", keys.get_or<float>("rope.freq_base", 10000.f));
}

}  // namespace tiered::arch
